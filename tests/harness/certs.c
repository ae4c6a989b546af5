#include "tests/harness/certs.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void die(const char *what)
{
    fprintf(stderr, "certs: %s failed\n", what);
    abort();
}

static FILE *open_file(const char *dir, const char *name, const char *kind, const char *mode)
{
    char path[512];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s.%s", dir, name, kind);
    f = fopen(path, mode);
    if (!f)
        die(path);
    return f;
}

static void add_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509_EXTENSION *ext;
    X509V3_CTX ctx;

    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    if (!ext || X509_add_ext(cert, ext, -1) != 1)
        die(value);
    X509_EXTENSION_free(ext);
}

static X509 *blank(const char *name, EVP_PKEY *key)
{
    X509 *cert = X509_new();
    uint64_t serial = 0;

    if (!cert || RAND_bytes((unsigned char *)&serial, sizeof(serial)) != 1)
        die("X509_new");
    ASN1_INTEGER_set_uint64(X509_get_serialNumber(cert), serial >> 1);
    X509_set_version(cert, X509_VERSION_3);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 86400);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_pubkey(cert, key);
    return cert;
}

void certs_make(const char *dir, const char *name, const char *issuer)
{
    EVP_PKEY *key = EVP_EC_gen("P-256"), *signer = key;
    X509 *cert = key ? blank(name, key) : NULL, *authority = cert;
    FILE *f;

    if (!cert)
        die("EVP_EC_gen");
    if (issuer) {
        f = open_file(dir, issuer, "pem", "re");
        authority = PEM_read_X509(f, NULL, NULL, NULL);
        fclose(f);
        f = open_file(dir, issuer, "key", "re");
        signer = PEM_read_PrivateKey(f, NULL, NULL, NULL);
        fclose(f);
    }
    if (!authority || !signer)
        die(issuer);
    X509_set_issuer_name(cert, X509_get_subject_name(authority));
    add_extension(cert, authority, NID_basic_constraints, issuer ? "CA:FALSE" : "critical,CA:TRUE");
    if (issuer)
        add_extension(cert, authority, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
    if (X509_sign(cert, signer, EVP_sha256()) == 0)
        die("X509_sign");
    f = open_file(dir, name, "pem", "we");
    if (PEM_write_X509(f, cert) != 1 || fclose(f) != 0)
        die("PEM_write_X509");
    f = open_file(dir, name, "key", "we");
    if (PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL) != 1 || fclose(f) != 0)
        die("PEM_write_PrivateKey");
    if (issuer) {
        X509_free(authority);
        EVP_PKEY_free(signer);
    }
    X509_free(cert);
    EVP_PKEY_free(key);
}
