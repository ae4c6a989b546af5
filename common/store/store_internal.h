/* store_internal.h - private to common/store: what stands behind the handles of store.h. */
#ifndef RELATA_STORE_STORE_INTERNAL_H
#define RELATA_STORE_STORE_INTERNAL_H

#include "common/store/store.h"
#include "common/store/store_auth.h"
#include "common/store/store_http.h"

#define STORE_ID_LEN 26

struct store {
    const struct cfg_store *cfg;
    struct store_peer peer;
    struct store_auth *auth;
};

struct store_conn {
    struct store *store;
    char id[STORE_ID_LEN + 1]; /* "" = not known yet */
    struct store_wire *wire;
    struct store_exchange exchange;
    struct buf request, path;
};

/* Store and model ids: 26 characters of A-Z and 0-9 without I, L, O, U. Others are refused before they are sent: the
 * store would call them a validation error, as if the tuples were at fault. */
bool store_id_valid(const char *id);

/* ---- one call: what all calls of store.h and batch_check.h are made of (store_calls.c) ---- */

enum store_method { STORE_GET, STORE_POST, STORE_POST_ONCE /* never sent twice by curl */ };

enum status store_call_need_store(const struct store_conn *c, struct err *err) MUST_CHECK;
enum status store_call_need_model(const char *model_id, struct err *err) MUST_CHECK;
/* c->path becomes "/stores/<id><tail>". */
void store_call_path(struct store_conn *c, const char *tail);
/* c->path and (for POST) c->request are set. ST_OK: a 2xx answer is there to be read. `traceparent` may be NULL. */
enum status store_call(struct store_conn *c, enum store_method method, const char *traceparent, mono_us deadline,
                       struct err *err) MUST_CHECK;
struct bytes store_call_answer(const struct store_conn *c);
/* Say in err which call of which store failed. Returns st. */
enum status store_call_told(const struct store_conn *c, const char *what, enum status st, struct err *err);

#endif
