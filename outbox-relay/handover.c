/*
 * handover.c - making the slot anew without losing a change.
 *
 * The outbox table is the truth, so a lost slot loses nothing; what matters is that every row is sent by a query or by
 * the new stream. Rows are sent by rounds of snapshots (poller.h) from before the slot is asked for until
 *   (a) the slot exists, with the consistent point C: the stream will bring every transaction whose commit record lies
 *       at or behind C, and
 *   (b) a round has been sent and acknowledged whose snapshot sees every transaction with an xid below X, X being an
 * xid that the relay took for itself after (a). A transaction below X is seen by that round. One above X got its xid
 * after the slot existed, so its commit lies behind C. Sent twice: those below X that committed behind C; duplicates
 * are harmless.
 *
 * (b) is needed. "Any snapshot taken after the consistent point sees all that committed before it" is not true: a
 * transaction writes its commit record first and becomes visible later, after its flush and, with synchronous
 * replication, after a standby's answer, which may take for ever. Creating the slot waits for those that were open when
 * it began, but one that began meanwhile may have its commit record before C and be invisible after it. A snapshot's
 * own xmax would not do for X: it is the end of what has completed, and open transactions may lie above it.
 *
 * 'started' is recorded before the old slot is dropped, 'complete' after (b): a crash anywhere begins again.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "outbox-relay/pgoutput.h"
#include "outbox-relay/poller.h"
#include "outbox-relay/relay.h"
#include "outbox-relay/relay_metrics.h"
#include "outbox-relay/slot_maker.h"

#define NAP_MS 50
#define SAY_EVERY_US (60 * 1000000LL)

struct handover {
    struct relay *relay;
    struct poller poller;
    struct slot_maker *maker;
    bool made;
    char lsn[24];
    uint64_t below;    /* X */
    bool closed;       /* all of those have ended .. */
    mono_us closed_at; /* .. and were seen so at this time */
    mono_us said_at;
};

static enum status created(struct handover *h, struct err *err)
{
    enum status st = ST_OK;
    if (h->made || !slot_maker_result(h->maker, &st, h->lsn, err))
        return ST_OK;
    if (st != ST_OK) {
        relay_ready(h->relay, "slot", false, err ? err->text : "");
        return err_prefix(err, "creating replication slot \"%s\"", h->relay->slot);
    }
    h->made = true;
    st = db_take_xid(&h->relay->db, &h->below, err);
    log_info("replication slot created", "slot", h->relay->slot, "lsn", h->lsn, NULL);
    return st;
}

/* Have all transactions below X ended? */
static enum status look_for_open(struct handover *h, struct err *err)
{
    uint64_t oldest;
    if (!h->made || h->closed)
        return ST_OK;
    enum status st = db_oldest_open(&h->relay->db, &oldest, err);
    if (st == ST_OK && oldest > h->below) {
        h->closed = true;
        h->closed_at = clock_mono_us();
        poller_relist(&h->poller);
    }
    return st;
}

static bool complete(struct handover *h)
{
    if (!h->closed || poller_busy(&h->poller))
        return false;
    return h->poller.nstores == 0 ? h->poller.listed_at > h->closed_at
                                  : h->poller.listed_at > h->closed_at && poller_covered(&h->poller) > h->closed_at;
}

static void say(struct handover *h)
{
    if (clock_mono_us() < h->said_at + SAY_EVERY_US)
        return;
    h->said_at = clock_mono_us();
    log_warn(h->made ? "the new slot is ready once transactions that were open meanwhile have ended; changes are polled"
                     : "creating the slot waits for open transactions to end; changes are polled meanwhile",
             "slot", h->relay->slot, NULL);
}

static enum status turn(struct handover *h, struct err *err)
{
    struct relay *r = h->relay;
    bool idle = false;
    enum status st = sender_serve(&r->sender, 0, err);
    if (st == ST_OK)
        st = poller_turn(&h->poller, &idle, err);
    bool full = st == ST_THROTTLED;
    if (st != ST_OK && !full)
        return st;
    poller_settle(&h->poller);
    st = relay_resend(r, err);
    if (st == ST_OK)
        st = created(h, err);
    if (st == ST_OK && idle)
        st = look_for_open(h, err);
    relay_show(r);
    say(h);
    if (st == ST_OK && (full || idle) && !complete(h))
        relay_wait(r, h->made ? -1 : slot_maker_fd(h->maker), -1,
                   deadline_in_ms(idle && h->closed && window_empty(&r->sender.window) ? 1 : NAP_MS));
    return st;
}

enum status handover_run(struct relay *r, bool drop, const char *why, struct err *err)
{
    struct handover h = {.relay = r, .said_at = clock_mono_us()};
    if (drop || strcmp(why, SLOT_FIRST_START) != 0) {
        metric_add(&m_handovers, 1);
        log_warn("replication slot is made anew; all pending changes are sent meanwhile, nothing is lost", "slot",
                 r->slot, "why", why, NULL);
    } else {
        log_info("replication slot is made; pending changes are sent meanwhile", "slot", r->slot, NULL);
    }
    metric_set(&m_handover_running, 1);
    relay_ready(r, "slot", true, "");
    enum status st = db_state_handover(&r->db, r->cfg->name, r->slot, "started", NULL, err);
    if (st == ST_OK && drop)
        st = db_slot_drop(&r->db, r->slot, err);
    if (st == ST_OK)
        st = poller_init(&h.poller, &r->db, &r->sender, NULL, err);
    if (st == ST_OK)
        st = slot_maker_start(&h.maker, r->cfg, r->application_name, r->slot, err);
    while (st == ST_OK && !complete(&h) && !stop_requested())
        st = turn(&h, err);
    if (st == ST_OK && !complete(&h)) {
        relay_drain(r);
        st = err_set(err, ST_STOPPED, "", "stopped while the slot was made; it is made anew at the next start");
    }
    if (st == ST_OK)
        st = db_state_handover(&r->db, r->cfg->name, r->slot, "complete", h.lsn, err);
    if (st == ST_OK)
        log_info("handover complete: streaming", "slot", r->slot, "lsn", h.lsn, NULL);
    slot_maker_stop(h.maker, &r->db);
    poller_release(&h.poller);
    metric_set(&m_handover_running, 0);
    return st;
}
