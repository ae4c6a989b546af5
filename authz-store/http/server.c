#include "authz-store/http/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "authz-store/http/keys.h"
#include "common/base/log.h"
#include "common/http/certs.h"
#include "common/http/listen.h"

#define BACKLOG 1024
#define CONNECTION_MEMORY (48U * 1024) /* request line and headers twice over, and the answer's */
#define ANSWER_MAX (64U << 20)

enum state { TAKING_IN, HANDLED, SUSPENDED, RESUMED };

struct call {
    struct http_call c; /* c.impl is this */
    struct http *http;
    struct MHD_Connection *connection;
    struct buf body;
    atomic_int state;
    bool too_big;
};

struct http {
    const struct cfg_http *cfg;
    struct http_app app;
    struct certs *certs;
    struct keys *keys;
    struct buf url;
    int tcp_fd, local_fd;
    struct MHD_Daemon *tcp, *local;
    bool quiesced;
    atomic_bool draining;
    atomic_long calls; /* between a request's first line and its end */
};

/* ---- a call's way ---- */

static struct call *call_new(struct http *h, struct MHD_Connection *connection, const char *method, const char *path)
{
    struct call *call = calloc(1, sizeof *call);
    if (!call)
        return NULL;
    call->http = h;
    call->connection = connection;
    call->c = (struct http_call){
        .method = method, .path = path, .received = clock_mono_us(), .content_type = "application/json", .impl = call};
    buf_init(&call->body, (size_t)h->cfg->body_max);
    buf_init(&call->c.answer, ANSWER_MAX);
    atomic_fetch_add(&h->calls, 1);
    return call;
}

const char *http_query(const struct http_call *c, const char *name)
{
    const struct call *call = c->impl;
    const char *value = MHD_lookup_connection_value(call->connection, MHD_GET_ARGUMENT_KIND, name);
    return value;
}

void http_suspend(struct http_call *c)
{
    struct call *call = c->impl;
    atomic_store(&call->state, SUSPENDED);
    MHD_suspend_connection(call->connection);
}

void http_resume(struct http_call *c)
{
    struct call *call = c->impl;
    struct MHD_Connection *connection = call->connection;
    atomic_store(&call->state, RESUMED); /* the loop may answer it, and free it, from now on */
    MHD_resume_connection(connection);
}

static void add_header(struct MHD_Response *r, const char *name, const char *value)
{
    if (value[0])
        MHD_add_response_header(r, name, value);
}

static enum MHD_Result send_answer(struct call *call)
{
    struct http_call *c = &call->c;
    struct MHD_Response *r;
    if (!buf_ok(&c->answer)) {
        c->status = 500;
        r = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    } else {
        r = MHD_create_response_from_buffer(c->answer.len, c->answer.data, MHD_RESPMEM_MUST_FREE);
        if (r)
            c->answer = (struct buf){.max = c->answer.max};
    }
    if (!r)
        return MHD_NO;
    if (c->status != 204)
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, c->content_type);
    add_header(r, "Openfga-Store-Id", c->store_id);
    add_header(r, "Openfga-Authorization-Model-Id", c->model_id);
    if (c->status == 401)
        add_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (c->status == 503)
        add_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (call->too_big || atomic_load(&call->http->draining))
        add_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
    enum MHD_Result queued = MHD_queue_response(call->connection, (unsigned)c->status, r);
    MHD_destroy_response(r);
    if (call->http->app.done)
        call->http->app.done(call->http->app.arg, c);
    return queued;
}

static bool is_health(const struct http_call *c)
{
    return strcmp(c->path, "/healthz") == 0;
}

static enum MHD_Result handle(struct call *call)
{
    struct http *h = call->http;
    struct http_call *c = &call->c;
    const char *why = is_health(c) ? NULL
                                   : keys_refuse(h->keys, MHD_lookup_connection_value(call->connection, MHD_HEADER_KIND,
                                                                                      MHD_HTTP_HEADER_AUTHORIZATION));
    c->body = (struct bytes){buf_str(&call->body), call->body.len};
    if (why || call->too_big) {
        c->status = call->too_big ? 413 : 401;
        h->app.refuse(h->app.arg, c, why ? why : "received message larger than max");
    } else {
        atomic_store(&call->state, HANDLED);
        h->app.handle(h->app.arg, c);
        if (atomic_load(&call->state) != HANDLED) /* suspended, and perhaps resumed and gone */
            return MHD_YES;
    }
    return send_answer(call);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *path, const char *method,
                                  const char *version, const char *data, size_t *len, void **state)
{
    struct call *call = *state;
    (void)version;
    if (!call) {
        *state = call_new(arg, connection, method, path);
        return *state ? MHD_YES : MHD_NO;
    }
    if (*len > 0) {
        if (!call->too_big)
            buf_add(&call->body, data, *len);
        call->too_big |= !buf_ok(&call->body);
        *len = 0;
        return MHD_YES;
    }
    return atomic_load(&call->state) == RESUMED ? send_answer(call) : handle(call);
}

static void on_completed(void *arg, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode why)
{
    struct http *h = arg;
    struct call *call = *state;
    (void)connection, (void)why;
    if (!call)
        return;
    *state = NULL;
    buf_release(&call->body);
    buf_release(&call->c.answer);
    free(call);
    atomic_fetch_sub(&h->calls, 1);
}

/* ---- start ---- */

enum status http_check(const struct cfg_http *cfg, struct err *err)
{
    enum status st = ST_OK;
    struct certs *certs = NULL;
    struct keys *keys = NULL;
    if (!cfg->listen[0] && !cfg->unix_socket[0])
        return err_set(err, ST_CONFIG, NULL, "http.listen and http.unix_socket are both empty; set one");
    if (!cfg->cert_file[0] != !cfg->key_file[0])
        return err_set(err, ST_CONFIG, NULL, "http.cert_file and http.key_file belong together; http.%s is empty",
                       cfg->cert_file[0] ? "key_file" : "cert_file");
    if (cfg->listen[0])
        st = listen_check("http.listen", cfg->listen, err);
    if (st == ST_OK && cfg->unix_socket[0])
        st = listen_check_local("http.unix_socket", cfg->unix_socket, err);
    if (st == ST_OK && cfg->url_file[0])
        st = listen_check_url("http.url_file", cfg->url_file, err);
    if (st == ST_OK && cfg->cert_file[0])
        st = certs_new(&certs, cfg->cert_file, cfg->key_file, err);
    if (st == ST_OK)
        st = keys_new(&keys, cfg->keys_file, err);
    certs_free(certs);
    keys_free(keys);
    return st;
}

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
    if (st == ST_OK && !cfg->keys_file[0] && !listen_is_loopback(h->tcp_fd))
        st = err_set(err, ST_CONFIG, NULL,
                     "http.listen = \"%s\" without http.keys_file: whoever reaches that address could change every "
                     "permission; set http.keys_file, or listen on 127.0.0.1",
                     cfg->listen);
    return st;
}

static struct MHD_Daemon *start_daemon(struct http *h, int fd, bool tcp)
{
    bool tls = tcp && h->certs;
    struct MHD_OptionItem tls_options[] = {
        {MHD_OPTION_HTTPS_CERT_CALLBACK2, 0, certs_callback()},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)TLS_PRIORITIES},
        {MHD_OPTION_END, 0, NULL},
    };
    struct MHD_OptionItem pool[] = {{MHD_OPTION_THREAD_POOL_SIZE, (intptr_t)h->cfg->loops, NULL},
                                    {MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | (tls ? MHD_USE_TLS : 0);
    return MHD_start_daemon(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_LISTEN_SOCKET, fd,
                            MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->cfg->connections, MHD_OPTION_CONNECTION_TIMEOUT,
                            (unsigned)((h->cfg->idle_timeout_ms + 999) / 1000), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                            (size_t)CONNECTION_MEMORY, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_ARRAY,
                            tls ? tls_options : none, MHD_OPTION_ARRAY, tcp && h->cfg->loops > 1 ? pool : none,
                            MHD_OPTION_END);
}

static enum status start_daemons(struct http *h, struct err *err)
{
    sigset_t all, before;
    sigfillset(&all); /* signals belong to the main thread */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    if (h->tcp_fd >= 0)
        h->tcp = start_daemon(h, h->tcp_fd, true);
    if (h->local_fd >= 0)
        h->local = start_daemon(h, h->local_fd, false);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if ((h->tcp_fd >= 0 && !h->tcp) || (h->local_fd >= 0 && !h->local))
        return err_set(err, ST_FATAL, NULL, "cannot start the HTTP server at %s", buf_str(&h->url));
    return ST_OK;
}

enum status http_start(struct http **out, const struct cfg_http *cfg, const struct http_app *app, struct err *err)
{
    struct http *h = calloc(1, sizeof *h);
    *out = NULL;
    if (!h)
        return err_set(err, ST_NOMEM, NULL, "no memory for the HTTP server");
    h->cfg = cfg;
    h->app = *app;
    h->tcp_fd = h->local_fd = -1;
    buf_init(&h->url, 512);
    enum status st = http_check(cfg, err);
    if (st == ST_OK && cfg->cert_file[0])
        st = certs_new(&h->certs, cfg->cert_file, cfg->key_file, err);
    if (st == ST_OK)
        st = keys_new(&h->keys, cfg->keys_file, err);
    if (st == ST_OK)
        st = listen_all(h, err);
    if (st == ST_OK)
        st = start_daemons(h, err);
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
    while (atomic_load(&h->calls) > 0 && clock_mono_us() < deadline)
        usleep(1000);
    return atomic_load(&h->calls) == 0;
}

void http_free(struct http *h)
{
    if (!h)
        return;
    quiesce(h);
    if (h->tcp)
        MHD_stop_daemon(h->tcp); /* closes its socket */
    else if (h->tcp_fd >= 0)
        close(h->tcp_fd);
    if (h->local)
        MHD_stop_daemon(h->local);
    else if (h->local_fd >= 0)
        close(h->local_fd);
    certs_free(h->certs);
    keys_free(h->keys);
    buf_release(&h->url);
    free(h);
}

const char *http_url(const struct http *h)
{
    return buf_str(&h->url);
}

void http_look(struct http *h)
{
    if (h->certs)
        certs_look(h->certs);
    keys_look(h->keys);
}
