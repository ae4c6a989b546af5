/* relatactl migrate against a real Postgres: repeating, racing, refusing, waiting, dying in the middle. */
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness/proc.h"

/* A folder of the test with one file. */
static const char *folder(struct harness *h, const char *name)
{
    const char *dir = harness_strf(h, "%s/%s", h->dir, name);
    assert_int_equal(mkdir(dir, 0700), 0);
    return dir;
}

static void put_file(struct harness *h, const char *dir, const char *name, const char *text)
{
    FILE *f = fopen(harness_strf(h, "%s/%s", dir, name), "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

#define FIRST                                                                                                          \
    "CREATE SCHEMA relata; CREATE TABLE relata.migration (version int PRIMARY KEY, name text NOT NULL, "               \
    "checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp());"

static void test_migrate_applies_all_and_repeats_as_nothing(void **state)
{
    struct harness *h = *state;
    const char *out;
    assert_int_equal(relatactl(h, &out, "migrate", "--dry-run", NULL), 0);
    assert_non_null(strstr(out, "would apply 0001_schema.sql"));
    assert_string_equal(harness_sql_text(h, "SELECT to_regnamespace('relata') IS NULL"), "t");
    assert_int_equal(relatactl(h, &out, "migrate", NULL), 0);
    assert_non_null(strstr(out, "applying 0001_schema.sql"));
    const char *before =
        harness_sql_text(h, "SELECT string_agg(m::text, ' ' ORDER BY version) FROM relata.migration m");
    assert_int_equal(relatactl(h, &out, "migrate", NULL), 0);
    assert_non_null(strstr(out, "up to date"));
    assert_string_equal(harness_sql_text(h, "SELECT string_agg(m::text, ' ' ORDER BY version) FROM relata.migration m"),
                        before);
    assert_int_equal(relatactl(h, &out, "migrate", "--dry-run", "--json", NULL), 0);
    assert_non_null(strstr(out, "\"would_apply\": []"));
    assert_int_equal(
        harness_sql_int(h, "SELECT count(*) FROM relata.migration WHERE checksum !~ '^sha256:[0-9a-f]{64}$'"), 0);
}

static void test_migrate_by_several_at_once(void **state)
{
    struct harness *h = *state;
    struct proc *procs[5];
    for (int i = 0; i < 5; i++)
        procs[i] = proc_start(h, "relatactl", "migrate", "--set", harness_strf(h, "pg.dsn=%s", h->dsn), NULL);
    int applied = 0;
    for (int i = 0; i < 5; i++) {
        if (proc_wait(procs[i], harness_ms(60000)) != 0)
            fail_msg("%s", proc_log(procs[i]));
        applied += proc_logged(procs[i], "applying 0001_schema.sql");
    }
    assert_int_equal(applied, 1);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.migration WHERE version = 1"), 1);
}

static void test_migrate_without_superuser(void **state)
{
    struct harness *h = *state;
    const char *out, *role = harness_strf(h, "%.40s_owner", h->id);
    harness_sqlf(h, "CREATE ROLE %s LOGIN CREATEROLE PASSWORD 'x'", role);
    harness_sqlf(h, "GRANT CREATE ON DATABASE %s TO %s", harness_sql_text(h, "SELECT quote_ident(current_database())"),
                 role);
    const char *args[] = {"migrate", "--set",
                          harness_strf(h, "pg.dsn=%s", harness_dsn(h, harness_strf(h, "%s:x", role), NULL, NULL)),
                          NULL};
    int code = proc_run(h, &out, "relatactl", args);
    harness_sqlf(h, "REASSIGN OWNED BY %s TO CURRENT_USER; DROP OWNED BY %s; DROP ROLE %s", role, role, role);
    if (code != 0)
        fail_msg("%s", out);
}

static void test_migrate_refuses_a_changed_file(void **state)
{
    struct harness *h = *state;
    const char *out, *dir = folder(h, "m");
    put_file(h, dir, "0001_first.sql", FIRST);
    put_file(h, dir, "0002_second.sql", "CREATE TABLE relata.a (x int);");
    assert_int_equal(relatactl(h, &out, "migrate", "--dir", dir, NULL), 0);
    put_file(h, dir, "0001_first.sql", FIRST " ");
    put_file(h, dir, "0003_third.sql", "CREATE TABLE relata.b (x int);");
    assert_int_equal(relatactl(h, &out, "migrate", "--dir", dir, NULL), 3);
    assert_non_null(strstr(out, "0001_first.sql was changed"));
    assert_int_equal(relatactl(h, &out, "migrate", "--dir", dir, "--dry-run", NULL), 3);
    assert_string_equal(harness_sql_text(h, "SELECT to_regclass('relata.b') IS NULL"), "t");
    put_file(h, dir, "0001_first.sql", FIRST);
    assert_int_equal(relatactl(h, &out, "migrate", "--dir", dir, NULL), 0);
    assert_non_null(strstr(out, "1 applied"));
    /* A file that is gone: this program is older than the database. */
    assert_int_equal(unlink(harness_strf(h, "%s/0003_third.sql", dir)), 0);
    assert_int_equal(relatactl(h, &out, "migrate", "--dir", dir, NULL), 3);
    assert_non_null(strstr(out, "0003_third.sql"));
}

static void test_migrate_rolls_a_failed_file_back(void **state)
{
    struct harness *h = *state;
    const char *out, *dir = folder(h, "m");
    put_file(h, dir, "0001_first.sql", FIRST);
    put_file(h, dir, "0002_second.sql", "CREATE TABLE relata.a (x int); SELECT 1/0;");
    assert_int_equal(relatactl(h, &out, "migrate", "--dir", dir, NULL), 1);
    assert_non_null(strstr(out, "migration 0002_second.sql: division by zero [22012]"));
    assert_string_equal(harness_sql_text(h, "SELECT to_regclass('relata.a') IS NULL"), "t");
    assert_int_equal(harness_sql_int(h, "SELECT max(version) FROM relata.migration"), 1);
    put_file(h, dir, "0002_second.sql", "CREATE TABLE relata.a (x int);");
    assert_int_equal(relatactl(h, &out, "migrate", "--dir", dir, NULL), 0);
    assert_int_equal(harness_sql_int(h, "SELECT max(version) FROM relata.migration"), 2);
}

static void test_migrate_refuses_bad_folders(void **state)
{
    struct harness *h = *state;
    const char *out, *dir = folder(h, "m");
    assert_int_equal(relatactl(h, &out, "migrate", "--dir", harness_strf(h, "%s/none", dir), NULL), 2);
    assert_non_null(strstr(out, "No such file or directory"));
    assert_int_equal(relatactl(h, &out, "migrate", "--dir", dir, NULL), 2);
    assert_non_null(strstr(out, "no migrations in"));
    put_file(h, dir, "README", "not a migration");
    put_file(h, dir, "1_first.sql", FIRST);
    assert_int_equal(relatactl(h, &out, "migrate", "--dir", dir, NULL), 2);
    assert_non_null(strstr(out, "1_first.sql: a migration is named like"));
    assert_int_equal(unlink(harness_strf(h, "%s/1_first.sql", dir)), 0);
    put_file(h, dir, "0001_first.sql", FIRST);
    put_file(h, dir, "0001_other.sql", FIRST);
    assert_int_equal(relatactl(h, &out, "migrate", "--dir", dir, NULL), 2);
    assert_non_null(strstr(out, "version 0001 twice"));
    put_file(h, dir, "0001_other.sql", "");
    assert_int_equal(unlink(harness_strf(h, "%s/0001_first.sql", dir)), 0);
    assert_int_equal(relatactl(h, &out, "migrate", "--dir", dir, NULL), 2);
    assert_non_null(strstr(out, "is empty"));
}

/* A migration that needs a lock which a long transaction has must not make everybody else queue behind it. */
static void test_migrate_does_not_queue_behind_a_long_transaction(void **state)
{
    struct harness *h = *state;
    const char *out, *dir = folder(h, "m");
    struct err err;
    put_file(h, dir, "0001_first.sql", FIRST);
    put_file(h, dir, "0002_second.sql", "CREATE TABLE relata.a (x int);");
    assert_int_equal(relatactl(h, &out, "migrate", "--dir", dir, NULL), 0);
    put_file(h, dir, "0003_third.sql", "ALTER TABLE relata.a ADD y int;");
    struct pg *blocker = harness_connect(h, NULL);
    assert_int_equal(pg_exec(blocker, "BEGIN; SELECT * FROM relata.a", deadline_in_ms(10000), &err), ST_OK);
    assert_int_equal(relatactl(h, &out, "migrate", "--dir", dir, "--lock-timeout", "50", "--wait", "0", NULL), 4);
    assert_non_null(strstr(out, harness_strf(h, "oldest transaction: pid %d", pg_backend_pid(blocker))));
    assert_non_null(strstr(out, "[55P03]"));

    struct proc *p = proc_start(h, "relatactl", "migrate", "--dir", dir, "--lock-timeout", "50", "--wait", "60",
                                "--set", harness_strf(h, "pg.dsn=%s", h->dsn), NULL);
    assert_sql_eventually(h,
                          "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND "
                          "application_name = 'relatactl' AND wait_event_type = 'Lock'",
                          "t", harness_ms(20000));
    harness_sql(h, "SELECT * FROM relata.a"); /* others come through while it keeps trying */
    assert_true(proc_running(p));
    assert_int_equal(pg_exec(blocker, "COMMIT", deadline_in_ms(10000), &err), ST_OK);
    pg_close(blocker);
    assert_int_equal(proc_wait(p, harness_ms(60000)), 0);
    assert_int_equal(harness_sql_int(h, "SELECT max(version) FROM relata.migration"), 3);
}

static void test_migrate_killed_in_the_middle(void **state)
{
    struct harness *h = *state;
    const char *out, *dir = folder(h, "m");
    put_file(h, dir, "0001_first.sql", FIRST);
    put_file(h, dir, "0002_second.sql", "CREATE TABLE relata.a (x int); SELECT pg_sleep(600);");
    struct proc *p =
        proc_start(h, "relatactl", "migrate", "--dir", dir, "--set", harness_strf(h, "pg.dsn=%s", h->dsn), NULL);
    assert_sql_eventually(h,
                          "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = "
                          "'PgSleep'",
                          "1", harness_ms(20000));
    proc_kill(p);
    harness_sql(
        h, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event "
           "= 'PgSleep'");
    put_file(h, dir, "0002_second.sql", "CREATE TABLE relata.a (x int);");
    assert_int_equal(relatactl(h, &out, "migrate", "--dir", dir, NULL), 0);
    assert_non_null(strstr(out, "applying 0002_second.sql"));
    assert_null(strstr(out, "applying 0001_first.sql"));
}

/* The server goes away while a migration runs: what was lost is done again. */
static void test_migrate_survives_a_lost_connection(void **state)
{
    struct harness *h = *state;
    const char *dir = folder(h, "m");
    put_file(h, dir, "0001_first.sql", FIRST " CREATE TABLE relata.go (x int);");
    put_file(
        h, dir, "0002_second.sql",
        "CREATE TABLE relata.a (x int); DO $$ BEGIN IF NOT EXISTS (SELECT FROM relata.go) THEN PERFORM pg_sleep(600); "
        "END IF; END $$;");
    struct proc *p =
        proc_start(h, "relatactl", "migrate", "--dir", dir, "--set", harness_strf(h, "pg.dsn=%s", h->dsn), NULL);
    assert_sql_eventually(h,
                          "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = "
                          "'PgSleep'",
                          "1", harness_ms(20000));
    harness_sql(h, "INSERT INTO relata.go VALUES (1)");
    harness_sql(
        h, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event "
           "= 'PgSleep'");
    assert_int_equal(proc_wait(p, harness_ms(60000)), 0);
    assert_int_equal(harness_sql_int(h, "SELECT max(version) FROM relata.migration"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_migrate_applies_all_and_repeats_as_nothing, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_migrate_by_several_at_once, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_migrate_without_superuser, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_migrate_refuses_a_changed_file, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_migrate_rolls_a_failed_file_back, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_migrate_refuses_bad_folders, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_migrate_does_not_queue_behind_a_long_transaction, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_migrate_killed_in_the_middle, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_migrate_survives_a_lost_connection, HARNESS_EMPTY_DB),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
