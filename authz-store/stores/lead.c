/* lead.c - the active process: commits what has gathered, applies it, answers; and gives signs of life. */
#include <sys/random.h>

#include "authz-store/stores/keeper.h"
#include "authz-store/stores/metrics.h"
#include "common/base/log.h"

#define GROUP_CHANGES 4000
#define GROUP_JOBS 256
#define SWEEP_US 100000
#define GAUGES_US 1000000

static mono_us statement(const struct keeper *k)
{
    return deadline_in_ms(k->s->cfg->statement_timeout_ms);
}

/* What was sent at `sent` has been answered: nobody takes over for the lease from then. */
static void alive(struct keeper *k, mono_us sent)
{
    k->sent = sent;
    atomic_store_explicit(&k->s->serve_until, sent + k->s->cfg->lease_ms * 900, memory_order_release);
}

/* Ids of `n` changes; the first. */
static int64_t take_ids(struct keeper *k, size_t n)
{
    int64_t now = clock_wall_us();

    if (k->next_id < now)
        k->next_id = now;
    int64_t first = k->next_id;
    k->next_id += (int64_t)n;
    return first;
}

/* The outcome of a transaction: ST_OK with memory to be changed, or not. ST_UNKNOWN is kept for later. */
static enum status committed(struct keeper *k, int64_t id, enum status st)
{
    if (st == ST_OK) {
        k->last_id = id;
    } else if (st == ST_CONFLICT) {
        atomic_store(&k->s->serve_until, 0);
    } else if (st == ST_UNKNOWN) {
        metric_add(&m_unknown, 1);
        k->unsettled = true;
        k->sent_id = id;
        k->sent_epoch = k->epoch;
        k->unknown_at = deadline_in_ms(k->s->cfg->unknown_after_ms);
    }
    return st;
}

/* ---- changes of tuples ---- */

/* By its content: the same again would be refused again. */
static bool refused(enum status st)
{
    return st == ST_INVALID || st == ST_TOO_BIG;
}

static enum status commit_group(struct keeper *k, struct err *err);

/* Postgres refuses the group: each job alone, so that only the one that it means is refused. */
static enum status commit_each(struct keeper *k, enum status st, struct err *err)
{
    struct job *job = group_detach(k->group), *next;

    if (!job->next) {
        log_err(LOG_LVL_ERROR, "Postgres refuses a change", err, "store", job->store->id, NULL);
        job_end(job, st, err->text);
        return ST_OK;
    }
    for (st = ST_OK; job; job = next) {
        next = job->next;
        group_begin(k->group);
        if (st != ST_OK)
            job_end(job, ST_RETRY, err->text);
        else if (group_add(k->group, job, err) != ST_OK)
            job_end(job, ST_NOMEM, "no memory");
        else
            st = commit_group(k, err);
    }
    return st;
}

static enum status commit_group(struct keeper *k, struct err *err)
{
    enum status st = ST_OK;

    if (group_changes(k->group)) {
        int64_t first = take_ids(k, group_changes(k->group));
        mono_us sent = clock_mono_us();
        group_fill(k->group, first, &k->batch);
        st = commit_batch_send(k->pg, k->epoch, &k->batch, statement(k), err);
        st = committed(k, k->batch.last_id, st);
        if (st == ST_OK) {
            metric_observe_us(&m_commit_seconds, clock_mono_us() - sent);
            metric_add(&m_commits, 1);
            st = group_apply(k->group, (uint64_t)k->last_id, err);
        }
    }
    if (refused(st))
        return commit_each(k, st, err);
    if (st == ST_OK) {
        metric_add(&m_jobs, (int64_t)group_jobs(k->group));
        group_end(k->group, ST_OK, NULL);
    } else if (!k->unsettled)
        group_end(k->group, st == ST_NOMEM ? ST_UNKNOWN : ST_RETRY, err->text);
    return st;
}

/* False: the job has had its answer. */
static bool wanted(struct keeper *k, struct job *job)
{
    if (job->store && table_find(k->s, job->store->id) != job->store->impl)
        job_end(job, ST_NOT_FOUND, "the store was deleted");
    else if (clock_mono_us() >= job->deadline)
        job_end(job, ST_DEADLINE, "the deadline passed before the change was begun");
    else
        return true;
    return false;
}

/* The first job and those that wait behind it, as far as they are of its kind. *next: the one that is not, or NULL. */
static enum status write_group(struct keeper *k, struct job *job, struct job **next, struct err *err)
{
    group_begin(k->group);
    for (; job && job->kind == JOB_WRITE;
         job = group_changes(k->group) < GROUP_CHANGES && group_jobs(k->group) < GROUP_JOBS ? queue_poll(&k->s->writes)
                                                                                            : NULL)
        if (wanted(k, job) && group_add(k->group, job, err) != ST_OK)
            job_end(job, ST_NOMEM, "no memory");
    *next = job;
    return commit_group(k, err);
}

/* ---- stores, models, assertions ---- */

/* A ULID (github.com/ulid/spec) of the id's time that sorts as the id does: its microseconds lead the random bits. */
static void make_ulid(int64_t id, char out[STORE_ID_LEN + 1])
{
    static const char digits[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    unsigned char b[16] = {0};
    uint64_t ms = (uint64_t)id / 1000, us = (uint64_t)id % 1000;

    for (int i = 0; i < 6; i++)
        b[i] = (unsigned char)(ms >> (40 - 8 * i));
    if (getrandom(b + 6, 10, 0) != 10)
        memset(b + 6, 0, 10);
    b[6] = (unsigned char)(us >> 2);
    b[7] = (unsigned char)((us & 3) << 6 | (b[7] & 0x3f));
    /* 130 bits in 26 digits: two zero bits, then the 128. */
    for (int d = 0; d < STORE_ID_LEN; d++) {
        unsigned value = 0;
        for (int bit = 5 * d - 2; bit < 5 * d + 3; bit++)
            value = value << 1 | (bit < 0 ? 0U : (unsigned)(b[bit / 8] >> (7 - bit % 8)) & 1U);
        out[d] = digits[value];
    }
    out[STORE_ID_LEN] = '\0';
}

/* Prepared in full before it is committed, so that only a fault can come between. */
static enum status create_store(struct keeper *k, struct job *job, int64_t id, struct err *err)
{
    make_ulid(id, job->id);
    job->created_us = job->updated_us = id;
    struct served_impl *store = served_impl_new(k->s, job->id, job->name, id, id);
    if (!store || engine_load_end(store->pub.engine, (uint64_t)id) != ENGINE_OK) {
        served_impl_free(store);
        return err_set(err, ST_NOMEM, NULL, "no memory for a store");
    }
    enum status st = commit_store(k->pg, k->epoch, id, job->id, job->name, statement(k), err);
    st = committed(k, id, st);
    if (st == ST_OK && table_add(k->s, store))
        return ST_OK;
    served_impl_free(store);
    return st == ST_OK ? err_set(err, ST_NOMEM, NULL, "no memory for a store") : st;
}

static enum status delete_store(struct keeper *k, struct job *job, int64_t id, struct err *err)
{
    enum status st = commit_delete(k->pg, k->epoch, id, job->store->id, statement(k), err);

    if (committed(k, id, st) != ST_OK)
        return st;
    if (!sweep_add(&k->sweep, job->store->id))
        return err_set(err, ST_NOMEM, NULL, "no memory for a deleted store");
    table_remove(k->s, job->store->impl);
    return ST_OK;
}

static enum status write_model(struct keeper *k, struct job *job, int64_t id, struct err *err)
{
    make_ulid(id, job->id);
    (void)json_object_set_new(job->json, "id", json_string(job->id));
    char *text = json_dumps(job->json, JSON_COMPACT);
    if (!text)
        return err_set(err, ST_NOMEM, NULL, "no memory for a model");
    enum status st = commit_model(k->pg, k->epoch, id, job->store->id, job->id, text, statement(k), err);
    st = committed(k, id, st);
    if (st == ST_OK)
        st = served_model_add(job->store->impl, job->id, job->model, json_incref(job->json), err);
    if (st == ST_OK)
        job->model = NULL;
    free(text);
    return st;
}

static enum status write_assertions(struct keeper *k, struct job *job, int64_t id, struct err *err)
{
    char *text = json_dumps(job->json, JSON_COMPACT);

    if (!text)
        return err_set(err, ST_NOMEM, NULL, "no memory for assertions");
    enum status st = commit_assertions(k->pg, k->epoch, id, job->store->id, job->name, text, statement(k), err);
    st = committed(k, id, st);
    if (st == ST_OK)
        st = served_assertions_set(job->store->impl, job->name, job->json, err);
    free(text);
    return st;
}

static enum status write_single(struct keeper *k, struct job *job, struct err *err)
{
    enum status st = ST_FATAL;
    int64_t id;

    if (!wanted(k, job))
        return ST_OK;
    id = take_ids(k, 1);
    if (job->kind == JOB_CREATE_STORE)
        st = create_store(k, job, id, err);
    else if (job->kind == JOB_DELETE_STORE)
        st = delete_store(k, job, id, err);
    else if (job->kind == JOB_WRITE_MODEL)
        st = write_model(k, job, id, err);
    else
        st = write_assertions(k, job, id, err);
    if (k->unsettled) {
        k->single = job;
        return st;
    }
    job->st = st;
    if (st != ST_OK)
        job_end(job, status_is_retryable(st) ? ST_RETRY : st, err->text);
    else
        job->done(job);
    return refused(st) ? ST_OK : st;
}

/* ---- the loop ---- */

static enum status renew(struct keeper *k, struct err *err)
{
    mono_us sent = clock_mono_us();
    enum status st = leader_renew(k->pg, k->epoch, statement(k), err);

    if (st == ST_OK)
        alive(k, sent);
    else if (st == ST_CONFLICT)
        atomic_store(&k->s->serve_until, 0);
    return st;
}

static void gauges(struct keeper *k)
{
    struct engine_size sum = {0};

    for (size_t i = 0; i < k->s->n; i++) {
        struct engine_size one = engine_size(k->s->table[i]->pub.engine);
        sum.tuples += one.tuples;
        sum.bytes += one.bytes;
        sum.garbage += one.garbage;
    }
    metric_set(&m_stores, (double)k->s->n);
    metric_set(&m_tuples, (double)sum.tuples);
    metric_set(&m_bytes, (double)sum.bytes);
    metric_set(&m_garbage, (double)sum.garbage);
}

/* Nothing is to be done: what deleted stores have left goes. */
static enum status tidy(struct keeper *k, struct err *err)
{
    bool done = false;

    table_bury(k->s);
    if (!k->sweep.n)
        return ST_OK;
    enum status st = commit_sweep(k->pg, k->sweep.ids[k->sweep.n - 1], &done, statement(k), err);
    if (st == ST_OK && done)
        k->sweep.n--;
    return st;
}

/* A group or a single job. *held: the job that ended the group, and comes next. */
static enum status write_one(struct keeper *k, struct job *job, struct job **held, struct err *err)
{
    *held = NULL;
    return job->kind == JOB_WRITE ? write_group(k, job, held, err) : write_single(k, job, err);
}

static bool over(struct keeper *k)
{
    return atomic_load(&k->s->stopping) && clock_mono_us() >= atomic_load(&k->s->stop_by);
}

static bool closed_and_empty(struct keeper *k, const struct job *job)
{
    return !job && atomic_load(&k->s->stopping);
}

enum status lead(struct keeper *k, struct err *err)
{
    mono_us beat_us = k->s->cfg->lease_ms * 1000 / 4, tell = 0;
    struct job *held = NULL;
    char epoch[24];
    enum status st = ST_OK;

    alive(k, k->sent);
    atomic_store(&k->s->writing, true);
    keeper_settle(k, k->base);
    stores_tell(k->s, "");
    metric_add(&m_takeovers, 1);
    metric_set(&m_epoch, (double)k->epoch);
    metric_set(&m_active, 1);
    (void)snprintf(epoch, sizeof epoch, "%lld", (long long)k->epoch);
    log_info("active", "epoch", epoch, "holder", k->s->holder, NULL);
    while (st == ST_OK && !over(k)) {
        mono_us due = k->sent + beat_us, idle = clock_mono_us() + SWEEP_US;
        struct job *job =
            held ? held : queue_take(&k->s->writes, k->sweep.n || k->s->dead ? deadline_min(due, idle) : due);
        if (closed_and_empty(k, job))
            break;
        if (job)
            st = write_one(k, job, &held, err);
        else
            st = tidy(k, err);
        if (st == ST_OK && clock_mono_us() >= k->sent + beat_us)
            st = renew(k, err);
        if (clock_mono_us() >= tell) {
            gauges(k);
            tell = clock_mono_us() + GAUGES_US;
        }
    }
    if (held)
        job_end(held, ST_RETRY, st == ST_OK ? "this process is ending" : err->text);
    atomic_store(&k->s->writing, false);
    metric_set(&m_active, 0);
    if (st == ST_OK) {
        atomic_store(&k->s->serve_until, 0);
        struct err ignored;
        if (leader_release(k->pg, k->epoch, statement(k), &ignored) != ST_OK)
            log_err(LOG_LVL_WARN, "the lease could not be given back; another process waits for its end", &ignored,
                    NULL);
    }
    if (st == ST_CONFLICT) {
        log_info("another process has taken over", "epoch", epoch, NULL);
        st = ST_OK;
    }
    return st;
}
