/* wait.c - waiting on the socket, flushing, cancelling. Nothing here blocks longer than its deadline. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/stop.h"
#include "common/pg/internal.h"

/* Cancel requests under way; PQcancel blocks, and against a frozen server for long. */
#define CANCELS_MAX 16
#define FLAG_CHECK_MS 20
#define SETTLE_MS 1000
static atomic_int cancels;

enum status pg_wait_socket(int fd, short events, bool stop, mono_us deadline)
{
    for (;;) {
        struct pollfd p[2] = {{.fd = fd, .events = events}, {.fd = stop ? stop_fd() : -1, .events = POLLIN}};
        int n = poll(p, 2, deadline_poll_ms(deadline));
        if (n < 0 && errno != EINTR)
            return ST_RETRY;
        if (n > 0 && p[0].revents)
            return ST_OK;
        if (n > 0 && p[1].revents)
            return ST_STOPPED;
        if (clock_mono_us() >= deadline)
            return ST_DEADLINE;
    }
}

enum status pg_flush(struct pg *pg, mono_us deadline)
{
    for (;;) {
        int left = PQflush(pg->conn);
        if (left < 0)
            return ST_RETRY;
        if (left == 0)
            return ST_OK;
        /* The server may itself be blocked on sending to us: read as well, or both wait for ever. */
        enum status st = pg_wait_socket(PQsocket(pg->conn), POLLIN | POLLOUT, false, deadline);
        if (st != ST_OK)
            return st;
        if (!PQconsumeInput(pg->conn))
            return ST_RETRY;
    }
}

void pg_heed(struct pg *pg, const atomic_bool *flag)
{
    pg->flag = flag;
}

bool pg_unwanted(const struct pg *pg)
{
    return pg->flag && !pg->cancelled && atomic_load(pg->flag);
}

/* In slices, if there is a flag to look at. */
enum status pg_wait_readable(struct pg *pg, mono_us deadline)
{
    for (;;) {
        bool watch = pg->flag && !pg->cancelled;
        mono_us until = watch ? deadline_min(deadline, deadline_in_ms(FLAG_CHECK_MS)) : deadline;
        enum status st = pg_unwanted(pg) ? ST_DEADLINE : pg_wait_socket(PQsocket(pg->conn), POLLIN, false, until);
        if (st != ST_DEADLINE || until == deadline || pg_unwanted(pg))
            return st;
    }
}

enum status pg_wait_result(struct pg *pg, mono_us deadline)
{
    enum status st = pg_flush(pg, deadline);
    while (st == ST_OK && PQisBusy(pg->conn)) {
        st = pg_wait_readable(pg, deadline);
        /* On a lost connection PQgetResult gives the farewell that the server may have sent, so it is no error here. */
        if (st == ST_OK && !PQconsumeInput(pg->conn))
            return ST_OK;
    }
    return st;
}

bool pg_idle_check(struct pg *pg)
{
    if (!pg->conn)
        return false;
    for (int i = 0; i < 64; i++) {
        struct pollfd p = {.fd = PQsocket(pg->conn), .events = POLLIN};
        if (poll(&p, 1, 0) <= 0 || !p.revents)
            return true;
        if (!PQconsumeInput(pg->conn) || PQstatus(pg->conn) == CONNECTION_BAD)
            return false;
        (void)PQisBusy(pg->conn); /* parses notices and notifications out of the way */
    }
    return true;
}

/* One cancel request, shared by its thread and, until it is known to have been delivered, its connection. */
struct pg_cancel {
    PGcancel *request;
    atomic_bool delivered;
    atomic_int refs;
};

static void cancel_release(struct pg_cancel *c)
{
    if (!c || atomic_fetch_sub(&c->refs, 1) > 1)
        return;
    PQfreeCancel(c->request);
    free(c);
}

/* PQcancel comes back when the server has signalled its backend. */
static void *cancel_main(void *arg)
{
    struct pg_cancel *c = arg;
    char errbuf[256];

    (void)PQcancel(c->request, errbuf, sizeof errbuf);
    atomic_store(&c->delivered, true);
    cancel_release(c);
    atomic_fetch_sub(&cancels, 1);
    return NULL;
}

static bool cancel_start(struct pg_cancel *c)
{
    pthread_t thread;
    pthread_attr_t attr;
    bool started = false;

    if (atomic_fetch_add(&cancels, 1) < CANCELS_MAX && pthread_attr_init(&attr) == 0) {
        (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        started = pthread_create(&thread, &attr, cancel_main, c) == 0;
        (void)pthread_attr_destroy(&attr);
    }
    if (!started)
        atomic_fetch_sub(&cancels, 1);
    return started;
}

void pg_cancel_async(struct pg *pg)
{
    struct pg_cancel *c = calloc(1, sizeof *c);

    pg->cancelled = true;
    pg_cancel_forget(pg);
    if (!c)
        return;
    c->request = PQgetCancel(pg->conn);
    atomic_init(&c->refs, 2);
    if (c->request && cancel_start(c)) {
        pg->cancel = c;
        return;
    }
    atomic_store(&c->refs, 1);
    cancel_release(c);
}

bool pg_cancel_settled(struct pg *pg, mono_us deadline)
{
    deadline = deadline_min(deadline, deadline_in_ms(SETTLE_MS));
    while (pg->cancel && !atomic_load(&pg->cancel->delivered)) {
        if (clock_mono_us() >= deadline)
            return false;
        (void)poll(NULL, 0, 1);
    }
    pg_cancel_forget(pg);
    return true;
}

void pg_cancel_forget(struct pg *pg)
{
    cancel_release(pg->cancel);
    pg->cancel = NULL;
}

void pg_drop(struct pg *pg)
{
    pg_cancel_forget(pg);
    PQfinish(pg->conn);
    pg->conn = NULL;
    pg->ending = false;
    pg_prepared_forget(pg);
}
