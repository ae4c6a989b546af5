/* internal.h - the state of callers.c (who is it?) and keeper.c (files and keys, kept current). Part of callers/. */
#ifndef RELATA_LISTER_CALLERS_INTERNAL_H
#define RELATA_LISTER_CALLERS_INTERNAL_H

#include <openssl/evp.h>
#include <pthread.h>

#include "common/admin/metrics.h"
#include "common/base/clock.h"
#include "inventory-lister/callers/jwt.h"
#include "inventory-lister/callers/tokens.h"

#define SEEN_SLOTS 1024

struct peer {
    long uid;
    struct caller_impl *caller;
};

/* A JWT that was verified, by its hash. */
struct seen {
    uint8_t hash[TOKEN_HASH_BYTES];
    struct caller_impl *caller;
    int64_t until_s;
};

struct callers {
    const struct cfg_callers *cfg;
    EVP_MD *sha256; /* looked up once: a lookup takes longer than hashing a token */
    struct jwt_rules rules;
    struct caller_impl *anonymous;
    struct peer *peers;
    size_t npeers;

    pthread_mutex_t lock; /* guards the following, to `wanted` */
    pthread_cond_t wake;
    struct tokens *tokens;
    struct jwks *jwks;
    uint64_t jwks_generation;
    struct seen seen[SEEN_SLOTS];
    bool wanted; /* a token named a key that is not known */

    atomic_bool stop;
    pthread_t thread;
    bool running;
    /* of the thread */
    struct stat tokens_seen, jwks_seen;
    mono_us next_fetch, last_fetch;
    unsigned failures;
};

/* The first reading of both files: ST_OK, also if there are none, or ST_CONFIG. */
enum status keeper_load(struct callers *c, struct err *err) MUST_CHECK;
/* Starts the thread that reads files again and fetches keys. */
enum status keeper_start(struct callers *c, struct err *err) MUST_CHECK;
void keeper_stop(struct callers *c);
/* A token named a key that is not known. Never blocks. */
void keeper_want_keys(struct callers *c);

extern struct metric callers_reloaded, callers_reload_failed;

#endif
