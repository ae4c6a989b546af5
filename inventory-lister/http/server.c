#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/http/listen.h"
#include "inventory-lister/http/internal.h"

#define BACKLOG 1024

/* ---- the library's events ---- */

static bool is_local(int fd)
{
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof sa;

    return getsockname(fd, (struct sockaddr *)&sa, &len) == 0 && sa.ss_family == AF_UNIX;
}

static long peer_uid(int fd)
{
    struct ucred peer = {0};
    socklen_t len = sizeof peer;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 ? (long)peer.uid : -1;
}

static void on_connection(void *arg, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode what)
{
    struct http *h = arg;
    const union MHD_ConnectionInfo *info;
    int fd;

    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        watch_remove(h->watch, *context);
        return;
    }
    info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info)
        return;
    fd = info->connect_fd;
    *context = watch_add(h->watch, fd, h->certs != NULL && !is_local(fd), is_local(fd) ? peer_uid(fd) : -1);
    if (!*context)
        shutdown(fd, SHUT_RDWR);
}

static void on_completed(void *arg, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode why)
{
    struct http *h = arg;
    struct job *job = *state;
    char status[16];

    (void)c;
    if (!job)
        return;
    *state = NULL;
    /* Also what makes the worker's last writes visible, for a connection that failed is not given to intake again. */
    if (atomic_load(&job->state) == JOB_ANSWERED && why == MHD_REQUEST_TERMINATED_COMPLETED_OK) {
        http_count_status(job->rq.status);
        metric_observe_us(&http_duration, clock_mono_us() - job->rq.received);
    }
    snprintf(status, sizeof status, "%d", job->rq.status);
    log_debug("request", "method", job->rq.method, "path", job->rq.path ? job->rq.path : "", "status", status, "caller",
              job->rq.caller ? job->rq.caller->name : "", NULL);
    watch_phase(h->watch, job->conn, PHASE_IDLE, deadline_in_ms(h->cfg->idle_timeout_ms + h->cfg->header_timeout_ms));
    job_free(job);
    watch_end(h->watch);
}

/* On a worker: the answer is made, the event loop sends it. Nothing of the job may be touched afterwards. */
static void on_done(struct job *job)
{
    struct http *h = job->http;
    struct MHD_Connection *c = job->c;

    watch_answer(h->watch, job->conn, deadline_in_ms(h->cfg->idle_timeout_ms));
    atomic_store(&job->state, JOB_ANSWERED);
    MHD_resume_connection(c);
}

static void on_tick(void *arg)
{
    struct http *h = arg;

    if (h->certs)
        certs_look(h->certs);
}

/* ---- listening ---- */

static enum status listen_all(struct http *h, struct err *err)
{
    const struct cfg_http *cfg = h->cfg;
    enum status st = ST_OK;
    struct buf url;

    if (cfg->unix_socket[0])
        st = listen_local("http.unix_socket", cfg->unix_socket, BACKLOG, &h->local_fd, err);
    if (st != ST_OK || !cfg->listen[0]) {
        buf_addf(&h->url, "unix:%s", cfg->unix_socket);
        return st;
    }
    buf_init(&url, 512);
    st = listen_open("http.listen", cfg->listen, BACKLOG, &h->tcp_fd, &url, err);
    if (st == ST_OK)
        buf_addf(&h->url, "%s%s", h->certs ? "https" : "http", buf_str(&url) + strlen("http"));
    buf_release(&url);
    if (st == ST_OK && callers_anonymous(h->callers) && !listen_is_loopback(h->tcp_fd))
        st =
            err_set(err, ST_CONFIG, NULL,
                    "callers.anonymous with http.listen = \"%s\": whoever reaches that address would have every right; "
                    "listen on 127.0.0.1, or only on http.unix_socket",
                    cfg->listen);
    return st;
}

/* ---- start ---- */

enum status http_check(const struct cfg_http *cfg, struct err *err)
{
    enum status st = ST_OK;
    struct certs *certs = NULL;

    if (!cfg->listen[0] && !cfg->unix_socket[0])
        return err_set(err, ST_CONFIG, NULL, "http.listen and http.unix_socket are both empty; set one");
    if (!cfg->cert_file[0] != !cfg->key_file[0])
        return err_set(err, ST_CONFIG, NULL, "http.cert_file and http.key_file belong together; http.%s is empty",
                       cfg->cert_file[0] ? "key_file" : "cert_file");
    if (cfg->cert_file[0] && !cfg->listen[0])
        return err_set(err, ST_CONFIG, NULL, "http.cert_file is for the TCP port, and http.listen is empty");
    if (cfg->listen[0])
        st = listen_check("http.listen", cfg->listen, err);
    if (st == ST_OK && cfg->unix_socket[0])
        st = listen_check_local("http.unix_socket", cfg->unix_socket, err);
    if (st == ST_OK && cfg->url_file[0])
        st = listen_check_url("http.url_file", cfg->url_file, err);
    if (st == ST_OK && cfg->cert_file[0])
        st = certs_new(&certs, cfg->cert_file, cfg->key_file, err);
    certs_free(certs);
    return st;
}

static struct MHD_Daemon *start_daemon(struct http *h, int fd, bool tls)
{
    struct MHD_OptionItem tls_options[] = {
        {MHD_OPTION_HTTPS_CERT_CALLBACK2, 0, certs_callback()},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)TLS_PRIORITIES},
        {MHD_OPTION_END, 0, NULL},
    };
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | (tls ? MHD_USE_TLS : 0);

    return MHD_start_daemon(flags, 0, NULL, NULL, intake_on_request, h, MHD_OPTION_LISTEN_SOCKET, fd,
                            MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->cfg->connections, MHD_OPTION_CONNECTION_TIMEOUT,
                            (unsigned)((h->cfg->idle_timeout_ms + 999) / 1000), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                            (size_t)CONNECTION_MEMORY, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
                            MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_UNESCAPE_CALLBACK, intake_unescape,
                            NULL, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_ARRAY, tls ? tls_options : none,
                            MHD_OPTION_END);
}

static enum status start_threads(struct http *h, struct err *err)
{
    size_t doors = (h->tcp_fd >= 0) + (h->local_fd >= 0);
    enum status st = watch_new(&h->watch, h->cfg, (size_t)h->cfg->connections * doors, err);

    if (st == ST_OK)
        st = queue_new(&h->queue, h->cfg, h->app, on_done, err);
    if (st == ST_OK)
        st = watch_start(h->watch, on_tick, h, err);
    if (st != ST_OK)
        return st;
    if (h->tcp_fd >= 0)
        h->tcp = start_daemon(h, h->tcp_fd, h->certs != NULL);
    if (h->local_fd >= 0)
        h->local = start_daemon(h, h->local_fd, false);
    if ((h->tcp_fd >= 0 && !h->tcp) || (h->local_fd >= 0 && !h->local))
        return err_set(err, ST_FATAL, NULL, "cannot start the HTTP server at %s", buf_str(&h->url));
    return ST_OK;
}

enum status http_start(struct http **out, const struct cfg_http *cfg, const struct http_app *app,
                       struct callers *callers, struct err *err)
{
    struct http *h = calloc(1, sizeof *h);
    sigset_t all, before;
    enum status st;

    *out = NULL;
    if (!h)
        return err_set(err, ST_NOMEM, NULL, "no memory for the HTTP server");
    h->cfg = cfg;
    h->app = app;
    h->callers = callers;
    h->tcp_fd = h->local_fd = -1;
    buf_init(&h->url, 512);
    st = http_check(cfg, err);
    if (st == ST_OK && cfg->cert_file[0])
        st = certs_new(&h->certs, cfg->cert_file, cfg->key_file, err);
    if (st == ST_OK)
        st = listen_all(h, err);
    sigfillset(&all); /* signals belong to the main thread */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    if (st == ST_OK)
        st = start_threads(h, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (st == ST_OK && cfg->url_file[0])
        st = listen_write_url("http.url_file", cfg->url_file, buf_str(&h->url), err);
    if (st != ST_OK) {
        http_free(h);
        return st;
    }
    *out = h;
    return ST_OK;
}

/* ---- end ---- */

/* New connections are refused. Not by MHD_quiesce_daemon(): it and an event loop may both take the socket out of the
 * loop's epoll set, and whoever comes second ends the process (libmicrohttpd 0.9.75, daemon.c). */
static void quiesce(struct http *h)
{
    if (h->quiesced)
        return;
    h->quiesced = true;
    if (h->tcp_fd >= 0)
        shutdown(h->tcp_fd, SHUT_RDWR);
    if (h->local_fd >= 0)
        shutdown(h->local_fd, SHUT_RDWR);
    if (h->local_fd >= 0)
        unlink(h->cfg->unix_socket);
}

bool http_drain(struct http *h, mono_us deadline)
{
    atomic_store(&h->draining, true);
    quiesce(h);
    watch_drain(h->watch);
    return watch_wait_idle(h->watch, deadline);
}

void http_free(struct http *h)
{
    if (!h)
        return;
    atomic_store(&h->draining, true);
    quiesce(h);
    queue_close(h->queue); /* first: what a worker takes from now on is not run, so what is cancelled next is all */
    if (h->watch)
        watch_cancel_all(h->watch);
    queue_stop(h->queue);
    if (h->tcp)
        MHD_stop_daemon(h->tcp); /* closes its socket */
    else if (h->tcp_fd >= 0)
        close(h->tcp_fd);
    if (h->local)
        MHD_stop_daemon(h->local);
    else if (h->local_fd >= 0)
        close(h->local_fd);
    queue_free(h->queue); /* the event loops ask it for room until they have ended */
    watch_free(h->watch);
    certs_free(h->certs);
    buf_release(&h->url);
    free(h);
}

const char *http_url(const struct http *h)
{
    return buf_str(&h->url);
}
