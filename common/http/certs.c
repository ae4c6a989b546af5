#include "common/http/certs.h"

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/file.h"
#include "common/base/log.h"

#define PEM_MAX (256U * 1024)
#define CHAIN_MAX 16

struct certs {
    const char *cert_file, *key_file;
    struct stat cert_seen, key_seen; /* what was looked at last, taken or not */
    pthread_mutex_t lock;            /* guards the following */
    struct buf cert, key;            /* PEM */
};

/* The library's callback has no argument of ours. */
static pthread_mutex_t current_lock = PTHREAD_MUTEX_INITIALIZER;
static struct certs *current;

/* Whether the two belong together and can be used. */
static enum status check_pair(const struct certs *c, const struct buf *cert, const struct buf *key, struct err *err)
{
    gnutls_datum_t cert_pem = {(unsigned char *)cert->data, (unsigned)cert->len};
    gnutls_datum_t key_pem = {(unsigned char *)key->data, (unsigned)key->len};
    gnutls_certificate_credentials_t credentials;
    int rc = gnutls_certificate_allocate_credentials(&credentials);

    if (rc == 0) {
        rc = gnutls_certificate_set_x509_key_mem(credentials, &cert_pem, &key_pem, GNUTLS_X509_FMT_PEM);
        gnutls_certificate_free_credentials(credentials);
    }
    if (rc < 0)
        return err_set(err, ST_CONFIG, NULL, "http.cert_file %s and http.key_file %s: %s", c->cert_file, c->key_file,
                       gnutls_strerror(rc));
    return ST_OK;
}

static enum status read_pem(const char *path, const char *setting, struct buf *out, struct stat *seen, struct err *err)
{
    enum status st = file_read(path, PEM_MAX, out, seen, err);

    return st == ST_OK ? st : (err_prefix(err, "%s", setting), st);
}

static enum status load(struct certs *c, struct err *err)
{
    struct buf cert, key;
    enum status st;

    buf_init(&cert, PEM_MAX);
    buf_init(&key, PEM_MAX);
    st = read_pem(c->cert_file, "http.cert_file", &cert, &c->cert_seen, err);
    if (st == ST_OK)
        st = read_pem(c->key_file, "http.key_file", &key, &c->key_seen, err);
    if (st == ST_OK)
        st = check_pair(c, &cert, &key, err);
    if (st == ST_OK) {
        struct buf former_cert, former_key;

        pthread_mutex_lock(&c->lock);
        former_cert = c->cert;
        former_key = c->key;
        c->cert = cert;
        c->key = key;
        pthread_mutex_unlock(&c->lock);
        cert = former_cert;
        key = former_key;
    }
    if (key.data)
        explicit_bzero(key.data, key.len);
    buf_release(&cert);
    buf_release(&key);
    return st;
}

enum status certs_new(struct certs **out, const char *cert_file, const char *key_file, struct err *err)
{
    struct certs *c = calloc(1, sizeof *c);
    enum status st;

    *out = NULL;
    if (!c)
        return err_set(err, ST_NOMEM, NULL, "no memory for certificates");
    c->cert_file = cert_file;
    c->key_file = key_file;
    pthread_mutex_init(&c->lock, NULL);
    st = load(c, err);
    if (st != ST_OK) {
        certs_free(c);
        return st;
    }
    pthread_mutex_lock(&current_lock);
    current = c;
    pthread_mutex_unlock(&current_lock);
    *out = c;
    return ST_OK;
}

void certs_free(struct certs *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&current_lock);
    if (current == c)
        current = NULL;
    pthread_mutex_unlock(&current_lock);
    if (c->key.data)
        explicit_bzero(c->key.data, c->key.len);
    buf_release(&c->cert);
    buf_release(&c->key);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void certs_look(struct certs *c)
{
    struct stat cert, key;
    struct err err = {0};

    file_look(c->cert_file, &cert);
    file_look(c->key_file, &key);
    if (file_same(&cert, &c->cert_seen) && file_same(&key, &c->key_seen))
        return;
    c->cert_seen = cert;
    c->key_seen = key;
    if (load(c, &err) == ST_OK)
        log_info("certificate read again", "file", c->cert_file, NULL);
    else
        log_err(LOG_LVL_ERROR, "certificate not read again, the former one stays", &err, NULL);
}

/* ---- handshakes ---- */

/* Copies of the handshake's own: it may last beyond the next rotation. */
static int make_copies(const struct certs *c, gnutls_pcert_st **certs, unsigned *n, gnutls_privkey_t *key)
{
    gnutls_datum_t cert_pem = {(unsigned char *)c->cert.data, (unsigned)c->cert.len};
    gnutls_datum_t key_pem = {(unsigned char *)c->key.data, (unsigned)c->key.len};
    gnutls_pcert_st *list = gnutls_calloc(CHAIN_MAX, sizeof *list);
    unsigned len = CHAIN_MAX;

    if (!list)
        return -1;
    if (gnutls_pcert_list_import_x509_raw(list, &len, &cert_pem, GNUTLS_X509_FMT_PEM, 0) < 0) {
        gnutls_free(list);
        return -1;
    }
    if (gnutls_privkey_init(key) < 0)
        goto failed;
    if (gnutls_privkey_import_x509_raw(*key, &key_pem, GNUTLS_X509_FMT_PEM, NULL, 0) < 0) {
        gnutls_privkey_deinit(*key);
        goto failed;
    }
    *certs = list;
    *n = len;
    return 0;
failed:
    for (unsigned i = 0; i < len; i++)
        gnutls_pcert_deinit(&list[i]);
    gnutls_free(list);
    return -1;
}

static int retrieve(gnutls_session_t session, const struct gnutls_cert_retr_st *info, gnutls_pcert_st **certs,
                    unsigned *n, gnutls_ocsp_data_st **ocsp, unsigned *ocsp_len, gnutls_privkey_t *key, unsigned *flags)
{
    int rc = -1;

    (void)session, (void)info;
    *ocsp = NULL;
    *ocsp_len = 0;
    *flags = GNUTLS_CERT_RETR_DEINIT_ALL;
    pthread_mutex_lock(&current_lock);
    if (current) {
        pthread_mutex_lock(&current->lock);
        rc = make_copies(current, certs, n, key);
        pthread_mutex_unlock(&current->lock);
    }
    pthread_mutex_unlock(&current_lock);
    return rc;
}

void *certs_callback(void)
{
    gnutls_certificate_retrieve_function3 *f = retrieve;
    void *p;

    memcpy(&p, &f, sizeof p);
    return p;
}
