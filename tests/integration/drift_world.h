/*
 * drift_world.h - a small world for audits: the inventory is one table, public.granted, which is the expected view of
 * type doc; the ledger and the store are set by hand, so that every difference is one that a test made.
 *
 * Sides are named by letters: E expected, L ledger, O observed. Audits by turns read OpenFGA's own table, and pages.
 */
#ifndef RELATA_TESTS_DRIFT_WORLD_H
#define RELATA_TESTS_DRIFT_WORLD_H

#include <stdlib.h>
#include <string.h>

#include "tests/harness/fake_store.h"
#include "tests/harness/harness.h"
#include "tests/harness/proc.h"

#define LATE "store.late_window=200ms"
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NO_ARGS ((const char *const[]){NULL})
#define ALL "--max-repairs", "100%", "--max-deletions", "100%"
#define APPLIED_MS 30000

enum reading { BY_PAGES, BY_TABLE };

struct tuple {
    const char *object, *relation, *subject, *condition, *context;
};

/* The other way at each call. */
static inline enum reading by_turns(void)
{
    static unsigned turn;

    return turn++ % 2 ? BY_TABLE : BY_PAGES;
}

static inline void world_begin(struct harness *h)
{
    harness_sql(h, "CREATE TABLE public.granted (object text, relation text, subject text, condition_name text, "
                   "condition_context jsonb)");
}

static inline void store_change(struct harness *h, const struct tuple *t, bool present)
{
    const struct store_tuple w = {{t->object, t->relation, t->subject}, t->condition, t->context};
    struct err err = {0};

    if (store_write(h->store_conn, h->model_id, &w, present, &w.key, !present, deadline_in_ms(harness_ms(20000)),
                    &err) != ST_OK)
        fail_msg("%s#%s@%s: %s", t->object, t->relation, t->subject, err.text);
}

static inline void inventory_change(struct harness *h, const char *sql, const struct tuple *t)
{
    const struct pg_param p[] = {pg_p_text(t->object), pg_p_text(t->relation), pg_p_text(t->subject),
                                 pg_p_text(t->condition), pg_p_text(t->context)};
    struct err err = {0};

    if (pg_query(h->pg, NULL, sql, p, 5, deadline_in_ms(harness_ms(20000)), NULL, &err) != ST_OK)
        fail_msg("%s: %s", t->object, err.text);
}

/* Behind the back of triggers and writers. */
static inline void put_tuple(struct harness *h, const char *sides, const struct tuple *t)
{
    if (strchr(sides, 'E'))
        inventory_change(h, "INSERT INTO public.granted VALUES ($1, $2, $3, $4, $5::jsonb)", t);
    if (strchr(sides, 'L'))
        inventory_change(h,
                         "INSERT INTO relata.tuple (store, object, relation, subject, condition_name, "
                         "condition_context, present, version) VALUES ('default', $1, $2, $3, $4, $5::jsonb, true, "
                         "nextval('relata.outbox_id'))",
                         t);
    if (strchr(sides, 'O'))
        store_change(h, t, true);
}

static inline void put(struct harness *h, const char *sides, const char *object, const char *relation,
                       const char *subject)
{
    put_tuple(h, sides, &(struct tuple){object, relation, subject, NULL, NULL});
}

/* Row of the inventory, or tuple of the store: "E", "O". */
static inline void take(struct harness *h, const char *sides, const char *object, const char *relation,
                        const char *subject)
{
    const struct tuple t = {object, relation, subject, NULL, NULL};

    if (strchr(sides, 'E'))
        harness_sqlf(h, "DELETE FROM public.granted WHERE object = '%s' AND relation = '%s' AND subject = '%s'", object,
                     relation, subject);
    if (strchr(sides, 'O'))
        store_change(h, &t, false);
}

/* viewer of doc:PREFIX000 .. for user:u, on all sides; n <= 1000. */
static inline void put_many(struct harness *h, const char *prefix, int n)
{
    struct store_tuple writes[STORE_WRITE_MAX];
    struct err err = {0};

    harness_sqlf(h,
                 "INSERT INTO public.granted SELECT 'doc:%s' || lpad(i::text, 3, '0'), 'viewer', 'user:u' FROM "
                 "generate_series(0, %d) i; INSERT INTO relata.tuple (store, object, relation, subject, present, "
                 "version) SELECT 'default', 'doc:%s' || lpad(i::text, 3, '0'), 'viewer', 'user:u', true, "
                 "nextval('relata.outbox_id') FROM generate_series(0, %d) i",
                 prefix, n - 1, prefix, n - 1);
    for (int at = 0; at < n; at += STORE_WRITE_MAX) {
        int len = n - at < STORE_WRITE_MAX ? n - at : STORE_WRITE_MAX;

        for (int i = 0; i < len; i++)
            writes[i] =
                (struct store_tuple){.key = {harness_strf(h, "doc:%s%03d", prefix, at + i), "viewer", "user:u"}};
        if (store_write(h->store_conn, h->model_id, writes, (size_t)len, NULL, 0, deadline_in_ms(harness_ms(20000)),
                        &err) != ST_OK)
            fail_msg("%s: %s", prefix, err.text);
    }
}

/* ---- audits ---- */

static inline struct proc *audit_start(struct harness *h, enum reading how, const char *url, const char *const *args)
{
    const char *argv[48] = {0};
    const char *const fixed[] = {"--no-progress",
                                 "--set",
                                 harness_strf(h, "pg.dsn=%s", h->dsn),
                                 "--set",
                                 harness_strf(h, "store.url=%s", url ? url : h->store_url),
                                 "--set",
                                 "store.request_timeout=20s",
                                 "--set",
                                 LATE,
                                 "--set",
                                 "audit.settle=100ms",
                                 "--set",
                                 "expected.doc=public.granted"};
    size_t n = 0;

    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        argv[n++] = fixed[i];
    if (how == BY_TABLE) {
        argv[n++] = "--set";
        argv[n++] = getenv("HARNESS_AUTHZ_STORE")
                        ? harness_strf(h, "authz-store.dsn=%s", harness_dsn(h, NULL, NULL, "authz"))
                        : harness_strf(h, "openfga.dsn=%s", harness_dsn(h, NULL, NULL, "openfga"));
    }
    for (; *args; args++) {
        assert_true(n + 1 < sizeof argv / sizeof *argv);
        argv[n++] = *args;
    }
    return proc_startv(h, "drift-checker", argv);
}

static inline void assert_ends(struct harness *h, struct proc *p, int code, const char **out)
{
    int got = proc_wait(p, harness_ms(60000));

    if (got != code)
        fail_msg("the audit ended with %d, not %d: %s", got, code, proc_log(p));
    if (out)
        *out = harness_strf(h, "%s", proc_log(p));
}

/* One audit; what it printed. */
static inline const char *audit(struct harness *h, int code, const char *const *args)
{
    const char *out = NULL;

    assert_ends(h, audit_start(h, by_turns(), NULL, args), code, &out);
    return out;
}

/* What the last audit found: "CAUSE OBJECT#RELATION@SUBJECT, ..", what somebody has too much first. */
static inline const char *findings(struct harness *h)
{
    return harness_sql_text(h, "SELECT string_agg(cause || ' ' || object || '#' || relation || '@' || subject, ', ' "
                               "ORDER BY excess DESC, cause, object, relation, subject) FROM relata.audit_finding "
                               "WHERE last_run = (SELECT max(id) FROM relata.audit_run)");
}

/* Two audits, one of each kind, find the same; the last one's output. */
static inline const char *assert_found(struct harness *h, const char *wanted, const char *const *args)
{
    const char *out = NULL;

    for (int i = 0; i < 2; i++) {
        assert_ends(h, audit_start(h, by_turns(), NULL, args), *wanted ? 1 : 0, &out);
        assert_string_equal(findings(h), wanted);
    }
    return out;
}

/* A number of the last run's record. */
static inline int64_t counted(struct harness *h, const char *name)
{
    return harness_sql_int(
        h, harness_strf(h, "SELECT counts -> '%s' FROM relata.audit_run ORDER BY id DESC LIMIT 1", name));
}

static inline int64_t pending(struct harness *h)
{
    return harness_sql_int(h, "SELECT count(*) FROM relata.outbox");
}

/* The last run could not complete, says why, and nothing came of it. */
static inline void assert_incomplete(struct harness *h, const char *why)
{
    const char *row = harness_sql_text(h, "SELECT state || ': ' || why FROM relata.audit_run ORDER BY id DESC LIMIT 1");

    if (strncmp(row, "incomplete: ", 12) != 0 || !strstr(row, why))
        fail_msg("the last run is recorded as \"%s\", which lacks \"%s\"", row, why);
    assert_string_equal(findings(h), "");
    assert_int_equal(pending(h), 0);
}

#define assert_has(text, part)                                                                                         \
    do {                                                                                                               \
        if (!strstr((text), (part)))                                                                                   \
            fail_msg("\"%s\" is not in: %s", (part), (text));                                                          \
    } while (0)

/* What the repair enqueued comes to the store, by a real writer. */
static inline void apply_pending(struct harness *h)
{
    struct proc *writer = writer_start(h, "--set", LATE, NULL);

    proc_ready_wait(writer, APPLIED_MS);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.outbox", "0", APPLIED_MS);
    proc_stop(writer);
}

static inline void assert_stored(struct harness *h, const char *object, const char *relation, const char *subject,
                                 bool wanted)
{
    const struct tuple_key key = {object, relation, subject};
    struct err err = {0};
    bool found = false;

    assert_int_equal(store_read_tuple(h->store_conn, &key, &found, NULL, deadline_in_ms(harness_ms(20000)), &err),
                     ST_OK);
    if (found != wanted)
        fail_msg("%s#%s@%s is %sin the store", object, relation, subject, found ? "" : "not ");
}

/* Until an audit waits for a lock of somebody else. */
static inline void assert_audit_waits(struct harness *h)
{
    assert_sql_eventually(h,
                          "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'drift-checker' AND "
                          "datname = current_database() AND wait_event_type = 'Lock'",
                          "t", APPLIED_MS);
}

static inline void sql_on(struct pg *pg, const char *sql)
{
    struct err err = {0};

    if (pg_exec(pg, sql, deadline_in_ms(harness_ms(20000)), &err) != ST_OK)
        fail_msg("%s: %s", sql, err.text);
}

#endif
