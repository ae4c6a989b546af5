/* wait.c - waiting on the socket, flushing, cancelling. Nothing here blocks longer than its deadline. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/base/stop.h"
#include "common/pg/internal.h"

/* Cancel requests under way; PQcancel blocks, and against a frozen server for long. */
#define CANCELS_MAX 16
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

enum status pg_wait_result(struct pg *pg, mono_us deadline)
{
    enum status st = pg_flush(pg, deadline);
    while (st == ST_OK && PQisBusy(pg->conn)) {
        st = pg_wait_socket(PQsocket(pg->conn), POLLIN, false, deadline);
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

static void *cancel_main(void *arg)
{
    PGcancel *cancel = arg;
    char errbuf[256];
    (void)PQcancel(cancel, errbuf, sizeof errbuf);
    PQfreeCancel(cancel);
    atomic_fetch_sub(&cancels, 1);
    return NULL;
}

void pg_cancel_async(struct pg *pg)
{
    PGcancel *cancel = PQgetCancel(pg->conn);
    pg->cancelled = true;
    if (!cancel)
        return;
    pthread_t thread;
    pthread_attr_t attr;
    if (atomic_fetch_add(&cancels, 1) < CANCELS_MAX && pthread_attr_init(&attr) == 0) {
        (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        int rc = pthread_create(&thread, &attr, cancel_main, cancel);
        (void)pthread_attr_destroy(&attr);
        if (rc == 0)
            return;
    }
    atomic_fetch_sub(&cancels, 1);
    PQfreeCancel(cancel);
}

void pg_drop(struct pg *pg)
{
    PQfinish(pg->conn);
    pg->conn = NULL;
    pg->ending = false;
    pg_prepared_forget(pg);
}
