/* poll_mode.c - mode = poll: rounds of snapshots, sleeping while nobody writes. */
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "outbox-relay/poller.h"
#include "outbox-relay/relay.h"

#define SLEEP_MS 1000
#define WAIT_MS 100
#define RECORD_EVERY_US (1000 * 1000)

struct poll_mode {
    struct relay *relay;
    struct poller poller;
    mono_us recorded_at;
    bool asleep; /* announced */
    struct buf names;
    int64_t nap_ms;
};

/* Everything before the recorded snapshot is acknowledged; it is written while there are changes only, once a second:
 * after a crash, what came since is sent twice. */
static enum status record(struct poll_mode *m, bool now, struct err *err)
{
    if (!now && clock_mono_us() < m->recorded_at + RECORD_EVERY_US)
        return ST_OK;
    const char *snapshot = poller_snapshot(&m->poller);
    if (!snapshot)
        return ST_OK;
    m->recorded_at = clock_mono_us();
    return db_state_snapshot(&m->relay->db, m->relay->cfg->name, snapshot, err);
}

static enum status wake(struct poll_mode *m, struct err *err)
{
    if (!m->asleep)
        return ST_OK;
    m->asleep = false;
    return db_wake(&m->relay->db, buf_str(&m->names), err);
}

/* Nothing new: announce sleep, look once more, then sleep; or nap while a service's transaction is open. */
static enum status rest(struct poll_mode *m, struct err *err)
{
    struct relay *r = m->relay;
    bool all = false;
    if (!m->asleep) {
        buf_clear(&m->names);
        poller_names(&m->poller, &m->names);
        enum status st = db_sleep(&r->db, buf_str(&m->names), &all, err);
        if (st != ST_OK)
            return st;
        m->asleep = all;
        if (!all) {
            m->nap_ms = m->nap_ms == 0 ? 1 : m->nap_ms * 2;
            if (m->nap_ms > r->cfg->poll_interval_ms)
                m->nap_ms = r->cfg->poll_interval_ms;
            relay_wait(r, -1, -1, deadline_in_ms(m->nap_ms));
        }
        return ST_OK; /* look once more */
    }
    const char *channel = NULL;
    enum status st = pg_wait_notify(r->db.pg, chores_fd(r->chores), deadline_in_ms(SLEEP_MS), &channel, err);
    if (st == ST_DEADLINE || st == ST_STOPPED) /* the second look of a sleeper finds stores that are new */
        return ST_OK;
    return st == ST_OK && channel ? wake(m, err) : st;
}

static enum status turn(struct poll_mode *m, struct err *err)
{
    struct relay *r = m->relay;
    bool idle = false;
    enum status st = sender_serve(&r->sender, 0, err);
    if (st == ST_OK)
        st = poller_turn(&m->poller, &idle, err);
    bool full = st == ST_THROTTLED;
    if (st != ST_OK && !full)
        return st;
    st = relay_resend(r, err);
    poller_settle(&m->poller);
    if (st == ST_OK)
        st = record(m, false, err);
    struct progress p = {.covered = poller_covered(&m->poller)};
    chores_progress(r->chores, &p);
    relay_show(r);
    if (st != ST_OK)
        return st;
    if (full) {
        relay_wait(r, -1, -1, deadline_in_ms(100));
        return ST_OK;
    }
    if (!idle) {
        m->nap_ms = 0;
        return wake(m, err);
    }
    /* Reports come within milliseconds, or Kafka is down: then there is no hurry. Neither needs a sleeper's care. */
    if (!window_empty(&r->sender.window) || r->resender.store) {
        st = wake(m, err);
        m->nap_ms = m->nap_ms == 0 ? 1 : m->nap_ms < WAIT_MS ? m->nap_ms * 2 : WAIT_MS;
        relay_wait(r, -1, -1, deadline_in_ms(m->nap_ms));
        return st;
    }
    return rest(m, err);
}

/* A slot that nobody reads keeps WAL for ever. */
static void warn_of_slot(struct relay *r)
{
    struct slot_info info;
    if (db_slot(&r->db, r->slot, &info, NULL) == ST_OK && info.exists && info.ours && info.active_pid == 0)
        log_warn("a replication slot of this relay exists and keeps WAL while relay.mode is poll: "
                 "drop it with SELECT pg_drop_replication_slot(..)",
                 "slot", r->slot, NULL);
}

enum status poll_run(struct relay *r, struct err *err)
{
    struct poll_mode m = {.relay = r};
    struct relay_state state = {0};
    buf_init(&m.names, 1 << 20);
    sender_restart(&r->sender, 0);
    enum status st = db_state_load(&r->db, r->cfg->name, &state, err);
    if (st == ST_OK)
        st = poller_init(&m.poller, &r->db, &r->sender, state.poll_snapshot, err);
    if (st == ST_OK)
        st = pg_exec(r->db.pg, "LISTEN relata_outbox", deadline_in_ms(r->db.timeout_ms), err);
    if (st == ST_OK)
        warn_of_slot(r);
    relay_ready(r, "slot", true, "");
    while (st == ST_OK && !stop_requested())
        st = turn(&m, err);
    if (st == ST_OK) {
        relay_drain(r);
        poller_settle(&m.poller);
        st = record(&m, true, err);
        if (st == ST_OK)
            st = err_set(err, ST_STOPPED, "", "stopped");
    }
    if (m.asleep && pg_alive(r->db.pg))
        (void)!wake(&m, NULL);
    poller_release(&m.poller);
    relay_state_release(&state);
    buf_release(&m.names);
    return st;
}
