/* lister_min_token_test.c - read your writes: when a token's transaction counts as applied. */
#include <pthread.h>

#include "inventory-lister/pages/min_token.h"
#include "tests/harness/harness.h"

static struct err err;
static mono_us applied_at;

static enum status wait_ms(struct pg *pg, const char *token, int64_t ms)
{
    err = (struct err){0};
    applied_at = 0;
    return min_token_wait(pg, "default", token, deadline_in_ms(ms), &applied_at, &err);
}

static void assert_says(enum status st, enum status want, const char *part)
{
    if (st != want || !strstr(err.text, part))
        fail_msg("%s: %s (%s), not %s: %s", status_name(st), err.text, err.code, status_name(want), part);
}

static const char *grant(struct harness *h, const char *object)
{
    return harness_sql_text(h, harness_strf(h, "SELECT relata.write_tuple('%s', 'viewer', 'user:anne')", object));
}

/* As the writer's acknowledgement does. */
static void apply_all(struct harness *h)
{
    harness_sql(h, "DELETE FROM relata.outbox");
}

/* The lister's own rights must do. */
static struct pg *as_lister(struct harness *h)
{
    struct pg *pg = harness_connect(h, NULL);

    assert_int_equal(pg_exec(pg, "SET ROLE relata_lister", deadline_in_ms(harness_ms(10000)), &err), ST_OK);
    return pg;
}

static void test_applied(void **state)
{
    struct harness *h = *state;
    struct pg *pg = as_lister(h);
    const char *token = grant(h, "doc:1");
    mono_us before;

    apply_all(h);
    before = clock_mono_us();
    assert_int_equal(wait_ms(pg, token, harness_ms(10000)), ST_OK);
    assert_true(applied_at >= before && applied_at <= clock_mono_us());
    /* A transaction that changed nothing, and rows of others, do not matter. */
    token = harness_sql_text(h, "SELECT relata.token()");
    (void)grant(h, "doc:2");
    assert_int_equal(wait_ms(pg, token, harness_ms(10000)), ST_OK);
    /* Nor do rows of other stores. */
    token = harness_sql_text(h, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:bob', store => 'other')");
    assert_int_equal(wait_ms(pg, token, harness_ms(10000)), ST_OK);
    assert_int_equal(min_token_wait(pg, "other", token, deadline_in_ms(harness_ms(500)), &applied_at, &err),
                     ST_CONFLICT);
    pg_close(pg);
}

static void test_pending(void **state)
{
    struct harness *h = *state;
    struct pg *pg = as_lister(h);
    const char *token;

    (void)grant(h, "doc:1");
    token = grant(h, "doc:2");
    assert_says(wait_ms(pg, token, harness_ms(500)), ST_CONFLICT,
                "the changes of this token are not applied yet: 2 pending in store \"default\", the oldest for ");
    assert_int_equal(applied_at, 0);
    harness_sql(h, "DELETE FROM relata.outbox WHERE object = 'doc:1'");
    assert_says(wait_ms(pg, token, harness_ms(500)), ST_CONFLICT, "1 pending");
    apply_all(h);
    assert_int_equal(wait_ms(pg, token, harness_ms(10000)), ST_OK);
    pg_close(pg);
}

static void test_not_committed_and_rolled_back(void **state)
{
    struct harness *h = *state;
    struct pg *pg = as_lister(h);
    const char *token;

    harness_sql(h, "BEGIN");
    token = grant(h, "doc:1");
    assert_says(wait_ms(pg, token, harness_ms(300)), ST_CONFLICT, "the transaction of this token is not committed yet");
    harness_sql(h, "ROLLBACK");
    assert_says(wait_ms(pg, token, harness_ms(10000)), ST_CONFLICT, "the transaction of this token was rolled back");
    pg_close(pg);
}

static void test_parked(void **state)
{
    struct harness *h = *state;
    struct pg *pg = as_lister(h);
    const char *token = grant(h, "doc:1");

    harness_sql(
        h, "WITH gone AS (DELETE FROM relata.outbox RETURNING *) INSERT INTO relata.dead_letter (outbox_id, store, op, "
           "object, relation, subject, xid, created_at, code, reason) SELECT id, store, op, object, relation, subject, "
           "xid, created_at, 'validation_error', 'no such relation' FROM gone");
    assert_says(wait_ms(pg, token, harness_ms(10000)), ST_CONFLICT,
                "is parked: doc:1#viewer@user:anne was refused by the store (validation_error)");
    harness_sql(h, "UPDATE relata.dead_letter SET closed_at = now(), closed_how = 'applied'");
    assert_int_equal(wait_ms(pg, token, harness_ms(10000)), ST_OK);
    pg_close(pg);
}

static void test_tokens_of_others(void **state)
{
    static const char *const nonsense[] = {"",
                                           "r1",
                                           "r1.",
                                           "r1..",
                                           "r1.1",
                                           "r2.%s.5",
                                           "R1.%s.5",
                                           "r1.%s.",
                                           "r1.%s.0",
                                           "r1.%s.1",
                                           "r1.%s.2",
                                           "r1.%s.05",
                                           "r1.%s.-5",
                                           "r1.%s.+5",
                                           "r1.%s. 5",
                                           "r1.%s.5 ",
                                           "r1.%s.5x",
                                           "r1.%s.0x5",
                                           "r1.%s.1e3",
                                           "r1.%s.5'; DROP TABLE relata.outbox; --",
                                           "r1.%s.18446744073709551616",
                                           "r1.%s.99999999999999999999999999999999999999999999",
                                           "'%s'",
                                           "\xFF.%s.\xFF"};
    struct harness *h = *state;
    struct pg *pg = as_lister(h);
    const char *cluster = harness_sql_text(h, "SELECT relata.cluster()"), *token = grant(h, "doc:1");
    const char *xid = strrchr(token, '.') + 1, *timeline = strrchr(cluster, '.') + 1;

    apply_all(h);
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        const char *hole = strstr(nonsense[i], "%s");
        const char *made =
            hole ? harness_strf(h, "%.*s%s%s", (int)(hole - nonsense[i]), nonsense[i], cluster, hole + 2) : nonsense[i];

        assert_says(wait_ms(pg, made, harness_ms(10000)), ST_INVALID, "");
    }
    assert_says(wait_ms(pg, harness_strf(h, "r1.1.%s.%s", timeline, xid), harness_ms(10000)), ST_INVALID,
                "another database cluster");
    assert_says(wait_ms(pg, harness_strf(h, "r1.%.*s.%d.%s", (int)(timeline - cluster - 1), cluster, 77, xid),
                        harness_ms(10000)),
                ST_INVALID, "another database cluster");
    /* Numbers that no transaction has had. */
    assert_says(
        wait_ms(pg, harness_strf(h, "r1.%s.%lld", cluster, strtoll(xid, NULL, 10) + 1000000), harness_ms(10000)),
        ST_INVALID, "no transaction has had this token's number yet");
    assert_says(wait_ms(pg, harness_strf(h, "r1.%s.18446744073709551615", cluster), harness_ms(10000)), ST_INVALID,
                "no transaction has had this token's number yet");
    assert_says(wait_ms(pg, harness_strf(h, "r1.%s.3", cluster), harness_ms(10000)), ST_INVALID, "too old");
    /* The connection is as good as before. */
    assert_int_equal(wait_ms(pg, token, harness_ms(10000)), ST_OK);
    pg_close(pg);
}

/* ---- while it waits ---- */

struct waiter {
    pthread_t thread;
    struct pg *pg;
    const char *token;
    int64_t ms;
    enum status st;
    struct err err;
    mono_us at;
};

static void *wait_in_thread(void *arg)
{
    struct waiter *w = arg;

    w->st = min_token_wait(w->pg, "default", w->token, deadline_in_ms(w->ms), &w->at, &w->err);
    return NULL;
}

static void waiter_start(struct waiter *w, struct pg *pg, const char *token)
{
    *w = (struct waiter){.pg = pg, .token = token, .ms = harness_ms(30000)};
    assert_int_equal(pthread_create(&w->thread, NULL, wait_in_thread, w), 0);
}

struct polls {
    struct harness *h;
    int pid, seen;
    char last[64];
};

/* The waiter has asked again and again. */
static bool has_polled(void *arg)
{
    struct polls *p = arg;
    const char *at =
        harness_sql_text(p->h, harness_strf(p->h, "SELECT query_start FROM pg_stat_activity WHERE pid = %d", p->pid));

    if (strcmp(at, p->last) != 0)
        p->seen++;
    snprintf(p->last, sizeof p->last, "%s", at);
    return p->seen > 4;
}

static void test_it_ends_when_it_is_applied(void **state)
{
    struct harness *h = *state;
    struct pg *pg = as_lister(h), *service = harness_connect(h, NULL);
    struct polls p = {.h = h, .pid = pg_backend_pid(pg)};
    struct pg_result *r = NULL;
    struct waiter w;
    mono_us before;

    assert_int_equal(pg_exec(service, "BEGIN", deadline_in_ms(harness_ms(10000)), &err), ST_OK);
    assert_int_equal(pg_query(service, NULL, "SELECT relata.write_tuple('doc:1', 'viewer', 'user:anne')", NULL, 0,
                              deadline_in_ms(harness_ms(10000)), &r, &err),
                     ST_OK);
    waiter_start(&w, pg, pg_text(r, 0, 0));
    assert_eventually(has_polled, &p, 10000);
    assert_int_equal(pg_exec(service, "COMMIT", deadline_in_ms(harness_ms(10000)), &err), ST_OK);
    p.seen = 0;
    assert_eventually(has_polled, &p, 10000);
    before = clock_mono_us();
    apply_all(h);
    assert_int_equal(pthread_join(w.thread, NULL), 0);
    assert_int_equal(w.st, ST_OK);
    assert_true(w.at > before);
    pg_result_free(r);
    pg_close(service);
    pg_close(pg);
}

static bool waits_at_the_gate(void *arg)
{
    return harness_sql_int(arg,
                           "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = "
                           "(SELECT oid FROM pg_database WHERE datname = current_database())") == 1;
}

/* A look at relata.outbox takes its snapshot, stops at a lock, and only then reads the rows. */
static const char gate_sql[] =
    "CREATE FUNCTION public.gate() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$ BEGIN "
    "PERFORM pg_advisory_xact_lock_shared(7265674, 2); RETURN true; END $$;"
    "ALTER TABLE relata.outbox RENAME TO outbox_rows;"
    "CREATE VIEW relata.outbox AS SELECT o.* FROM (SELECT public.gate() AS open OFFSET 0) g, "
    "LATERAL (SELECT * FROM relata.outbox_rows r WHERE g.open OFFSET 0) o;"
    "GRANT SELECT ON relata.outbox TO relata_lister; SELECT pg_advisory_lock(7265674, 2)";

/*
 * Whoever looks for rows in a snapshot of before the commit, and then learns of the commit, takes a pending change for
 * applied. With the gate closed the wrong order stops at it before the commit; the right one comes there after it.
 */
static void test_the_commit_is_asked_for_first(void **state)
{
    struct harness *h = *state;
    struct pg *pg = as_lister(h), *service = harness_connect(h, NULL);
    struct polls p = {.h = h, .pid = pg_backend_pid(pg)};
    struct pg_result *r = NULL;
    struct waiter w;
    mono_us before;

    harness_sql(h, gate_sql);
    assert_int_equal(
        pg_exec(service,
                "BEGIN; INSERT INTO relata.outbox_rows (op, object, relation, subject) VALUES ('write', 'doc:1', "
                "'viewer', 'user:anne')",
                deadline_in_ms(harness_ms(10000)), &err),
        ST_OK);
    assert_int_equal(
        pg_query(service, NULL, "SELECT relata.token()", NULL, 0, deadline_in_ms(harness_ms(10000)), &r, &err), ST_OK);
    waiter_start(&w, pg, pg_text(r, 0, 0));
    assert_eventually(has_polled, &p, 10000);
    assert_false(waits_at_the_gate(h));
    assert_int_equal(pg_exec(service, "COMMIT", deadline_in_ms(harness_ms(10000)), &err), ST_OK);
    assert_eventually(waits_at_the_gate, h, 10000);
    harness_sql(h, "SELECT pg_advisory_unlock(7265674, 2)");
    p.seen = 0;
    assert_eventually(has_polled, &p, 10000); /* the row is seen: it goes on waiting */
    before = clock_mono_us();
    harness_sql(h, "DELETE FROM relata.outbox_rows");
    assert_int_equal(pthread_join(w.thread, NULL), 0);
    assert_int_equal(w.st, ST_OK);
    assert_true(w.at > before);
    pg_result_free(r);
    pg_close(service);
    pg_close(pg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_applied, HARNESS_DB),
        HARNESS_TEST(test_pending, HARNESS_DB),
        HARNESS_TEST(test_not_committed_and_rolled_back, HARNESS_DB),
        HARNESS_TEST(test_parked, HARNESS_DB),
        HARNESS_TEST(test_tokens_of_others, HARNESS_DB),
        HARNESS_TEST(test_it_ends_when_it_is_applied, HARNESS_DB),
        HARNESS_TEST(test_the_commit_is_asked_for_first, HARNESS_DB),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
