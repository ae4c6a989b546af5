#include "tuple-writer/keeper.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/pg/pg.h"
#include "tuple-writer/intents.h"
#include "tuple-writer/lane.h"
#include "tuple-writer/metrics.h"
#include "tuple-writer/parked.h"
#include "tuple-writer/standby.h"

#define STEP_MS 1000
#define ADOPT_EVERY_MS 2000
#define MAINTAIN_EVERY_MS 5000
#define MAINTAIN_ROWS "1000"
/* Bounded by rows; a busy machine may need long for them, and what is cancelled has to begin again. */
#define MAINTAIN_MS 30000
#define PROBE_SLOTS 16
/* The lag is counted so that counting takes at most a twentieth of the time. */
#define LAG_SHARE 20

struct keeper {
    struct writer *w;
    struct pg *pg;
    pthread_t thread;
    int fd; /* eventfd: end */
    _Atomic bool stopping;
    bool registered;
    struct standby standby;
    unsigned generation; /* of pg, when registered */
    struct parked parked;
    char said[256]; /* why there is no session, as last logged */
    mono_us adopt_at, maintain_at, lag_at;
    int slot;
};

static mono_us deadline(const struct keeper *k)
{
    return deadline_in_ms(k->w->cfg->statement_timeout_ms);
}

/* ---- registration ---- */
static void deactivate(struct keeper *k, const char *reason)
{
    if (atomic_exchange(&k->w->active, false))
        log_warn("no longer the active reader of the outbox", "reason", reason, NULL);
    if (k->w->cfg->source == SOURCE_OUTBOX)
        admin_ready(k->w->admin, "outbox", false, reason);
    metric_set(&m_active, 0);
    standby_end(&k->standby);
}

static void lost(struct keeper *k, const struct err *err)
{
    if (k->registered)
        log_err(LOG_LVL_WARN, "the session that says this writer lives is lost; registering anew", err, NULL);
    else if (strncmp(k->said, err->text, sizeof k->said - 1) != 0) /* once for each reason */
        log_err(LOG_LVL_WARN,
                err->status == ST_MISSING ? "the database is not migrated (relatactl migrate); trying again"
                                          : "no session with Postgres; trying again",
                err, NULL);
    (void)snprintf(k->said, sizeof k->said, "%.255s", err->text);
    k->registered = false;
    admin_ready(k->w->admin, "postgres", false, err->text);
    deactivate(k, "no connection to Postgres");
}

static enum status connect_session(struct keeper *k, struct err *err)
{
    if (!k->pg) {
        const struct pg_config pc = {
            .dsn = k->w->cfg->pg_dsn, .application_name = "relata tuple-writer", .watch_stop = true};
        return pg_open(&k->pg, &pc, deadline(k), err);
    }
    return pg_alive(k->pg) ? ST_OK : pg_reopen(k->pg, deadline_in_ms(STEP_MS), err);
}

static enum status register_writer(struct keeper *k, struct err *err)
{
    char epoch_text[24], id_text[24];
    int64_t epoch = clock_wall_us();
    struct pg_result *r = NULL;
    const struct pg_param params[] = {pg_p_text(k->w->cfg->store.name), pg_p_text(k->w->cfg->name),
                                      pg_p_int(epoch, epoch_text)};
    enum status st = pg_query(k->pg, "writer_register",
                              "INSERT INTO relata.writer (store, name, epoch) VALUES ($1, $2, $3) RETURNING id", params,
                              3, deadline(k), &r, err);
    if (st != ST_OK)
        return st;
    int64_t id = pg_int(r, 0, 0);
    pg_result_free(r);
    const struct pg_param lock[] = {pg_p_int(id, id_text)};
    st =
        pg_query(k->pg, "writer_lock", "SELECT pg_advisory_lock(1380270081, $1::int)", lock, 1, deadline(k), NULL, err);
    if (st != ST_OK)
        return st;
    atomic_store(&k->w->id, id);
    events_pub_identity(k->w->events, id, epoch);
    metric_add(&m_registrations, 1);
    k->registered = true;
    k->said[0] = '\0';
    k->generation = pg_generation(k->pg);
    k->adopt_at = k->lag_at = 0;
    admin_ready(k->w->admin, "postgres", true, "");
    log_info("registered", "writer", id_text, "store", k->w->cfg->store.name, NULL);
    return ST_OK;
}

static enum status ensure_registered(struct keeper *k, struct err *err)
{
    if (k->registered && pg_alive(k->pg) && pg_generation(k->pg) == k->generation)
        return ST_OK;
    if (k->registered)
        lost(k, &(struct err){.status = ST_RETRY, .text = "connection lost"});
    enum status st = connect_session(k, err);
    if (st == ST_OK)
        st = register_writer(k, err);
    return st;
}

static void unregister(struct keeper *k)
{
    char id[24];
    const struct pg_param params[] = {pg_p_int(atomic_load(&k->w->id), id)};
    if (k->registered && pg_alive(k->pg) &&
        pg_query(k->pg, NULL, "UPDATE relata.writer SET ended_at = clock_timestamp() WHERE id = $1", params, 1,
                 deadline_in_ms(1000), NULL, NULL) != ST_OK)
        log_debug("the end of this writer could not be recorded", NULL);
}

/* ---- steps ---- */
static enum status adopt_all(struct keeper *k, struct err *err)
{
    bool more = true;
    while (more) {
        enum status st = intents_adopt(k->w, k->pg, &more, err);
        if (st != ST_OK)
            return st;
    }
    k->adopt_at = deadline_in_ms(ADOPT_EVERY_MS);
    return ST_OK;
}

static enum status step_intents(struct keeper *k, struct err *err)
{
    bool standby = k->w->cfg->source == SOURCE_OUTBOX && !atomic_load(&k->w->active);
    return standby || clock_mono_us() < k->adopt_at ? ST_OK : adopt_all(k, err);
}

/* Become the active reader if nobody is. What an earlier one left under way is taken over before anything is read, so
 * that its keys are not acknowledged too early. */
static enum status step_active(struct keeper *k, struct err *err)
{
    struct writer *w = k->w;
    if (w->cfg->source != SOURCE_OUTBOX || atomic_load(&w->active))
        return ST_OK;
    struct pg_result *r = NULL;
    const struct pg_param params[] = {pg_p_text(w->cfg->store.name)};
    enum status st = pg_query(k->pg, "writer_active", "SELECT pg_try_advisory_lock(1380270082, hashtext($1))", params,
                              1, deadline(k), &r, err);
    if (st != ST_OK)
        return st;
    bool got = pg_bool(r, 0, 0);
    pg_result_free(r);
    if (!got)
        return standby_step(&k->standby, w, k->pg, deadline(k), err);
    standby_end(&k->standby);
    st = adopt_all(k, err);
    if (st != ST_OK) {
        pg_close(k->pg); /* gives the lock back */
        k->pg = NULL;
        return st;
    }
    atomic_store(&w->active, true);
    admin_ready(w->admin, "outbox", true, "");
    metric_set(&m_active, 1);
    metric_set(&m_reader_pid, pg_backend_pid(k->pg));
    metric_set(&m_reader_since, (double)clock_wall_us() / 1e6);
    log_info("active reader of the outbox", "store", w->cfg->store.name, NULL);
    return ST_OK;
}

static void not_pinned(struct keeper *k)
{
    char reason[256];
    snprintf(reason, sizeof reason,
             "store \"%.100s\" is not pinned in relata.store: run 'relatactl store pin' to say which store and model "
             "it is",
             k->w->cfg->store.name);
    gate_shut(k->w->gate, true, reason);
}

static enum status step_pin(struct keeper *k, struct err *err)
{
    struct pg_result *r = NULL;
    const struct pg_param params[] = {pg_p_text(k->w->cfg->store.name)};
    enum status st = pg_query(k->pg, "writer_pin",
                              "SELECT store_id, model_id, generation FROM relata.store WHERE name = $1 "
                              "AND store_id <> '' AND model_id <> ''",
                              params, 1, deadline(k), &r, err);
    if (st != ST_OK)
        return st;
    struct pin pin = {.generation = 0};
    if (pg_rows(r) == 1) {
        snprintf(pin.store_id, sizeof pin.store_id, "%s", pg_text(r, 0, 0));
        snprintf(pin.model_id, sizeof pin.model_id, "%s", pg_text(r, 0, 1));
        pin.generation = pg_int(r, 0, 2);
    }
    pg_result_free(r);
    bool news = gate_pin(k->w->gate, &pin);
    if (pin.generation == 0)
        not_pinned(k);
    else if (news)
        parked_start(&k->parked);
    return parked_step(&k->parked, k->w, k->pg, err);
}

static enum status step_probe(struct keeper *k, struct err *err)
{
    int64_t version;
    struct tuple_key *key = lanes_last_applied(k->w->lanes, &version);
    if (!key)
        return ST_OK;
    char slot[24], at[24];
    const struct pg_param params[] = {pg_p_text(k->w->cfg->store.name), pg_p_int(k->slot++ % PROBE_SLOTS, slot),
                                      pg_p_text(key->object),           pg_p_text(key->relation),
                                      pg_p_text(key->subject),          pg_p_int(version, at)};
    enum status st = pg_query(k->pg, "writer_probe",
                              "INSERT INTO relata.probe (store, slot, object, relation, subject, version) "
                              "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (store, slot) DO UPDATE SET object = $3, "
                              "relation = $4, subject = $5, version = $6, applied_at = clock_timestamp()",
                              params, 6, deadline(k), NULL, err);
    free(key);
    return st;
}

static enum status step_lag(struct keeper *k, struct err *err)
{
    mono_us start = clock_mono_us();
    if (start < k->lag_at)
        return ST_OK;
    struct pg_result *r = NULL;
    const struct pg_param params[] = {pg_p_text(k->w->cfg->store.name)};
    enum status st = pg_query(k->pg, "writer_lag",
                              "SELECT pending, oldest_age_seconds, parked, "
                              "(SELECT count(*) FROM relata.inflight WHERE store = $1) FROM relata.lag "
                              "WHERE store = $1 UNION ALL SELECT 0, 0, 0, "
                              "(SELECT count(*) FROM relata.inflight WHERE store = $1) LIMIT 1",
                              params, 1, deadline(k), &r, err);
    if (st != ST_OK)
        return st;
    metric_set(&m_pending, pg_double(r, 0, 0));
    metric_set(&m_lag, pg_double(r, 0, 1));
    metric_set(&m_parked, pg_double(r, 0, 2));
    metric_set(&m_intents, pg_double(r, 0, 3));
    atomic_store(&k->w->oldest_age_ms, (int64_t)(pg_double(r, 0, 1) * 1000));
    pg_result_free(r);
    k->lag_at = clock_mono_us() + LAG_SHARE * (clock_mono_us() - start);
    return ST_OK;
}

/* The active reader of the outbox keeps house: repeats due requests, sweeps tombstones and old records. */
static enum status step_maintain(struct keeper *k, struct err *err)
{
    if (!atomic_load(&k->w->active) || clock_mono_us() < k->maintain_at)
        return ST_OK;
    k->maintain_at = deadline_in_ms(MAINTAIN_EVERY_MS);
    struct pg_result *r = NULL;
    const struct pg_param params[] = {pg_p_text(k->w->cfg->store.name)};
    enum status st = pg_query(k->pg, "writer_maintain", "SELECT more FROM relata.maintain($1, " MAINTAIN_ROWS ")",
                              params, 1, deadline_in_ms(MAINTAIN_MS), &r, err);
    if (st == ST_OK && pg_rows(r) == 1 && pg_bool(r, 0, 0))
        k->maintain_at = 0;
    pg_result_free(r);
    return st;
}

static void keeper_step(struct keeper *k)
{
    enum status (*const steps[])(struct keeper *, struct err *) = {step_intents, step_pin, step_active,
                                                                   step_probe,   step_lag, step_maintain};
    struct err err = {0};
    enum status st = ensure_registered(k, &err);
    if (st != ST_OK) {
        if (st != ST_STOPPED)
            lost(k, &err);
        return;
    }
    for (size_t i = 0; i < sizeof steps / sizeof *steps && st == ST_OK; i++)
        st = steps[i](k, &err);
    if (st == ST_OK)
        return;
    if (!k->pg || !pg_alive(k->pg))
        lost(k, &err);
    else
        log_err(LOG_LVL_WARN, "upkeep failed and will be tried again", &err, NULL);
}

static void *keeper_run(void *arg)
{
    struct keeper *k = arg;
    struct pollfd fd = {.fd = k->fd, .events = POLLIN};
    pthread_setname_np(pthread_self(), "keeper");
    while (!atomic_load(&k->stopping)) {
        keeper_step(k);
        poll(&fd, 1, STEP_MS);
    }
    unregister(k);
    return NULL;
}

enum status keeper_start(struct keeper **out, struct writer *w, struct err *err)
{
    *out = NULL;
    struct keeper *k = calloc(1, sizeof *k);
    if (!k)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    k->w = w;
    k->fd = eventfd(0, EFD_CLOEXEC);
    admin_ready(w->admin, "postgres", false, "not connected yet");
    if (w->cfg->source == SOURCE_OUTBOX)
        admin_ready(w->admin, "outbox", false, "not connected yet");
    int rc = k->fd < 0 ? errno : pthread_create(&k->thread, NULL, keeper_run, k);
    if (rc != 0) {
        free(k);
        return err_set(err, ST_NOMEM, NULL, "cannot start the keeper: %s", strerror(rc));
    }
    *out = k;
    return ST_OK;
}

void keeper_stop(struct keeper *k)
{
    if (!k)
        return;
    uint64_t one = 1;
    atomic_store(&k->stopping, true);
    ssize_t n = write(k->fd, &one, sizeof one);
    (void)n;
    pthread_join(k->thread, NULL);
    pg_close(k->pg);
    close(k->fd);
    free(k);
}
