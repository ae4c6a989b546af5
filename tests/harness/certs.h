/*
 * certs.h - throw-away authorities and certificates for tests of TLS, as PEM files. Failures end the process.
 */
#ifndef RELATA_TESTS_CERTS_H
#define RELATA_TESTS_CERTS_H

/* Writes <dir>/<name>.pem and <dir>/<name>.key: an authority if `issuer` is NULL, else a certificate that the authority
 * of that name in `dir` has signed, for localhost and 127.0.0.1, for servers and clients. */
void certs_make(const char *dir, const char *name, const char *issuer);

#endif
