/*
 * jwt.h - signed tokens: taken apart, checked against keys and rules. Part of callers/. Thread-safe: all that is shared
 * is immutable.
 */
#ifndef RELATA_LISTER_CALLERS_JWT_H
#define RELATA_LISTER_CALLERS_JWT_H

#include <jansson.h>
#include <stdint.h>

#include "inventory-lister/callers/caller.h"

#define JWT_MAX (16U * 1024)
#define JWT_KID_MAX 255
#define JWKS_MAX_BYTES (256U * 1024)
#define JWKS_MAX_KEYS 64

/* One signature algorithm, and the key that it takes. */
struct jwt_alg {
    const char *name;
    unsigned bit; /* in jwt_rules.algorithms */
    int jwa;      /* rhonabwy's number */
    const char *kty, *crv;
};

struct jwt_rules {
    unsigned algorithms; /* bits of jwt_alg */
    const char *issuer, *audience, *subject_claim, *subject_type;
    unsigned rights;
    int64_t skew_s;
};

/* "RS256,ES256"; ST_INVALID names the word. */
enum status jwt_algorithms_parse(const char *text, unsigned *out, struct err *err) MUST_CHECK;

/* ---- a token's own parts ---- */
struct jwt_head {
    const struct jwt_alg *alg;
    char kid[JWT_KID_MAX + 1];
    bool has_kid;
    struct bytes payload; /* base64url, within the token */
};
/* Three parts of base64url, a header with a known asymmetric algorithm and nothing that must be understood and is not.
 * ST_DENIED, "invalid_token". */
enum status jwt_head_parse(struct bytes token, struct jwt_head *out, struct err *err) MUST_CHECK;

/* ---- keys ---- */
struct jwks;
/* Public signature keys of a JWKS; the unusable ones are left out and counted in *skipped. ST_INVALID: it is no JWKS,
 * or holds no usable key. */
enum status jwks_parse(struct bytes json, struct jwks **out, size_t *skipped, struct err *err) MUST_CHECK;
struct jwks *jwks_ref(struct jwks *k);
void jwks_unref(struct jwks *k); /* accepts NULL */
size_t jwks_count(const struct jwks *k);

/* ---- the whole ---- */
/* ST_OK with a reference and the second of Unix time until which it holds. ST_DENIED: "invalid_token" or
 * "expired_token". ST_NOT_FOUND: no key of that kid and algorithm is known (also if `keys` is NULL). */
enum status jwt_verify(const struct jwt_rules *rules, struct jwks *keys, struct bytes token, int64_t now_s,
                       struct caller_impl **out, int64_t *until_s, struct err *err) MUST_CHECK;

#endif
