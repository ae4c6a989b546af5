/*
 * client.h - one client of the service: a thread with a connection of its own that does transactions at a steady rate.
 *
 * The rate is open: a slow database does not lower it, the client catches up. Of its transactions 5% are rolled back at
 * the end, and 5% first do something else that a savepoint takes back. What a database refuses in ordinary life (a lost
 * race with an erased user, a deadlock) is counted and the client goes on; anything else ends it with an error.
 */
#ifndef RELATA_DEMO_LIFE_CLIENT_H
#define RELATA_DEMO_LIFE_CLIENT_H

#include <stdatomic.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "demo/life/watch.h"

#define OPS_MAX 32

/* Shared by all clients; counters only grow. */
struct life_counts {
    _Atomic uint64_t committed;     /* transactions that changed something */
    _Atomic uint64_t empty;         /* found nothing to do */
    _Atomic uint64_t rolled_back;   /* on purpose */
    _Atomic uint64_t refused;       /* by a constraint */
    _Atomic uint64_t deadlocks;     /* or serialisation failures */
    _Atomic uint64_t lost;          /* connection lost */
    _Atomic uint64_t done[OPS_MAX]; /* committed, by operation */
};

struct client_config {
    const char *dsn;
    double rate; /* transactions a second of this client */
    uint64_t seed;
    unsigned number;
    mono_us until;
    struct watch *watch;
    struct life_counts *counts;
};

struct client;

enum status client_start(struct client **out, const struct client_config *cfg, struct err *err) MUST_CHECK;
/* Waits until it has ended at cfg.until, by the stop flag or by an error, which is returned; frees it. Accepts NULL. */
enum status client_join(struct client *c, struct err *err);

#endif
