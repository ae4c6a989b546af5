#include "tuple-writer/source_outbox.h"

#include <poll.h>

#include "common/base/log.h"
#include "common/base/stop.h"
#include "tuple-writer/lane.h"
#include "tuple-writer/metrics.h"
#include "tuple-writer/scanner.h"

#define NAP_MIN_MS 1
#define NAP_MAX_MS 5
#define ROOM_MS 50    /* while a window is full: how long revocations may go unseen */
#define SLEEP_MS 1000 /* longest sleep, against a lost notification */
/* A NOTIFY makes commits wait for each other: so many within so long, and the reader stays awake, looking again after
 * short naps, until nothing has come for a while. */
#define BUSY_WAKES 3
#define BUSY_US 200000
#define AWAKE_US 50000
#define STANDBY_MS 200 /* the keeper tries to become the active reader each second */
/* Rows older than this with no lane at work mean that a hint was lost: everything is read again. */
#define STRAY_MS 15000

/* Pages come in the order of an index, whatever the statistics say: a plan that sorts is made for a small table and
 * lasts until it is a large one. */
static const char session_sql[] = "SET jit = off; SET enable_seqscan = off; SET enable_bitmapscan = off; "
                                  "SET enable_sort = off; LISTEN relata_outbox";

struct outbox {
    struct writer *w;
    struct pg *pg;
    unsigned generation; /* of pg, for which LISTEN was sent */
    struct scanner revokes, others;
    int nap_ms;
    mono_us came_at;   /* when a scan last brought rows */
    mono_us rescan_at; /* not before */
};

static mono_us statement_deadline(const struct outbox *o)
{
    return deadline_in_ms(o->w->cfg->statement_timeout_ms);
}

/* A snapshot of before a lost connection may be of another timeline: start over. */
static void start_over(struct outbox *o)
{
    scanner_reset(&o->revokes);
    scanner_reset(&o->others);
    o->nap_ms = NAP_MIN_MS;
}

static enum status ensure_session(struct outbox *o, struct err *err)
{
    enum status st = ST_OK;
    if (!o->pg) {
        const struct pg_config pc = {
            .dsn = o->w->cfg->pg_dsn, .application_name = "relata tuple-writer outbox", .watch_stop = true};
        st = pg_open(&o->pg, &pc, statement_deadline(o), err);
    } else if (!pg_alive(o->pg)) {
        st = pg_reopen(o->pg, statement_deadline(o), err);
    } else if (o->generation == pg_generation(o->pg)) {
        return ST_OK;
    }
    if (st == ST_OK)
        st = pg_exec(o->pg, session_sql, statement_deadline(o), err);
    if (st == ST_OK) {
        o->generation = pg_generation(o->pg);
        start_over(o);
    }
    return st;
}

static bool has_room(const struct outbox *o, bool revokes)
{
    size_t window = (size_t)o->w->cfg->window;
    size_t page = window > 2 * SCAN_PAGE ? SCAN_PAGE : window / 2;
    return lanes_held(o->w->lanes, revokes) <= window - page;
}

/* Nothing is held, and yet old rows are pending: whatever lost them, they are read again. */
static void check_strays(struct outbox *o)
{
    struct lanes *l = o->w->lanes;
    mono_us now = clock_mono_us();
    if (lanes_held(l, false) + lanes_held(l, true) > 0 || atomic_load(&o->w->oldest_age_ms) < STRAY_MS) {
        o->rescan_at = now + STRAY_MS * 1000; /* counted from when it began to look so */
        return;
    }
    if (now < o->rescan_at)
        return;
    log_warn("old rows are pending that no lane holds; reading the whole outbox again", NULL);
    metric_add(&m_rescans, 1);
    start_over(o);
    o->rescan_at = now + STRAY_MS * 1000;
}

/* A page of each scanner that has room. *all: nothing that was committed before is left unread. */
static enum status scan(struct outbox *o, bool *all, struct err *err)
{
    struct scanner *const scanners[] = {&o->revokes, &o->others};
    const bool room[] = {has_room(o, true), has_room(o, false)};
    struct scanned got;
    enum status st = scanners_step(scanners, room, o->w, o->pg, &got, err);
    *all = st == ST_OK && !got.more && room[0] && room[1];
    if (got.rows > 0) {
        o->came_at = clock_mono_us();
        o->nap_ms = NAP_MIN_MS;
    } else if (st == ST_OK && *all) {
        check_strays(o);
    }
    return st;
}

/* ---- sleep ---- */
static enum status sleeper(struct outbox *o, const char *name, const char *sql, bool *yes, struct err *err)
{
    struct pg_result *r = NULL;
    const struct pg_param params[] = {pg_p_text(o->w->cfg->store.name)};
    enum status st = pg_query(o->pg, name, sql, params, 1, statement_deadline(o), &r, err);
    *yes = st == ST_OK && pg_bool(r, 0, 0);
    pg_result_free(r);
    return st;
}

static void nap(struct outbox *o)
{
    (void)stop_sleep_until(deadline_in_ms(o->nap_ms)); /* the loop looks at the stop flag itself */
    o->nap_ms = o->nap_ms < NAP_MAX_MS ? o->nap_ms + 1 : NAP_MAX_MS;
}

/* Asleep: one scan after each notification, until they come so fast that being awake is better, or there is more to be
 * read than a page. */
static enum status sleep_on(struct outbox *o, struct err *err)
{
    bool all = false;
    mono_us since = clock_mono_us();
    int wakes = 0;
    enum status st = scan(o, &all, err);
    while (st == ST_OK && all && wakes < BUSY_WAKES && atomic_load(&o->w->active) && !stop_requested()) {
        const char *channel;
        mono_us until = deadline_in_ms(SLEEP_MS);
        admin_alive(o->w->admin);
        do { /* all that have come */
            st = pg_wait_notify(o->pg, lanes_fd(o->w->lanes), until, &channel, err);
            lanes_fd_clear(o->w->lanes);
            wakes += st == ST_OK;
            until = 0;
        } while (st == ST_OK);
        if (st != ST_DEADLINE)
            break;
        if (clock_mono_us() - since > BUSY_US) {
            since = clock_mono_us();
            wakes = 0;
        }
        if (lanes_take_reread(o->w->lanes))
            start_over(o);
        st = scan(o, &all, err);
    }
    return st == ST_STOPPED ? ST_OK : st;
}

/*
 * Services that write the outbox hold lock (1380270083, store) shared. If it can be had exclusively, none is open, and
 * whoever writes from now on finds it taken and sends a notification; what was committed before is seen by the scan
 * that follows. If not, somebody is about to commit: a nap is enough.
 */
static enum status sleep_until_woken(struct outbox *o, struct err *err)
{
    bool asleep, unlocked;
    enum status st = sleeper(o, "outbox_sleep", "SELECT pg_try_advisory_lock(1380270083, hashtext($1))", &asleep, err);
    if (st != ST_OK)
        return st;
    if (!asleep) {
        nap(o);
        return ST_OK;
    }
    st = sleep_on(o, err);
    /* Awake whatever happened: who keeps the lock is notified by every transaction. */
    struct err e;
    enum status woken = sleeper(o, "outbox_wake", "SELECT pg_advisory_unlock(1380270083, hashtext($1))", &unlocked, &e);
    if (st == ST_OK && woken != ST_OK)
        *err = e;
    return st == ST_OK ? woken : st;
}

static void wait_for_room(struct outbox *o)
{
    struct pollfd fds[] = {{.fd = lanes_fd(o->w->lanes), .events = POLLIN}, {.fd = stop_fd(), .events = POLLIN}};
    size_t window = (size_t)o->w->cfg->window;
    lanes_want_room(o->w->lanes, window > 2 * SCAN_PAGE ? window - SCAN_PAGE : window / 2);
    poll(fds, 2, ROOM_MS);
    lanes_fd_clear(o->w->lanes);
}

static enum status step(struct outbox *o, struct err *err)
{
    bool all = false;
    enum status st = ensure_session(o, err);
    if (st != ST_OK)
        return st;
    if (lanes_take_reread(o->w->lanes))
        start_over(o);
    st = scan(o, &all, err);
    if (st != ST_OK)
        return st;
    if (all && clock_mono_us() - o->came_at > AWAKE_US)
        return sleep_until_woken(o, err);
    if (all)
        nap(o);
    if (!has_room(o, true) || !has_room(o, false))
        wait_for_room(o);
    return ST_OK;
}

enum status source_outbox_run(struct writer *w, struct err *err)
{
    struct outbox o = {.w = w, .nap_ms = NAP_MIN_MS};
    bool was_active = false;
    unsigned failures = 0;
    scanner_init(&o.revokes, true);
    scanner_init(&o.others, false);
    while (!stop_requested()) {
        admin_alive(w->admin);
        bool active = atomic_load(&w->active);
        if (!active || !was_active) {
            start_over(&o);
            was_active = active;
            if (!active)
                (void)stop_sleep_until(deadline_in_ms(STANDBY_MS));
            continue;
        }
        struct err e;
        enum status st = step(&o, &e);
        if (st == ST_OK) {
            failures = 0;
        } else if (st != ST_STOPPED) {
            log_err(failures == 0 ? LOG_LVL_WARN : LOG_LVL_DEBUG, "the outbox cannot be read; trying again", &e, NULL);
            (void)stop_sleep_until(deadline_in_ms(backoff_ms(failures, 50, 2000)));
            failures++;
        }
    }
    scanner_release(&o.revokes);
    scanner_release(&o.others);
    pg_close(o.pg);
    (void)err;
    return ST_OK;
}
