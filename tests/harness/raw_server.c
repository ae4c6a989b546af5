#include "tests/harness/raw_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define REQUEST_START (128u << 10)
#define REQUEST_MAX (32u << 20)

struct raw_server {
    struct raw_options options;
    SSL_CTX *tls;
    int listener, stop;
    char url[160];
    pthread_t acceptor;

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t ended;
    int requests, connections, open;
    bool refusing;
};

struct raw_peer {
    struct raw_server *server;
    int fd, connection;
    SSL *tls;
    char *data; /* what has been read and not been handled */
    size_t len, cap;
};

static void die(const char *what)
{
    fprintf(stderr, "raw_server: %s: %s\n", what, strerror(errno));
    abort();
}

/* ---- bytes ---- */

/* False when the server is being stopped. */
static bool wait_for(struct raw_peer *p, short events)
{
    struct pollfd fds[] = {{.fd = p->fd, .events = events}, {.fd = p->server->stop, .events = POLLIN}};

    while (poll(fds, 2, -1) < 0)
        if (errno != EINTR)
            die("poll");
    return !(fds[1].revents & POLLIN);
}

static ssize_t receive(struct raw_peer *p, void *to, size_t len)
{
    if (p->tls) {
        int n = SSL_read(p->tls, to, (int)len);
        return n > 0 ? n : 0;
    }
    return recv(p->fd, to, len, 0);
}

bool raw_send(struct raw_peer *p, const void *data, size_t len)
{
    const char *from = data;

    while (len > 0) {
        size_t part = len > 65536 ? 65536 : len;
        ssize_t n;

        if (!wait_for(p, POLLOUT))
            return false;
        n = p->tls ? SSL_write(p->tls, from, (int)part) : send(p->fd, from, part, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        from += n;
        len -= (size_t)n;
    }
    return true;
}

bool raw_sendf(struct raw_peer *p, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    bool ok;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        die("vasprintf");
    ok = raw_send(p, text, (size_t)n);
    free(text);
    return ok;
}

bool raw_reply(struct raw_peer *p, int status, const char *headers, const char *body)
{
    return raw_sendf(p, "HTTP/1.1 %d Whatever\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s\r\n%s",
                     status, strlen(body), headers, body);
}

bool raw_pause(struct raw_peer *p, int ms)
{
    struct pollfd fds[] = {{.fd = p->fd, .events = POLLRDHUP}, {.fd = p->server->stop, .events = POLLIN}};

    return poll(fds, 2, ms) == 0;
}

/* ---- requests ---- */

static bool read_more(struct raw_peer *p)
{
    ssize_t n;

    if (p->len + 65536 > p->cap) {
        p->cap *= 2;
        if (p->cap > REQUEST_MAX)
            return false;
        p->data = realloc(p->data, p->cap);
        if (!p->data)
            die("realloc");
    }
    if ((!p->tls || SSL_pending(p->tls) == 0) && !wait_for(p, POLLIN))
        return false;
    n = receive(p, p->data + p->len, 65535);
    if (n <= 0)
        return false;
    p->len += (size_t)n;
    p->data[p->len] = '\0';
    return true;
}

static size_t content_length(const char *head)
{
    const char *h = strcasestr(head, "\r\nContent-Length:");

    return h ? strtoul(h + strlen("\r\nContent-Length:"), NULL, 10) : 0;
}

/* Reads one request and lets the handler answer it. */
static enum raw_next serve_one(struct raw_peer *p)
{
    struct raw_server *s = p->server;
    struct raw_request rq = {.connection = p->connection};
    enum raw_next next;
    char *end, *body;
    size_t head_len;

    while (!(end = strstr(p->data, "\r\n\r\n")))
        if (!read_more(p))
            return RAW_CLOSE;
    head_len = (size_t)(end - p->data) + 4;
    rq.body_len = content_length(p->data);
    while (p->len < head_len + rq.body_len)
        if (!read_more(p))
            return RAW_CLOSE;
    p->data[head_len - 2] = '\0';
    body = strndup(p->data + head_len, rq.body_len);
    rq.head = p->data;
    rq.body = body;
    pthread_mutex_lock(&s->lock);
    rq.number = s->requests++;
    pthread_mutex_unlock(&s->lock);
    next = s->options.handler(p, &rq, s->options.arg);
    free(body);
    p->len -= head_len + rq.body_len;
    memmove(p->data, p->data + head_len + rq.body_len, p->len + 1);
    return next;
}

static void *serve(void *arg)
{
    struct raw_peer *p = arg;
    struct raw_server *s = p->server;
    enum raw_next next = RAW_KEEP;

    if (s->tls) {
        p->tls = SSL_new(s->tls);
        SSL_set_fd(p->tls, p->fd);
        if (SSL_accept(p->tls) != 1)
            next = RAW_CLOSE;
    }
    while (next == RAW_KEEP)
        next = serve_one(p);
    if (next == RAW_RESET)
        setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    else if (p->tls)
        SSL_shutdown(p->tls);
    SSL_free(p->tls);
    ERR_clear_error();
    close(p->fd);
    free(p->data);
    free(p);
    pthread_mutex_lock(&s->lock);
    s->open--;
    pthread_cond_broadcast(&s->ended);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the server ---- */

static void add_peer(struct raw_server *s, int fd)
{
    struct raw_peer *p = calloc(1, sizeof(*p));
    pthread_t thread;

    if (!p || !(p->data = calloc(1, REQUEST_START)))
        die("calloc");
    p->cap = REQUEST_START;
    p->server = s;
    p->fd = fd;
    pthread_mutex_lock(&s->lock);
    p->connection = s->connections++;
    s->open++;
    pthread_mutex_unlock(&s->lock);
    if (pthread_create(&thread, NULL, serve, p) != 0)
        die("pthread_create");
    pthread_detach(thread);
}

static void *accept_all(void *arg)
{
    struct raw_server *s = arg;

    for (;;) {
        struct pollfd fds[] = {{.fd = s->listener, .events = POLLIN}, {.fd = s->stop, .events = POLLIN}};
        int fd;

        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            die("poll");
        if (fds[1].revents)
            return NULL;
        fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            add_peer(s, fd);
        else
            return NULL; /* shut down by raw_server_refuse */
    }
}

static void listen_unix(struct raw_server *s)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    snprintf(a.sun_path, sizeof(a.sun_path), "%s", s->options.socket_path);
    snprintf(s->url, sizeof(s->url), "unix:%s", s->options.socket_path);
    unlink(a.sun_path);
    s->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(s->listener, (struct sockaddr *)&a, sizeof(a)) != 0)
        die("bind");
}

static void listen_tcp(struct raw_server *s)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);

    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(s->listener, (struct sockaddr *)&a, sizeof(a)) != 0 ||
        getsockname(s->listener, (struct sockaddr *)&a, &len) != 0)
        die("bind");
    snprintf(s->url, sizeof(s->url), "%s://127.0.0.1:%d", s->tls ? "https" : "http", ntohs(a.sin_port));
}

static void load_tls(struct raw_server *s)
{
    const struct raw_options *o = &s->options;

    s->tls = SSL_CTX_new(TLS_server_method());
    if (!s->tls || SSL_CTX_use_certificate_file(s->tls, o->cert_file, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_use_PrivateKey_file(s->tls, o->key_file, SSL_FILETYPE_PEM) != 1)
        die(o->cert_file);
    if (o->client_ca_file) {
        if (SSL_CTX_load_verify_locations(s->tls, o->client_ca_file, NULL) != 1)
            die(o->client_ca_file);
        SSL_CTX_set_verify(s->tls, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    }
}

struct raw_server *raw_server_start(const struct raw_options *options)
{
    struct raw_server *s = calloc(1, sizeof(*s));

    if (!s)
        die("calloc");
    s->options = *options;
    s->stop = eventfd(0, EFD_CLOEXEC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->ended, NULL);
    if (options->cert_file)
        load_tls(s);
    if (options->socket_path)
        listen_unix(s);
    else
        listen_tcp(s);
    if (s->stop < 0 || listen(s->listener, 64) != 0)
        die("listen");
    if (pthread_create(&s->acceptor, NULL, accept_all, s) != 0)
        die("pthread_create");
    return s;
}

void raw_server_refuse(struct raw_server *s)
{
    pthread_mutex_lock(&s->lock);
    if (!s->refusing)
        shutdown(s->listener, SHUT_RDWR);
    s->refusing = true;
    pthread_mutex_unlock(&s->lock);
}

void raw_server_stop(struct raw_server *s)
{
    if (!s)
        return;
    if (eventfd_write(s->stop, 1) != 0)
        die("eventfd_write");
    pthread_join(s->acceptor, NULL);
    pthread_mutex_lock(&s->lock);
    while (s->open > 0)
        pthread_cond_wait(&s->ended, &s->lock);
    pthread_mutex_unlock(&s->lock);
    close(s->listener);
    close(s->stop);
    if (s->options.socket_path)
        unlink(s->options.socket_path);
    SSL_CTX_free(s->tls);
    pthread_cond_destroy(&s->ended);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

const char *raw_server_url(const struct raw_server *s)
{
    return s->url;
}

int raw_server_requests(struct raw_server *s)
{
    int n;

    pthread_mutex_lock(&s->lock);
    n = s->requests;
    pthread_mutex_unlock(&s->lock);
    return n;
}

int raw_server_connections(struct raw_server *s)
{
    int n;

    pthread_mutex_lock(&s->lock);
    n = s->connections;
    pthread_mutex_unlock(&s->lock);
    return n;
}
