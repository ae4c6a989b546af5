/* fake_store.c - libmicrohttpd in front, libcurl behind: one thread a connection, so that a request may just wait. */
#include "tests/harness/fake_store.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/clock.h"

#define BODY_MAX (64u << 20)

struct rule {
    struct fake_rule r; /* strings are ours */
    int matched, used;
    struct rule *next;
};

/* One request, kept for the test's questions until the end. */
struct request {
    char *method, *path, *query;
    struct buf headers, body;
    bool kept;
    struct request *next;
};

struct fake_store {
    struct MHD_Daemon *daemon;
    char url[64];
    char *upstream;
    pthread_mutex_t lock;
    struct rule *rules, *old_rules;
    int nrules;
    struct request *requests, *last;
    _Atomic bool stop;
    int late; /* requests still to be delivered; under the lock */
};

struct answer {
    long status;
    char *headers; /* "Name: value\n".. or NULL */
    struct buf body;
};

static char *dup_or_null(const char *s)
{
    char *copy = s != NULL ? strdup(s) : NULL;

    if (s != NULL && copy == NULL)
        abort();
    return copy;
}

/* ---- rules ---- */

int fake_store_rule(struct fake_store *f, const struct fake_rule *rule)
{
    struct rule *n = calloc(1, sizeof(*n)), **at;
    char *reply = NULL;
    int number;

    if (n == NULL)
        abort();
    n->r = *rule;
    n->r.path = dup_or_null(rule->path);
    n->r.body = dup_or_null(rule->body);
    n->r.headers = dup_or_null(rule->headers);
    if (rule->reply != NULL) {
        n->r.reply_len = rule->reply_len > 0 ? rule->reply_len : strlen(rule->reply);
        reply = malloc(n->r.reply_len + 1);
        if (reply == NULL)
            abort();
        memcpy(reply, rule->reply, n->r.reply_len);
        reply[n->r.reply_len] = '\0';
    }
    n->r.reply = reply;
    pthread_mutex_lock(&f->lock);
    for (at = &f->rules; *at != NULL; at = &(*at)->next)
        ;
    *at = n;
    number = f->nrules++;
    pthread_mutex_unlock(&f->lock);
    return number;
}

/* Rules live until the end: a request may be at work with one. Cleared ones keep their numbers. */
void fake_store_clear(struct fake_store *f)
{
    struct rule **at;

    pthread_mutex_lock(&f->lock);
    for (at = &f->old_rules; *at != NULL; at = &(*at)->next)
        ;
    *at = f->rules;
    f->rules = NULL;
    pthread_mutex_unlock(&f->lock);
}

int fake_store_used(struct fake_store *f, int rule)
{
    int n = rule, used = -1;

    pthread_mutex_lock(&f->lock);
    for (struct rule *r = f->old_rules; r != NULL; r = r->next)
        if (n-- == 0)
            used = r->used;
    for (struct rule *r = f->rules; r != NULL; r = r->next)
        if (n-- == 0)
            used = r->used;
    pthread_mutex_unlock(&f->lock);
    return used;
}

/* The rule that decides about this request, or NULL. */
static const struct fake_rule *decide(struct fake_store *f, const struct request *q)
{
    const struct fake_rule *found = NULL;

    pthread_mutex_lock(&f->lock);
    for (struct rule *r = f->rules; r != NULL && found == NULL; r = r->next) {
        if (r->r.path != NULL && strstr(q->path, r->r.path) == NULL)
            continue;
        if (r->r.body != NULL && strstr(buf_str(&q->body), r->r.body) == NULL)
            continue;
        if (r->r.times > 0 && r->used >= r->r.times)
            continue;
        if (r->matched++ < r->r.skip)
            continue;
        r->used++;
        found = &r->r;
    }
    pthread_mutex_unlock(&f->lock);
    return found;
}

/* ---- the real store ---- */

static size_t take_body(char *data, size_t size, size_t n, void *arg)
{
    buf_add(arg, data, size * n);
    return size * n;
}

static void answer_set(struct answer *a, long status, const char *headers, const char *body, size_t len)
{
    a->status = status;
    free(a->headers);
    a->headers = dup_or_null(headers);
    buf_clear(&a->body);
    buf_add(&a->body, body, len);
}

/* The request's own headers but for those of the connection. */
static struct curl_slist *pass_headers(const char *headers)
{
    static const char *const ours[] = {"host:", "content-length:", "connection:", "expect:", "transfer-encoding:"};
    struct curl_slist *list = curl_slist_append(NULL, "Expect:");
    char *copy = strdup(headers), *save = NULL;

    if (copy == NULL)
        abort();
    for (char *line = strtok_r(copy, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        bool skip = false;
        for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++)
            skip |= strncasecmp(line, ours[i], strlen(ours[i])) == 0;
        if (!skip)
            list = curl_slist_append(list, line);
    }
    free(copy);
    return list;
}

static void forward(struct fake_store *f, const struct request *q, struct answer *a)
{
    static const char none[] = "{\"code\":\"internal_error\",\"message\":\"no store behind this one\"}";
    static const char down[] =
        "{\"code\":\"internal_error\",\"message\":\"the store behind this one does not answer\"}";
    struct curl_slist *headers;
    char *url = NULL;
    CURL *curl;

    if (f->upstream == NULL) {
        answer_set(a, 500, NULL, none, strlen(none));
        return;
    }
    curl = curl_easy_init();
    if (curl == NULL || asprintf(&url, "%s%s%s%s", f->upstream, q->path, q->query != NULL ? "?" : "",
                                 q->query != NULL ? q->query : "") < 0)
        abort();
    headers = pass_headers(buf_str(&q->headers));
    buf_clear(&a->body);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, q->method);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, 30000L);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &a->body);
    if (q->body.len > 0) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->body.len);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, buf_str(&q->body));
    }
    if (curl_easy_perform(curl) == CURLE_OK)
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &a->status);
    else
        answer_set(a, 503, NULL, down, strlen(down));
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
    free(url);
}

/* ---- late requests ---- */

struct late {
    struct fake_store *f;
    const struct request *q;
    int delay_ms;
};

static void *deliver_late(void *arg)
{
    struct late *l = arg;
    struct answer a = {0};

    buf_init(&a.body, BODY_MAX);
    poll(NULL, 0, l->delay_ms);
    forward(l->f, l->q, &a);
    buf_release(&a.body);
    free(a.headers);
    pthread_mutex_lock(&l->f->lock);
    l->f->late--;
    pthread_mutex_unlock(&l->f->lock);
    free(l);
    return NULL;
}

static void start_late(struct fake_store *f, const struct request *q, int delay_ms)
{
    struct late *l = malloc(sizeof(*l));
    pthread_t thread;

    if (l == NULL)
        abort();
    *l = (struct late){f, q, delay_ms};
    pthread_mutex_lock(&f->lock);
    f->late++;
    pthread_mutex_unlock(&f->lock);
    if (pthread_create(&thread, NULL, deliver_late, l) != 0)
        abort();
    pthread_detach(thread);
}

int fake_store_late_pending(struct fake_store *f)
{
    int n;

    pthread_mutex_lock(&f->lock);
    n = f->late;
    pthread_mutex_unlock(&f->lock);
    return n;
}

/* ---- requests ---- */

/* Sleeps, but ends with the server. */
static void wait_ms(struct fake_store *f, int ms)
{
    mono_us deadline = ms < 0 ? DEADLINE_NONE : deadline_in_ms(ms);

    while (!f->stop && clock_mono_us() < deadline)
        poll(NULL, 0, ms < 0 || ms > 10 ? 10 : ms);
}

/* Fills the answer. False: there is none, the connection is to be closed. */
static bool act(struct fake_store *f, const struct request *q, struct answer *a)
{
    const struct fake_rule *r = decide(f, q);

    if (r == NULL) {
        forward(f, q, a);
        return true;
    }
    switch (r->action) {
    case FAKE_REPLY:
        wait_ms(f, r->delay_ms);
        answer_set(a, r->status, r->headers, r->reply, r->reply_len);
        return true;
    case FAKE_PASS:
        forward(f, q, a);
        wait_ms(f, r->delay_ms);
        return true;
    case FAKE_REPLY_AFTER:
        forward(f, q, a);
        wait_ms(f, r->delay_ms);
        answer_set(a, r->status, r->headers, r->reply, r->reply_len);
        return true;
    case FAKE_HANG:
        wait_ms(f, -1);
        return false;
    case FAKE_CUT:
        return false;
    case FAKE_CUT_AFTER:
        forward(f, q, a);
        return false;
    case FAKE_LATE:
        start_late(f, q, r->delay_ms);
        wait_ms(f, -1);
        return false;
    }
    return false;
}

static enum MHD_Result add_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
    (void)kind;
    buf_addf(arg, "%s: %s\n", name, value != NULL ? value : "");
    return MHD_YES;
}

static enum MHD_Result add_query(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct buf *b = arg;
    char *n = curl_easy_escape(NULL, name, 0), *v = value != NULL ? curl_easy_escape(NULL, value, 0) : NULL;

    (void)kind;
    buf_addf(b, "%s%s%s%s", b->len > 0 ? "&" : "", n, v != NULL ? "=" : "", v != NULL ? v : "");
    curl_free(n);
    curl_free(v);
    return MHD_YES;
}

static struct request *request_new(struct MHD_Connection *conn, const char *method, const char *path)
{
    struct request *q = calloc(1, sizeof(*q));
    struct buf query;

    if (q == NULL)
        abort();
    q->method = dup_or_null(method);
    q->path = dup_or_null(path);
    buf_init(&q->headers, 1 << 20);
    buf_init(&q->body, BODY_MAX);
    buf_init(&query, 1 << 20);
    MHD_get_connection_values(conn, MHD_HEADER_KIND, add_header, &q->headers);
    MHD_get_connection_values(conn, MHD_GET_ARGUMENT_KIND, add_query, &query);
    q->query = query.len > 0 ? dup_or_null(buf_str(&query)) : NULL;
    buf_release(&query);
    return q;
}

static void remember(struct fake_store *f, struct request *q)
{
    q->kept = true;
    pthread_mutex_lock(&f->lock);
    if (f->last != NULL)
        f->last->next = q;
    else
        f->requests = q;
    f->last = q;
    pthread_mutex_unlock(&f->lock);
}

static void request_free(struct request *q)
{
    free(q->method);
    free(q->path);
    free(q->query);
    buf_release(&q->headers);
    buf_release(&q->body);
    free(q);
}

/* A request whose client went away before all of it had come. */
static void on_completed(void *arg, struct MHD_Connection *conn, void **state, enum MHD_RequestTerminationCode why)
{
    struct request *q = *state;

    (void)arg;
    (void)conn;
    (void)why;
    if (q != NULL && !q->kept)
        request_free(q);
}

static void add_answer_headers(struct MHD_Response *response, const char *headers)
{
    char *copy = strdup(headers != NULL ? headers : ""), *save = NULL;
    bool typed = false;

    if (copy == NULL)
        abort();
    for (char *line = strtok_r(copy, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        char *colon = strchr(line, ':');
        if (colon == NULL)
            abort();
        *colon = '\0';
        typed |= strcasecmp(line, "content-type") == 0;
        MHD_add_response_header(response, line, colon + 1 + strspn(colon + 1, " "));
    }
    if (!typed)
        MHD_add_response_header(response, "Content-Type", "application/json");
    free(copy);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *conn, const char *url, const char *method,
                                  const char *version, const char *data, size_t *size, void **state)
{
    struct fake_store *f = arg;
    struct request *q = *state;
    struct answer a = {0};
    struct MHD_Response *response;
    enum MHD_Result result = MHD_NO;

    (void)version;
    if (q == NULL) {
        *state = request_new(conn, method, url);
        return MHD_YES;
    }
    if (*size > 0) {
        buf_add(&q->body, data, *size);
        *size = 0;
        return MHD_YES;
    }
    remember(f, q);
    buf_init(&a.body, BODY_MAX);
    if (act(f, q, &a)) {
        response = MHD_create_response_from_buffer(a.body.len, a.body.data, MHD_RESPMEM_MUST_COPY);
        if (response == NULL)
            abort();
        add_answer_headers(response, a.headers);
        result = MHD_queue_response(conn, (unsigned)a.status, response);
        MHD_destroy_response(response);
    }
    buf_release(&a.body);
    free(a.headers);
    return result;
}

/* ---- questions ---- */

int fake_store_count(struct fake_store *f, const char *path)
{
    int n = 0;

    pthread_mutex_lock(&f->lock);
    for (struct request *q = f->requests; q != NULL; q = q->next)
        n += path == NULL || strstr(q->path, path) != NULL;
    pthread_mutex_unlock(&f->lock);
    return n;
}

static char *of_request(struct fake_store *f, const char *path, int n, bool body)
{
    const struct request *found = NULL;
    char *copy;

    pthread_mutex_lock(&f->lock);
    for (struct request *q = f->requests; q != NULL; q = q->next) {
        if (path != NULL && strstr(q->path, path) == NULL)
            continue;
        if (n <= 0) /* the n-th, or so far the last */
            found = q;
        if (n >= 0 && n-- == 0)
            break;
    }
    copy = found != NULL ? dup_or_null(buf_str(body ? &found->body : &found->headers)) : NULL;
    pthread_mutex_unlock(&f->lock);
    return copy;
}

char *fake_store_body(struct fake_store *f, const char *path, int n)
{
    return of_request(f, path, n, true);
}

char *fake_store_headers(struct fake_store *f, const char *path, int n)
{
    return of_request(f, path, n, false);
}

const char *fake_store_url(const struct fake_store *f)
{
    return f->url;
}

/* ---- start and stop ---- */

struct fake_store *fake_store_start(const char *upstream)
{
    struct fake_store *f = calloc(1, sizeof(*f));
    const union MHD_DaemonInfo *info;

    if (f == NULL)
        return NULL;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    pthread_mutex_init(&f->lock, NULL);
    f->upstream = dup_or_null(upstream);
    struct sockaddr_in self = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    f->daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL, 0,
                                 NULL, NULL, on_request, f, MHD_OPTION_SOCK_ADDR, &self, MHD_OPTION_CONNECTION_LIMIT,
                                 512u, MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL, MHD_OPTION_END);
    info = f->daemon != NULL ? MHD_get_daemon_info(f->daemon, MHD_DAEMON_INFO_BIND_PORT) : NULL;
    if (info == NULL) {
        if (f->daemon != NULL)
            MHD_stop_daemon(f->daemon);
        free(f->upstream);
        free(f);
        return NULL;
    }
    snprintf(f->url, sizeof(f->url), "http://127.0.0.1:%d", info->port);
    return f;
}

static void rules_free(struct rule *list)
{
    for (struct rule *r = list, *next; r != NULL; r = next) {
        next = r->next;
        free((char *)(uintptr_t)r->r.path);
        free((char *)(uintptr_t)r->r.body);
        free((char *)(uintptr_t)r->r.headers);
        free((char *)(uintptr_t)r->r.reply);
        free(r);
    }
}

void fake_store_stop(struct fake_store *f)
{
    if (f == NULL)
        return;
    f->stop = true;
    MHD_stop_daemon(f->daemon);
    while (fake_store_late_pending(f) > 0)
        poll(NULL, 0, 5);
    /* The last late thread may still hold the lock for an instant. */
    pthread_mutex_lock(&f->lock);
    pthread_mutex_unlock(&f->lock);
    for (struct request *q = f->requests, *next; q != NULL; q = next) {
        next = q->next;
        request_free(q);
    }
    rules_free(f->rules);
    rules_free(f->old_rules);
    pthread_mutex_destroy(&f->lock);
    free(f->upstream);
    free(f);
}
