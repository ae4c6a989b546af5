#include "common/store/store_http.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/stop.h"

/* Shorter than the idle time-out of common load balancers (60 s): a connection that the far side is about to drop is
 * not used again. curl would send a request anew on a fresh connection (Writes excepted: store_request.once). */
#define IDLE_MAX_S 50L
#define RETRY_AFTER_MAX_S 60
/* A larger answer's memory is not kept for the next one. */
#define ANSWER_KEEP (1u << 20)

struct store_wire {
    CURLM *multi;
    bool heed_stop;
    const atomic_bool *flag; /* of the caller's own; NULL = none */
};

/* ---- peer ---- */

/* A URL that may hold credentials is not repeated. */
static enum status bad_url(struct err *err, const char *setting, const char *url, const char *why)
{
    return err_set(err, ST_CONFIG, NULL, "%s: \"%.200s\": %s; give http://host:port, https://host:port or unix:/path",
                   setting, strchr(url, '@') ? "***" : url, why);
}

static const char *url_fault(CURLUcode rc)
{
    return rc == CURLUE_BAD_PORT_NUMBER ? "the port is no number from 1 to 65535" : "not a URL";
}

/* Refuse what would end up in logs (credentials) or would garble the paths that are appended. */
static enum status check_http_url(const char *url, const char *setting, struct err *err)
{
    static const struct {
        CURLUPart part;
        const char *why;
    } refused[] = {
        {CURLUPART_USER, "credentials do not belong into the URL (there are settings for them)"},
        {CURLUPART_PASSWORD, "credentials do not belong into the URL (there are settings for them)"},
        {CURLUPART_QUERY, "a query (?) cannot be part of it"},
        {CURLUPART_FRAGMENT, "a fragment (#) cannot be part of it"},
    };
    enum status st = ST_OK;
    char *part = NULL;
    CURLU *u = curl_url();
    CURLUcode rc;

    if (!u)
        return err_set(err, ST_NOMEM, NULL, "%s: no memory", setting);
    rc = curl_url_set(u, CURLUPART_URL, url, 0);
    if (rc != CURLUE_OK) {
        st = bad_url(err, setting, url, url_fault(rc));
        goto cleanup;
    }
    if (curl_url_get(u, CURLUPART_SCHEME, &part, 0) != CURLUE_OK ||
        (strcmp(part, "http") != 0 && strcmp(part, "https") != 0)) {
        st = bad_url(err, setting, url, "unknown scheme");
        goto cleanup;
    }
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        curl_free(part);
        part = NULL;
        if (curl_url_get(u, refused[i].part, &part, 0) == CURLUE_OK) {
            st = bad_url(err, setting, url, refused[i].why);
            goto cleanup;
        }
    }
cleanup:
    curl_free(part);
    curl_url_cleanup(u);
    return st;
}

enum status store_peer_init(struct store_peer *p, const char *url, const char *setting, struct err *err)
{
    size_t len = strlen(url);

    *p = (struct store_peer){0};
    if (strncmp(url, "unix:", 5) == 0) {
        if (url[5] != '/')
            return bad_url(err, setting, url, "the socket's path must be absolute");
        if (len - 5 > 107)
            return bad_url(err, setting, url, "the socket's path is longer than 107 bytes");
        p->base = strdup("http://localhost");
        p->socket = strdup(url + 5);
    } else {
        enum status st = check_http_url(url, setting, err);
        if (st != ST_OK)
            return st;
        while (len > 0 && url[len - 1] == '/')
            len--;
        p->base = strndup(url, len);
    }
    p->shown = strdup(url);
    if (!p->base || !p->shown || (strncmp(url, "unix:", 5) == 0 && !p->socket)) {
        store_peer_release(p);
        return err_set(err, ST_NOMEM, NULL, "%s: no memory", setting);
    }
    return ST_OK;
}

void store_peer_release(struct store_peer *p)
{
    free(p->base);
    free(p->socket);
    free(p->shown);
    *p = (struct store_peer){0};
}

/* ---- wire ---- */

enum status store_wire_new(struct store_wire **out, struct err *err)
{
    struct store_wire *w = calloc(1, sizeof(*w));

    *out = NULL;
    if (w)
        w->multi = curl_multi_init();
    if (!w || !w->multi) {
        free(w);
        return err_set(err, ST_NOMEM, NULL, "no memory for a connection to the store");
    }
    *out = w;
    return ST_OK;
}

void store_wire_free(struct store_wire *w)
{
    if (!w)
        return;
    curl_multi_cleanup(w->multi);
    free(w);
}

void store_wire_heed_stop(struct store_wire *w, bool heed)
{
    w->heed_stop = heed;
}

void store_wire_heed(struct store_wire *w, const atomic_bool *flag)
{
    w->flag = flag;
}

void store_wire_wake(struct store_wire *w)
{
    (void)curl_multi_wakeup(w->multi);
}

bool store_wire_stopped(const struct store_wire *w)
{
    return (w->heed_stop && stop_requested()) || (w->flag && atomic_load(w->flag));
}

/* ---- exchange ---- */

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    struct store_exchange *x = arg;

    buf_add(&x->answer, data, size * n);
    return buf_ok(&x->answer) ? size * n : CURL_WRITEFUNC_ERROR;
}

/*
 * Called when a connection stands, right before the request goes out; also before curl's own second try, when a
 * kept-alive connection ended without an answer. A Write has none: its first copy may be at work and take effect later
 * than the second, so its outcome is unknown, whatever the second would be answered.
 */
static int on_connected(void *arg, char *ip, char *local_ip, int port, int local_port)
{
    struct store_exchange *x = arg;

    (void)ip, (void)local_ip, (void)port, (void)local_port;
    if (x->left && x->once)
        return CURL_PREREQFUNC_ABORT;
    x->left = true;
    return CURL_PREREQFUNC_OK;
}

static bool given(const char *s)
{
    return s && *s;
}

static CURLcode set_options(CURL *e, struct store_exchange *x, const struct store_peer *p)
{
    CURLcode rc = CURLE_OK;

#define SET(opt, value)                                                                                                \
    if (rc == CURLE_OK)                                                                                                \
    rc = curl_easy_setopt(e, opt, value)
    SET(CURLOPT_PRIVATE, (void *)x);
    SET(CURLOPT_ERRORBUFFER, x->reason);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_PROXY, "");
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    SET(CURLOPT_MAXAGE_CONN, IDLE_MAX_S);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)p->connect_timeout_ms);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, (void *)x);
    SET(CURLOPT_PREREQFUNCTION, on_connected);
    SET(CURLOPT_PREREQDATA, (void *)x);
    if (p->socket) {
        SET(CURLOPT_UNIX_SOCKET_PATH, p->socket);
    }
    if (given(p->ca_file)) {
        SET(CURLOPT_CAINFO, p->ca_file);
        SET(CURLOPT_CAPATH, NULL);
    }
    if (given(p->cert_file)) {
        SET(CURLOPT_SSLCERT, p->cert_file);
        SET(CURLOPT_SSLKEY, p->key_file);
    }
#undef SET
    return rc;
}

enum status store_exchange_init(struct store_exchange *x, const struct store_peer *peer, struct err *err)
{
    CURLcode rc = CURLE_OUT_OF_MEMORY;

    *x = (struct store_exchange){.peer = peer, .easy = curl_easy_init()};
    buf_init(&x->answer, STORE_ANSWER_MAX);
    if (x->easy)
        rc = set_options(x->easy, x, peer);
    if (rc != CURLE_OK) {
        store_exchange_release(x, NULL);
        return err_set(err, rc == CURLE_OUT_OF_MEMORY ? ST_NOMEM : ST_CONFIG, NULL, "%s: cannot set up HTTP: %s",
                       peer->shown, curl_easy_strerror(rc));
    }
    return ST_OK;
}

static void withdraw(struct store_exchange *x, struct store_wire *w)
{
    if (w && x->running)
        curl_multi_remove_handle(w->multi, x->easy);
    x->running = false;
}

void store_exchange_release(struct store_exchange *x, struct store_wire *w)
{
    withdraw(x, w);
    curl_easy_cleanup(x->easy);
    curl_slist_free_all(x->headers);
    buf_release(&x->answer);
    *x = (struct store_exchange){0};
}

static bool add_header(struct store_exchange *x, const char *name, const char *value)
{
    struct curl_slist *list;
    struct buf line;

    buf_init(&line, 64u << 10);
    buf_addf(&line, "%s: %s", name, value);
    list = buf_ok(&line) ? curl_slist_append(x->headers, buf_str(&line)) : NULL;
    buf_release(&line);
    if (list)
        x->headers = list;
    return list != NULL;
}

static bool set_headers(struct store_exchange *x, const struct store_request *rq)
{
    curl_slist_free_all(x->headers);
    x->headers = NULL;
    if (given(rq->bearer)) {
        struct buf value;
        bool ok;

        buf_init(&value, 64u << 10);
        buf_addf(&value, "Bearer %s", rq->bearer);
        ok = buf_ok(&value) && add_header(x, "Authorization", buf_str(&value));
        if (value.data)
            explicit_bzero(value.data, value.len);
        buf_release(&value);
        if (!ok)
            return false;
    }
    /* Without the empty Expect, curl waits up to a second before it sends a large body. */
    if (rq->body.data && (!add_header(x, "Content-Type", rq->type) || !add_header(x, "Expect", "")))
        return false;
    if (given(rq->traceparent) && !add_header(x, "traceparent", rq->traceparent))
        return false;
    return add_header(x, "Accept", "application/json") && add_header(x, "User-Agent", "relata/" RELATA_VERSION);
}

static CURLcode set_request(struct store_exchange *x, const struct store_request *rq)
{
    struct buf url;
    CURLcode rc;

    buf_init(&url, 64u << 10);
    buf_adds(&url, x->peer->base);
    buf_adds(&url, rq->path);
    rc = buf_ok(&url) && set_headers(x, rq) ? CURLE_OK : CURLE_OUT_OF_MEMORY;
    if (rc == CURLE_OK)
        rc = curl_easy_setopt(x->easy, CURLOPT_URL, buf_str(&url));
    if (rc == CURLE_OK)
        rc = curl_easy_setopt(x->easy, CURLOPT_HTTPHEADER, x->headers);
    if (rc == CURLE_OK && !rq->body.data)
        rc = curl_easy_setopt(x->easy, CURLOPT_HTTPGET, 1L);
    if (rc == CURLE_OK && rq->body.data) {
        rc = curl_easy_setopt(x->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)rq->body.len);
        if (rc == CURLE_OK)
            rc = curl_easy_setopt(x->easy, CURLOPT_POSTFIELDS, rq->body.data);
    }
    buf_release(&url);
    return rc;
}

enum status store_wire_start(struct store_wire *w, struct store_exchange *x, const struct store_request *rq,
                             struct err *err)
{
    CURLcode rc;

    withdraw(x, w);
    if (x->answer.cap > ANSWER_KEEP) {
        buf_release(&x->answer);
        buf_init(&x->answer, STORE_ANSWER_MAX);
    }
    buf_clear(&x->answer);
    x->done = x->left = false;
    x->once = rq->once;
    x->http_status = 0;
    x->retry_after_ms = 0;
    x->reason[0] = '\0';
    rc = set_request(x, rq);
    if (rc != CURLE_OK)
        return err_set(err, rc == CURLE_OUT_OF_MEMORY ? ST_NOMEM : ST_FATAL, NULL, "cannot make the HTTP request: %s",
                       curl_easy_strerror(rc));
    if (curl_multi_add_handle(w->multi, x->easy) != CURLM_OK)
        return err_set(err, ST_NOMEM, NULL, "cannot start the HTTP request: no memory");
    x->running = true;
    return ST_OK;
}

unsigned store_retry_after_ms(const char *value, int64_t now_s)
{
    int64_t seconds = 0;

    value += strspn(value, " \t");
    if (*value >= '0' && *value <= '9') {
        for (; *value >= '0' && *value <= '9'; value++)
            seconds = seconds > RETRY_AFTER_MAX_S ? seconds : seconds * 10 + (*value - '0');
        if (value[strspn(value, " \t")] != '\0')
            return 0;
    } else {
        seconds = (int64_t)curl_getdate(value, NULL);
        seconds = seconds == -1 ? 0 : seconds - now_s;
    }
    if (seconds <= 0)
        return 0;
    return (unsigned)(seconds > RETRY_AFTER_MAX_S ? RETRY_AFTER_MAX_S : seconds) * 1000u;
}

/* curl's own CURLINFO_RETRY_AFTER reads a number that is too large as 0. */
static unsigned retry_after(CURL *easy)
{
    struct curl_header *h;

    if (curl_easy_header(easy, "Retry-After", 0, CURLH_HEADER, -1, &h) != CURLHE_OK)
        return 0;
    return store_retry_after_ms(h->value, clock_wall_us() / 1000000);
}

/* Mark every exchange that has ended. */
static void collect(struct store_wire *w)
{
    CURLMsg *msg;
    int left;

    while ((msg = curl_multi_info_read(w->multi, &left)) != NULL) {
        struct store_exchange *x = NULL;

        if (msg->msg != CURLMSG_DONE)
            continue;
        CURL *easy = msg->easy_handle;
        CURLcode rc = msg->data.result;
        if (curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&x) != CURLE_OK || !x)
            continue;
        x->rc = rc;
        x->done = true;
        (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &x->http_status);
        x->retry_after_ms = x->http_status >= 400 ? retry_after(easy) : 0;
        withdraw(x, w);
    }
}

/* Why there is no answer. */
static enum status no_answer(const struct store_exchange *x, struct err *err)
{
    const char *why = x->reason[0] ? x->reason : curl_easy_strerror(x->rc);
    enum status st = x->left ? ST_UNKNOWN : ST_RETRY;

    if (x->rc == CURLE_WRITE_ERROR && !buf_ok(&x->answer))
        return err_set(err, ST_UNKNOWN, NULL, "the answer is larger than %u bytes", STORE_ANSWER_MAX);
    if (x->rc == CURLE_OUT_OF_MEMORY)
        st = x->left ? ST_UNKNOWN : ST_NOMEM;
    else if (!x->left &&
             (x->rc == CURLE_PEER_FAILED_VERIFICATION || x->rc == CURLE_SSL_CERTPROBLEM || x->rc == CURLE_SSL_CIPHER ||
              x->rc == CURLE_SSL_CACERT_BADFILE || x->rc == CURLE_SSL_ISSUER_ERROR || x->rc == CURLE_URL_MALFORMAT ||
              x->rc == CURLE_UNSUPPORTED_PROTOCOL))
        st = ST_CONFIG;
    return err_set(err, st, NULL, "%s%s", x->left ? "no usable answer: " : "no connection: ", why);
}

/* How long curl_multi_poll may sleep. It also wakes for curl's own timers. */
static int poll_ms(mono_us deadline)
{
    int ms = deadline_poll_ms(deadline);

    return ms < 0 || ms > 1000 ? 1000 : ms;
}

enum status store_wire_wait(struct store_wire *w, struct store_exchange *x, mono_us deadline, struct err *err)
{
    for (;;) {
        struct curl_waitfd stop = {.fd = stop_fd(), .events = CURL_WAIT_POLLIN};
        bool watch = w->heed_stop && stop.fd >= 0;
        int running;

        if (curl_multi_perform(w->multi, &running) != CURLM_OK)
            break;
        collect(w);
        if (x->done)
            return x->rc == CURLE_OK ? ST_OK : no_answer(x, err);
        if (store_wire_stopped(w)) {
            withdraw(x, w);
            return err_set(err, ST_STOPPED, NULL, "stopped while waiting for the answer");
        }
        if (clock_mono_us() >= deadline) {
            withdraw(x, w);
            return x->left ? err_set(err, ST_UNKNOWN, NULL, "no answer in time")
                           : err_set(err, ST_DEADLINE, NULL, "no connection in time");
        }
        if (curl_multi_poll(w->multi, &stop, watch ? 1 : 0, poll_ms(deadline), NULL) != CURLM_OK)
            break;
    }
    withdraw(x, w);
    return err_set(err, x->left ? ST_UNKNOWN : ST_NOMEM, NULL, "curl cannot go on");
}
