/*
 * hosts.h - the servers that a DSN names, one by one.
 *
 * libpq walks a list of hosts by itself, but when it does not block, nothing ends its wait for a host that does not
 * answer at all: the dead primary of a fail-over would take the whole deadline, every time. So each is tried alone.
 */
#ifndef RELATA_PG_HOSTS_H
#define RELATA_PG_HOSTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct pg_host {
    char *host, *hostaddr, *port; /* NULL = as the DSN says */
    const char *session_attrs;    /* NULL = as the DSN says */
};

struct pg_hosts {
    struct pg_host *items; /* in the order in which they are to be tried; at least one */
    int n;
    int64_t connect_ms; /* the DSN's connect_timeout, 0 = none */
};

/* ST_CONFIG for a DSN that cannot be parsed or whose lists do not fit together. */
enum status pg_hosts_parse(const char *dsn, struct pg_hosts *out, struct err *err) MUST_CHECK;
void pg_hosts_release(struct pg_hosts *h); /* accepts a zeroed struct */

#endif
