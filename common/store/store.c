#include "common/store/store.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/store/store_internal.h"

static bool given(const char *s)
{
    return s && *s;
}

bool store_id_valid(const char *id)
{
    return strspn(id, "0123456789ABCDEFGHJKMNPQRSTVWXYZ") == STORE_ID_LEN && id[STORE_ID_LEN] == '\0';
}

/* ---- TLS files: curl reads them anew for each connection, so that renewed ones are seen; a bad path is told now ----
 */

static int no_passphrase(char *data, int size, int writing, void *arg)
{
    (void)data, (void)size, (void)writing, (void)arg;
    return 0;
}

static enum status open_pem(const char *path, const char *setting, FILE **out, struct err *err)
{
    *out = fopen(path, "re");
    if (!*out)
        return err_set(err, ST_CONFIG, NULL, "%s: cannot read \"%s\": %s", setting, path, strerror(errno));
    return ST_OK;
}

static enum status load_cert(const char *path, const char *setting, X509 **out, struct err *err)
{
    FILE *f;
    enum status st = open_pem(path, setting, &f, err);

    *out = NULL;
    if (st != ST_OK)
        return st;
    *out = PEM_read_X509(f, NULL, no_passphrase, NULL);
    fclose(f);
    ERR_clear_error();
    return *out ? ST_OK : err_set(err, ST_CONFIG, NULL, "%s: \"%s\" holds no PEM certificate", setting, path);
}

static enum status load_key(const char *path, EVP_PKEY **out, struct err *err)
{
    FILE *f;
    enum status st = open_pem(path, "store.key_file", &f, err);

    *out = NULL;
    if (st != ST_OK)
        return st;
    *out = PEM_read_PrivateKey(f, NULL, no_passphrase, NULL);
    fclose(f);
    ERR_clear_error();
    return *out ? ST_OK
                : err_set(err, ST_CONFIG, NULL, "store.key_file: \"%s\" holds no PEM key without a passphrase", path);
}

static enum status check_ca(const char *path, const char *setting, struct err *err)
{
    X509 *cert = NULL;
    enum status st = given(path) ? load_cert(path, setting, &cert, err) : ST_OK;

    X509_free(cert);
    return st;
}

static enum status check_client_cert(const struct cfg_store *cfg, struct err *err)
{
    X509 *cert = NULL;
    EVP_PKEY *key = NULL;
    enum status st;

    if (given(cfg->cert_file) != given(cfg->key_file))
        return err_set(err, ST_CONFIG, NULL, "store.cert_file and store.key_file are given together or not at all");
    if (!given(cfg->cert_file))
        return ST_OK;
    st = load_cert(cfg->cert_file, "store.cert_file", &cert, err);
    if (st == ST_OK)
        st = load_key(cfg->key_file, &key, err);
    if (st == ST_OK && X509_check_private_key(cert, key) != 1)
        st = err_set(err, ST_CONFIG, NULL, "store.key_file: \"%s\" is not the key of store.cert_file \"%s\"",
                     cfg->key_file, cfg->cert_file);
    ERR_clear_error();
    EVP_PKEY_free(key);
    X509_free(cert);
    return st;
}

static enum status check_tls(const struct cfg_store *cfg, struct err *err)
{
    enum status st = check_ca(cfg->ca_file, "store.ca_file", err);

    if (st == ST_OK)
        st = check_ca(cfg->oidc_ca_file, "store.oidc_ca_file", err);
    if (st == ST_OK)
        st = check_client_cert(cfg, err);
    if (st == ST_OK && strncmp(cfg->url, "https:", 6) != 0 && (given(cfg->ca_file) || given(cfg->cert_file)))
        st = err_set(err, ST_CONFIG, NULL,
                     "store.url: \"%s\" is not https, but store.ca_file or store.cert_file is set; use https://",
                     cfg->url);
    return st;
}

/* ---- handles ---- */

static CURLcode curl_ready = CURLE_FAILED_INIT;

static void init_curl(void)
{
    curl_ready = curl_global_init(CURL_GLOBAL_DEFAULT);
}

enum status store_new(struct store **out, const struct cfg_store *cfg, struct err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct store *s;
    enum status st;

    *out = NULL;
    pthread_once(&once, init_curl);
    if (curl_ready != CURLE_OK)
        return err_set(err, ST_FATAL, NULL, "libcurl cannot start: %s", curl_easy_strerror(curl_ready));
    s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(err, ST_NOMEM, NULL, "no memory for the store client");
    s->cfg = cfg;
    st = store_peer_init(&s->peer, cfg->url, "store.url", err);
    if (st == ST_OK)
        st = check_tls(cfg, err);
    if (st == ST_OK)
        st = store_auth_new(&s->auth, cfg, err);
    if (st != ST_OK) {
        store_free(s);
        return st;
    }
    s->peer.ca_file = cfg->ca_file;
    s->peer.cert_file = cfg->cert_file;
    s->peer.key_file = cfg->key_file;
    s->peer.connect_timeout_ms = cfg->connect_timeout_ms;
    *out = s;
    return ST_OK;
}

enum status store_check_settings(const struct cfg_store *cfg, struct err *err)
{
    struct store *s = NULL;
    enum status st = given(cfg->name) ? store_new(&s, cfg, err) : err_set(err, ST_CONFIG, NULL, "store.name is empty");

    store_free(s);
    return st;
}

void store_free(struct store *s)
{
    if (!s)
        return;
    store_auth_free(s->auth);
    store_peer_release(&s->peer);
    free(s);
}

enum status store_conn_new(struct store_conn **out, struct store *s, const char *store_id, struct err *err)
{
    struct store_conn *c = calloc(1, sizeof(*c));
    enum status st;

    *out = NULL;
    if (!c)
        return err_set(err, ST_NOMEM, NULL, "no memory for a connection to the store");
    c->store = s;
    buf_init(&c->request, STORE_REQUEST_MAX);
    buf_init(&c->path, 4096);
    st = store_conn_use(c, store_id, err);
    if (st == ST_OK)
        st = store_wire_new(&c->wire, err);
    if (st == ST_OK)
        st = store_exchange_init(&c->exchange, &s->peer, err);
    if (st != ST_OK) {
        store_conn_free(c);
        return st;
    }
    *out = c;
    return ST_OK;
}

void store_conn_free(struct store_conn *c)
{
    if (!c)
        return;
    store_exchange_release(&c->exchange, c->wire);
    store_wire_free(c->wire);
    buf_release(&c->request);
    buf_release(&c->path);
    free(c);
}

enum status store_conn_use(struct store_conn *c, const char *store_id, struct err *err)
{
    if (*store_id && !store_id_valid(store_id))
        return err_set(err, ST_CONFIG, NULL,
                       "\"%s\" is not a store id (26 of 0-9 and A-Z without I, L, O, U); pin the right one", store_id);
    snprintf(c->id, sizeof(c->id), "%s", store_id);
    return ST_OK;
}

void store_conn_heed_stop(struct store_conn *c, bool heed)
{
    store_wire_heed_stop(c->wire, heed);
}

void store_conn_heed(struct store_conn *c, const atomic_bool *flag)
{
    store_wire_heed(c->wire, flag);
}

void store_conn_wake(struct store_conn *c)
{
    store_wire_wake(c->wire);
}
