/* rows.h - rows from Postgres into the stores in memory: all of them at first, then what another process has changed.
 */
#ifndef RELATA_AUTHZ_STORES_ROWS_H
#define RELATA_AUTHZ_STORES_ROWS_H

#include "authz-store/durable/load.h"
#include "authz-store/stores/internal.h"

/* Deleted stores of which something is left in Postgres. */
struct sweep {
    char (*ids)[STORE_ID_LEN + 1];
    size_t n, cap;
};
bool sweep_add(struct sweep *w, const char *id);

/* The keeper's. If loading fails half-way, what is there is to be thrown away: rows_clear(). */
enum status rows_load(struct stores *s, struct pg *pg, struct sweep *sweep, int64_t *last_id,
                      struct err *err) MUST_CHECK;
/* From *last_id on, which moves as far as it got. A reader may see part of another process's write meanwhile. */
enum status rows_follow(struct stores *s, struct pg *pg, struct sweep *sweep, int64_t *last_id,
                        struct err *err) MUST_CHECK;
void rows_clear(struct stores *s);

#endif
