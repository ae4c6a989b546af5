/*
 * certs.h - certificate and key of an HTTP server with TLS (libmicrohttpd with GnuTLS), read again when they change.
 *
 * One pair a process is served: the library's callback has no argument of ours.
 */
#ifndef RELATA_HTTP_CERTS_H
#define RELATA_HTTP_CERTS_H

#include "common/base/status.h"

#define TLS_PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"

struct certs;
/* ST_CONFIG names the file. */
enum status certs_new(struct certs **out, const char *cert_file, const char *key_file, struct err *err) MUST_CHECK;
void certs_free(struct certs *c); /* accepts NULL */
/* Reads the files again if they changed; a pair that does not fit keeps the former one and is logged once. */
void certs_look(struct certs *c);
/* For MHD_OPTION_HTTPS_CERT_CALLBACK2; serves the certs that certs_new made last. */
void *certs_callback(void);

#endif
