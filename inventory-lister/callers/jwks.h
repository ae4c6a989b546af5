/* jwks.h - the keys that jwt.c looks at. Part of callers/. */
#ifndef RELATA_LISTER_CALLERS_JWKS_H
#define RELATA_LISTER_CALLERS_JWKS_H

#include <jansson.h>
#include <stdatomic.h>

#include "inventory-lister/callers/jwt.h"

struct jwks_key {
    json_t *jwk; /* kty and the public numbers, nothing else */
    char *kid;   /* "" = none */
    char *alg;   /* "" = any that fits */
};

struct jwks {
    atomic_int refs;
    size_t len;
    struct jwks_key keys[JWKS_MAX_KEYS];
};

/* Whether the key is of the algorithm's type and curve, and not meant for another algorithm. */
bool jwks_key_fits(const struct jwks_key *key, const struct jwt_alg *alg);

#endif
