/*
 * keys.h - preshared keys: a file with one a line, kept as SHA-256 digests, read again when it changes.
 */
#ifndef RELATA_AUTHZ_HTTP_KEYS_H
#define RELATA_AUTHZ_HTTP_KEYS_H

#include "common/base/status.h"

struct keys;
/* path "": no keys, nobody is refused. ST_CONFIG: no such file, no key in it, a key of less than 8 or more than 1000
 * bytes. */
enum status keys_new(struct keys **out, const char *path, struct err *err) MUST_CHECK;
void keys_free(struct keys *k); /* accepts NULL */
/* NULL: let in. Else OpenFGA's code: "bearer_token_missing" or "unauthenticated". `authorization`: the header, or NULL.
 * Takes the same time for every wrong key. Any thread. */
const char *keys_refuse(struct keys *k, const char *authorization);
/* Reads the file again if it changed; one that cannot be used keeps the former keys and is logged once. One thread. */
void keys_look(struct keys *k);

#endif
