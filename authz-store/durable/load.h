/*
 * load.h - what Postgres holds, given row by row: all of it, or what has changed since an id. Each call reads one
 * snapshot.
 *
 * Rows come in this order: stores, models (oldest first), assertions, then tuples (load) or changes (follow, by id).
 * Texts are valid during the call. A status other than ST_OK from a callback ends it.
 */
#ifndef RELATA_AUTHZ_DURABLE_LOAD_H
#define RELATA_AUTHZ_DURABLE_LOAD_H

#include "common/pg/pg.h"

struct load_tuple {
    const char *store, *object, *relation, *subject;
    const char *condition, *context; /* NULL = none */
    int64_t change;                  /* follow only */
    bool removed;
};

struct load_rows {
    /* `deleted`: its row alone is left; `swept`: that too is settled. */
    enum status (*store)(void *arg, const char *id, const char *name, int64_t created_us, int64_t updated_us,
                         bool deleted, bool swept, struct err *err);
    enum status (*model)(void *arg, const char *store, const char *id, const char *json, struct err *err);
    enum status (*assertions)(void *arg, const char *store, const char *model, const char *json, struct err *err);
    enum status (*tuple)(void *arg, const struct load_tuple *t, struct err *err);
    void *arg;
};

/* *last_id: the state that was read is that after this change. `idle_ms`: longest silence of the server. */
enum status load_all(struct pg *pg, const struct load_rows *rows, int64_t *last_id, int64_t idle_ms,
                     struct err *err) MUST_CHECK;
/* Changes above `since`; nothing is asked but the last id if there are none. */
enum status load_since(struct pg *pg, int64_t since, const struct load_rows *rows, int64_t *last_id, int64_t idle_ms,
                       struct err *err) MUST_CHECK;
/* Estimated tuples, for progress; 0 = unknown. */
enum status load_estimate(struct pg *pg, int64_t *tuples, mono_us deadline, struct err *err) MUST_CHECK;

#endif
