/*
 * keeper.c - the thread that keeps memory and Postgres in step: it loads, stands by, leads (lead.c), and begins again
 * when the connection is lost.
 */
#include "authz-store/stores/keeper.h"

#include "authz-store/stores/metrics.h"

#include "common/base/log.h"
#include "common/base/stop.h"

#define CONNECT_MS 5000
#define RETRY_BASE_MS 50
#define RETRY_CAP_MS 2000
#define REST_MS 50

static bool ending(const struct keeper *k)
{
    return atomic_load(&k->s->stopping);
}

/* A change waits for Postgres to come back as long as no other process can have become the active one. */
static void refuse_waiting(struct keeper *k)
{
    struct job *job;

    while (clock_mono_us() >= atomic_load(&k->s->serve_until) && (job = queue_poll(&k->s->writes)))
        job_end(job, ST_RETRY, "this process takes no changes now");
}

/* Until then, or until the process is to end, which closes the queue. */
static void rest(struct keeper *k, mono_us until)
{
    while (!ending(k) && clock_mono_us() < until) {
        queue_rest(&k->s->writes, deadline_min(until, deadline_in_ms(REST_MS)));
        refuse_waiting(k);
    }
}

/* ---- what was sent and not answered ---- */

static void settle(struct keeper *k, enum status st, const char *why)
{
    k->unsettled = false;
    if (k->single)
        job_end(k->single, st, why);
    k->single = NULL;
    group_end(k->group, st, why);
}

void keeper_settle(struct keeper *k, int64_t last_id)
{
    if (!k->unsettled)
        return;
    if (last_id < k->sent_id) {
        settle(k, ST_RETRY, "the connection to Postgres was lost before the change was committed");
    } else if (k->single) { /* its id and times are in memory by now, as rows_follow() has read them */
        struct job *job = k->single;
        k->single = NULL;
        k->unsettled = false;
        job->st = ST_OK;
        job->done(job);
    } else {
        settle(k, ST_OK, NULL);
    }
}

static void settle_late(struct keeper *k)
{
    if (k->unsettled && (clock_mono_us() >= k->unknown_at || ending(k)))
        settle(k, ST_UNKNOWN, "the connection to Postgres was lost while the change was being committed");
}

/* ---- connecting and loading ---- */

static enum status connect(struct keeper *k, struct err *err)
{
    const struct pg_config cfg = {.dsn = k->s->cfg->pg_dsn, .application_name = "authz-store"};
    mono_us deadline = deadline_in_ms(CONNECT_MS);

    if (k->pg && pg_alive(k->pg))
        return ST_OK;
    pg_close(k->pg);
    k->pg = NULL;
    enum status st = pg_open(&k->pg, &cfg, deadline, err);
    metric_add(&m_reconnects, st == ST_OK);
    if (st == ST_OK)
        st = commit_session(k->pg, deadline, err);
    if (st != ST_OK) {
        pg_close(k->pg); /* one without its settings is of no use */
        k->pg = NULL;
    }
    return st;
}

static enum status load(struct keeper *k, struct err *err)
{
    if (k->loaded)
        return ST_OK;
    stores_tell(k->s, "loading");
    enum status st = rows_load(k->s, k->pg, &k->sweep, &k->last_id, err);
    k->loaded = st == ST_OK;
    if (!k->loaded)
        rows_clear(k->s);
    return st;
}

/* ---- standing by ---- */

static mono_us statement(const struct keeper *k)
{
    return deadline_in_ms(k->s->cfg->statement_timeout_ms);
}

/* The epoch in which something was sent has ended: what came of it? */
static enum status settle_ended(struct keeper *k, struct err *err)
{
    int64_t last_id = 0;

    if (!k->unsettled)
        return ST_OK;
    enum status st = leader_ended_at(k->pg, k->sent_epoch, &last_id, statement(k), err);
    if (st == ST_OK)
        keeper_settle(k, last_id);
    return st == ST_NOT_FOUND ? ST_OK : st; /* not noted yet: it is asked again */
}

static bool same_holder(const struct leader_row *a, const struct leader_row *b)
{
    return a->epoch == b->epoch && a->beat == b->beat;
}

/* Takes over what was seen; the time from before it was asked counts. */
static enum status take(struct keeper *k, struct leader_row *seen, struct err *err)
{
    bool own = seen->epoch == k->epoch;
    int64_t known = k->last_id;

    k->sent = clock_mono_us();
    enum status st = leader_take(k->pg, seen, k->s->holder, k->s->cfg->lease_ms, statement(k), err);
    if (st != ST_OK)
        return st;
    k->epoch = seen->epoch;
    if (k->next_id <= seen->last_id)
        k->next_id = seen->last_id + 1;
    if (!own || seen->last_id != known)
        atomic_store(&k->s->serve_until, 0); /* what is about to change in memory is nothing for readers */
    st = rows_follow(k->s, k->pg, &k->sweep, &k->last_id, err);
    if (st == ST_OK && k->unsettled)
        st = leader_ended_at(k->pg, k->sent_epoch, &k->base, statement(k), err);
    return st;
}

/* Postgres was restored, or a standby without the last commits was promoted: memory is no state of it. */
static enum status begin_anew(struct keeper *k, struct err *err)
{
    atomic_store(&k->s->serve_until, 0);
    settle(k, ST_UNKNOWN, "Postgres was set back while the change was being committed");
    rows_clear(k->s);
    k->loaded = false;
    k->epoch = -1;
    k->last_id = 0;
    return err_set(err, ST_RETRY, NULL, "Postgres holds less than was committed before: everything is loaded again");
}

/* Until this process is the active one. */
static enum status stand_by(struct keeper *k, struct err *err)
{
    struct leader_row seen = {.epoch = -1}, now;
    mono_us since = 0, wait_us = k->s->cfg->lease_ms * 1000 / 8;
    char text[300];

    while (!ending(k)) {
        enum status st = leader_look(k->pg, &now, statement(k), err);
        if (st != ST_OK)
            return st;
        if (now.last_id < k->last_id || now.epoch < k->epoch)
            return begin_anew(k, err);
        (void)snprintf(k->s->token_key, sizeof k->s->token_key, "%s", now.token_key);
        if (!same_holder(&now, &seen))
            since = clock_mono_us();
        if (now.epoch != seen.epoch && now.epoch != k->epoch && !now.released)
            log_info("standing by", "active", now.holder, NULL);
        seen = now;
        if (now.epoch != k->sent_epoch && (st = settle_ended(k, err)) != ST_OK)
            return st;
        if (now.released || now.epoch == k->epoch || clock_mono_us() >= since + now.lease_ms * 1000) {
            st = take(k, &seen, err);
            if (st != ST_CONFLICT)
                return st;
            seen.epoch = -1;
            continue;
        }
        (void)snprintf(text, sizeof text, "standing by: %s is the active one (epoch %lld)", now.holder,
                       (long long)now.epoch);
        stores_tell(k->s, text);
        st = rows_follow(k->s, k->pg, &k->sweep, &k->last_id, err);
        if (st != ST_OK)
            return st;
        mono_us due = since + now.lease_ms * 1000, next = clock_mono_us() + wait_us;
        rest(k, due < next ? due : next);
        settle_late(k);
    }
    return ST_STOPPED;
}

/* ---- the whole ---- */

static bool for_good(enum status st)
{
    return st == ST_NOMEM || st == ST_FATAL;
}

/* One log line a reason. */
static void complain(struct keeper *k, const struct err *err)
{
    char text[400];

    if (strcmp(k->complaint, err->text) != 0)
        log_err(LOG_LVL_WARN, "not in step with Postgres; trying again", err, NULL);
    (void)snprintf(k->complaint, sizeof k->complaint, "%s", err->text);
    (void)snprintf(text, sizeof text, "not in step with Postgres: %.350s", err->text);
    stores_tell(k->s, text);
}

static enum status round_of(struct keeper *k, struct err *err)
{
    enum status st = connect(k, err);

    if (st == ST_OK)
        st = load(k, err);
    if (st == ST_OK)
        st = stand_by(k, err);
    if (st != ST_OK)
        return st;
    k->attempt = 0;
    *k->complaint = '\0';
    st = lead(k, err);
    atomic_store(&k->s->writing, false);
    return st;
}

static void keep(struct keeper *k)
{
    while (!ending(k)) {
        struct err err = {.status = ST_OK};
        enum status st = round_of(k, &err);

        refuse_waiting(k);
        if (st == ST_STOPPED || (st == ST_OK && ending(k)))
            break;
        if (st == ST_OK)
            continue; /* another process has taken over */
        if (for_good(st)) {
            log_err(LOG_LVL_ERROR, "cannot go on", &err, NULL);
            stores_tell(k->s, err.text);
            atomic_store(&k->s->serve_until, 0);
            atomic_store(&k->s->failed, true);
            settle(k, ST_UNKNOWN, "this process cannot go on");
            stop_request();
            break;
        }
        complain(k, &err);
        settle_late(k);
        rest(k, deadline_in_ms(backoff_ms(k->attempt++, RETRY_BASE_MS, RETRY_CAP_MS)));
        settle_late(k);
    }
    settle_late(k);
}

void *keeper_run(void *arg)
{
    struct keeper k = {.s = arg, .epoch = -1, .group = group_new()};

    pthread_setname_np(pthread_self(), "keeper");
    commit_batch_init(&k.batch);
    if (k.group) {
        keep(&k);
    } else {
        atomic_store(&k.s->failed, true);
        stop_request();
    }
    stores_tell(k.s, "ended");
    atomic_store(&k.s->serve_until, 0);
    refuse_waiting(&k);
    pg_close(k.pg);
    group_free(k.group);
    commit_batch_release(&k.batch);
    free(k.sweep.ids);
    return NULL;
}
