/* chores.c - see chores.h. */
#include "outbox-relay/chores.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/log.h"
#include "outbox-relay/pgoutput.h"
#include "outbox-relay/relay_metrics.h"

#define STATEMENT_MS 5000
#define MAINTAIN_MS 30000 /* a busy machine may need long for its rows, and what is cancelled is undone */
#define GAUGES_MS 5000
#define MAINTAIN_ROWS "1000"
#define HEARTBEAT_BYTES (1024 * 1024)
#define STOP_GRACE_MS 1000
#define STOP_MS 6000
#define STOP_CONNECT_MS 2000

struct chores {
    const struct settings *cfg;
    char application_name[96];
    char slot[64];
    int quit;          /* eventfd: end the thread */
    int resend;        /* eventfd: something for the relay */
    int ended;         /* eventfd: the thread is about to end */
    atomic_int pid;    /* of its server process, 0 = not connected */
    atomic_int owners; /* the thread and the relay; the last one frees */

    pthread_mutex_t lock; /* guards these */
    struct progress progress;
    struct resender offer; /* store NULL = none */
    char *done;            /* a store that the relay has finished */
    bool taken;            /* one is offered, or the relay is at it */

    /* The thread's own. */
    struct db db;
    struct watch *watches;
    size_t nwatches;
    mono_us maintain_at, gauges_at, count_at, resend_at;
    mono_us moved_at, beat_at;
    uint64_t confirmed;
    char last_error[256];
    mono_us last_error_at;
};

/* ---- the relay's side ---- */

int chores_fd(const struct chores *c)
{
    return c->resend;
}

void chores_progress(struct chores *c, const struct progress *p)
{
    pthread_mutex_lock(&c->lock);
    c->progress = *p;
    pthread_mutex_unlock(&c->lock);
}

bool chores_resend_take(struct chores *c, struct resender *out)
{
    uint64_t n;
    ssize_t got = read(c->resend, &n, sizeof n);
    (void)got;
    pthread_mutex_lock(&c->lock);
    bool offered = c->offer.store != NULL;
    if (offered) {
        *out = c->offer;
        c->offer = (struct resender){0};
    }
    pthread_mutex_unlock(&c->lock);
    return offered;
}

void chores_resend_done(struct chores *c, const char *store)
{
    pthread_mutex_lock(&c->lock);
    free(c->done);
    c->done = strdup(store);
    c->taken = false;
    pthread_mutex_unlock(&c->lock);
}

/* ---- the thread ---- */

/* The same trouble is logged once a minute. */
static void complain(struct chores *c, const char *what, const struct err *err)
{
    mono_us now = clock_mono_us();
    if (strcmp(c->last_error, err->text) == 0 && now < c->last_error_at + 60 * 1000000LL)
        return;
    (void)snprintf(c->last_error, sizeof c->last_error, "%.255s", err->text);
    c->last_error_at = now;
    log_err(LOG_LVL_WARN, what, err, NULL);
}

static bool quitting(const struct chores *c)
{
    struct pollfd quit = {.fd = c->quit, .events = POLLIN};
    return poll(&quit, 1, 0) > 0;
}

static mono_us sql_deadline(void)
{
    return deadline_in_ms(STATEMENT_MS);
}

/* relata.maintain() of every store; again soon if there is more. */
static enum status maintain(struct chores *c, struct err *err)
{
    bool more = false;
    enum status worst = ST_OK;
    for (size_t i = 0; i < c->nwatches && !quitting(c); i++) {
        struct pg_param p = pg_p_text(c->watches[i].store);
        struct pg_result *r = NULL;
        struct err e;
        enum status st = pg_query(c->db.pg, "chores_maintain",
                                  "SELECT coalesce(more, false) FROM relata.maintain($1, " MAINTAIN_ROWS ")", &p, 1,
                                  deadline_in_ms(MAINTAIN_MS), &r, &e);
        if (st == ST_OK) {
            more = more || pg_bool(r, 0, 0);
        } else {
            metric_add(&m_maintain_failures, 1);
            worst = st;
            if (err)
                *err = e;
        }
        pg_result_free(r);
    }
    c->maintain_at = deadline_in_ms(more ? 100 : c->cfg->maintain_interval_ms);
    return worst;
}

static struct watch *watch_of(struct chores *c, const char *store)
{
    for (size_t i = 0; i < c->nwatches; i++)
        if (strcmp(c->watches[i].store, store) == 0)
            return &c->watches[i];
    struct watch *grown = realloc(c->watches, (c->nwatches + 1) * sizeof *grown);
    if (!grown)
        return NULL;
    c->watches = grown;
    grown[c->nwatches] = (struct watch){.store = strdup(store)};
    return grown[c->nwatches].store ? &grown[c->nwatches++] : NULL;
}

static void offer(struct chores *c, struct watch *w)
{
    struct resender r = {.store = strdup(w->store), .snapshot = strdup(w->snapshot), .age_ms = c->cfg->resend_after_ms};
    pthread_mutex_lock(&c->lock);
    bool made = r.store && r.snapshot && !c->taken;
    if (made) {
        c->offer = r;
        c->taken = true; /* until chores_resend_done() */
    }
    pthread_mutex_unlock(&c->lock);
    if (!made) {
        resender_release(&r);
        return;
    }
    uint64_t one = 1;
    ssize_t n = write(c->resend, &one, sizeof one);
    (void)n;
}

static void watch_all_done(struct chores *c)
{
    pthread_mutex_lock(&c->lock);
    char *done = c->done;
    c->done = NULL;
    pthread_mutex_unlock(&c->lock);
    struct watch *w = done ? watch_of(c, done) : NULL;
    if (w)
        watch_quiet(w, c->cfg);
    free(done);
}

/* Lag of every store, which is also how new ones are found. */
static enum status lag(struct chores *c, bool resend, struct err *err)
{
    struct pg_result *r = NULL;
    enum status st = pg_query(c->db.pg, "chores_lag", "SELECT store, oldest_age_seconds, parked FROM relata.lag", NULL,
                              0, sql_deadline(), &r, err);
    double oldest = 0;
    int64_t parked = 0;
    pthread_mutex_lock(&c->lock);
    struct progress progress = c->progress;
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; st == ST_OK && i < pg_rows(r) && !quitting(c); i++) {
        double age = pg_double(r, i, 1);
        oldest = age > oldest ? age : oldest;
        parked += pg_int(r, i, 2);
        struct watch *w = watch_of(c, pg_text(r, i, 0));
        if (!w)
            st = err_set(err, ST_NOMEM, "", "out of memory");
        else if (resend && w->stage != WATCH_DUE)
            st = watch_step(w, c->cfg, &c->db, (int64_t)(age * 1000), &progress, err);
        if (st == ST_OK && resend && w->stage == WATCH_DUE)
            offer(c, w);
    }
    pg_result_free(r);
    if (st != ST_OK)
        return st;
    metric_set(&m_lag, oldest);
    metric_set(&m_parked, (double)parked);
    return ST_OK;
}

/* Counting costs a tenth of a second a million: at most a fiftieth of the time goes there. */
static enum status count_pending(struct chores *c, struct err *err)
{
    struct pg_result *r = NULL;
    mono_us began = clock_mono_us();
    enum status st = pg_query(c->db.pg, "chores_count", "SELECT count(*) FROM relata.outbox", NULL, 0,
                              deadline_in_ms(c->cfg->statement_timeout_ms), &r, err);
    mono_us took = clock_mono_us() - began;
    if (st == ST_OK)
        metric_set(&m_pending, (double)pg_int(r, 0, 0));
    pg_result_free(r);
    c->count_at = deadline_in_ms(took / 1000 * 50 > GAUGES_MS ? took / 1000 * 50 : GAUGES_MS);
    return st;
}

/* When others write and nothing of it concerns us, the server moves the slot by itself while it is at the end of the
 * WAL. If it never gets there, a message of our own makes it. */
static enum status heartbeat(struct chores *c, int64_t behind, struct err *err)
{
    mono_us now = clock_mono_us();
    mono_us interval = c->cfg->heartbeat_interval_ms * 1000;
    if (interval == 0 || behind < HEARTBEAT_BYTES || now < c->moved_at + interval || now < c->beat_at + interval)
        return ST_OK;
    c->beat_at = now;
    metric_add(&m_heartbeats, 1);
    return pg_query(c->db.pg, "chores_beat", "SELECT pg_logical_emit_message(false, 'relata', 'heartbeat')", NULL, 0,
                    sql_deadline(), NULL, err);
}

static enum status slot_gauges(struct chores *c, struct err *err)
{
    struct pg_param p = pg_p_text(c->slot);
    struct pg_result *r = NULL;
    enum status st = pg_query(c->db.pg, "chores_slot",
                              "SELECT coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint, "
                              "coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint, "
                              "coalesce(confirmed_flush_lsn::text, '0/0') "
                              "FROM pg_replication_slots WHERE slot_name = $1",
                              &p, 1, sql_deadline(), &r, err);
    if (st == ST_OK && pg_rows(r) > 0) {
        int64_t behind = pg_int(r, 0, 1);
        uint64_t confirmed = 0;
        (void)lsn_parse(pg_text(r, 0, 2), &confirmed);
        if (confirmed != c->confirmed || behind <= 0)
            c->moved_at = clock_mono_us();
        c->confirmed = confirmed;
        metric_set(&m_slot_retained, (double)pg_int(r, 0, 0));
        metric_set(&m_slot_behind, (double)behind);
        metric_set(&m_confirmed_age, (double)(clock_mono_us() - c->moved_at) / 1e6);
        st = heartbeat(c, behind, err);
    }
    pg_result_free(r);
    return st;
}

static mono_us resend_pause(const struct chores *c)
{
    int64_t ms = c->cfg->resend_after_ms / 4;
    return deadline_in_ms(ms > 30000 ? 30000 : ms < 200 ? 200 : ms);
}

static enum status work(struct chores *c, struct err *err)
{
    mono_us now = clock_mono_us();
    enum status st = db_connect(&c->db, c->cfg->dsn, c->application_name, err);
    atomic_store(&c->pid, st == ST_OK ? pg_backend_pid(c->db.pg) : 0);
    watch_all_done(c);
    if (st == ST_OK && (now >= c->gauges_at || (c->resend_at && now >= c->resend_at))) {
        bool resend = c->resend_at && now >= c->resend_at;
        if (resend)
            c->resend_at = resend_pause(c);
        c->gauges_at = deadline_in_ms(GAUGES_MS);
        st = lag(c, resend, err);
        if (st == ST_OK && c->cfg->mode == RELAY_WAL)
            st = slot_gauges(c, err);
    }
    if (st == ST_OK && now >= c->maintain_at && !quitting(c))
        st = maintain(c, err);
    if (st == ST_OK && now >= c->count_at && !quitting(c))
        st = count_pending(c, err);
    return st;
}

static void chores_release(struct chores *c)
{
    if (atomic_fetch_sub(&c->owners, 1) > 1)
        return;
    for (size_t i = 0; i < c->nwatches; i++)
        watch_release(&c->watches[i]);
    free(c->watches);
    resender_release(&c->offer);
    free(c->done);
    if (c->quit >= 0)
        close(c->quit);
    if (c->resend >= 0)
        close(c->resend);
    if (c->ended >= 0)
        close(c->ended);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void *thread(void *arg)
{
    struct chores *c = arg;
    struct pollfd quit = {.fd = c->quit, .events = POLLIN};
    int wait_ms = 0;
    while (poll(&quit, 1, wait_ms) <= 0) {
        struct err err = {0};
        enum status st = work(c, &err);
        if (st != ST_OK && st != ST_STOPPED && !quitting(c))
            complain(c, "upkeep failed, tried again soon", &err);
        mono_us next = deadline_min(deadline_min(c->maintain_at, c->gauges_at), c->count_at);
        if (c->resend_at)
            next = deadline_min(next, c->resend_at);
        wait_ms = st == ST_OK ? deadline_poll_ms(next) : 1000;
    }
    atomic_store(&c->pid, 0);
    db_close(&c->db);
    uint64_t one = 1;
    ssize_t n = write(c->ended, &one, sizeof one);
    (void)n;
    chores_release(c);
    return NULL;
}

enum status chores_start(struct chores **out, const struct settings *cfg, const char *application_name,
                         const char *slot, struct err *err)
{
    *out = NULL;
    struct chores *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(err, ST_NOMEM, "", "out of memory");
    c->cfg = cfg;
    c->db.timeout_ms = STATEMENT_MS;
    (void)snprintf(c->application_name, sizeof c->application_name, "%s chores", application_name);
    (void)snprintf(c->slot, sizeof c->slot, "%s", slot);
    c->moved_at = clock_mono_us();
    c->resend_at = cfg->resend_after_ms > 0 ? resend_pause(c) : 0;
    pthread_mutex_init(&c->lock, NULL);
    c->quit = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    c->resend = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    c->ended = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    atomic_init(&c->pid, 0);
    atomic_init(&c->owners, 2);
    pthread_t id;
    int failed = c->quit < 0 || c->resend < 0 || c->ended < 0 ? errno : pthread_create(&id, NULL, thread, c);
    if (failed) {
        atomic_store(&c->owners, 1);
        chores_release(c);
        return err_set(err, ST_FATAL, "", "cannot start a thread: %s", strerror(failed));
    }
    pthread_detach(id);
    *out = c;
    return ST_OK;
}

static bool ended_by(const struct chores *c, mono_us end)
{
    struct pollfd p = {.fd = c->ended, .events = POLLIN};
    return poll(&p, 1, deadline_poll_ms(end)) > 0;
}

/* Through the relay's session, or, if that is lost, one that lives as long as this takes. */
static void cancel(const struct chores *c, struct db *db)
{
    int pid = atomic_load(&c->pid);
    if (pid == 0 || (db->pg && pg_alive(db->pg) && db_cancel(db, pid, NULL) == ST_OK))
        return;
    struct db own = {.timeout_ms = STOP_CONNECT_MS};
    struct pg_config cfg = {.dsn = c->cfg->dsn, .application_name = c->application_name};
    if (pg_open(&own.pg, &cfg, deadline_in_ms(STOP_CONNECT_MS), NULL) == ST_OK)
        (void)!db_cancel(&own, pid, NULL);
    db_close(&own);
}

void chores_stop(struct chores *c, struct db *db)
{
    if (!c)
        return;
    mono_us end = deadline_in_ms(STOP_MS);
    uint64_t one = 1;
    ssize_t n = write(c->quit, &one, sizeof one);
    (void)n;
    if (!ended_by(c, deadline_in_ms(STOP_GRACE_MS))) {
        cancel(c, db);
        if (!ended_by(c, end))
            log_warn("upkeep does not end; left to its own deadline", NULL);
    }
    chores_release(c);
}
