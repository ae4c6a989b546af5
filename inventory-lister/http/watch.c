#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/wait.h"
#include "inventory-lister/http/internal.h"

#define TICK_MAX_MS 250
#define EVENTS 64
#define WAKE UINT64_MAX

struct watch {
    const struct cfg_http *cfg;
    int epoll, wake;
    pthread_t thread;
    bool running;
    void (*tick)(void *arg);
    void *arg;

    pthread_mutex_t lock; /* guards the following */
    pthread_cond_t ended;
    struct conn *conns, *free;
    size_t max, used; /* slots that were ever in use lie below `used` */
    size_t live, requests, running_requests;
    bool draining, stop;
};

enum status watch_new(struct watch **out, const struct cfg_http *cfg, size_t max, struct err *err)
{
    struct watch *w = calloc(1, sizeof *w);

    *out = NULL;
    if (w)
        w->conns = calloc(max, sizeof *w->conns);
    if (!w || !w->conns) {
        free(w);
        return err_set(err, ST_NOMEM, NULL, "no memory for the server's connections");
    }
    w->cfg = cfg;
    w->max = max;
    pthread_mutex_init(&w->lock, NULL);
    wait_cond_init(&w->ended);
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->epoll < 0 || w->wake < 0 ||
        epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->wake, &(struct epoll_event){.events = EPOLLIN, .data.u64 = WAKE}) != 0) {
        watch_free(w);
        return err_set(err, ST_FATAL, NULL, "cannot watch connections: %s", strerror(errno));
    }
    *out = w;
    return ST_OK;
}

void watch_free(struct watch *w)
{
    if (!w)
        return;
    watch_stop(w);
    if (w->epoll >= 0)
        close(w->epoll);
    if (w->wake >= 0)
        close(w->wake);
    pthread_cond_destroy(&w->ended);
    pthread_mutex_destroy(&w->lock);
    free(w->conns);
    free(w);
}

/* ---- the table ---- */

static uint64_t name_of(const struct watch *w, const struct conn *c)
{
    return (uint64_t)c->generation << 32 | (uint64_t)(c - w->conns);
}

struct conn *watch_add(struct watch *w, int fd, bool tls, long peer_uid)
{
    struct conn *c;

    pthread_mutex_lock(&w->lock);
    c = w->free;
    if (c)
        w->free = c->next;
    else if (w->used < w->max)
        c = &w->conns[w->used++];
    if (c) {
        *c = (struct conn){.fd = fd,
                           .generation = (c->generation + 1) & INT32_MAX,
                           .phase = PHASE_HEAD,
                           .tls = tls,
                           .peer_uid = peer_uid,
                           .deadline = deadline_in_ms(w->cfg->header_timeout_ms)};
        metric_set(&http_connections, (double)++w->live);
        /* Edge-triggered, once for the connection's life: the close of fd takes it out. */
        if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd,
                      &(struct epoll_event){.events = EPOLLRDHUP | EPOLLET, .data.u64 = name_of(w, c)}) != 0)
            c->hung_up = false; /* without it a hang-up is seen when the answer is sent */
    }
    pthread_mutex_unlock(&w->lock);
    return c;
}

void watch_remove(struct watch *w, struct conn *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&w->lock);
    c->fd = -1;
    c->phase = PHASE_FREE;
    c->job = NULL;
    c->next = w->free;
    w->free = c;
    metric_set(&http_connections, (double)--w->live);
    pthread_mutex_unlock(&w->lock);
}

void watch_phase(struct watch *w, struct conn *c, enum phase phase, mono_us deadline)
{
    pthread_mutex_lock(&w->lock);
    c->phase = phase;
    c->deadline = deadline;
    if (phase == PHASE_IDLE && w->draining)
        shutdown(c->fd, SHUT_RDWR);
    pthread_mutex_unlock(&w->lock);
}

void watch_run(struct watch *w, struct conn *c, struct job *job, mono_us deadline)
{
    pthread_mutex_lock(&w->lock);
    c->phase = PHASE_RUN;
    c->deadline = deadline;
    c->job = job;
    if (c->hung_up)
        atomic_store(&job->rq.cancelled, true);
    metric_set(&http_in_flight, (double)++w->running_requests);
    pthread_mutex_unlock(&w->lock);
}

void watch_answer(struct watch *w, struct conn *c, mono_us deadline)
{
    pthread_mutex_lock(&w->lock);
    c->phase = PHASE_ANSWER;
    c->deadline = deadline;
    c->job = NULL;
    metric_set(&http_in_flight, (double)--w->running_requests);
    pthread_mutex_unlock(&w->lock);
}

void watch_begin(struct watch *w)
{
    pthread_mutex_lock(&w->lock);
    w->requests++;
    pthread_mutex_unlock(&w->lock);
}

void watch_end(struct watch *w)
{
    pthread_mutex_lock(&w->lock);
    if (--w->requests == 0)
        pthread_cond_broadcast(&w->ended);
    pthread_mutex_unlock(&w->lock);
}

void watch_drain(struct watch *w)
{
    pthread_mutex_lock(&w->lock);
    w->draining = true;
    for (size_t i = 0; i < w->used; i++) {
        if (w->conns[i].phase == PHASE_IDLE)
            shutdown(w->conns[i].fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&w->lock);
}

bool watch_wait_idle(struct watch *w, mono_us deadline)
{
    bool idle;

    pthread_mutex_lock(&w->lock);
    while (w->requests > 0 && wait_cond(&w->ended, &w->lock, deadline))
        continue;
    idle = w->requests == 0;
    pthread_mutex_unlock(&w->lock);
    return idle;
}

void watch_cancel_all(struct watch *w)
{
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < w->used; i++) {
        if (w->conns[i].job)
            atomic_store(&w->conns[i].job->rq.cancelled, true);
    }
    pthread_mutex_unlock(&w->lock);
}

/* ---- the thread ---- */

static void on_hang_up(struct watch *w, uint64_t name)
{
    size_t index = (uint32_t)name;
    struct conn *c;

    pthread_mutex_lock(&w->lock);
    c = &w->conns[index];
    if (index < w->used && c->phase != PHASE_FREE && name_of(w, c) == name) {
        c->hung_up = true;
        if (c->job && !atomic_exchange(&c->job->rq.cancelled, true))
            metric_add(&http_hangups, 1);
    }
    pthread_mutex_unlock(&w->lock);
}

/* Whether anything has come; what cannot be told counts as yes. */
static bool has_sent_bytes(int fd)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 || info.tcpi_bytes_received > 0;
}

/* The library cannot answer before a request is complete, and writes nothing itself then: so its socket may be used. */
static void say_timeout(int fd)
{
    static const char body[] = "{\"type\":\"urn:relata:problem:request_timeout\",\"title\":\"Request Timeout\","
                               "\"status\":408,\"code\":\"request_timeout\","
                               "\"detail\":\"the request came too slowly\"}";
    char text[512];
    int len = snprintf(text, sizeof text,
                       "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/problem+json\r\n"
                       "Content-Length: %zu\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
                       "Connection: close\r\n\r\n%s",
                       sizeof body - 1, body);

    (void)!send(fd, text, (size_t)len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void end_overdue(struct watch *w)
{
    mono_us now = clock_mono_us();

    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < w->used; i++) {
        struct conn *c = &w->conns[i];

        if (c->phase == PHASE_FREE || c->deadline > now)
            continue;
        if (c->phase != PHASE_IDLE && (c->phase != PHASE_HEAD || has_sent_bytes(c->fd))) {
            metric_add(&http_refused_slow, c->phase == PHASE_HEAD || c->phase == PHASE_BODY);
            if (!c->tls && (c->phase == PHASE_HEAD || c->phase == PHASE_BODY))
                say_timeout(c->fd);
        }
        shutdown(c->fd, SHUT_RDWR);
        c->deadline = DEADLINE_NONE;
    }
    pthread_mutex_unlock(&w->lock);
}

static int tick_ms(const struct watch *w)
{
    int64_t ms = w->cfg->header_timeout_ms / 8;

    return ms < TICK_MAX_MS ? (int)ms + 1 : TICK_MAX_MS;
}

static bool is_stopped(struct watch *w)
{
    bool stop;

    pthread_mutex_lock(&w->lock);
    stop = w->stop;
    pthread_mutex_unlock(&w->lock);
    return stop;
}

static void *serve(void *arg)
{
    struct watch *w = arg;
    struct epoll_event events[EVENTS];
    mono_us next = 0;

    while (!is_stopped(w)) {
        int n = epoll_wait(w->epoll, events, EVENTS, deadline_poll_ms(next));

        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 != WAKE)
                on_hang_up(w, events[i].data.u64);
        }
        if (clock_mono_us() >= next) {
            end_overdue(w);
            w->tick(w->arg);
            next = deadline_in_ms(tick_ms(w));
        }
    }
    return NULL;
}

enum status watch_start(struct watch *w, void (*tick)(void *arg), void *arg, struct err *err)
{
    int rc;

    w->tick = tick;
    w->arg = arg;
    rc = pthread_create(&w->thread, NULL, serve, w);
    if (rc != 0)
        return err_set(err, ST_FATAL, NULL, "cannot start the watcher of connections: %s", strerror(rc));
    w->running = true;
    return ST_OK;
}

void watch_stop(struct watch *w)
{
    if (!w || !w->running)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_mutex_unlock(&w->lock);
    eventfd_write(w->wake, 1);
    pthread_join(w->thread, NULL);
    w->running = false;
}
