#include "tuple-writer/identity.h"

#include <pthread.h>

#include "common/base/log.h"
#include "common/pg/pg.h"
#include "common/store/store.h"
#include "tuple-writer/metrics.h"

#define PROBES 16
/* Periodic verifications that fail for a passing reason, before Writes are stopped: lanes find out by themselves. */
#define PASSING_FAILURES 3

struct verifier {
    struct writer *w;
    struct pg *pg;
    struct store_conn *conn;
    pthread_t thread;
    unsigned failures;
    size_t drift;               /* as last logged */
    char newer[GATE_ID_MAX];    /* newer model, as last logged */
    char verified[GATE_ID_MAX]; /* model whose existence was verified while the gate was not shut since */
};

static mono_us call_deadline(const struct verifier *v)
{
    return deadline_in_ms(v->w->cfg->store.request_timeout_ms);
}

/* ---- probes ---- */
static const char probes_sql[] =
    "SELECT p.object, p.relation, p.subject, t.present, t.condition_name, t.condition_context "
    "FROM relata.probe p JOIN relata.tuple t ON t.store = p.store AND t.object = p.object AND t.relation = p.relation "
    "AND t.subject = p.subject AND t.version = p.version "
    "WHERE p.store = $1 AND relata.at_rest(p.store, p.object, p.relation, p.subject) "
    "ORDER BY p.applied_at DESC LIMIT 16";

static enum status load_probes(struct verifier *v, struct pg_result **r, struct err *err)
{
    mono_us deadline = deadline_in_ms(v->w->cfg->statement_timeout_ms);
    enum status st = ST_OK;
    if (!v->pg) {
        const struct pg_config pc = {
            .dsn = v->w->cfg->pg_dsn, .application_name = "relata tuple-writer verify", .watch_stop = true};
        st = pg_open(&v->pg, &pc, deadline, err);
    } else if (!pg_alive(v->pg)) {
        st = pg_reopen(v->pg, deadline, err);
    }
    const struct pg_param params[] = {pg_p_text(v->w->cfg->store.name)};
    if (st == ST_OK)
        st = pg_query(v->pg, "writer_probes", probes_sql, params, 1, deadline, r, err);
    return st;
}

static struct tuple_key probe_key(const struct pg_result *r, int row)
{
    return (struct tuple_key){pg_text(r, row, 0), pg_text(r, row, 1), pg_text(r, row, 2)};
}

static enum status probe_differs(struct verifier *v, const struct pg_result *r, int row, bool *differs, struct err *err)
{
    struct tuple_key key = probe_key(r, row);
    bool found = false;
    enum status st = store_read_tuple(v->conn, &key, &found, NULL, call_deadline(v), err);
    *differs = st == ST_OK && found != pg_bool(r, row, 3);
    return st;
}

/* True if the key is among the rows too. */
static bool listed(const struct pg_result *r, const struct tuple_key *key)
{
    for (int i = 0; i < pg_rows(r); i++) {
        struct tuple_key other = probe_key(r, i);
        if (tuple_key_cmp(&other, key) == 0)
            return true;
    }
    return false;
}

struct findings {
    size_t usable, differ;
    bool newest; /* the key applied last is among those that differ */
    char example[256];
};

/* A key counts if it was at rest, with one version, before and after the Read. */
static enum status compare_probes(struct verifier *v, struct findings *f, struct err *err)
{
    struct pg_result *before = NULL, *after = NULL;
    bool differs[PROBES] = {false};
    enum status st = load_probes(v, &before, err);
    int n = st == ST_OK ? pg_rows(before) : 0;
    size_t any = 0;
    for (int i = 0; i < n && i < PROBES && st == ST_OK; i++) {
        st = probe_differs(v, before, i, &differs[i], err);
        any += differs[i];
    }
    if (st == ST_OK && any > 0)
        st = load_probes(v, &after, err);
    memset(f, 0, sizeof *f);
    for (int i = 0; i < n && i < PROBES && st == ST_OK; i++) {
        struct tuple_key key = probe_key(before, i);
        if (after && !listed(after, &key))
            continue;
        if (differs[i]) {
            f->newest |= f->usable == 0;
            f->differ++;
            if (!*f->example)
                snprintf(f->example, sizeof f->example, "%.100s#%.50s@%.100s", key.object, key.relation, key.subject);
        }
        f->usable++;
    }
    pg_result_free(before);
    pg_result_free(after);
    return st;
}

/* ---- store and model ---- */
static enum status check_store(struct verifier *v, const struct pin *pin, struct err *err)
{
    char *name = NULL, *json = NULL, *latest = NULL;
    enum status st = store_conn_use(v->conn, pin->store_id, err);
    if (st == ST_OK)
        st = store_get(v->conn, &name, call_deadline(v), err);
    if (st == ST_OK && strcmp(v->verified, pin->model_id) != 0)
        st = store_model(v->conn, pin->model_id, &json, call_deadline(v), err);
    if (st == ST_OK)
        st = store_latest_model(v->conn, &latest, call_deadline(v), err);
    if (st == ST_OK) {
        bool newer = strcmp(latest, pin->model_id) != 0;
        metric_set(&m_model_newer, newer);
        if (newer && strcmp(v->newer, latest) != 0)
            log_warn("the store has a newer model than the one in force; 'relatactl model use' changes to it",
                     "model_in_force", pin->model_id, "newest", latest, NULL);
        snprintf(v->newer, sizeof v->newer, "%s", newer ? latest : "");
    }
    free(name);
    free(json);
    free(latest);
    return st;
}

static bool wrong_setup(enum status st)
{
    return st == ST_MISSING || st == ST_DENIED || st == ST_CONFIG;
}

static void refuse_findings(struct verifier *v, const struct pin *pin, const struct findings *f)
{
    char reason[512];
    snprintf(
        reason, sizeof reason,
        "the store does not hold what was applied to it last (%zu of %zu tuples differ, such as %s): it was wiped, "
        "restored or swapped; 'relatactl store verify' shows it, 'relatactl seed' fills it from the ledger",
        f->differ, f->usable, f->example);
    gate_refused(v->w->gate, pin, true, reason);
}

static void note_drift(struct verifier *v, const struct findings *f)
{
    metric_set(&m_store_drift, (double)f->differ);
    if (f->differ > v->drift)
        log_warn("a tuple applied lately is not in the store as it should be; somebody else writes to it", "tuple",
                 f->example, NULL);
    v->drift = f->differ;
}

static void verify(struct verifier *v, bool shut)
{
    struct pin pin = gate_pinned(v->w->gate);
    struct findings f = {0};
    struct err err = {0};
    char reason[512];
    if (pin.generation == 0)
        return; /* the keeper has said so */
    if (shut)
        *v->verified = '\0';
    enum status st = check_store(v, &pin, &err);
    if (st == ST_OK)
        st = compare_probes(v, &f, &err);
    if (st != ST_OK) {
        bool stop = wrong_setup(st);
        if (!shut && !stop && ++v->failures < PASSING_FAILURES)
            return;
        snprintf(reason, sizeof reason, "the store cannot be verified: %.400s", err.text);
        gate_refused(v->w->gate, &pin, stop, reason);
        return;
    }
    v->failures = 0;
    snprintf(v->verified, sizeof v->verified, "%s", pin.model_id);
    note_drift(v, &f);
    if (f.newest || (f.differ > 1 && 2 * f.differ >= f.usable))
        refuse_findings(v, &pin, &f);
    else
        gate_verified(v->w->gate, &pin);
}

static void *verifier_run(void *arg)
{
    struct verifier *v = arg;
    bool shut;
    pthread_setname_np(pthread_self(), "verifier");
    while (gate_await_verification(v->w->gate, v->w->cfg->verify_interval_ms, &shut)) {
        verify(v, shut);
    }
    return NULL;
}

enum status verifier_start(struct verifier **out, struct writer *w, struct err *err)
{
    *out = NULL;
    struct verifier *v = calloc(1, sizeof *v);
    if (!v)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    v->w = w;
    enum status st = store_conn_new(&v->conn, w->store, "", err);
    if (st == ST_OK) {
        store_conn_heed_stop(v->conn, true);
        int rc = pthread_create(&v->thread, NULL, verifier_run, v);
        if (rc != 0)
            st = err_set(err, ST_NOMEM, NULL, "cannot start the verifier: %s", strerror(rc));
    }
    if (st != ST_OK) {
        store_conn_free(v->conn);
        free(v);
        return st;
    }
    *out = v;
    return ST_OK;
}

void verifier_stop(struct verifier *v)
{
    if (!v)
        return;
    pthread_join(v->thread, NULL);
    pg_close(v->pg);
    store_conn_free(v->conn);
    free(v);
}
