/*
 * proxy.c - one thread polls all sockets; each connection has two queues of bytes with the time each piece is due.
 *
 * A piece is due when it came, or `delay` later; a way that is frozen passes nothing on. With late requests a client's
 * close does not close the server's side: what is queued is still delivered, and the answer read and discarded.
 */
#include "tests/harness/proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"

#define CHUNK 65536
#define QUEUE_MAX (8u << 20)
#define LINGER_MS 5000 /* how long an answer is awaited for a client that is gone */

struct piece {
    struct piece *next;
    mono_us due;
    size_t len, sent;
    char data[];
};

/* Bytes from one socket to the other. */
struct lane {
    struct piece *head, *tail;
    size_t queued;
    bool ended; /* the sender has closed its side */
};

struct conn {
    struct conn *next;
    int client, server; /* -1 = gone */
    bool connecting;
    bool await_answer; /* late: the client is gone, but the server is to finish what it was sent */
    mono_us doomed;    /* client gone and all delivered: when the connection is given up; 0 = not yet */
    struct lane up, down;
};

struct way {
    bool frozen, drop;
    int delay_ms;
    uint64_t bytes;
};

struct proxy {
    pthread_mutex_t lock;
    pthread_t thread;
    int listener, placeholder, wake;
    bool stop, late, cut;
    struct sockaddr_in target, self;
    char address[32];
    struct way up, down;
    struct conn *conns;
    uint64_t accepted;
};

static void wake(struct proxy *p)
{
    uint64_t one = 1;

    if (write(p->wake, &one, sizeof(one)) < 0)
        return; /* full: it is awake already */
}

static bool parse_target(const char *s, struct sockaddr_in *out)
{
    const char *colon = strrchr(s, ':');
    char host[64];

    if (colon == NULL || (size_t)(colon - s) >= sizeof(host))
        return false;
    memcpy(host, s, (size_t)(colon - s));
    host[colon - s] = '\0';
    *out = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10))};
    return inet_pton(AF_INET, host, &out->sin_addr) == 1;
}

/* ---- queues ---- */

static void lane_clear(struct lane *l)
{
    for (struct piece *n; l->head != NULL; l->head = n) {
        n = l->head->next;
        free(l->head);
    }
    l->tail = NULL;
    l->queued = 0;
}

static void lane_add(struct lane *l, const char *data, size_t len, mono_us due)
{
    struct piece *n = malloc(sizeof(*n) + len);

    if (n == NULL)
        abort();
    *n = (struct piece){.due = due, .len = len};
    memcpy(n->data, data, len);
    /* Order is kept when a delay is taken away. */
    if (l->tail != NULL && l->tail->due > due)
        n->due = l->tail->due;
    if (l->tail != NULL)
        l->tail->next = n;
    else
        l->head = n;
    l->tail = n;
    l->queued += len;
}

/* True if something is to be written now. */
static bool lane_due(const struct lane *l, const struct way *w, mono_us now)
{
    return l->head != NULL && !w->frozen && l->head->due <= now;
}

/* ---- connections ---- */

static void close_fd(int *fd, bool reset)
{
    struct linger hard = {.l_onoff = 1, .l_linger = 0};

    if (*fd < 0)
        return;
    if (reset)
        setsockopt(*fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    close(*fd);
    *fd = -1;
}

static void conn_free(struct conn *c, bool reset)
{
    close_fd(&c->client, reset);
    close_fd(&c->server, reset);
    lane_clear(&c->up);
    lane_clear(&c->down);
    free(c);
}

static void accept_one(struct proxy *p)
{
    int fd = accept4(p->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), one = 1;
    struct conn *c;

    if (fd < 0)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    p->accepted++;
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        abort();
    c->client = fd;
    c->server = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(c->server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    c->connecting = true;
    if (connect(c->server, (struct sockaddr *)&p->target, sizeof(p->target)) != 0 && errno != EINPROGRESS) {
        conn_free(c, true);
        return;
    }
    c->next = p->conns;
    p->conns = c;
}

/* The client is gone. What it sent before is still delivered, as by a real network. */
static void client_gone(struct proxy *p, struct conn *c, bool reset)
{
    close_fd(&c->client, reset);
    lane_clear(&c->down);
    c->up.ended = true;
    c->await_answer = p->late;
}

/* Read what is there. False if that side has ended. */
static bool pull(int fd, struct lane *l, struct way *w, bool to_nobody)
{
    char data[CHUNK];
    ssize_t n = recv(fd, data, sizeof(data), 0);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n == 0)
        return false;
    w->bytes += (uint64_t)n;
    if (!w->drop && !to_nobody)
        lane_add(l, data, (size_t)n, clock_mono_us() + (int64_t)w->delay_ms * 1000);
    return true;
}

/* Write what is due. False if that side is broken. */
static bool push(int fd, struct lane *l, const struct way *w)
{
    mono_us now = clock_mono_us();

    while (lane_due(l, w, now)) {
        struct piece *h = l->head;
        ssize_t n = send(fd, h->data + h->sent, h->len - h->sent, MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        h->sent += (size_t)n;
        l->queued -= (size_t)n;
        if (h->sent < h->len)
            return true;
        l->head = h->next;
        if (l->head == NULL)
            l->tail = NULL;
        free(h);
    }
    return true;
}

/* One round of one connection. False when it is over. */
static bool serve(struct proxy *p, struct conn *c, short client, short server)
{
    if (c->connecting && server != 0) {
        int error = 0;
        socklen_t len = sizeof(error);
        getsockopt(c->server, SOL_SOCKET, SO_ERROR, &error, &len);
        if (error != 0)
            return false;
        c->connecting = false;
    }
    if (c->client >= 0 && (client & (POLLIN | POLLHUP | POLLERR)) && !pull(c->client, &c->up, &p->up, false))
        client_gone(p, c, false);
    if (c->connecting)
        return true;
    if ((server & (POLLIN | POLLHUP | POLLERR)) && !c->down.ended) {
        uint64_t before = p->down.bytes;
        c->down.ended = !pull(c->server, &c->down, &p->down, c->client < 0);
        if (c->client < 0 && c->up.head == NULL && (c->down.ended || p->down.bytes > before))
            return false; /* the answer, or the end */
    }
    if (!push(c->server, &c->up, &p->up))
        return false;
    if (c->client >= 0 && !push(c->client, &c->down, &p->down))
        client_gone(p, c, false);
    if (c->client < 0 && c->up.head == NULL && c->doomed == 0)
        c->doomed = c->await_answer ? deadline_in_ms(LINGER_MS) : clock_mono_us();
    /* The server's end is passed on when all that it sent is. */
    return !(c->down.ended && c->down.head == NULL);
}

/* ---- the thread ---- */

static int soonest(int timeout, const struct lane *l, const struct way *w, mono_us now)
{
    int ms;

    if (l->head == NULL || w->frozen || l->head->due <= now)
        return timeout;
    ms = (int)((l->head->due - now + 999) / 1000);
    return timeout < 0 || ms < timeout ? ms : timeout;
}

static short events_of(const struct lane *from, const struct lane *to, const struct way *to_way, mono_us now)
{
    short e = 0;

    if (!from->ended && from->queued < QUEUE_MAX)
        e |= POLLIN;
    if (lane_due(to, to_way, now))
        e |= POLLOUT;
    return e;
}

/* Fills the poll set: wake, listener, then two for each connection. Returns the timeout. */
static int prepare(struct proxy *p, struct pollfd *fds, mono_us now)
{
    int timeout = -1;
    size_t n = 2;

    fds[0] = (struct pollfd){.fd = p->wake, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = p->listener, .events = POLLIN};
    for (struct conn *c = p->conns; c != NULL; c = c->next) {
        short client = events_of(&c->up, &c->down, &p->down, now);
        short server = c->connecting ? POLLOUT : events_of(&c->down, &c->up, &p->up, now);
        fds[n++] = (struct pollfd){.fd = client != 0 ? c->client : -1, .events = client};
        fds[n++] = (struct pollfd){.fd = server != 0 ? c->server : -1, .events = server};
        timeout = soonest(timeout, &c->up, &p->up, now);
        timeout = soonest(timeout, &c->down, &p->down, now);
        if (c->doomed != 0 && (timeout < 0 || timeout > 50))
            timeout = 50;
    }
    return timeout;
}

static size_t count(const struct proxy *p)
{
    size_t n = 0;

    for (const struct conn *c = p->conns; c != NULL; c = c->next)
        n++;
    return n;
}

static void reset_all(struct proxy *p)
{
    struct conn **at = &p->conns;

    while (*at != NULL) {
        struct conn *c = *at;
        if (p->late && c->up.head != NULL) {
            client_gone(p, c, true);
            at = &c->next;
            continue;
        }
        *at = c->next;
        conn_free(c, true);
    }
    p->cut = false;
}

static void serve_all(struct proxy *p, const struct pollfd *fds, size_t nfds)
{
    struct conn **at = &p->conns;
    mono_us now = clock_mono_us();
    size_t i = 2;

    while (*at != NULL && i + 1 < nfds) {
        struct conn *c = *at;
        if (serve(p, c, fds[i].revents, fds[i + 1].revents) && (c->doomed == 0 || c->doomed > now)) {
            at = &c->next;
        } else {
            *at = c->next;
            conn_free(c, false);
        }
        i += 2;
    }
    if (fds[1].revents & POLLIN)
        accept_one(p);
}

static void *run(void *arg)
{
    struct proxy *p = arg;
    struct pollfd *fds = NULL;
    uint64_t seen;

    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        size_t nfds = 2 + 2 * count(p);
        struct pollfd *more = realloc(fds, nfds * sizeof(*fds));
        if (more == NULL)
            abort();
        fds = more;
        int timeout = prepare(p, fds, clock_mono_us());
        pthread_mutex_unlock(&p->lock);
        poll(fds, nfds, timeout);
        pthread_mutex_lock(&p->lock);
        if ((fds[0].revents & POLLIN) && read(p->wake, &seen, sizeof(seen)) < 0)
            continue;
        /* The listener may have been closed and opened anew meanwhile. */
        if (fds[1].fd != p->listener)
            fds[1].revents = 0;
        if (p->cut)
            reset_all(p);
        else
            serve_all(p, fds, nfds);
    }
    for (struct conn *c; (c = p->conns) != NULL;) {
        p->conns = c->next;
        conn_free(c, true);
    }
    pthread_mutex_unlock(&p->lock);
    free(fds);
    return NULL;
}

/* ---- interface ---- */

/* A socket bound to our port; the port is shared with a second one that never listens and keeps it ours. */
static int bound(struct proxy *p, bool listens)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, (struct sockaddr *)&p->self, sizeof(p->self)) != 0 || (listens && listen(fd, 128) != 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

struct proxy *proxy_start(const char *target)
{
    struct proxy *p = calloc(1, sizeof(*p));
    socklen_t len = sizeof(p->self);

    if (p == NULL)
        return NULL;
    pthread_mutex_init(&p->lock, NULL);
    p->self = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    p->target = p->self;
    p->listener = p->wake = -1;
    p->placeholder = bound(p, false);
    if (p->placeholder < 0 || getsockname(p->placeholder, (struct sockaddr *)&p->self, &len) != 0)
        goto failed;
    p->listener = bound(p, true);
    p->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    snprintf(p->address, sizeof(p->address), "127.0.0.1:%d", ntohs(p->self.sin_port));
    if (p->listener < 0 || p->wake < 0 || (target != NULL && !parse_target(target, &p->target)) ||
        pthread_create(&p->thread, NULL, run, p) != 0)
        goto failed;
    return p;
failed:
    close_fd(&p->placeholder, false);
    close_fd(&p->listener, false);
    close_fd(&p->wake, false);
    free(p);
    return NULL;
}

static void enter(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
}

static void leave(struct proxy *p)
{
    wake(p);
    pthread_mutex_unlock(&p->lock);
}

void proxy_stop(struct proxy *p)
{
    if (p == NULL)
        return;
    enter(p);
    p->stop = true;
    leave(p);
    pthread_join(p->thread, NULL);
    close_fd(&p->placeholder, false);
    close_fd(&p->listener, false);
    close_fd(&p->wake, false);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void proxy_target(struct proxy *p, const char *target)
{
    enter(p);
    if (!parse_target(target, &p->target))
        abort();
    leave(p);
}

const char *proxy_address(const struct proxy *p)
{
    return p->address;
}

int proxy_port(const struct proxy *p)
{
    return ntohs(p->self.sin_port);
}

void proxy_pass(struct proxy *p)
{
    enter(p);
    p->up.frozen = p->up.drop = p->down.frozen = p->down.drop = p->late = false;
    p->up.delay_ms = p->down.delay_ms = 0;
    leave(p);
}

void proxy_freeze(struct proxy *p, enum proxy_way way)
{
    enter(p);
    p->up.frozen |= (way & PROXY_UP) != 0;
    p->down.frozen |= (way & PROXY_DOWN) != 0;
    leave(p);
}

void proxy_drop(struct proxy *p, enum proxy_way way)
{
    enter(p);
    p->up.drop |= (way & PROXY_UP) != 0;
    p->down.drop |= (way & PROXY_DOWN) != 0;
    leave(p);
}

void proxy_delay(struct proxy *p, enum proxy_way way, int ms)
{
    enter(p);
    if (way & PROXY_UP)
        p->up.delay_ms = ms;
    if (way & PROXY_DOWN)
        p->down.delay_ms = ms;
    leave(p);
}

void proxy_late(struct proxy *p, int ms)
{
    enter(p);
    p->late = true;
    p->up.delay_ms = ms;
    leave(p);
}

void proxy_cut(struct proxy *p)
{
    enter(p);
    p->cut = true;
    leave(p);
    /* Done when this returns: a connection made afterwards is a new one. */
    for (bool done = false; !done;) {
        enter(p);
        done = !p->cut;
        leave(p);
        if (!done)
            poll(NULL, 0, 1);
    }
}

void proxy_refuse(struct proxy *p, bool refuse)
{
    enter(p);
    if (refuse) {
        close_fd(&p->listener, false);
    } else if (p->listener < 0) {
        p->listener = bound(p, true);
        if (p->listener < 0)
            abort();
    }
    leave(p);
}

uint64_t proxy_accepted(struct proxy *p)
{
    uint64_t n;

    enter(p);
    n = p->accepted;
    leave(p);
    return n;
}

int proxy_open(struct proxy *p)
{
    size_t n;

    enter(p);
    n = count(p);
    leave(p);
    return (int)n;
}

uint64_t proxy_bytes(struct proxy *p, enum proxy_way way)
{
    uint64_t n;

    enter(p);
    n = way == PROXY_UP ? p->up.bytes : p->down.bytes;
    leave(p);
    return n;
}

uint64_t proxy_held(struct proxy *p)
{
    uint64_t n = 0;

    enter(p);
    for (const struct conn *c = p->conns; c != NULL; c = c->next)
        n += c->up.queued;
    leave(p);
    return n;
}
