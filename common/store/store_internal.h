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

#endif
