/*
 * callers.h - who asks, and what they may do: bearer tokens from a file, JWTs against a JWKS, Unix socket peers.
 *
 * Token file, one caller a line: `NAME SHA256-HEX [subject=user:anne] [rights=list,name-subject,diagnose]
 * [claim.tenant=t1]...`; comments with '#'. A bearer token is hashed and looked up by its hash, compared in constant time.
 * It must not be readable by others (0640 at most), and is read again when it changes; a file with a fault keeps the
 * former callers and says so.
 * JWT: RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA by configuration, never "none" or HMAC; no JWE; no key from
 * the token itself (jku, x5u, jwk are ignored). Keys from jwks_file or jwks_url (https, or http on loopback); an unknown
 * "kid" fetches anew, at most once in 30 s. exp is required, nbf and iat are looked at, with clock_skew; iss and aud must be
 * the configured ones. The subject is "<subject_type>:<claim>", its claim encoded where the store's grammar needs it.
 * Unix socket: SO_PEERCRED's uid, mapped in [peers] uid.<n> = NAME attributes as above.
 *
 * Thread-safe. callers_identify() never blocks on the network: fetching keys happens in a thread of its own, and a token
 * with an unknown key is refused meanwhile with 401 (counted).
 */
#ifndef RELATA_LISTER_CALLERS_CALLERS_H
#define RELATA_LISTER_CALLERS_CALLERS_H

#include <stdbool.h>
#include <sys/types.h>

#include "common/base/status.h"
#include "common/config/config.h"

enum caller_right {
    RIGHT_LIST = 1,         /* ask about oneself: lists, rows, evaluations */
    RIGHT_NAME_SUBJECT = 2, /* ask about another subject */
    RIGHT_DIAGNOSE = 4,     /* explain; scanned, checked, cached, as_of, plan and Server-Timing in answers */
};

struct cfg_callers {
    char *tokens_file;
    char *jwks_file, *jwks_url, *jwks_ca_file;
    char *issuer, *audience, *algorithms, *subject_claim, *subject_type, *jwt_rights;
    int64_t clock_skew_ms;
    bool anonymous; /* everybody has every right: only on loopback and Unix sockets, refused elsewhere */
    struct cfg_map peers;
};
/* CFG_CALLERS_KEYS(T, m) belongs here: section [callers]. */

/* One who asks; counted, so that in-flight bounds hold over reloads. */
struct caller {
    const char *name;    /* for logs, metrics and bounds */
    const char *subject; /* "user:anne"; "" = none of their own: must name one */
    unsigned rights;
    /* private */
    void *impl;
};
/* The claim's value, or NULL: what collections bind a column to. */
const char *caller_claim(const struct caller *c, const char *claim);

struct callers;
enum status callers_new(struct callers **out, const struct cfg_callers *cfg, struct err *err) MUST_CHECK;
void callers_free(struct callers *c); /* accepts NULL */

/* `authorization` is the header's value or NULL; `peer_uid` is -1 for TCP. ST_OK with a reference that caller_release
 * gives back; ST_DENIED with the reason in err.code: "missing_token", "invalid_token", "expired_token" (err.text never
 * holds any of the token). */
enum status callers_identify(struct callers *c, const char *authorization, long peer_uid, const struct caller **out,
                             struct err *err) MUST_CHECK;
void caller_release(const struct caller *c); /* accepts NULL */

/* In-flight accounting: false if the caller has `max` requests already. */
bool caller_enter(const struct caller *c, int64_t max);
void caller_leave(const struct caller *c);

#endif
