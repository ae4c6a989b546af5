/* notify.c - waiting for NOTIFY. */
#include <errno.h>
#include <poll.h>

#include "common/base/stop.h"
#include "common/pg/internal.h"

static bool next_notification(struct pg *pg, const char **channel)
{
    PGnotify *n = PQnotifies(pg->conn);
    if (!n)
        return false;
    (void)snprintf(pg->channel, sizeof pg->channel, "%s", n->relname);
    PQfreemem(n);
    *channel = pg->channel;
    return true;
}

enum status pg_wait_notify(struct pg *pg, int extra_fd, mono_us deadline, const char **channel, struct err *err)
{
    *channel = NULL;
    if (!pg->conn)
        return err_set(err, ST_RETRY, "", "connection to Postgres is closed");
    for (;;) {
        if (next_notification(pg, channel))
            return ST_OK;
        struct pollfd p[3] = {{.fd = PQsocket(pg->conn), .events = POLLIN},
                              {.fd = extra_fd, .events = POLLIN},
                              {.fd = pg->watch_stop ? stop_fd() : -1, .events = POLLIN}};
        int n = poll(p, 3, deadline_poll_ms(deadline));
        if (n < 0 && errno != EINTR)
            return err_set(err, ST_RETRY, "", "cannot wait for Postgres: errno %d", errno);
        if (n > 0 && p[2].revents)
            return err_set(err, ST_STOPPED, "", "stopped while waiting for a notification");
        if (n > 0 && p[0].revents && !PQconsumeInput(pg->conn))
            return pg_error_lost(pg, PG_STAKE_NONE, err);
        if (n > 0 && p[0].revents && next_notification(pg, channel))
            return ST_OK;
        if (n > 0 && p[1].revents)
            return ST_OK;
        if (clock_mono_us() >= deadline)
            return err_set(err, ST_DEADLINE, "", "no notification");
    }
}
