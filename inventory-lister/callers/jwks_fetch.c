#include "inventory-lister/callers/jwks_fetch.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <string.h>

#define FETCH_MS 10000L

static enum status bad_url(struct err *err, const char *why)
{
    return err_set(err, ST_CONFIG, NULL, "callers.jwks_url: %s", why);
}

/* A name such as "127.0.0.1.example" is none. */
static bool is_loopback(const char *host)
{
    struct in_addr v4;

    if (strcmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0)
        return true;
    return inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127;
}

enum status jwks_url_check(const char *url, struct err *err)
{
    CURLU *u = curl_url();
    char *scheme = NULL, *host = NULL, *user = NULL;
    enum status st = ST_OK;

    if (!u)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    if (curl_url_set(u, CURLUPART_URL, url, 0) != CURLUE_OK ||
        curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK ||
        curl_url_get(u, CURLUPART_HOST, &host, 0) != CURLUE_OK)
        st = bad_url(err, "not a URL; give https://host/path");
    else if (curl_url_get(u, CURLUPART_USER, &user, 0) == CURLUE_OK)
        st = bad_url(err, "credentials do not belong into the URL");
    else if (strcmp(scheme, "https") != 0 && (strcmp(scheme, "http") != 0 || !is_loopback(host)))
        st = bad_url(err, "keys come by https (or http on loopback): whoever can change them is everybody");
    curl_free(scheme);
    curl_free(host);
    curl_free(user);
    curl_url_cleanup(u);
    return st;
}

static int no_passphrase(char *buf, int size, int rwflag, void *arg)
{
    (void)buf, (void)size, (void)rwflag, (void)arg;
    return 0;
}

enum status jwks_ca_check(const char *path, struct err *err)
{
    FILE *f = fopen(path, "re");
    X509 *cert;

    if (!f)
        return err_set(err, ST_CONFIG, NULL, "callers.jwks_ca_file: cannot read \"%s\": %s", path, strerror(errno));
    cert = PEM_read_X509(f, NULL, no_passphrase, NULL);
    fclose(f);
    ERR_clear_error();
    X509_free(cert);
    return cert ? ST_OK : err_set(err, ST_CONFIG, NULL, "callers.jwks_ca_file: \"%s\" holds no PEM certificate", path);
}

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    struct buf *body = arg;

    buf_add(body, data, size * n);
    return buf_ok(body) ? size * n : CURL_WRITEFUNC_ERROR;
}

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    return atomic_load((const atomic_bool *)arg);
}

static void set_options(CURL *curl, const char *url, const char *ca_file, const atomic_bool *stop, struct buf *body)
{
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, FETCH_MS);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, FETCH_MS / 2);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "relata/" RELATA_VERSION);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, body);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, (void *)(uintptr_t)stop);
    if (strncmp(url, "http://", 7) == 0)
        curl_easy_setopt(curl, CURLOPT_PROXY, ""); /* loopback never goes through a proxy */
    if (*ca_file)
        curl_easy_setopt(curl, CURLOPT_CAINFO, ca_file);
}

enum status jwks_fetch(const char *url, const char *ca_file, const atomic_bool *stop, struct jwks **out,
                       size_t *skipped, struct err *err)
{
    CURL *curl = curl_easy_init();
    enum status st = ST_OK;
    struct buf body;
    long code = 0;
    CURLcode rc;

    *out = NULL;
    if (!curl)
        return err_set(err, ST_RETRY, NULL, "no memory for a fetch of keys");
    buf_init(&body, JWKS_MAX_BYTES);
    set_options(curl, url, ca_file, stop, &body);
    rc = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    if (rc == CURLE_ABORTED_BY_CALLBACK)
        st = err_set(err, ST_STOPPED, NULL, "stopped");
    else if (!buf_ok(&body))
        st = err_set(err, ST_RETRY, NULL, "the keys at %s are larger than %u bytes", url, JWKS_MAX_BYTES);
    else if (rc != CURLE_OK)
        st = err_set(err, ST_RETRY, NULL, "cannot fetch the keys at %s: %s", url, curl_easy_strerror(rc));
    else if (code != 200)
        st = err_set(err, ST_RETRY, NULL, "cannot fetch the keys at %s: HTTP status %ld", url, code);
    else if (jwks_parse((struct bytes){buf_str(&body), body.len}, out, skipped, err) != ST_OK) {
        err_prefix(err, "the keys at %s", url);
        st = ST_RETRY;
        if (err)
            err->status = st;
    }
    buf_release(&body);
    curl_easy_cleanup(curl);
    return st;
}
