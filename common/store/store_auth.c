#include "common/store/store_auth.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/stop.h"
#include "common/base/wait.h"
#include "common/store/store_json.h"

/* For endpoints that do not tell how long a token lives. */
#define LIFETIME_UNTOLD_S 300
/* A token is renewed this long before its end, or after four fifths of a short life. */
#define RENEW_AHEAD_S 60
#define FETCH_TIMEOUT_MS 10000
#define FAILED_PAUSE_US 1000000
/* Waiting for another thread's fetch looks at the stop flag this often. */
#define WAIT_SLICE_US 100000

struct store_auth {
    const struct cfg_store *cfg;
    bool oidc;
    struct store_peer endpoint;

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool fetching;
    char *token; /* NULL = none yet, or refused */
    uint64_t generation;
    mono_us renew_at, expires_at;
    mono_us failed_until; /* do not ask the endpoint again before; `failure` tells why */
    struct err failure;
};

static bool given(const char *s)
{
    return s && *s;
}

void store_auth_wipe(char *secret)
{
    if (secret)
        explicit_bzero(secret, strlen(secret));
    free(secret);
}

/* A token goes into a header line: visible ASCII only. */
static enum status check_token(const char *token, const char *setting, struct err *err)
{
    for (const char *p = token; *p; p++)
        if (*p <= ' ' || *p > '~')
            return err_set(err, ST_CONFIG, NULL, "%s: holds a byte that cannot stand in an HTTP header", setting);
    return ST_OK;
}

static enum status check_settings(const struct cfg_store *cfg, struct err *err)
{
    if (!given(cfg->oidc_token_url)) {
        if (given(cfg->oidc_client_id) || given(cfg->oidc_client_secret))
            return err_set(err, ST_CONFIG, NULL, "store.oidc_client_id is set without store.oidc_token_url");
        return given(cfg->token) ? check_token(cfg->token, "store.token", err) : ST_OK;
    }
    if (given(cfg->token))
        return err_set(err, ST_CONFIG, NULL, "store.token and store.oidc_token_url exclude each other; unset one");
    if (!given(cfg->oidc_client_id) || !given(cfg->oidc_client_secret))
        return err_set(err, ST_CONFIG, NULL,
                       "store.oidc_token_url needs store.oidc_client_id and store.oidc_client_secret");
    return ST_OK;
}

enum status store_auth_new(struct store_auth **out, const struct cfg_store *cfg, struct err *err)
{
    struct store_auth *a;
    enum status st = check_settings(cfg, err);

    *out = NULL;
    if (st != ST_OK)
        return st;
    a = calloc(1, sizeof(*a));
    if (!a)
        return err_set(err, ST_NOMEM, NULL, "no memory for the store's credentials");
    a->cfg = cfg;
    a->oidc = given(cfg->oidc_token_url);
    pthread_mutex_init(&a->lock, NULL);
    wait_cond_init(&a->changed);
    if (a->oidc) {
        st = store_peer_init(&a->endpoint, cfg->oidc_token_url, "store.oidc_token_url", err);
        if (st != ST_OK) {
            store_auth_free(a);
            return st;
        }
        a->endpoint.ca_file = cfg->oidc_ca_file;
        a->endpoint.connect_timeout_ms = cfg->connect_timeout_ms;
    }
    *out = a;
    return ST_OK;
}

void store_auth_free(struct store_auth *a)
{
    if (!a)
        return;
    store_peer_release(&a->endpoint);
    store_auth_wipe(a->token);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

int64_t store_auth_lifetime_s(int64_t expires_s)
{
    if (expires_s <= 0)
        expires_s = LIFETIME_UNTOLD_S;
    return expires_s > 5 * RENEW_AHEAD_S ? expires_s - RENEW_AHEAD_S : expires_s * 4 / 5;
}

/* ---- the token endpoint ---- */

static void form_field(struct buf *form, CURL *easy, const char *name, const char *value)
{
    char *escaped;

    if (!given(value))
        return;
    escaped = curl_easy_escape(easy, value, (int)strlen(value));
    if (!escaped) {
        form->failed = true;
        return;
    }
    buf_addf(form, "%s%s=%s", form->len > 0 ? "&" : "", name, escaped);
    explicit_bzero(escaped, strlen(escaped));
    curl_free(escaped);
}

static void make_form(struct buf *form, CURL *easy, const struct cfg_store *cfg)
{
    form_field(form, easy, "grant_type", "client_credentials");
    form_field(form, easy, "client_id", cfg->oidc_client_id);
    form_field(form, easy, "client_secret", cfg->oidc_client_secret);
    form_field(form, easy, "audience", cfg->oidc_audience);
    form_field(form, easy, "scope", cfg->oidc_scope);
}

/* What an answer that is not 200 means. Nothing went to the store. */
static enum status endpoint_refused(const struct store_exchange *x, struct err *err)
{
    char why[64];
    enum status st = ST_RETRY;

    store_json_token_refusal((struct bytes){x->answer.data, x->answer.len}, why, sizeof(why));
    if (x->http_status == 429)
        st = ST_THROTTLED;
    else if (x->http_status == 400 || x->http_status == 401 || x->http_status == 403)
        st = ST_DENIED;
    else if (x->http_status < 500)
        st = ST_CONFIG;
    err_set(err, st, why, "HTTP %ld%s%s; check store.oidc_token_url, the client's id and its secret", x->http_status,
            why[0] ? " " : "", why);
    if (err)
        err->retry_after_ms = x->retry_after_ms;
    return st;
}

static enum status ask_endpoint(struct store_auth *a, struct store_wire *w, mono_us deadline, char **token,
                                int64_t *expires_s, struct err *err)
{
    struct store_exchange x;
    struct store_request rq = {.path = "", .type = "application/x-www-form-urlencoded"};
    struct buf form;
    enum status st = store_exchange_init(&x, &a->endpoint, err);

    if (st != ST_OK)
        return st;
    buf_init(&form, 64u << 10);
    make_form(&form, x.easy, a->cfg);
    if (!buf_ok(&form)) {
        st = err_set(err, ST_NOMEM, NULL, "no memory for a token request");
        goto cleanup;
    }
    rq.body = (struct bytes){form.data, form.len};
    st = store_wire_start(w, &x, &rq, err);
    if (st == ST_OK)
        st = store_wire_wait(w, &x, deadline, err);
    if (st != ST_OK)
        goto cleanup;
    if (x.http_status == 200) {
        st = store_json_token((struct bytes){x.answer.data, x.answer.len}, token, expires_s, err);
        if (st == ST_OK && check_token(*token, "access_token", err) != ST_OK) {
            store_auth_wipe(*token);
            *token = NULL;
            st = ST_CONFIG;
        }
    } else
        st = endpoint_refused(&x, err);
cleanup:
    if (x.answer.data)
        explicit_bzero(x.answer.data, x.answer.len);
    if (form.data)
        explicit_bzero(form.data, form.len);
    store_exchange_release(&x, w);
    buf_release(&form);
    return st;
}

static enum status fetch(struct store_auth *a, struct store_wire *w, mono_us deadline, char **token, int64_t *expires_s,
                         struct err *err)
{
    mono_us until = deadline_min(deadline, deadline_in_ms(FETCH_TIMEOUT_MS));
    enum status st = ask_endpoint(a, w, until, token, expires_s, err);

    /* The request to the store has not been sent, whatever became of this one. */
    if (st == ST_UNKNOWN || st == ST_DEADLINE) {
        st = clock_mono_us() >= deadline ? ST_DEADLINE : ST_RETRY;
        if (err)
            err->status = st;
    }
    if (st != ST_OK)
        return err_prefix(err, "token endpoint %s", a->endpoint.shown), st;
    return ST_OK;
}

/* ---- the cache; the lock is held ---- */

static void keep(struct store_auth *a, char *token, int64_t expires_s)
{
    mono_us now = clock_mono_us();

    store_auth_wipe(a->token);
    a->token = token;
    a->generation++;
    a->renew_at = now + store_auth_lifetime_s(expires_s) * 1000000;
    a->expires_at = now + (expires_s > 0 ? expires_s : LIFETIME_UNTOLD_S) * 1000000;
    a->failed_until = 0;
}

/* Fetch with the lock released meanwhile. */
static enum status renew(struct store_auth *a, struct store_wire *w, mono_us deadline, struct err *err)
{
    struct err why = {0};
    char *token = NULL;
    int64_t expires_s = 0;
    enum status st;

    a->fetching = true;
    pthread_mutex_unlock(&a->lock);
    st = fetch(a, w, deadline, &token, &expires_s, &why);
    pthread_mutex_lock(&a->lock);
    a->fetching = false;
    if (st == ST_OK)
        keep(a, token, expires_s);
    else {
        /* A caller that ran out of its own time says nothing about the endpoint. */
        if (st != ST_DEADLINE && st != ST_STOPPED) {
            a->failure = why;
            a->failed_until = clock_mono_us() + FAILED_PAUSE_US;
        }
        if (err)
            *err = why;
    }
    pthread_cond_broadcast(&a->changed);
    return st;
}

static enum status wait_for_other(struct store_auth *a, struct store_wire *w, mono_us deadline, struct err *err)
{
    mono_us until = deadline_min(deadline, clock_mono_us() + WAIT_SLICE_US);

    (void)wait_cond(&a->changed, &a->lock, until);
    if (store_wire_stopped(w))
        return err_set(err, ST_STOPPED, NULL, "stopped while waiting for a token");
    if (clock_mono_us() >= deadline)
        return err_set(err, ST_DEADLINE, NULL, "no token from %s in time", a->endpoint.shown);
    return ST_OK;
}

static enum status current(struct store_auth *a, struct store_wire *w, mono_us deadline, struct err *err)
{
    enum status st = ST_OK;

    while (st == ST_OK) {
        mono_us now = clock_mono_us();
        bool usable = a->token && now < a->expires_at;

        if (usable && (now < a->renew_at || a->fetching || now < a->failed_until))
            return ST_OK;
        if (a->fetching)
            st = wait_for_other(a, w, deadline, err);
        else if (now < a->failed_until) {
            if (err)
                *err = a->failure;
            return a->failure.status;
        } else {
            st = renew(a, w, deadline, err);
            if (st != ST_OK && usable && clock_mono_us() < a->expires_at)
                return ST_OK; /* the old one still does */
        }
    }
    return st;
}

enum status store_auth_token(struct store_auth *a, struct store_wire *w, mono_us deadline, char **token,
                             uint64_t *generation, struct err *err)
{
    enum status st = ST_OK;
    const char *use = a->cfg->token;

    *token = NULL;
    *generation = 0;
    if (!a->oidc) {
        if (!given(use))
            return ST_OK;
        *token = strdup(use);
        return *token ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory for a token");
    }
    pthread_mutex_lock(&a->lock);
    st = current(a, w, deadline, err);
    if (st == ST_OK) {
        *token = strdup(a->token);
        *generation = a->generation;
        if (!*token)
            st = err_set(err, ST_NOMEM, NULL, "no memory for a token");
    }
    pthread_mutex_unlock(&a->lock);
    return st;
}

bool store_auth_refused(struct store_auth *a, uint64_t generation)
{
    if (!a->oidc)
        return false;
    pthread_mutex_lock(&a->lock);
    if (a->token && a->generation == generation) {
        store_auth_wipe(a->token);
        a->token = NULL;
    }
    pthread_mutex_unlock(&a->lock);
    return true;
}
