/*
 * store_auth.h - private to common/store: the bearer token of a peer: none, a preshared key, or OIDC client credentials
 * with a cache that all threads share. Secrets never appear in errors.
 */
#ifndef RELATA_STORE_STORE_AUTH_H
#define RELATA_STORE_STORE_AUTH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/store/store.h"
#include "common/store/store_http.h"

struct store_auth;

/* ST_CONFIG names the setting. `cfg` must outlive it. */
enum status store_auth_new(struct store_auth **out, const struct cfg_store *cfg, struct err *err) MUST_CHECK;
void store_auth_free(struct store_auth *a); /* accepts NULL */

/*
 * The token to send: malloc'd, NULL if there is none; *generation tells tokens apart. With OIDC one thread fetches a
 * token (over `w`) while the others go on with the old one, or wait if there is none. A failed fetch is not repeated
 * for a second. ST_DENIED: the token endpoint refused us; ST_RETRY, ST_THROTTLED, ST_DEADLINE, ST_STOPPED, ST_CONFIG.
 */
enum status store_auth_token(struct store_auth *a, struct store_wire *w, mono_us deadline, char **token,
                             uint64_t *generation, struct err *err) MUST_CHECK;
/* The store refused the token of this generation: forget it. True if asking for another one makes sense. */
bool store_auth_refused(struct store_auth *a, uint64_t generation);
/* Overwrite and free. Accepts NULL. */
void store_auth_wipe(char *secret);

/* How long to use a token that is valid for `expires_s` seconds (0 = not told), in seconds. */
int64_t store_auth_lifetime_s(int64_t expires_s);

#endif
