/*
 * drift_cases_meanwhile_test.c - audits in a world that moves: revokes and other audits meanwhile, kills, sources that
 * shrink; and audits of a part, or of ids with every byte.
 */
#include "tests/integration/drift_world.h"

/* ---- what happens meanwhile ---- */

static void test_revoke_between_plan_and_apply_refuses(void **state)
{
    struct harness *h = *state;
    const char *plan = harness_strf(h, "%s/plan", h->dir);

    world_begin(h);
    put_many(h, "c", 20);
    put(h, "EL", "doc:x", "viewer", "user:a");
    put(h, "EL", "doc:y", "viewer", "user:a");
    audit(h, 1, ARGS("--plan", plan));
    take(h, "E", "doc:x", "viewer", "user:a");
    harness_sql(h, "SELECT relata.delete_tuple('doc:x', 'viewer', 'user:a')");
    assert_has(audit(h, 3, ARGS("--apply", plan, ALL)), "doc:x#viewer@user:a");
    assert_int_equal(pending(h), 1); /* the revoke alone */
    apply_pending(h);
    audit(h, 3, ARGS("--apply", plan, ALL));
    assert_int_equal(pending(h), 0);
    assert_stored(h, "doc:x", "viewer", "user:a", false);
}

/* The repair waits for a transaction that takes away what it was to give. */
static void revoke_meanwhile(struct harness *h, const char *sides, const char *found)
{
    struct pg *service = harness_connect(h, NULL);
    struct proc *p;

    put(h, sides, "doc:x", "viewer", "user:a");
    sql_on(service, "BEGIN; SELECT relata.lock_keys('default', '{doc:x}', '{viewer}', '{user:a}'); "
                    "DELETE FROM public.granted WHERE object = 'doc:x'; "
                    "SELECT relata.delete_tuple('doc:x', 'viewer', 'user:a')");
    p = audit_start(h, by_turns(), NULL, ARGS("--repair", ALL));
    assert_audit_waits(h);
    sql_on(service, "COMMIT");
    assert_ends(h, p, 1, NULL);
    assert_string_equal(findings(h), found);
    apply_pending(h);
    assert_stored(h, "doc:x", "viewer", "user:a", false);
    assert_string_equal(harness_sql_text(h, "SELECT count(*) FROM relata.tuple WHERE object = 'doc:x' AND present"),
                        "0");
    assert_found(h, "", NO_ARGS);
    pg_close(service);
}

static void test_revoke_between_finding_and_repair_stays_a_revoke(void **state)
{
    struct harness *h = *state;

    world_begin(h);
    put_many(h, "c", 20);
    revoke_meanwhile(h, "EL", "lost doc:x#viewer@user:a");
    harness_sql(h, "DELETE FROM relata.tuple WHERE object = 'doc:x'");
    revoke_meanwhile(h, "E", "never_emitted doc:x#viewer@user:a");
}

/* The row cannot be read any more when its orphan is to be deleted. */
static void test_D02_unresolvable_between_finding_and_repair(void **state)
{
    struct harness *h = *state;
    struct pg *service = harness_connect(h, NULL);
    struct proc *p;

    world_begin(h);
    put_many(h, "c", 20);
    put(h, "LO", "doc:x", "viewer", "user:a");
    sql_on(service, "BEGIN; SELECT relata.lock_keys('default', '{doc:x}', '{viewer}', '{user:a}'); "
                    "INSERT INTO public.granted VALUES ('doc:x', 'viewer', NULL)");
    p = audit_start(h, by_turns(), NULL, ARGS("--repair", ALL));
    assert_audit_waits(h);
    sql_on(service, "COMMIT");
    assert_ends(h, p, 1, NULL);
    assert_int_equal(pending(h), 0);
    assert_found(h, "", NO_ARGS);
    pg_close(service);
}

static const char locks[] = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1380270088 AND "
                            "database = (SELECT oid FROM pg_database WHERE datname = current_database())";

static void test_two_audits_at_once(void **state)
{
    struct harness *h = *state;
    struct pg *service = harness_connect(h, NULL);
    struct proc *first;

    world_begin(h);
    put_many(h, "c", 3);
    sql_on(service, "BEGIN; LOCK TABLE public.granted");
    first = audit_start(h, by_turns(), NULL, NO_ARGS);
    assert_audit_waits(h);
    assert_has(audit(h, 2, ARGS("--repair")), "another audit of store \"default\" is running: run 1, begun ");
    assert_has(audit(h, 2, ARGS("--type", "doc")), "another audit of store \"default\" is running");
    sql_on(service, "COMMIT");
    assert_ends(h, first, 0, NULL);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.audit_run"), 1);
    pg_close(service);
}

static void test_killed_in_the_middle(void **state)
{
    struct harness *h = *state;

    world_begin(h);
    put_many(h, "c", 3);
    put(h, "EL", "doc:x", "viewer", "user:a");
    for (int i = 0; i < 4; i++) {
        struct pg *service = harness_connect(h, NULL);
        struct proc *p;

        /* By turns it waits while it compares, and while it repairs. */
        sql_on(service, i < 2 ? "BEGIN; LOCK TABLE public.granted"
                              : "BEGIN; SELECT relata.lock_keys('default', '{doc:x}', '{viewer}', '{user:a}')");
        p = audit_start(h, by_turns(), NULL, ARGS("--repair", ALL));
        assert_audit_waits(h);
        proc_kill(p);
        sql_on(service, "COMMIT");
        pg_close(service);
        assert_int_equal(pending(h), 0);
        audit(h, 1, NO_ARGS);
        assert_sql_eventually(h, locks, "0", APPLIED_MS);
        assert_string_equal(
            harness_sql_text(h, "SELECT state || ': ' || why FROM relata.audit_run ORDER BY id DESC OFFSET 1 LIMIT 1"),
            "incomplete: it ended without a word: killed, or cut off from Postgres");
        assert_sql_eventually(h, "SELECT count(*) FROM pg_class WHERE relpersistence = 't'", "0", APPLIED_MS);
    }
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.audit_run WHERE state = 'running'"), 0);
}

static void test_expected_side_shrank_or_is_empty(void **state)
{
    struct harness *h = *state;

    world_begin(h);
    put_many(h, "c", 20);
    assert_found(h, "", NO_ARGS);
    harness_sql(h, "DELETE FROM public.granted WHERE object < 'doc:c004'"); /* by 20 percent: it may */
    audit(h, 1, NO_ARGS);
    harness_sql(h, "DELETE FROM public.granted WHERE object < 'doc:c008'");
    for (int i = 0; i < 2; i++) {
        audit(h, 2, ARGS("--repair", ALL));
        assert_incomplete(h, "the source public.granted has 12 tuples and had 16 in the last audit");
    }
    audit(h, 1, ARGS("--accept-shrink"));
    assert_int_equal(counted(h, "confirmed"), 8);
    harness_sql(h, "DELETE FROM public.granted");
    for (int i = 0; i < 2; i++) {
        audit(h, 2, ARGS("--repair", ALL));
        assert_incomplete(h, "the source public.granted is empty and had 12 tuples in the last audit");
    }
    audit(h, 1, ARGS("--accept-shrink", "--repair", ALL));
    assert_int_equal(pending(h), 20);
}

static void test_expected_side_is_empty_at_the_first_audit(void **state)
{
    struct harness *h = *state;

    world_begin(h);
    put(h, "LO", "doc:x", "viewer", "user:a");
    for (int i = 0; i < 2; i++) {
        audit(h, 2, ARGS("--repair", ALL));
        assert_incomplete(h, "all sources of expected tuples are empty");
        audit(h, 2, ARGS("--repair", ALL, "--type", "doc"));
        assert_incomplete(h, "all sources of expected tuples are empty");
    }
    put(h, "L", "folder:f", "viewer", "user:a"); /* no source speaks of folders: none can be empty */
    assert_found(h, "lost folder:f#viewer@user:a", ARGS("--type", "folder"));
    assert_found(h, "orphan doc:x#viewer@user:a, lost folder:f#viewer@user:a", ARGS("--accept-shrink"));
}

static void test_scopes_find_exactly_theirs(void **state)
{
    struct harness *h = *state;

    world_begin(h);
    put_many(h, "c", 3);
    put(h, "EL", "doc:1", "viewer", "user:anne");
    put(h, "O", "doc:1", "editor", "user:anne");
    put(h, "E", "doc:1", "viewer", "user:bob");
    put(h, "EL", "doc:11", "viewer", "user:anne");
    put(h, "LO", "doc:2", "viewer", "user:annette");
    put(h, "O", "folder:1", "viewer", "user:anne");
    put(h, "L", "folder:2", "viewer", "user:bob");
    assert_found(h,
                 "orphan doc:2#viewer@user:annette, out_of_band doc:1#editor@user:anne, out_of_band "
                 "folder:1#viewer@user:anne, lost doc:1#viewer@user:anne, lost doc:11#viewer@user:anne, lost "
                 "folder:2#viewer@user:bob, never_emitted doc:1#viewer@user:bob",
                 NO_ARGS);
    assert_found(h, "out_of_band folder:1#viewer@user:anne, lost folder:2#viewer@user:bob", ARGS("--type", "folder"));
    assert_found(h,
                 "orphan doc:2#viewer@user:annette, out_of_band doc:1#editor@user:anne, lost doc:1#viewer@user:anne, "
                 "lost doc:11#viewer@user:anne, never_emitted doc:1#viewer@user:bob",
                 ARGS("--type", "doc"));
    assert_found(h,
                 "out_of_band doc:1#editor@user:anne, lost doc:1#viewer@user:anne, never_emitted doc:1#viewer@user:bob",
                 ARGS("--object", "doc:1"));
    assert_found(h, "", ARGS("--object", "doc:c001"));
    assert_found(h,
                 "out_of_band doc:1#editor@user:anne, out_of_band folder:1#viewer@user:anne, lost "
                 "doc:1#viewer@user:anne, lost doc:11#viewer@user:anne",
                 ARGS("--subject", "user:anne"));
    audit(h, 1, ARGS("--repair", ALL, "--object", "folder:1"));
    assert_string_equal(harness_sql_text(h, "SELECT string_agg(object, ',') FROM relata.outbox"), "folder:1");
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.audit_finding WHERE closed_at IS NULL"), 7);
}

/* ---- every byte ---- */

/* The i-th id with every byte that the grammar allows somewhere; NULL after the last. */
static const char *byte_id(struct harness *h, int i)
{
    static const char *const long_ones[] = {
        "\xc2\xa0",         "\xc3\xa9",         "e\xcc\x81", "\xe2\x80\x8b", "\xef\xbf\xbd",
        "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf", "a-b",       "ab",           "A_B"};
    int c = '!' + i;

    if (c < 127)
        return strchr("#:", c) ? "a" : harness_strf(h, "x%cy", c);
    i -= 127 - '!';
    return i < (int)(sizeof long_ones / sizeof *long_ones) ? harness_strf(h, "x%sy", long_ones[i]) : NULL;
}

static void every_byte(struct harness *h)
{
    const char *id;
    int n = 0, lost = 0;

    world_begin(h);
    for (int i = 0; (id = byte_id(h, i)); i++) {
        const char *object = harness_strf(h, "doc:%s", id), *subject = harness_strf(h, "user:%s", id);

        if (strcmp(id, "a") == 0)
            continue;
        put(h, n % 4 == 3 ? "EL" : "ELO", object, "viewer", subject);
        put(h, n % 4 == 3 ? "O" : "ELO", object, "editor", subject);
        lost += n++ % 4 == 3;
    }
    for (int i = 0; i < 4; i++) {
        audit(h, 1, i < 2 ? ARGS("--full") : NO_ARGS);
        assert_int_equal(counted(h, "candidates"), 2 * lost);
        assert_int_equal(counted(h, "confirmed"), 2 * lost);
        assert_int_equal(
            harness_sql_int(h, "SELECT count(*) FROM relata.audit_finding WHERE last_run = (SELECT max(id) FROM "
                               "relata.audit_run) AND cause = CASE relation WHEN 'viewer' THEN 'lost' ELSE "
                               "'out_of_band' END"),
            2 * lost);
    }
    audit(h, 1, ARGS("--repair", ALL));
    apply_pending(h);
    assert_found(h, "", NO_ARGS);
    assert_found(h, "", ARGS("--full"));
    assert_found(h, "", ARGS("--object", "doc:x'y"));
    assert_found(h, "", ARGS("--subject", "user:x\\y"));
}

static void test_every_byte_in_a_database_in_C(void **state)
{
    struct harness *h = *state;

    every_byte(h);
}

static void test_every_byte_in_a_database_in_en_US(void **state)
{
    struct harness *h = *state;
    const char *name = harness_strf(h, "%s_en", h->id), *dsn = h->dsn;
    struct pg *pg = h->pg, *admin = harness_connect(h, h->pg_admin);

    sql_on(admin, harness_strf(h, "CREATE DATABASE %s TEMPLATE template0 LOCALE 'en_US.UTF-8' ENCODING 'UTF8'", name));
    h->dsn = harness_dsn(h, NULL, NULL, name);
    h->pg = harness_connect(h, h->dsn);
    harness_migrate(h->dsn);
    harness_pin(h, h->store_id, h->model_id);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM (VALUES ('a'), ('B')) v(x) HAVING min(x) = 'a'"), 2);
    every_byte(h);
    pg_close(h->pg);
    h->pg = pg;
    h->dsn = dsn;
    sql_on(admin, harness_strf(h, "DROP DATABASE %s WITH (FORCE)", name));
    pg_close(admin);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_revoke_between_plan_and_apply_refuses, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_revoke_between_finding_and_repair_stays_a_revoke, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_D02_unresolvable_between_finding_and_repair, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_two_audits_at_once, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_killed_in_the_middle, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_expected_side_shrank_or_is_empty, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_expected_side_is_empty_at_the_first_audit, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_scopes_find_exactly_theirs, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_every_byte_in_a_database_in_C, HARNESS_DB | HARNESS_STORE),
        HARNESS_TEST(test_every_byte_in_a_database_in_en_US, HARNESS_DB | HARNESS_STORE),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
