#include "common/admin/admin.h"

#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/admin/metrics.h"
#include "common/base/clock.h"
#include "common/http/listen.h"

#define CONNECTIONS_MAX 64
#define CONNECTION_SECONDS 10
#define REQUEST_MEMORY 8192
#define PAGE_MAX (8U * 1024 * 1024)
#define CONDITIONS_MAX 32

struct condition {
    char name[32];
    char reason[256];
    bool ready;
};

/* An open connection: MHD's own timeout counts idle time only, so one that sends a byte now and then would stay. */
struct visitor {
    int fd; /* -1 = free */
    mono_us deadline;
};

struct admin {
    struct MHD_Daemon *daemon; /* NULL = no port */
    struct buf url;
    int wake; /* eventfd that ends the thread */
    pthread_t thread;
    bool running;
    struct visitor visitors[CONNECTIONS_MAX]; /* of the thread, as is the next */
    bool left;                                /* a visitor has gone since MHD looked at its sockets */

    pthread_mutex_t lock; /* guards the conditions */
    struct condition conditions[CONDITIONS_MAX];
    size_t nconditions;

    _Atomic int64_t alive_us;
    atomic_int stall_ms;
};

/* ---- pages ---- */

static unsigned page_health(struct admin *a, struct buf *out)
{
    int64_t idle_ms = (clock_mono_us() - atomic_load(&a->alive_us)) / 1000;
    int bound = atomic_load(&a->stall_ms);

    if (bound > 0 && idle_ms > bound) {
        buf_addf(out, "stalled: the main loop has not moved for %lld ms (bound %d ms)\n", (long long)idle_ms, bound);
        return MHD_HTTP_SERVICE_UNAVAILABLE;
    }
    buf_adds(out, "ok\n");
    return MHD_HTTP_OK;
}

static unsigned page_ready(struct admin *a, struct buf *out)
{
    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < a->nconditions; i++) {
        const struct condition *c = &a->conditions[i];

        if (!c->ready)
            buf_addf(out, "%s: %s\n", c->name, c->reason[0] ? c->reason : "not ready");
    }
    if (a->nconditions == 0)
        buf_adds(out, "starting\n");
    bool ready = out->len == 0;
    if (ready)
        buf_adds(out, "ready\n");
    for (size_t i = 0; ready && i < a->nconditions; i++)
        if (a->conditions[i].reason[0])
            buf_addf(out, "%s: %s\n", a->conditions[i].name, a->conditions[i].reason);
    pthread_mutex_unlock(&a->lock);
    return ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
}

static unsigned make_page(struct admin *a, const char *method, const char *path, struct buf *out)
{
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        buf_adds(out, "only GET and HEAD\n");
        return MHD_HTTP_METHOD_NOT_ALLOWED;
    }
    if (strcmp(path, "/healthz") == 0)
        return page_health(a, out);
    if (strcmp(path, "/readyz") == 0)
        return page_ready(a, out);
    if (strcmp(path, "/metrics") == 0) {
        metrics_render(out);
        return MHD_HTTP_OK;
    }
    buf_adds(out, "here are /metrics, /healthz and /readyz\n");
    return strcmp(path, "/") == 0 ? MHD_HTTP_OK : MHD_HTTP_NOT_FOUND;
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *path, const char *method,
                                  const char *version, const char *body, size_t *body_len, void **state)
{
    struct admin *a = arg;
    struct MHD_Response *response;
    enum MHD_Result result;
    struct buf page;
    unsigned code;

    (void)version, (void)body, (void)body_len, (void)state;
    buf_init(&page, PAGE_MAX);
    code = make_page(a, method, path, &page);
    if (!buf_ok(&page)) {
        buf_release(&page);
        return MHD_NO;
    }
    response = MHD_create_response_from_buffer(page.len, page.data, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        buf_release(&page);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
                            strcmp(path, "/metrics") == 0 ? "text/plain; version=0.0.4; charset=utf-8"
                                                          : "text/plain; charset=utf-8");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    /* One request a connection: then a connection's deadline is a request's. */
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    result = MHD_queue_response(c, code, response);
    MHD_destroy_response(response);
    return result;
}

/* ---- the thread ---- */

static void on_connection(void *arg, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode what)
{
    struct admin *a = arg;
    const union MHD_ConnectionInfo *info;

    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        struct visitor *gone = *context;

        if (gone)
            gone->fd = -1;
        a->left = true;
        return;
    }
    info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    for (size_t i = 0; i < CONNECTIONS_MAX && info; i++) {
        if (a->visitors[i].fd < 0) {
            a->visitors[i] = (struct visitor){info->connect_fd, deadline_in_ms(CONNECTION_SECONDS * 1000)};
            *context = &a->visitors[i];
            return;
        }
    }
}

/* Ends connections that are past their deadline; MHD sees them closed and says so in on_connection. */
static void end_overdue(struct admin *a)
{
    mono_us now = clock_mono_us();

    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        struct visitor *v = &a->visitors[i];

        if (v->fd >= 0 && v->deadline <= now) {
            shutdown(v->fd, SHUT_RDWR);
            v->deadline = DEADLINE_NONE;
        }
    }
}

static int next_wait_ms(const struct admin *a)
{
    mono_us next = DEADLINE_NONE;
    MHD_UNSIGNED_LONG_LONG library_ms;
    int ms;

    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        if (a->visitors[i].fd >= 0)
            next = deadline_min(next, a->visitors[i].deadline);
    }
    ms = deadline_poll_ms(next);
    if (MHD_get_timeout(a->daemon, &library_ms) == MHD_YES && (ms < 0 || library_ms < (MHD_UNSIGNED_LONG_LONG)ms))
        ms = (int)library_ms;
    return ms;
}

static void *serve(void *arg)
{
    struct admin *a = arg;
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(a->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    struct pollfd fds[2] = {{.fd = info->epoll_fd, .events = POLLIN}, {.fd = a->wake, .events = POLLIN}};

    for (;;) {
        poll(fds, 2, next_wait_ms(a));
        if (fds[1].revents)
            return NULL;
        end_overdue(a);
        /* At its limit MHD does not listen. When somebody left during a run, only the next one listens again: nothing
         * would wake us for it. */
        do {
            a->left = false;
            MHD_run(a->daemon);
        } while (a->left);
    }
}

static enum status start_server(struct admin *a, int fd, struct err *err)
{
    sigset_t all, before;
    int rc;

    a->daemon =
        MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, on_request, a, MHD_OPTION_LISTEN_SOCKET, fd,
                         MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
                         (unsigned)CONNECTION_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_MEMORY,
                         MHD_OPTION_NOTIFY_CONNECTION, on_connection, a, MHD_OPTION_END);
    if (!a->daemon) {
        close(fd);
        return err_set(err, ST_FATAL, NULL, "cannot start the admin port %s", buf_str(&a->url));
    }
    /* Signals belong to the main thread. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    rc = pthread_create(&a->thread, NULL, serve, a);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return err_set(err, ST_FATAL, NULL, "cannot start the admin port's thread: %s", strerror(rc));
    a->running = true;
    return ST_OK;
}

enum status admin_check(const struct cfg_admin *cfg, struct err *err)
{
    enum status st = cfg->listen[0] ? listen_check("admin.listen", cfg->listen, err) : ST_OK;

    return st == ST_OK && cfg->listen[0] && cfg->port_file[0] ? listen_check_url("admin.url_file", cfg->port_file, err)
                                                              : st;
}

enum status admin_start(struct admin **out, const struct cfg_admin *cfg, struct err *err)
{
    struct admin *a = calloc(1, sizeof *a);
    enum status st = ST_OK;
    int fd = -1;

    *out = NULL;
    if (!a)
        return err_set(err, ST_NOMEM, NULL, "no memory for the admin port");
    pthread_mutex_init(&a->lock, NULL);
    buf_init(&a->url, 512);
    atomic_store(&a->alive_us, clock_mono_us());
    for (size_t i = 0; i < CONNECTIONS_MAX; i++)
        a->visitors[i].fd = -1;
    a->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (a->wake < 0)
        st = err_set(err, ST_FATAL, NULL, "cannot create an eventfd for the admin port");
    if (st == ST_OK && cfg->listen[0]) {
        st = listen_open("admin.listen", cfg->listen, CONNECTIONS_MAX, &fd, &a->url, err);
        if (st == ST_OK)
            st = start_server(a, fd, err);
        if (st == ST_OK && cfg->port_file[0])
            st = listen_write_url("admin.url_file", cfg->port_file, buf_str(&a->url), err);
    }
    if (st != ST_OK) {
        admin_stop(a);
        return st;
    }
    *out = a;
    return ST_OK;
}

void admin_stop(struct admin *a)
{
    if (!a)
        return;
    if (a->running) {
        eventfd_write(a->wake, 1);
        pthread_join(a->thread, NULL);
    }
    if (a->daemon)
        MHD_stop_daemon(a->daemon);
    if (a->wake >= 0)
        close(a->wake);
    buf_release(&a->url);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

const char *admin_url(const struct admin *a)
{
    return a ? buf_str(&a->url) : "";
}

/* ---- state ---- */

static struct condition *condition_of(struct admin *a, const char *name)
{
    for (size_t i = 0; i < a->nconditions; i++) {
        if (strncmp(a->conditions[i].name, name, sizeof a->conditions[i].name - 1) == 0)
            return &a->conditions[i];
    }
    if (a->nconditions == CONDITIONS_MAX)
        return NULL;
    snprintf(a->conditions[a->nconditions].name, sizeof a->conditions[0].name, "%s", name);
    return &a->conditions[a->nconditions++];
}

void admin_ready(struct admin *a, const char *name, bool ready, const char *reason)
{
    struct condition *c;

    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    c = condition_of(a, name);
    if (c) {
        c->ready = ready;
        snprintf(c->reason, sizeof c->reason, "%s", reason ? reason : "");
        for (char *p = c->reason; *p; p++) {
            if ((unsigned char)*p < ' ')
                *p = ' ';
        }
    }
    pthread_mutex_unlock(&a->lock);
}

void admin_alive(struct admin *a)
{
    if (a)
        atomic_store_explicit(&a->alive_us, clock_mono_us(), memory_order_relaxed);
}

void admin_health_bound(struct admin *a, int stall_ms)
{
    if (a) {
        admin_alive(a);
        atomic_store(&a->stall_ms, stall_ms);
    }
}
