/* jwks_fetch.h - keys from a URL. Part of callers/. */
#ifndef RELATA_LISTER_CALLERS_JWKS_FETCH_H
#define RELATA_LISTER_CALLERS_JWKS_FETCH_H

#include <stdatomic.h>

#include "inventory-lister/callers/jwt.h"

/* https, or http on loopback; no credentials in it. ST_CONFIG. */
enum status jwks_url_check(const char *url, struct err *err) MUST_CHECK;
/* A file that holds a PEM certificate. ST_CONFIG. */
enum status jwks_ca_check(const char *path, struct err *err) MUST_CHECK;
/* Blocks up to 10 s, or until *stop: ST_OK, ST_STOPPED, or ST_RETRY with the reason. No redirects are followed. */
enum status jwks_fetch(const char *url, const char *ca_file, const atomic_bool *stop, struct jwks **out,
                       size_t *skipped, struct err *err) MUST_CHECK;

#endif
