#include "tuple-writer/gate.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/wait.h"
#include "tuple-writer/metrics.h"

#define VERIFY_MIN_MS 250
#define VERIFY_MAX_MS 10000
#define RAISE_AFTER 20 /* successes, before throttling is eased by one lane */

enum gate_state { GATE_SHUT, GATE_TRIAL, GATE_OPEN };

struct gate {
    const struct settings *cfg;
    struct admin *admin;
    pthread_mutex_t mu;
    pthread_cond_t changed;
    enum gate_state state;
    bool stopped;
    struct pin pin;
    unsigned refusals;    /* shut that often without a success in between: how long to wait for the next verification */
    mono_us verify_at;    /* while shut */
    bool tripped;         /* shut by lanes' calls that failed: verification alone does not open */
    bool trial_taken;     /* in GATE_TRIAL: one lane is in */
    unsigned failures;    /* in a row */
    unsigned failed_lane; /* whose the last failure was */
    bool several;         /* of these failures, not all were the same lane's */
    bool doubted;         /* open without a success since the failures: not ready until there is one */
    int active, limit;    /* lanes inside, and allowed inside */
    int waiting;          /* lanes outside */
    unsigned successes;   /* since the limit was changed */
    mono_us not_before;   /* throttled until then */
    char reason[512];
    char failure[512]; /* the reason, when calls that failed shut it last */
};

struct gate *gate_new(const struct settings *cfg, struct admin *admin)
{
    struct gate *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->cfg = cfg;
    g->admin = admin;
    g->limit = (int)cfg->lanes;
    pthread_mutex_init(&g->mu, NULL);
    wait_cond_init(&g->changed);
    snprintf(g->reason, sizeof g->reason, "not verified yet");
    admin_ready(admin, "store", false, g->reason);
    metric_set(&m_circuit, 1);
    metric_set(&m_send_limit, g->limit);
    return g;
}

void gate_free(struct gate *g)
{
    if (!g)
        return;
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->mu);
    free(g);
}

/* ---- with the mutex held ---- */
static void shut(struct gate *g, bool stop, const char *reason)
{
    bool news = g->state == GATE_OPEN || (g->state == GATE_SHUT && strcmp(reason, g->reason) != 0);
    g->state = GATE_SHUT;
    g->trial_taken = false;
    snprintf(g->reason, sizeof g->reason, "%s", reason);
    g->verify_at = deadline_in_ms(backoff_ms(g->refusals, VERIFY_MIN_MS, VERIFY_MAX_MS));
    g->refusals += g->refusals < 16;
    admin_ready(g->admin, "store", false, reason);
    metric_set(&m_circuit, 1);
    metric_add(&m_shut, news);
    log_event(!news  ? LOG_LVL_DEBUG
              : stop ? LOG_LVL_ERROR
                     : LOG_LVL_WARN,
              "writes to the store stopped", "store", g->cfg->store.name, "reason", reason, NULL);
    pthread_cond_broadcast(&g->changed);
}

static void open_fully(struct gate *g)
{
    if (g->tripped)
        log_info("writes to the store go on", "store", g->cfg->store.name, NULL);
    g->state = GATE_OPEN;
    g->tripped = g->trial_taken = g->doubted = false;
    g->refusals = 0;
    g->failures = 0;
    admin_ready(g->admin, "store", true, "");
    metric_set(&m_circuit, 0);
    pthread_cond_broadcast(&g->changed);
}

static void throttle(struct gate *g, unsigned retry_after_ms)
{
    int limit = g->active / 2;
    g->limit = limit < 1 ? 1 : limit < g->limit ? limit : g->limit;
    g->successes = 0;
    if (retry_after_ms) {
        mono_us until = deadline_in_ms(retry_after_ms);
        g->not_before = until > g->not_before ? until : g->not_before;
    }
    metric_set(&m_send_limit, g->limit);
}

static void answered(struct gate *g)
{
    g->failures = 0;
    if (g->state == GATE_TRIAL || (g->state == GATE_OPEN && g->doubted))
        open_fully(g);
    if (g->limit < g->cfg->lanes && ++g->successes >= RAISE_AFTER) {
        g->limit++;
        g->successes = 0;
        metric_set(&m_send_limit, g->limit);
        pthread_cond_broadcast(&g->changed);
    }
}

static void failed(struct gate *g, unsigned lane, enum status st, const struct err *err)
{
    char reason[sizeof g->reason];
    bool another = lane != g->failed_lane || g->cfg->lanes == 1; /* a single lane is all of them */
    if (g->state == GATE_TRIAL)
        g->several = another;
    else if (g->failures == 0)
        g->several = g->cfg->lanes == 1;
    else if (another)
        g->several = true;
    g->failed_lane = lane;
    g->failures++;
    if (g->state == GATE_SHUT || (g->state == GATE_OPEN && g->failures < (unsigned)g->cfg->circuit_failures))
        return;
    if (g->failures == 1)
        snprintf(reason, sizeof reason, "a call failed: %s: %.300s", status_name(st), err->text);
    else
        snprintf(reason, sizeof reason, "%u calls%s failed in a row, the last: %s: %.300s", g->failures,
                 g->several ? "" : " of one lane", status_name(st), err->text);
    snprintf(g->failure, sizeof g->failure, "%s", reason);
    shut(g, false, reason);
    g->tripped = true;
}

/* The store was verified after calls of one lane alone had failed: the others are not held up. That no call has
 * succeeded since stays visible. */
static void open_doubted(struct gate *g)
{
    open_fully(g);
    g->doubted = true;
    admin_ready(g->admin, "store", false, g->failure);
}

static bool may_enter(struct gate *g, mono_us *until)
{
    mono_us now = clock_mono_us();
    *until = DEADLINE_NONE;
    if (g->state == GATE_SHUT || (g->state == GATE_TRIAL && g->trial_taken) || g->active >= g->limit)
        return false;
    if (now < g->not_before) {
        *until = g->not_before;
        return false;
    }
    return true;
}

/* ---- lanes ---- */
bool gate_enter(struct gate *g, struct pin *pin)
{
    mono_us until;
    pthread_mutex_lock(&g->mu);
    g->waiting++;
    while (!g->stopped && !may_enter(g, &until))
        wait_cond(&g->changed, &g->mu, until);
    g->waiting--;
    bool in = !g->stopped;
    if (in) {
        g->active++;
        g->trial_taken = g->state == GATE_TRIAL;
        *pin = g->pin;
    }
    pthread_mutex_unlock(&g->mu);
    return in;
}

void gate_leave(struct gate *g, unsigned lane, enum status st, const struct err *err)
{
    pthread_mutex_lock(&g->mu);
    switch (st) {
    case ST_OK:
    case ST_CONFLICT:
    case ST_INVALID:
    case ST_TOO_BIG:
        answered(g);
        break;
    case ST_THROTTLED:
        throttle(g, err->retry_after_ms);
        break;
    case ST_DENIED:
    case ST_MISSING:
    case ST_CONFIG:
        shut(g, true, err->text);
        g->tripped = true;
        break;
    case ST_STOPPED:
        break;
    case ST_RETRY:
    case ST_UNKNOWN:
    case ST_DEADLINE:
    case ST_NOT_FOUND:
    case ST_NOMEM:
    case ST_FATAL:
    default:
        failed(g, lane, st, err);
        break;
    }
    if (g->state == GATE_TRIAL)
        g->trial_taken = false;
    g->active--;
    if (g->waiting > 0) /* whatever concerns the verifier has told it already */
        pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mu);
}

bool gate_is_open(struct gate *g)
{
    pthread_mutex_lock(&g->mu);
    bool open = g->state == GATE_OPEN;
    pthread_mutex_unlock(&g->mu);
    return open;
}

void gate_stop(struct gate *g)
{
    pthread_mutex_lock(&g->mu);
    g->stopped = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mu);
}

/* ---- pin and verification ---- */
bool gate_pin(struct gate *g, const struct pin *pin)
{
    pthread_mutex_lock(&g->mu);
    bool news = strcmp(g->pin.store_id, pin->store_id) != 0 || strcmp(g->pin.model_id, pin->model_id) != 0 ||
                g->pin.generation != pin->generation;
    if (news) {
        g->pin = *pin;
        g->refusals = 0;
        g->state = GATE_SHUT;
        g->tripped = g->trial_taken = false;
        g->verify_at = clock_mono_us();
        snprintf(g->reason, sizeof g->reason, "being verified");
        admin_ready(g->admin, "store", false, g->reason);
        metric_set(&m_circuit, 1);
        log_info("store and model in force", "store", g->cfg->store.name, "store_id", pin->store_id, "model_id",
                 pin->model_id, NULL);
        pthread_cond_broadcast(&g->changed);
    }
    pthread_mutex_unlock(&g->mu);
    return news;
}

struct pin gate_pinned(struct gate *g)
{
    pthread_mutex_lock(&g->mu);
    struct pin pin = g->pin;
    pthread_mutex_unlock(&g->mu);
    return pin;
}

void gate_shut(struct gate *g, bool stop, const char *reason)
{
    pthread_mutex_lock(&g->mu);
    shut(g, stop, reason);
    pthread_mutex_unlock(&g->mu);
}

bool gate_await_verification(struct gate *g, int64_t interval_ms, bool *is_shut)
{
    mono_us periodic = deadline_in_ms(interval_ms);
    pthread_mutex_lock(&g->mu);
    for (;;) {
        *is_shut = g->state == GATE_SHUT;
        mono_us due = *is_shut ? g->verify_at : periodic;
        if (g->pin.generation == 0)
            due = DEADLINE_NONE; /* nothing to verify until something is pinned */
        if (g->stopped || clock_mono_us() >= due)
            break;
        wait_cond(&g->changed, &g->mu, due);
    }
    bool go = !g->stopped;
    pthread_mutex_unlock(&g->mu);
    return go;
}

static bool same_pin(const struct pin *a, const struct pin *b)
{
    return strcmp(a->store_id, b->store_id) == 0 && strcmp(a->model_id, b->model_id) == 0 &&
           a->generation == b->generation;
}

void gate_verified(struct gate *g, const struct pin *pin)
{
    pthread_mutex_lock(&g->mu);
    if (g->state != GATE_OPEN && same_pin(&g->pin, pin)) {
        /* The store answers; whether it takes Writes again, one lane finds out. If none has anything to write until the
         * next verification, there is nothing left to be found out. */
        bool trial = g->tripped && g->state == GATE_SHUT;
        log_event(g->tripped ? LOG_LVL_DEBUG : LOG_LVL_INFO, "store verified", "store", g->cfg->store.name, "store_id",
                  pin->store_id, "model_id", pin->model_id, NULL);
        if (!trial && !g->trial_taken) {
            open_fully(g);
        } else if (trial && g->failures > 0 && !g->several) {
            open_doubted(g);
        } else if (trial) {
            g->state = GATE_TRIAL;
            g->trial_taken = false;
            g->failures = 0;
            metric_set(&m_circuit, 0.5);
            pthread_cond_broadcast(&g->changed);
        }
    }
    pthread_mutex_unlock(&g->mu);
}

void gate_refused(struct gate *g, const struct pin *pin, bool stop, const char *reason)
{
    pthread_mutex_lock(&g->mu);
    if (same_pin(&g->pin, pin))
        shut(g, stop, reason);
    pthread_mutex_unlock(&g->mu);
}
