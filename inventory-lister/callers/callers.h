/*
 * callers.h - who asks, and what they may do: bearer tokens from a file, JWTs against a JWKS, Unix socket peers.
 *
 * Token file, one caller a line: `NAME SHA256-HEX [subject=user:anne] [rights=list,name-subject,diagnose]
 * [claim.tenant=t1]...`; comments with '#'; rights are "list" if not given. NAME is 1 to 64 of A-Z a-z 0-9 . _ @ -; it
 * may stand in several lines (a new token beside the old one). SHA256-HEX is the digest of the token's text:
 * `printf %s "$TOKEN" | sha256sum`; tokens are random and long (`openssl rand -hex 32`), for the digest has no salt. A
 * bearer token is hashed and looked up by its hash, compared in constant time. The file must not be readable by others
 * (0640 at most), and is read again when it changes; a file with a fault keeps the former callers and says so.
 * JWT: RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA by configuration, never "none" or HMAC; no
 * JWE; no key from the token itself (jku, x5u, x5c, jwk are ignored), no compression, no critical extensions. Keys from
 * jwks_file or jwks_url (https, or http on loopback; no redirects; 256 KiB); symmetric, weak (RSA below 2048 bits) and
 * encryption keys in it are left out. An unknown "kid" fetches anew, at most once in jwks_min_interval. exp is
 * required, nbf and iat are looked at, with clock_skew; iss and aud must be the configured ones. The subject is
 * "<subject_type>:<claim>", its claim encoded as relata.encode_id() does. A token that was verified once is not
 * verified again until it expires or the keys change (1,024 tokens). Unix socket: SO_PEERCRED's uid, mapped in [peers]
 * uid.<n> = NAME and attributes as above. A header `Authorization` that is there must be right: there is no falling
 * back from it to the peer or to anonymous.
 *
 * Thread-safe. callers_identify() never blocks on the network (it may check a signature: about 0.1 ms): fetching keys
 * happens in a thread of its own, and a token with an unknown key is refused meanwhile with 401 (counted).
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
    int64_t clock_skew_ms, jwks_refresh_ms, jwks_min_interval_ms;
    bool anonymous; /* everybody has every right: only on loopback and Unix sockets, refused elsewhere */
    struct cfg_map peers;
};

/* clang-format off */
#define CFG_CALLERS_KEYS(T, m)                                                                                              \
    {"callers", "tokens_file", CFG_STRING, offsetof(T, m.tokens_file), "", 0, 0, NULL, NULL,                                \
     "file of bearer tokens' digests, one caller a line, 0640 at most; read again when it changes; empty = "                \
     "none"},                                                                                                               \
    {"callers", "jwks_file", CFG_STRING, offsetof(T, m.jwks_file), "", 0, 0, NULL, NULL,                                    \
     "file with the public keys (JWKS) of JWTs; read again when it changes; empty = none"},                                 \
    {"callers", "jwks_url", CFG_STRING, offsetof(T, m.jwks_url), "", 0, 0, NULL, NULL,                                      \
     "URL of the public keys (JWKS) of JWTs: https, or http on loopback; empty = none"},                                    \
    {"callers", "jwks_ca_file", CFG_STRING, offsetof(T, m.jwks_ca_file), "", 0, 0, NULL, NULL,                              \
     "authorities that jwks_url's certificate is checked against; empty = the system's"},                                   \
    {"callers", "jwks_refresh", CFG_DURATION, offsetof(T, m.jwks_refresh_ms), "10min", 1000, INT64_C(86400000), NULL, NULL, \
     "pause between two fetches of jwks_url"},                                                                              \
    {"callers", "jwks_min_interval", CFG_DURATION, offsetof(T, m.jwks_min_interval_ms), "30s", 10, 3600000, NULL, NULL,     \
     "shortest pause between two fetches of jwks_url that tokens with an unknown key cause"},                               \
    {"callers", "issuer", CFG_STRING, offsetof(T, m.issuer), "", 0, 0, NULL, NULL,                                          \
     "the iss that JWTs must have; needed with jwks_file and jwks_url"},                                                    \
    {"callers", "audience", CFG_STRING, offsetof(T, m.audience), "", 0, 0, NULL, NULL,                                      \
     "the aud that JWTs must have, alone or among others; needed with jwks_file and jwks_url"},                             \
    {"callers", "algorithms", CFG_STRING, offsetof(T, m.algorithms), "RS256,PS256,ES256,EdDSA", 0, 0, NULL, NULL,           \
     "signature algorithms that JWTs may have: of RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA"},            \
    {"callers", "subject_claim", CFG_STRING, offsetof(T, m.subject_claim), "sub", 0, 0, NULL, NULL,                         \
     "claim of a JWT that names the caller's subject"},                                                                     \
    {"callers", "subject_type", CFG_STRING, offsetof(T, m.subject_type), "user", 0, 0, NULL, NULL,                          \
     "type of that subject in the model"},                                                                                  \
    {"callers", "jwt_rights", CFG_STRING, offsetof(T, m.jwt_rights), "list", 0, 0, NULL, NULL,                              \
     "rights of callers with a JWT: of list, name-subject, diagnose"},                                                      \
    {"callers", "clock_skew", CFG_DURATION, offsetof(T, m.clock_skew_ms), "30s", 0, 300000, NULL, NULL,                     \
     "how far a JWT's times may be off"},                                                                                   \
    {"callers", "anonymous", CFG_BOOL, offsetof(T, m.anonymous), "false", 0, 0, NULL, NULL,                                 \
     "who sends no token has every right; only with a loopback address or a Unix socket"},                                  \
    {"peers", "*", CFG_MAP, offsetof(T, m.peers), "", 0, 0, NULL, NULL,                                                     \
     "uid.<n> = NAME [subject=..] [rights=..] [claim.<name>=..]: who that user is on the Unix socket"}
/* clang-format on */

/* One who asks; counted, so that in-flight bounds hold over reloads. */
struct caller {
    const char *name;    /* for logs and bounds; a JWT's is its subject */
    const char *subject; /* "user:anne"; "" = none of their own: must name one */
    unsigned rights;
    /* private */
    void *impl;
};
/* The claim's value, or NULL: what collections bind a column to. Of a JWT: text, numbers and booleans of its top level,
 * up to 1,024 bytes. */
const char *caller_claim(const struct caller *c, const char *claim);

struct callers;
/* What can be told without connecting: ST_OK or ST_CONFIG, as callers_new() would say (files are read). */
enum status callers_check(const struct cfg_callers *cfg, struct err *err) MUST_CHECK;
/* ST_CONFIG: a setting or file has a fault, or nobody could call. `cfg` must outlive it. A jwks_url that cannot be
 * reached is no error: it is tried again and logged. */
enum status callers_new(struct callers **out, const struct cfg_callers *cfg, struct err *err) MUST_CHECK;
void callers_free(struct callers *c); /* accepts NULL; ends its thread, a fetch included, within a second */
/* Whether a request without any token is let in: the server then insists on loopback. */
bool callers_anonymous(const struct callers *c);

/* `authorization` is the header's value or NULL; `peer_uid` is -1 for TCP. ST_OK with a reference that caller_release
 * gives back (also after callers_free); ST_DENIED with the reason in err.code: "missing_token", "invalid_token",
 * "expired_token" (err.text never holds any of the token). */
enum status callers_identify(struct callers *c, const char *authorization, long peer_uid, const struct caller **out,
                             struct err *err) MUST_CHECK;
void caller_release(const struct caller *c); /* accepts NULL */

/* In-flight accounting: false if the caller has `max` requests already. Lines of one NAME, and tokens of one subject,
 * share it. */
bool caller_enter(const struct caller *c, int64_t max);
void caller_leave(const struct caller *c);

/* Before threads start. */
void callers_metrics_register(void);

#endif
