/* relay.c - see relay.h. */
#include "outbox-relay/relay.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "outbox-relay/relay_metrics.h"

#define STANDBY_MS 500
#define TOPIC_MS 1000
#define CREATE_MS 5000
#define PING_MS 200
#define PING_EVERY_US (5 * 1000 * 1000)
#define SHOW_EVERY_US (250 * 1000)
#define HEALTH_BOUND_MS 120000
#define SETTLED_US (30 * 1000 * 1000)

void relay_ready(struct relay *r, const char *condition, bool ready, const char *reason)
{
    admin_ready(r->admin, condition, ready, reason);
}

void relay_wait(struct relay *r, int fd, int other_fd, mono_us until)
{
    struct pollfd p[5] = {{.fd = stop_fd(), .events = POLLIN},
                          {.fd = kafka_producer_fd(r->sender.kafka), .events = POLLIN},
                          {.fd = r->chores ? chores_fd(r->chores) : -1, .events = POLLIN},
                          {.fd = fd, .events = POLLIN},
                          {.fd = other_fd, .events = POLLIN}};
    mono_us latest = deadline_min(deadline_in_ms(1000), sender_due(&r->sender));
    (void)poll(p, 5, deadline_poll_ms(deadline_min(until, latest)));
}

/* Brokers that are back say nothing while there is nothing to send. */
static void show_kafka(struct relay *r, mono_us now)
{
    struct err why = {0};
    bool up = kafka_producer_up(r->sender.kafka, &why);
    if (!up && now > r->pinged_at + PING_EVERY_US) {
        int partitions;
        r->pinged_at = now;
        struct err e;
        if (kafka_producer_ping(r->sender.kafka, r->cfg->topic, PING_MS, &partitions, &e) == ST_OK)
            up = true;
    }
    metric_set(&m_kafka_up, up ? 1 : 0);
    relay_ready(r, "kafka", up, why.text);
}

void relay_show(struct relay *r)
{
    mono_us now = clock_mono_us();
    if (now < r->shown_at + SHOW_EVERY_US)
        return;
    r->shown_at = now;
    admin_alive(r->admin);
    metric_set(&m_in_flight, (double)kafka_producer_outstanding(r->sender.kafka));
    metric_set(&m_hidden, (double)r->sender.nhidden);
    show_kafka(r, now);
}

enum status relay_resend(struct relay *r, struct err *err)
{
    bool done = false;
    if (!r->resender.store && !chores_resend_take(r->chores, &r->resender))
        return ST_OK;
    enum status st = resender_step(&r->resender, &r->db, &r->sender, &done, err);
    if (st == ST_THROTTLED)
        return ST_OK;
    if (st == ST_OK && !done)
        return ST_OK;
    if (st == ST_OK && r->resender.sent > 0) {
        char rows[24];
        (void)snprintf(rows, sizeof rows, "%lld", (long long)r->resender.sent);
        metric_add(&m_resends, 1);
        log_warn("changes sent again: they pend although the writers have read the topic to its end", "store",
                 r->resender.store, "rows", rows, "topic", r->cfg->topic, NULL);
    }
    chores_resend_done(r->chores, r->resender.store);
    resender_release(&r->resender);
    return st;
}

void relay_drain(struct relay *r)
{
    mono_us end = deadline_in_ms(r->cfg->drain_timeout_ms);
    while (!window_empty(&r->sender.window) && clock_mono_us() < end) {
        if (sender_serve(&r->sender, 20, NULL) != ST_OK)
            break;
        relay_show(r);
    }
    char left[24];
    (void)snprintf(left, sizeof left, "%zu", window_len(&r->sender.window));
    log_info("drained", "unacknowledged", left, NULL);
}

/* sender_park: the row leaves the outbox for relata.dead_letter. */
static enum status park(void *arg, const char *store, int64_t outbox_id, uint64_t xid, const struct err *why,
                        struct err *err)
{
    struct relay *r = arg;
    bool parked;
    char id[24];
    (void)snprintf(id, sizeof id, "%lld", (long long)outbox_id);
    const char *code = why->code[0] ? why->code : status_name(why->status);
    enum status st = db_park(&r->db, store, outbox_id, xid, code, why->text, &parked, err);
    if (st == ST_OK)
        log_err(LOG_LVL_ERROR, "change parked: it can never be a message of this topic", why, "store", store,
                "outbox_id", id, "parked", parked ? "yes" : "no longer pending", NULL);
    return st;
}

/* ---- becoming and being the active relay ---- */

static void resign(struct relay *r)
{
    if (r->chores && r->resender.store)
        chores_resend_done(r->chores, r->resender.store);
    resender_release(&r->resender);
    chores_stop(r->chores, &r->db);
    r->chores = NULL;
    r->active = false;
    r->next = (struct position){0, 0};
}

static void standby(struct relay *r, bool *told)
{
    static const char reason[] = "standby: another relay of this name is active";
    metric_set(&m_standby, 1);
    relay_ready(r, "role", true, reason);
    relay_ready(r, "kafka", true, reason);
    relay_ready(r, "slot", true, reason);
    admin_alive(r->admin);
    if (!*told)
        log_info("standing by: another relay of this name is active", "name", r->cfg->name, NULL);
    *told = true;
}

static enum status become_active(struct relay *r, struct err *err)
{
    enum status st = db_connect(&r->db, r->cfg->dsn, r->application_name, err);
    if (st != ST_OK) {
        relay_ready(r, "postgres", false, err->text);
        resign(r);
        return st;
    }
    relay_ready(r, "postgres", true, "");
    if (r->active && r->lock_generation == pg_generation(r->db.pg))
        return ST_OK;
    resign(r);
    bool told = false;
    for (;;) {
        bool got;
        st = db_lock(&r->db, r->cfg->name, &got, err);
        if (st != ST_OK)
            return st;
        if (got)
            break;
        standby(r, &told);
        kafka_producer_poll(r->sender.kafka, 0);
        if (stop_sleep_until(deadline_in_ms(STANDBY_MS)) == ST_STOPPED)
            return err_set(err, ST_STOPPED, "", "stopped while standing by");
    }
    r->active = true;
    r->lock_generation = pg_generation(r->db.pg);
    metric_set(&m_standby, 0);
    relay_ready(r, "role", true, "active");
    relay_ready(r, "kafka", false, "not asked yet");
    relay_ready(r, "slot", r->cfg->mode == RELAY_POLL, "not looked at yet");
    log_info("active", "name", r->cfg->name, "mode", r->cfg->mode == RELAY_WAL ? "wal" : "poll", "topic", r->cfg->topic,
             NULL);
    return chores_start(&r->chores, r->cfg, r->application_name, r->slot, err);
}

/* A batch over the topic's limit is refused as a whole. If the question is not allowed, refusals will tell. */
static enum status fit_batches(struct relay *r, struct err *err)
{
    int64_t bytes;
    if (!window_empty(&r->sender.window) ||
        kafka_topic_max_bytes(&r->cfg->kafka, r->cfg->topic, &bytes, deadline_in_ms(TOPIC_MS), NULL) != ST_OK)
        return ST_OK;
    return sender_batch_bytes(&r->sender, bytes, err);
}

/* The topic is there, or is made, or it is waited for. */
static enum status check_topic(struct relay *r, struct err *err)
{
    int partitions = 0;
    enum status st = kafka_producer_ping(r->sender.kafka, r->cfg->topic, TOPIC_MS, &partitions, err);
    if (st == ST_MISSING && r->cfg->topic_partitions > 0) {
        st = kafka_topic_ensure(&r->cfg->kafka, r->cfg->topic, (int)r->cfg->topic_partitions,
                                (int)r->cfg->topic_replication, deadline_in_ms(CREATE_MS), err);
        if (st == ST_OK)
            log_info("topic created", "topic", r->cfg->topic, NULL);
    } else if (st == ST_MISSING) {
        (void)err_set(err, ST_MISSING, "",
                      "topic \"%s\" does not exist: create it, or set relay.topic_partitions and it is created",
                      r->cfg->topic);
    }
    if (st == ST_OK)
        st = fit_batches(r, err);
    metric_set(&m_kafka_up, st == ST_OK ? 1 : 0);
    relay_ready(r, "kafka", st == ST_OK, st == ST_OK ? "" : err->text);
    return st;
}

static enum status cycle(struct relay *r, struct err *err)
{
    enum status st = become_active(r, err);
    if (st != ST_OK)
        return st;
    st = check_topic(r, err);
    if (st != ST_OK)
        return st;
    return r->cfg->mode == RELAY_WAL ? wal_run(r, err) : poll_run(r, err);
}

/* ---- trouble ---- */

struct trouble {
    unsigned attempt;
    char text[1024];
    mono_us logged_at;
};

/* Said when it is new, and once a minute while it lasts. */
static void report(struct trouble *t, const struct err *err, int64_t wait_ms)
{
    mono_us now = clock_mono_us();
    if (strcmp(t->text, err->text) == 0 && now < t->logged_at + 60 * 1000000LL)
        return;
    char ms[24];
    (void)snprintf(t->text, sizeof t->text, "%s", err->text);
    (void)snprintf(ms, sizeof ms, "%lld", (long long)wait_ms);
    t->logged_at = now;
    bool person = err->status == ST_CONFIG || err->status == ST_DENIED || err->status == ST_MISSING;
    log_err(person ? LOG_LVL_ERROR : LOG_LVL_WARN, "interrupted, begins again at the first unacknowledged change", err,
            "next_try_ms", ms, NULL);
}

/* Which messages the broker has, the reports say; what has none is read again. */
static enum status begin_again(struct relay *r, bool kafka_failed, struct err *err)
{
    struct window *w = &r->sender.window;
    /* Trouble with Postgres alone: what is on its way to Kafka may arrive, and need not be read twice. */
    mono_us end = deadline_in_ms(2000);
    while (!kafka_failed && !window_empty(w) && clock_mono_us() < end && !stop_requested())
        if (sender_serve(&r->sender, 20, NULL) != ST_OK)
            break;
    if (!window_empty(w) || r->sender.failure.status != ST_OK || kafka_producer_broken(r->sender.kafka, NULL)) {
        metric_add(&m_replays, 1);
        resender_rewind(&r->resender);
        return sender_reset(&r->sender, err);
    }
    return ST_OK;
}

static enum status relay_init(struct relay *r, const struct settings *cfg, struct admin *admin, struct err *err)
{
    *r = (struct relay){.cfg = cfg, .admin = admin, .db.timeout_ms = cfg->statement_timeout_ms};
    (void)snprintf(r->application_name, sizeof r->application_name, "outbox-relay %s", cfg->name);
    settings_slot(cfg, r->slot);
    admin_health_bound(admin, HEALTH_BOUND_MS);
    relay_ready(r, "postgres", false, "not connected yet");
    relay_ready(r, "kafka", false, "not connected yet");
    relay_ready(r, "role", false, "not known yet");
    relay_ready(r, "slot", false, "not looked at yet");
    return sender_init(&r->sender, &cfg->kafka, cfg->topic, (size_t)cfg->in_flight, park, r, err);
}

enum exit_code relay_run(const struct settings *cfg, struct admin *admin)
{
    struct relay r;
    struct err err = {0};
    struct trouble t = {0};
    enum exit_code code = EXIT_DONE;
    enum status st = relay_init(&r, cfg, admin, &err);
    if (st != ST_OK) {
        log_err(LOG_LVL_ERROR, "cannot start", &err, NULL);
        return st == ST_CONFIG ? EXIT_USAGE : EXIT_FAILED;
    }
    while (!stop_requested()) {
        mono_us began = clock_mono_us();
        st = cycle(&r, &err);
        if (st == ST_STOPPED || stop_requested())
            break;
        bool kafka_failed = r.sender.failure.status != ST_OK;
        t.attempt = clock_mono_us() > began + SETTLED_US ? 0 : t.attempt + 1;
        int64_t wait_ms = backoff_ms(t.attempt > 6 ? 6 : t.attempt, 50, 5000);
        if (!r.active && st == ST_CONFIG) { /* the connection string */
            log_err(LOG_LVL_ERROR, "cannot start", &err, NULL);
            code = EXIT_USAGE;
            break;
        }
        report(&t, &err, wait_ms);
        if (begin_again(&r, kafka_failed, &err) != ST_OK) {
            log_err(LOG_LVL_ERROR, "cannot start a Kafka producer", &err, NULL);
            code = EXIT_FAILED;
            break;
        }
        (void)stop_sleep_until(deadline_in_ms(wait_ms));
    }
    resign(&r);
    db_close(&r.db);
    sender_release(&r.sender);
    return code;
}
