/* drift_helpers.h - what the tests of audits and repairs share: a small world, audits of it, injuries to it. */
#ifndef RELATA_TESTS_DRIFT_HELPERS_H
#define RELATA_TESTS_DRIFT_HELPERS_H

#include <signal.h>

#include "tests/harness/fake_store.h"
#include "tests/harness/harness.h"
#include "tests/harness/proc.h"

#define AUDIT_MS 90000
#define CONVERGE_MS 60000
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NO_ARGS ((const char *const[]){NULL})
#define LAST_RUN(column) "SELECT " column " FROM relata.audit_run ORDER BY id DESC LIMIT 1"

/* An audit by `dsn`, of a store at `url` (NULL = the test's own); what the test gives comes last and wins. */
static inline struct proc *audit_start(struct harness *h, const char *dsn, const char *url, const char *const *args)
{
    const char *argv[48] = {0};
    const char *const fixed[] = {"--no-progress",
                                 "--max-repairs",
                                 "1000",
                                 "--max-deletions",
                                 "1000",
                                 "--set",
                                 harness_strf(h, "pg.dsn=%s", dsn ? dsn : h->dsn),
                                 "--set",
                                 harness_strf(h, "store.url=%s", url ? url : h->store_url),
                                 "--set",
                                 "store.request_timeout=20s",
                                 "--set",
                                 "store.late_window=100ms",
                                 "--set",
                                 "audit.settle=0ms"};
    size_t n = 0;

    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        argv[n++] = fixed[i];
    for (; *args; args++)
        argv[n++] = *args;
    return proc_startv(h, "drift-checker", argv);
}

static inline const char *audit_end(struct harness *h, struct proc *p, int code)
{
    int got = proc_wait(p, harness_ms(AUDIT_MS));

    if (got != code)
        fail_msg("the audit ended with %d, not %d: %s", got, code, proc_log(p));
    return harness_strf(h, "%s", proc_log(p));
}

/* What it printed. */
static inline const char *audit(struct harness *h, int code, const char *const *args)
{
    return audit_end(h, audit_start(h, NULL, NULL, args), code);
}

/* Rows of public.shares (doc, person) stand for doc:.. viewer user:..; `n` of anne's are everywhere. */
static inline void world(struct harness *h, int n)
{
    struct proc *writer = writer_start(h, "--set", "store.request_timeout=20s", NULL);

    harness_sql(h, "CREATE TABLE public.shares (doc text, person text, PRIMARY KEY (doc, person));"
                   "SELECT relata.track('public.shares', '[{\"object\": \"doc:{doc}\", \"relation\": \"viewer\", "
                   "\"subject\": \"user:{person}\"}]')");
    harness_sqlf(h, "INSERT INTO public.shares SELECT i, 'anne' FROM generate_series(1, %d) i", n);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.outbox", "0", CONVERGE_MS);
    proc_stop(writer);
}

/* Without triggers. */
static inline void behind(struct harness *h, const char *sql)
{
    harness_sqlf(h, "BEGIN; SET LOCAL session_replication_role = replica; %s; COMMIT", sql);
}

/* All that is pending is applied. */
static inline void converge_all(struct harness *h)
{
    struct proc *writer = writer_start(h, "--set", "store.request_timeout=20s", NULL);

    assert_sql_eventually(h, "SELECT count(*) FROM relata.outbox", "0", CONVERGE_MS);
    proc_stop(writer);
}

/* Past Relata: "doc:1", "viewer", "user:anne"; with a condition if `hours`, a context, is not NULL. */
static inline void store_put(struct harness *h, const char *o, const char *r, const char *s, const char *hours)
{
    const struct store_tuple t = {{o, r, s}, hours ? "in_hours" : NULL, hours};
    struct err err = {0};

    if (store_write(h->store_conn, h->model_id, &t, 1, NULL, 0, deadline_in_ms(harness_ms(20000)), &err) != ST_OK)
        fail_msg("writing to the store: %s", err.text);
}

static inline void store_take(struct harness *h, const char *o, const char *r, const char *s)
{
    const struct tuple_key key = {o, r, s};
    struct err err = {0};

    if (store_write(h->store_conn, h->model_id, NULL, 0, &key, 1, deadline_in_ms(harness_ms(20000)), &err) != ST_OK)
        fail_msg("deleting from the store: %s", err.text);
}

static inline bool store_has(struct harness *h, const char *o, const char *r, const char *s)
{
    const struct tuple_key key = {o, r, s};
    struct err err = {0};
    bool found = false;

    if (store_read_tuple(h->store_conn, &key, &found, NULL, deadline_in_ms(harness_ms(20000)), &err) != ST_OK)
        fail_msg("reading from the store: %s", err.text);
    return found;
}

/* A row of the ledger that no outbox row tells of; `rest` is SQL: "true, NULL, NULL" (present, condition, context). */
static inline void ledger_put(struct harness *h, const char *o, const char *r, const char *s, const char *rest)
{
    harness_sqlf(h,
                 "INSERT INTO relata.tuple (store, object, relation, subject, version, present, condition_name, "
                 "condition_context) VALUES ('default', '%s', '%s', '%s', nextval('relata.outbox_id'), %s)",
                 o, r, s, rest);
}

static inline void parked(struct harness *h, const char *o, const char *r, const char *s, const char *op)
{
    harness_sqlf(h,
                 "INSERT INTO relata.dead_letter (store, op, object, relation, subject, code, reason, model_id) SELECT "
                 "'default', '%s', '%s', '%s', '%s', 'validation_error', 'refused', model_id FROM relata.store",
                 op, o, r, s);
}

/* "cause object#relation@subject!" in order, ! = excess, of the last run. */
static inline const char *found(struct harness *h)
{
    return harness_sql_text(h, "SELECT string_agg(cause || ' ' || object || '#' || relation || '@' || subject || CASE "
                               "WHEN excess THEN '!' ELSE '' END, ', ' ORDER BY cause, object, relation, subject) FROM "
                               "relata.audit_finding WHERE last_run = (SELECT max(id) FROM relata.audit_run)");
}

/* "op object" of what is pending, in order. */
static inline const char *pending(struct harness *h)
{
    return harness_sql_text(h, "SELECT string_agg(op || ' ' || object, ', ' ORDER BY object, op) FROM relata.outbox");
}

/* "candidates in-flight vanished confirmed repaired" of the last run. */
static inline const char *counts(struct harness *h)
{
    return harness_sql_text(h, LAST_RUN("concat_ws(' ', counts->'candidates', counts->'in_flight', "
                                        "counts->'vanished', counts->'confirmed', counts->'repaired')"));
}

/* Runs `body` (plpgsql) once, after the next findings are recorded: between them and their repair. */
static inline void between(struct harness *h, const char *body)
{
    harness_sqlf(h,
                 "CREATE OR REPLACE FUNCTION public.between() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN IF "
                 "current_setting('relata.was_between', true) = 'yes' THEN RETURN NULL; END IF; PERFORM "
                 "set_config('relata.was_between', 'yes', false); %s; RETURN NULL; END $f$;"
                 "CREATE OR REPLACE TRIGGER between AFTER INSERT ON relata.audit_finding FOR EACH STATEMENT EXECUTE "
                 "FUNCTION public.between()",
                 body);
}

#endif
