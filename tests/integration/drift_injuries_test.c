/*
 * drift_injuries_test.c - many injuries of every cause at once, while ordinary life goes on and the writer is killed
 * and started again: every one is found with its cause, nothing else is, and the repair leaves nothing.
 *
 * Half of the rows are nobody's but the injuries'; the other half lives. So the truth is known to the tuple.
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "tests/harness/harness.h"
#include "tests/harness/proc.h"

#define LIFE_MS 10       /* between two transactions of the life */
#define SETTLED_MS 60000 /* until nothing is pending, the writer killed meanwhile included */
#define INJURIES 20      /* of each cause */
#define LATE "store.late_window=300ms"

/* ---- ordinary life ---- */

struct life {
    const char *dsn;
    int rows;
    atomic_bool end;
    pthread_t thread;
    int made;
    struct err err;
};

static enum status live(struct life *l, struct pg *pg, uint64_t *rng)
{
    char doc[24], person[24];
    const struct pg_param p[] = {pg_p_text(doc), pg_p_text(person)};
    uint64_t r;

    *rng = *rng * 6364136223846793005U + 1442695040888963407U;
    r = *rng >> 33;
    snprintf(doc, sizeof doc, "l%d", (int)(r % (uint64_t)l->rows));
    snprintf(person, sizeof person, "p%d", (int)(r / 7 % 5));
    return pg_query(pg, NULL,
                    r % 2 ? "INSERT INTO public.shares VALUES ($1, $2) ON CONFLICT DO NOTHING"
                          : "DELETE FROM public.shares WHERE doc = $1 AND person = $2",
                    p, 2, deadline_in_ms(harness_ms(20000)), NULL, &l->err);
}

static void *life_main(void *arg)
{
    struct life *l = arg;
    struct pg *pg = NULL;
    struct pg_config cfg = {.dsn = l->dsn, .application_name = "life"};
    uint64_t rng = 42;
    enum status st = pg_open(&pg, &cfg, deadline_in_ms(harness_ms(20000)), &l->err);

    while (st == ST_OK && !atomic_load(&l->end)) {
        st = live(l, pg, &rng);
        l->made++;
        poll(NULL, 0, LIFE_MS);
    }
    pg_close(pg);
    return NULL;
}

/* ---- the world ---- */

struct world {
    struct harness *h;
    struct life life;
    struct proc *writer;
    struct pg *openfga; /* the store's own database */
    int rows, audits, injuries;
};

/* Writers are killed between two audits, and while one runs. */
static void writer_again(struct world *w)
{
    if (w->writer)
        proc_kill(w->writer);
    w->writer = writer_start(w->h, "--set", LATE, "--set", "store.request_timeout=20s", NULL);
}

static void store_sql(struct world *w, const char *sql)
{
    struct err err = {0};

    if (pg_exec(w->openfga, sql, deadline_in_ms(harness_ms(30000)), &err) != ST_OK)
        fail_msg("%s: %s", sql, err.text);
}

static void world_begin(struct world *w, struct harness *h)
{
    *w = (struct world){.h = h, .rows = harness_soak(50000)};
    harness_sql(h, "CREATE TABLE public.shares (doc text, person text, PRIMARY KEY (doc, person));"
                   "SELECT relata.track('public.shares', '[{\"object\": \"doc:{doc}\", \"relation\": \"viewer\", "
                   "\"subject\": \"user:{person}\"}]')");
    harness_sqlf(h,
                 "INSERT INTO public.shares SELECT x || i, 'p' || i %% 5 FROM generate_series(1, %d) i, "
                 "unnest(ARRAY['c', 'l']) x; ANALYZE public.shares",
                 w->rows);
    harness_sql(h, "CREATE TABLE public.injury (cause text, object text, relation text, subject text)");
    w->openfga = harness_connect(h, harness_dsn(h, NULL, NULL, "openfga"));
    writer_again(w);
    assert_sql_eventually(h, "SELECT count(*) FROM relata.outbox", "0", SETTLED_MS);
    w->life = (struct life){.dsn = h->dsn, .rows = w->rows};
    assert_int_equal(pthread_create(&w->life.thread, NULL, life_main, &w->life), 0);
}

static void world_end(struct world *w)
{
    atomic_store(&w->life.end, true);
    pthread_join(w->life.thread, NULL);
    if (w->life.err.status != ST_OK)
        fail_msg("life ended: %s", w->life.err.text);
    assert_true(w->life.made > w->audits); /* it went on all the time */
    pg_close(w->openfga);
    proc_stop(w->writer);
}

/* ---- injuries ---- */

/* `n` tuples of calm rows that are not injured yet, noted with their cause. */
static void choose(struct world *w, const char *cause, int n)
{
    harness_sqlf(
        w->h,
        "INSERT INTO public.injury SELECT '%s', 'doc:' || doc, 'viewer', 'user:' || person FROM public.shares s "
        "WHERE doc LIKE 'c%%' AND NOT EXISTS (SELECT FROM public.injury i WHERE i.object = 'doc:' || s.doc) "
        "ORDER BY hashtextextended(doc, %d) LIMIT %d",
        cause, w->audits, n);
}

static void note(struct world *w, const char *cause, const char *relation, const char *subject, int n)
{
    harness_sqlf(w->h,
                 "INSERT INTO public.injury SELECT '%s', 'doc:x' || %d * 1000 + i, '%s', '%s' FROM generate_series(1, "
                 "%d) i",
                 cause, w->audits, relation, subject, n);
}

/* The store's rows of a cause's tuples: "DELETE FROM tuple", "UPDATE tuple SET ..". */
static void hurt_rows(struct world *w, const char *cause, const char *verb)
{
    const char *ids = harness_sql_text(
        w->h, harness_strf(w->h,
                           "SELECT string_agg(quote_literal(substr(object, 5)), ',') FROM public.injury WHERE "
                           "cause = '%s'",
                           cause));

    store_sql(w, harness_strf(w->h, "%s WHERE store = '%s' AND object_type = 'doc' AND object_id IN (%s)", verb,
                              w->h->store_id, ids));
}

static void put_rows(struct world *w, const char *cause)
{
    const char *rows = harness_sql_text(
        w->h,
        harness_strf(w->h,
                     "SELECT string_agg(format('(%%L, ''doc'', %%L, %%L, %%L, ''user'', %%L, now())', '%s', "
                     "substr(object, 5), relation, subject, '7' || upper(substr(md5(object || relation || '%d'), 1, "
                     "25))), ',') FROM public.injury WHERE cause = '%s'",
                     w->h->store_id, w->audits, cause));

    store_sql(w, harness_strf(w->h,
                              "INSERT INTO public.tuple (store, object_type, object_id, relation, _user, user_type, "
                              "ulid, inserted_at) VALUES %s",
                              rows));
}

static void injure(struct world *w, int n)
{
    struct harness *h = w->h;

    w->injuries += 7 * n;
    /* Another model; it does not have a relation that ledger and store know. */
    harness_pin(h, h->store_id, harness_model_write(h, harness_model));
    choose(w, "lost", n);
    hurt_rows(w, "lost", "DELETE FROM public.tuple");
    choose(w, "parked", n);
    hurt_rows(w, "parked", "DELETE FROM public.tuple");
    harness_sql(h,
                "INSERT INTO relata.dead_letter (store, op, object, relation, subject, code, reason, model_id) SELECT "
                "'default', 'write', i.object, i.relation, i.subject, 'validation_error', 'injured', s.model_id FROM "
                "public.injury i, relata.store s WHERE i.cause = 'parked' AND s.name = 'default'");
    choose(w, "condition_mismatch", n);
    hurt_rows(w, "condition_mismatch", "UPDATE public.tuple SET condition_name = 'in_hours'");
    choose(w, "orphan", n);
    harness_sql(h, "BEGIN; SET LOCAL session_replication_role = replica; DELETE FROM public.shares s USING "
                   "public.injury i WHERE i.cause = 'orphan' AND i.object = 'doc:' || s.doc; COMMIT");
    note(w, "never_emitted", "viewer", "user:p1", n);
    harness_sql(h, "BEGIN; SET LOCAL session_replication_role = replica; INSERT INTO public.shares SELECT "
                   "substr(object, 5), 'p1' FROM public.injury WHERE cause = 'never_emitted'; COMMIT");
    note(w, "out_of_band", "editor", "user:mallory", n);
    put_rows(w, "out_of_band");
    note(w, "invalid_in_model", "legacy", "user:p2", n);
    harness_sql(h, "INSERT INTO relata.tuple (store, object, relation, subject, present, version) SELECT 'default', "
                   "object, relation, subject, true, nextval('relata.outbox_id') FROM public.injury WHERE cause = "
                   "'invalid_in_model'");
    put_rows(w, "invalid_in_model");
}

/* ---- audits ---- */

static int audit(struct world *w, const char *const *args)
{
    struct harness *h = w->h;
    const char *argv[40] = {0};
    const char *const fixed[] = {"--no-progress",
                                 "--set",
                                 harness_strf(h, "pg.dsn=%s", h->dsn),
                                 "--set",
                                 harness_strf(h, "store.url=%s", h->store_url),
                                 "--set",
                                 "store.request_timeout=20s",
                                 "--set",
                                 LATE,
                                 "--set",
                                 harness_strf(h, "audit.settle=%dms", harness_ms(20000))};
    size_t n = 0;
    struct proc *p;
    int code;

    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        argv[n++] = fixed[i];
    if (w->audits % 2) { /* by turns: the store's tables, and Read pages */
        argv[n++] = "--set";
        argv[n++] = harness_strf(h, "openfga.dsn=%s", harness_dsn(h, NULL, NULL, "openfga"));
    }
    for (; *args; args++)
        argv[n++] = *args;
    w->audits++;
    p = proc_startv(h, "drift-checker", argv);
    if (w->audits % 3 == 0)
        writer_again(w);
    code = proc_wait(p, harness_ms(120000));
    if (code == 2)
        fail_msg("the audit could not complete: %s", proc_log(p));
    return code;
}
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* What the last audit found, and what it should have found: the difference, "" if none. */
static const char *difference(struct world *w)
{
    return harness_sql_text(
        w->h,
        "WITH run AS (SELECT max(id) AS id FROM relata.audit_run), found AS (SELECT cause, object, relation, subject "
        "FROM relata.audit_finding, run WHERE last_run = run.id), wanted AS (TABLE public.injury) SELECT "
        "string_agg(what || ' ' || cause || ' ' || object || '#' || relation || '@' || subject, '; ') FROM ("
        "SELECT 'missed' AS what, * FROM (TABLE wanted EXCEPT TABLE found) a UNION ALL SELECT 'false', * FROM (TABLE "
        "found EXCEPT TABLE wanted) b LIMIT 20) d");
}

static void assert_found(struct world *w)
{
    const char *d = difference(w);

    if (d[0])
        fail_msg("audit %d: %s", w->audits, d);
}

static void assert_clean(struct world *w)
{
    int code = audit(w, ARGS("--max-repairs", "100%"));

    if (code != 0)
        fail_msg("audit %d ended with %d: %s", w->audits, code, difference(w));
}

/* One less than the deletions that are needed: nothing is repaired; as many as are needed: all is. */
static void repair(struct world *w, int n)
{
    struct harness *h = w->h;
    int deletions = 3 * n; /* orphan, out_of_band, invalid_in_model */
    const char *outbox = "SELECT count(*) FROM relata.outbox WHERE object LIKE 'doc:c%' OR object LIKE 'doc:x%'";

    assert_int_equal(
        audit(w, ARGS("--repair", "--max-repairs", "100%", "--max-deletions", harness_strf(h, "%d", deletions - 1))),
        3);
    assert_int_equal(harness_sql_int(h, outbox), 0);
    assert_found(w);
    assert_int_equal(
        audit(w, ARGS("--repair", "--max-repairs", harness_strf(h, "%d", 7 * n - 1), "--max-deletions", "100%")), 3);
    assert_int_equal(harness_sql_int(h, outbox), 0);
    assert_int_equal(audit(w, ARGS("--repair", "--max-repairs", harness_strf(h, "%d", 7 * n), "--max-deletions",
                                   harness_strf(h, "%d", deletions))),
                     1);
    assert_found(w);
    assert_sql_eventually(h, outbox, "0", SETTLED_MS);
    harness_sql(h, "TRUNCATE public.injury");
}

static void test_every_injury_and_nothing_else(void **state)
{
    struct world w;
    int n = harness_soak(10 * INJURIES), audits = harness_soak(200);

    world_begin(&w, *state);
    while (w.audits < audits) {
        assert_clean(&w);
        if (w.audits % 10 != 5)
            continue;
        injure(&w, n);
        assert_int_equal(audit(&w, ARGS("--max-repairs", "100%")), 1);
        assert_found(&w);
        repair(&w, n);
    }
    assert_true(w.injuries > 0);
    world_end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_every_injury_and_nothing_else, HARNESS_DB | HARNESS_STORE),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
