/* wal_mode.c - mode = wal: the replication stream to the topic, confirmed as far as Kafka has acknowledged. */
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "outbox-relay/pgoutput.h"
#include "outbox-relay/relay.h"
#include "outbox-relay/relay_metrics.h"

#define CONNECT_MS 10000
#define FRAMES_PER_TURN 256
#define CONFIRM_EVERY_US (100 * 1000)
#define SILENCE_US (60 * 1000000LL)

struct wal_mode {
    struct relay *relay;
    struct pg *stream;
    struct pgoutput decoder;

    char *frame; /* the one being handled; kept while there is no room for its row */
    struct wal_frame parsed;
    struct pgoutput_event event;

    bool in_transaction;
    struct position at;   /* the row that comes next */
    struct position skip; /* rows before it were acknowledged before the stream began again */
    uint64_t received;

    int64_t status_ms;
    uint64_t confirmed; /* as last told to the server */
    mono_us told_at;
    mono_us heard_at;
};

/* ---- feedback ---- */

static enum status tell(struct wal_mode *m, bool want_reply, struct err *err)
{
    char status[WAL_STATUS_LEN];
    uint64_t confirmed = m->relay->sender.window.confirmed;
    wal_status_format(status, m->received > confirmed ? m->received : confirmed, confirmed, clock_wall_us(),
                      want_reply);
    m->told_at = clock_mono_us();
    m->confirmed = confirmed;
    struct progress p = {.confirmed_lsn = confirmed};
    chores_progress(m->relay->chores, &p);
    return pg_stream_put(m->stream, status, sizeof status, deadline_in_ms(m->relay->db.timeout_ms), err);
}

static mono_us tell_due(const struct wal_mode *m)
{
    bool moved = m->relay->sender.window.confirmed != m->confirmed;
    return m->told_at + (moved ? CONFIRM_EVERY_US : m->status_ms * 1000);
}

/* By time, whatever Kafka does. A server that is silent although it was asked to answer is gone. */
static enum status tell_by_time(struct wal_mode *m, bool reading, struct err *err)
{
    mono_us now = clock_mono_us();
    if (now < tell_due(m))
        return ST_OK;
    if (!reading)
        m->heard_at = now;
    if (now > m->heard_at + SILENCE_US)
        return err_set(err, ST_RETRY, "", "the server has sent nothing for 60 s on the replication connection");
    return tell(m, now > m->heard_at + SILENCE_US / 2, err);
}

/* ---- frames ---- */

static bool before(struct position a, struct position b)
{
    return a.lsn < b.lsn || (a.lsn == b.lsn && a.index < b.index);
}

static enum status row(struct wal_mode *m, struct err *err)
{
    if (!m->in_transaction)
        return err_set(err, ST_FATAL, "", "replication stream: a row outside a transaction");
    if (!before(m->at, m->skip)) {
        enum status st = sender_send(&m->relay->sender, &m->event.row, m->at, err);
        if (st != ST_OK)
            return st;
    }
    m->at.index++;
    return ST_OK;
}

static enum status apply(struct wal_mode *m, struct err *err)
{
    struct window *w = &m->relay->sender.window;
    switch (m->event.kind) {
    case PGOUTPUT_BEGIN:
        m->in_transaction = true;
        m->at = (struct position){.lsn = m->event.lsn};
        break;
    case PGOUTPUT_COMMIT:
        m->in_transaction = false;
        window_mark(w, m->event.end_lsn);
        break;
    case PGOUTPUT_ROW:
        return row(m, err);
    case PGOUTPUT_MESSAGE:
        if (!m->in_transaction && window_empty(w) && m->event.lsn > w->confirmed)
            window_mark(w, m->event.lsn);
        break;
    case PGOUTPUT_OTHER:
        break;
    }
    return ST_OK;
}

static enum status keepalive(struct wal_mode *m, struct err *err)
{
    struct window *w = &m->relay->sender.window;
    /* It says how far the server has read; that covers what we hold only if we hold nothing. */
    if (!m->in_transaction && window_empty(w) && m->parsed.end_lsn > w->confirmed)
        window_mark(w, m->parsed.end_lsn);
    return m->parsed.reply_wanted ? tell(m, false, err) : ST_OK;
}

static void frame_drop(struct wal_mode *m)
{
    if (m->frame)
        pg_stream_free(m->frame);
    m->frame = NULL;
}

/* The next frame, read and decoded. ST_NOT_FOUND: none yet. */
static enum status frame_next(struct wal_mode *m, struct err *err)
{
    size_t len;
    enum status st = pg_stream_get(m->stream, &m->frame, &len, err);
    if (st != ST_OK)
        return st;
    m->heard_at = clock_mono_us();
    st = wal_frame_parse(m->frame, len, &m->parsed, err);
    if (st == ST_OK && m->parsed.kind == WAL_FRAME_DATA)
        st = pgoutput_decode(&m->decoder, m->parsed.data, m->parsed.len, &m->event, err);
    if (st == ST_OK && m->parsed.end_lsn > m->received)
        m->received = m->parsed.end_lsn;
    return st;
}

/* Take frames until there are none (ST_NOT_FOUND), enough of them (ST_OK), or no room for a row (ST_THROTTLED). */
static enum status frames(struct wal_mode *m, struct err *err)
{
    for (int i = 0; i < FRAMES_PER_TURN; i++) {
        enum status st = ST_OK;
        if (!m->frame)
            st = frame_next(m, err);
        if (st == ST_OK)
            st = m->parsed.kind == WAL_FRAME_DATA ? apply(m, err) : keepalive(m, err);
        if (st != ST_OK)
            return st;
        frame_drop(m);
    }
    return ST_OK;
}

/* The session connection holds the lock: without it another relay is active soon. */
static enum status check_session(struct relay *r, struct err *err)
{
    const char *channel;
    enum status st = pg_wait_notify(r->db.pg, -1, clock_mono_us(), &channel, err);
    return st == ST_DEADLINE || st == ST_STOPPED ? ST_OK : st;
}

static enum status turn(struct wal_mode *m, struct err *err)
{
    struct relay *r = m->relay;
    enum status st = sender_serve(&r->sender, 0, err);
    if (st == ST_OK)
        st = relay_resend(r, err);
    if (st != ST_OK)
        return st;
    enum status read = frames(m, err);
    if (read != ST_OK && read != ST_NOT_FOUND && read != ST_THROTTLED)
        return read;
    st = tell_by_time(m, read != ST_THROTTLED, err);
    relay_show(r);
    if (st != ST_OK || read == ST_OK)
        return st;
    mono_us until = tell_due(m);
    if (r->resender.store)
        until = deadline_min(until, deadline_in_ms(5));
    relay_wait(r, read == ST_NOT_FOUND ? pg_socket(m->stream) : -1, pg_socket(r->db.pg), until);
    return check_session(r, err);
}

/* ---- start ---- */

/* The slot is being read. By a relay of this name that is gone (we hold its lock): its server process is told to go. */
static enum status slot_is_busy(struct relay *r, struct slot_info *info, struct err *err)
{
    char pid[24];
    (void)snprintf(pid, sizeof pid, "%d", info->active_pid);
    if (strncmp(info->active_name, r->application_name, strlen(r->application_name)) != 0)
        return err_set(err, ST_CONFIG, "",
                       "replication slot \"%s\" is being read by process %d (application \"%s\"): stop that, or set "
                       "relay.slot",
                       r->slot, info->active_pid, info->active_name);
    mono_us end = deadline_in_ms(1000);
    while (info->active_pid != 0 && clock_mono_us() < end) {
        enum status st = db_slot(&r->db, r->slot, info, err);
        if (st != ST_OK)
            return st;
        if (info->active_pid != 0 && stop_sleep_until(deadline_in_ms(20)) != ST_OK)
            return err_set(err, ST_STOPPED, "", "stopped");
    }
    if (info->active_pid == 0)
        return ST_OK;
    log_warn("ending the server process of an earlier relay that still reads the slot", "slot", r->slot, "pid", pid,
             NULL);
    enum status st = db_terminate(&r->db, info->active_pid, err);
    return st == ST_OK
               ? err_set(err, ST_RETRY, "", "waiting for process %s to leave replication slot \"%s\"", pid, r->slot)
               : st;
}

/* Why the slot must be made anew; NULL = it is good. */
static const char *slot_trouble(const struct relay *r, const struct relay_state *state, const struct slot_info *info)
{
    if (!info->exists)
        return state->slot[0] ? "the slot is missing" : SLOT_FIRST_START;
    if (info->lost)
        return "the server has removed WAL that the slot needs (max_slot_wal_keep_size)";
    if (r->slot_unusable)
        return "the server cannot decode from the slot";
    if (!state->handover_complete || strcmp(state->slot, r->slot) != 0)
        return "an earlier handover was not completed";
    if (!info->usable)
        return "the slot was never ready";
    return NULL;
}

static enum status slot_ready(struct relay *r, uint64_t *confirmed, struct err *err)
{
    struct relay_state state = {0};
    struct slot_info info;
    enum status st = db_state_load(&r->db, r->cfg->name, &state, err);
    if (st == ST_OK)
        st = db_publication(&r->db, r->cfg->publication, err);
    if (st == ST_OK)
        st = db_slot(&r->db, r->slot, &info, err);
    if (st == ST_OK && info.exists && !info.ours)
        st = err_set(err, ST_CONFIG, "",
                     "replication slot \"%s\" exists and is not of this relay (plugin %s, database \"%s\"): set "
                     "relay.slot to another name",
                     r->slot, info.plugin, info.database);
    if (st == ST_OK && info.exists && info.active_pid != 0)
        st = slot_is_busy(r, &info, err);
    if (st == ST_OK) {
        const char *why = slot_trouble(r, &state, &info);
        if (why) {
            r->next = (struct position){0, 0};
            st = handover_run(r, info.exists, why, err);
            if (st == ST_OK)
                st = db_slot(&r->db, r->slot, &info, err);
        }
        if (st == ST_OK)
            r->slot_unusable = false;
        *confirmed = info.confirmed_lsn;
    }
    relay_state_release(&state);
    return st;
}

/* At least three status messages within the server's patience. */
static enum status read_timeout(struct wal_mode *m, struct err *err)
{
    struct pg_result *out = NULL;
    enum status st =
        pg_query(m->relay->db.pg, NULL, "SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'",
                 NULL, 0, deadline_in_ms(m->relay->db.timeout_ms), &out, err);
    m->status_ms = m->relay->cfg->status_interval_ms;
    if (st == ST_OK && pg_rows(out) > 0 && pg_int(out, 0, 0) > 0 && pg_int(out, 0, 0) / 3 < m->status_ms)
        m->status_ms = pg_int(out, 0, 0) / 3;
    pg_result_free(out);
    return st;
}

static enum status stream_start(struct wal_mode *m, struct err *err)
{
    struct relay *r = m->relay;
    char command[512];
    struct pg_config cfg = {
        .dsn = r->cfg->dsn, .application_name = r->application_name, .replication = true, .watch_stop = true};
    enum status st = read_timeout(m, err);
    if (st == ST_OK)
        st = pg_open(&m->stream, &cfg, deadline_in_ms(CONNECT_MS), err);
    if (st != ST_OK)
        return st;
    /* 0/0: the slot knows where it stands. A position of our own could be of another timeline. */
    (void)snprintf(command, sizeof command,
                   "START_REPLICATION SLOT \"%s\" LOGICAL 0/0 (proto_version '1', publication_names '\"%s\"', "
                   "binary 'true', messages 'true')",
                   r->slot, r->cfg->publication);
    st = pg_stream_start(m->stream, command, deadline_in_ms(r->db.timeout_ms), err);
    pgoutput_init(&m->decoder);
    m->told_at = m->heard_at = clock_mono_us();
    return st;
}

/* After a failure of Kafka the same server sends the same transactions again: the acknowledged start of the first one
 * is skipped, which matters for one of a million rows. */
static void note_position(struct wal_mode *m)
{
    struct position open = window_first_open(&m->relay->sender.window);
    if (m->relay->sender.failure.status == ST_OK)
        m->relay->next = (struct position){0, 0};
    else if (open.lsn != 0)
        m->relay->next = open;
    else if (m->in_transaction)
        m->relay->next = before(m->at, m->skip) ? m->skip : m->at;
    else
        m->relay->next = (struct position){0, 0};
}

static void note_unusable(struct relay *r, enum status st, const struct err *err)
{
    /* The publication is there (it was looked up), but was not yet where the slot stands; or WAL files are gone. */
    if (r->sender.failure.status != ST_OK)
        return;
    if (st == ST_MISSING)
        r->slot_unusable = true;
    relay_ready(r, "slot", false, err->text);
}

enum status wal_run(struct relay *r, struct err *err)
{
    struct wal_mode m = {.relay = r};
    uint64_t confirmed = 0;
    enum status st = slot_ready(r, &confirmed, err);
    if (st == ST_OK) {
        sender_restart(&r->sender, confirmed);
        m.skip = r->next;
        m.confirmed = confirmed;
        st = stream_start(&m, err);
        if (st == ST_OK) {
            relay_ready(r, "slot", true, "");
            log_info("streaming", "slot", r->slot, NULL);
        }
        while (st == ST_OK && !stop_requested())
            st = turn(&m, err);
        if (st == ST_OK) {
            relay_drain(r);
            st = tell(&m, false, err);
            if (st == ST_OK)
                st = err_set(err, ST_STOPPED, "", "stopped");
        } else if (st != ST_STOPPED) {
            note_position(&m);
            note_unusable(r, st, err);
        }
    } else {
        relay_ready(r, "slot", false, err->text);
    }
    frame_drop(&m);
    pg_close(m.stream);
    return st;
}
