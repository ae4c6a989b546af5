/*
 * relay.h - the relay: connect, become the active one, carry changes, begin again after trouble, drain.
 *
 * One thread owns everything in struct relay; the chores and the slot maker have threads of their own and exchange
 * values only.
 */
#ifndef RELATA_RELAY_RELAY_H
#define RELATA_RELAY_RELAY_H

#include "common/admin/admin.h"
#include "common/base/stop.h"
#include "outbox-relay/chores.h"
#include "outbox-relay/db.h"
#include "outbox-relay/sender.h"
#include "outbox-relay/settings.h"

struct relay {
    const struct settings *cfg;
    struct admin *admin; /* may be NULL */
    char application_name[80];
    char slot[64];

    struct db db;
    bool active;              /* this session holds the lock .. */
    unsigned lock_generation; /* .. of this connection of db.pg */
    struct sender sender;
    struct chores *chores; /* while active */
    struct resender resender;

    /* mode wal */
    bool slot_unusable;   /* the server refused to decode from it: make it anew */
    struct position next; /* where to go on after a failure of Kafka, within the same session; lsn 0 = at the slot */

    mono_us shown_at;
    mono_us pinged_at;
};

/* Runs until the stop flag is raised. */
enum exit_code relay_run(const struct settings *cfg, struct admin *admin);

/* ---- for the files of this folder ---- */

/* Sleep until something happens on one of the descriptors (-1 = none), a delivery report arrives, rows are to be sent
 * again, the stop flag is raised, or the time has come. */
void relay_wait(struct relay *r, int fd, int other_fd, mono_us until);
/* Metrics and readiness, at most a few times a second; call it in every loop. */
void relay_show(struct relay *r);
void relay_ready(struct relay *r, const char *condition, bool ready, const char *reason);
/* Send rows again that the chores have found, as far as there is room. ST_OK or an error. */
enum status relay_resend(struct relay *r, struct err *err) MUST_CHECK;
/* After SIGTERM: wait for what is in flight, at most the drain timeout. */
void relay_drain(struct relay *r);

/* The two modes: run until the stop flag (ST_STOPPED, drained) or an error. */
enum status wal_run(struct relay *r, struct err *err) MUST_CHECK;
enum status poll_run(struct relay *r, struct err *err) MUST_CHECK;
#define SLOT_FIRST_START "first start"
/* Make the slot anew, with everything pending sent meanwhile. `why` is for the log. */
enum status handover_run(struct relay *r, bool drop, const char *why, struct err *err) MUST_CHECK;

#endif
