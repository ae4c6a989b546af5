#include "drift-checker/audit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drift-checker/compare/compare.h"
#include "drift-checker/judge/judge.h"
#include "drift-checker/repair/repair.h"
#include "drift-checker/report/report.h"

#define CONNECT_MS 10000

struct audit {
    const struct settings *cfg;
    struct pg *pg;
    struct store *store;
    struct store_conn *conn;
    struct model *model;
    struct compare_job job;
    struct run run;
    bool running;   /* the run is recorded and not ended */
    bool elsewhere; /* another audit of this store runs: its outputs are left alone */
    struct comparison comparison;
    struct findings findings;
    struct repairs repairs;
    mono_us began;
};

/* ---- before ---- */

static enum status read_pin(struct audit *a, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(a->cfg->store.name)};
    struct pg_result *r = NULL;
    enum status st =
        pg_query(a->pg, NULL, "SELECT coalesce(store_id, ''), coalesce(model_id, '') FROM relata.store WHERE name = $1",
                 params, 1, deadline_in_ms(a->cfg->statement_timeout_ms), &r, err);

    if (st == ST_MISSING)
        (void)err_prefix(err, "is schema relata there (relatactl migrate)?");
    else if (st == ST_OK && (pg_rows(r) == 0 || !*pg_text(r, 0, 0) || !*pg_text(r, 0, 1)))
        st = err_set(err, ST_MISSING, NULL,
                     "store \"%s\" is not pinned: relatactl store pin says which store and model the name means",
                     a->cfg->store.name);
    if (st == ST_OK) {
        (void)snprintf(a->run.store_id, sizeof a->run.store_id, "%s", pg_text(r, 0, 0));
        (void)snprintf(a->run.model_id, sizeof a->run.model_id, "%s", pg_text(r, 0, 1));
    }
    pg_result_free(r);
    return st;
}

static mono_us call_deadline(const struct audit *a)
{
    return deadline_in_ms(a->cfg->store.request_timeout_ms);
}

static enum status read_model(struct audit *a, struct err *err)
{
    struct model_err why;
    char *json = NULL;
    enum status st = store_model(a->conn, a->run.model_id, &json, call_deadline(a), err);

    if (st == ST_OK && !model_parse(&a->model, json, strlen(json), &why))
        st = err_set(err, ST_INVALID, NULL, "model %s: %s", a->run.model_id, why.text);
    free(json);
    return st;
}

static enum status open_all(struct audit *a, struct err *err)
{
    struct pg_config cfg = {.dsn = a->cfg->pg_dsn, .application_name = "drift-checker", .watch_stop = true};
    enum status st = pg_open(&a->pg, &cfg, deadline_in_ms(CONNECT_MS), err);
    char *name = NULL;

    if (st == ST_OK)
        st = read_pin(a, err);
    if (st == ST_OK) { /* what fails from here on is on record */
        st = record_begin(a->pg, a->cfg, &a->run, err);
        a->running = st == ST_OK;
        a->elsewhere = st == ST_CONFLICT;
    }
    if (st == ST_OK)
        st = store_new(&a->store, &a->cfg->store, err);
    if (st == ST_OK)
        st = store_conn_new(&a->conn, a->store, a->run.store_id, err);
    if (st == ST_OK) {
        store_conn_heed_stop(a->conn, true);
        st = store_get(a->conn, &name, call_deadline(a), err);
    }
    free(name);
    if (st == ST_MISSING)
        (void)err_prefix(err, "store \"%s\" is pinned to %s, which is not at %s", a->cfg->store.name, a->run.store_id,
                         a->cfg->store.url);
    if (st == ST_OK)
        st = read_model(a, err);
    if (st == ST_OK)
        a->job = (struct compare_job){.cfg = a->cfg,
                                      .pg = a->pg,
                                      .store = a->conn,
                                      .store_id = a->run.store_id,
                                      .model_id = a->run.model_id,
                                      .model = a->model,
                                      .check_model = a->run.check_model || a->cfg->full,
                                      .known_pairs = (const char *const *)a->run.known_pairs,
                                      .progress = report_progress,
                                      .progress_arg = (void *)(uintptr_t)a->cfg};
    return st;
}

/* ---- the audit ---- */

static void remember_sizes(struct audit *a)
{
    for (size_t i = 0; i < a->comparison.sources.len; i++) {
        struct source *s = &a->comparison.sources.items[i];
        const json_t *n = json_object_get(a->run.sources, s->name);

        s->before = n ? json_integer_value(n) : -1;
    }
}

/* A plan's tuples are candidates, and nothing else is. */
static enum status candidates_of_plan(struct audit *a, struct judge *j, struct plan *plan, struct err *err)
{
    enum status st = plan_read(a->cfg->apply, plan, err);

    for (size_t i = 0; i < plan->len && st == ST_OK; i++) {
        const struct candidate c = {.key = *plan->items[i].key, .judged_expected = plan->items[i].judged_expected};

        st = judge_add(j, &c, err);
    }
    if (st == ST_OK) { /* shares of the caps are of the ledger */
        struct pg_result *r = NULL;
        const struct pg_param params[] = {pg_p_text(a->cfg->store.name)};

        st = pg_query(a->pg, NULL, "SELECT count(*) FROM relata.tuple WHERE store = $1 AND present", params, 1,
                      deadline_in_ms(a->cfg->statement_timeout_ms), &r, err);
        if (st == ST_OK)
            a->comparison.ledger = pg_int(r, 0, 0);
        pg_result_free(r);
    }
    return st;
}

static enum status find(struct audit *a, struct plan *plan, struct err *err)
{
    struct judge *j = NULL;
    enum status st = compare_sources(&a->job, &a->comparison.sources, err);

    if (st == ST_OK) {
        remember_sizes(a);
        st = judge_new(&j, &a->job, a->store, &a->comparison.sources, err);
    }
    if (st == ST_OK)
        st = *a->cfg->apply ? candidates_of_plan(a, j, plan, err)
                            : compare_run(&a->job, &a->comparison, judge_add, j, err);
    if (st == ST_OK)
        st = judge_finish(j, &a->findings, err);
    if (st == ST_OK)
        st = record_findings(a->pg, a->cfg, &a->run, &a->findings, err);
    judge_free(j);
    return st;
}

/* Repairs, and plans, as asked. ST_INVALID with REPAIR_REFUSED: nothing was done. */
static enum status act(struct audit *a, const struct plan *plan, struct err *err)
{
    enum status st = ST_OK;

    if (*a->cfg->plan) {
        repair_count(&a->findings, &a->repairs);
        st = plan_write(a->cfg->plan, &a->job, &a->comparison.sources, a->run.id, &a->findings, &a->repairs, err);
        a->repairs = (struct repairs){0};
    }
    if (st != ST_OK || !(a->cfg->repair || *a->cfg->apply))
        return st;
    if (*a->cfg->apply)
        st = plan_holds(plan, &a->job, &a->comparison.sources, &a->findings, err);
    if (st == ST_OK)
        st = repair_allowed(a->cfg, &a->findings, a->comparison.ledger, &a->repairs, err);
    return st == ST_OK ? repair_run(&a->job, &a->comparison.sources, &a->findings, a->run.id, &a->repairs, err) : st;
}

/* ---- after ---- */

static enum status record(struct audit *a, const struct outcome *o, struct err *err)
{
    json_t *counts = report_counts(o), *sources = report_sources(o->comparison);
    enum status st = ST_OK;

    if (!pg_alive(a->pg)) /* a failed run says so, if it can */
        st = pg_reopen(a->pg, deadline_in_ms(CONNECT_MS), err);
    if (st == ST_OK)
        st = record_end(a->pg, a->cfg, &a->run,
                        &(struct run_end){.state = o->state,
                                          .why = o->why,
                                          .counts = counts,
                                          .sources = sources,
                                          .models_seen = a->job.check_model && strcmp(o->state, "incomplete") != 0,
                                          .all_seen = !a->findings.more && !*a->cfg->apply},
                        err);
    json_decref(counts);
    json_decref(sources);
    return st;
}

static void tell(struct audit *a, const struct outcome *o)
{
    struct pg_result *renamed = NULL;
    struct err err;

    if (a->cfg->json) {
        report_json(a->cfg, o);
        return;
    }
    if (strcmp(o->state, "incomplete") == 0 && !o->repairs->done)
        return; /* its reason is told on standard error */
    if (o->findings->len && record_renamed(a->pg, a->cfg, &a->run, &renamed, &err) != ST_OK)
        renamed = NULL;
    report_text(a->cfg, o, renamed);
    pg_result_free(renamed);
}

static enum audit_exit conclude(struct audit *a, enum status st, struct err *err)
{
    bool refused = st == ST_INVALID && strcmp(err->code, REPAIR_REFUSED) == 0;
    struct outcome o = {.run = &a->run,
                        .comparison = &a->comparison,
                        .findings = &a->findings,
                        .repairs = &a->repairs,
                        .why = st == ST_OK ? "" : err->text,
                        .repair = a->cfg->repair || *a->cfg->apply,
                        .seconds = (double)(clock_mono_us() - a->began) / 1e6};
    struct err later = {0};

    o.state = refused ? "refused" : st != ST_OK ? "incomplete" : a->findings.len ? "drift" : "clean";
    report_progress_end();
    if (a->running && record(a, &o, &later) != ST_OK && st == ST_OK) {
        o.state = "incomplete";
        o.why = later.text;
    }
    if (!a->elsewhere && report_textfile(a->cfg, &o, &later) != ST_OK && *o.why == '\0') {
        o.state = "incomplete";
        o.why = later.text;
    }
    tell(a, &o);
    if (strcmp(o.state, "incomplete") == 0) {
        (void)fprintf(stderr, "drift-checker: %s\n", o.why);
        return AUDIT_INCOMPLETE;
    }
    return refused ? AUDIT_REFUSED : a->findings.len ? AUDIT_DRIFT : AUDIT_CLEAN;
}

enum audit_exit audit_run(const struct settings *cfg)
{
    struct audit a = {.cfg = cfg, .began = clock_mono_us()};
    struct plan plan = {0};
    struct err err = {0};
    enum audit_exit code;
    enum status st = open_all(&a, &err);

    if (st == ST_OK)
        st = find(&a, &plan, &err);
    if (st == ST_OK && a.findings.more && !a.findings.len)
        st = err_set(&err, ST_INVALID, "",
                     "of more than audit.max_findings (%lld) differences those that were looked at "
                     "are gone: audit again",
                     (long long)cfg->max_findings);
    if (st == ST_OK)
        st = act(&a, &plan, &err);
    if (stop_requested() && st != ST_OK && strncmp(err.text, "interrupted", strlen("interrupted")) != 0)
        (void)err_prefix(&err, "interrupted");
    code = conclude(&a, st, &err);
    plan_free(&plan);
    findings_free(&a.findings);
    comparison_free(&a.comparison);
    run_release(&a.run);
    model_free(a.model);
    store_conn_free(a.conn);
    store_free(a.store);
    pg_close(a.pg);
    return code;
}
