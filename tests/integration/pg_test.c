/* common/pg against a real Postgres: deadlines, lost connections, restarts, COPY, NOTIFY, replication. */
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/stop.h"
#include "common/pg/pg.h"
#include "tests/harness/harness.h"
#include "tests/harness/proxy.h"

static struct harness *h; /* the running test's */

#define SOON deadline_in_ms(20000)

static struct pg *open_pg(void)
{
    struct err err = {.text = ""};
    struct pg *pg = NULL;
    enum status st = pg_open(&pg, &(struct pg_config){.dsn = h->dsn, .application_name = "pg_test"}, SOON, &err);
    if (st != ST_OK)
        fail_msg("open: %s", err.text);
    return pg;
}

static void ok_exec(struct pg *pg, const char *sql)
{
    struct err err = {.text = ""};
    if (pg_exec(pg, sql, SOON, &err) != ST_OK)
        fail_msg("%s: %s", sql, err.text);
}

/* One value as text, in a static buffer. */
static const char *ok_value(struct pg *pg, const char *sql)
{
    static char value[256];
    struct err err = {.text = ""};
    struct pg_result *r = NULL;
    if (pg_query(pg, NULL, sql, NULL, 0, SOON, &r, &err) != ST_OK)
        fail_msg("%s: %s", sql, err.text);
    (void)snprintf(value, sizeof value, "%s", pg_rows(r) ? pg_text(r, 0, 0) : "(no row)");
    pg_result_free(r);
    return value;
}

/* Poll until the query gives `want`. */
static void until(struct pg *pg, const char *sql, const char *want)
{
    mono_us deadline = SOON;
    while (strcmp(ok_value(pg, sql), want) != 0) {
        if (clock_mono_us() > deadline)
            fail_msg("%s never gave %s", sql, want);
        (void)usleep(5000);
    }
}

static void test_parameters_and_results(void **state)
{
    h = *state;
    struct pg *pg = open_pg();
    struct err err;
    struct pg_result *r = NULL;
    struct buf list;
    char scratch[24];
    buf_init(&list, 1024);
    pg_array_begin(&list);
    pg_array_add(&list, "a\"b\\c,{}");
    pg_array_add(&list, NULL);
    pg_array_add(&list, "");
    pg_array_end(&list);
    const struct pg_param params[] = {pg_p_text("caf\xc3\xa9"),
                                      pg_p_text(NULL),
                                      pg_p_int(-42, scratch),
                                      pg_p_buf(&list),
                                      {.data = "cutXXX", .len = 3}};
    for (int named = 0; named < 3; named++) {
        assert_int_equal(pg_query(pg, named ? "params" : NULL,
                                  "SELECT $1::text, $2::text, $3::bigint, ($4::text[])[1], cardinality($4::text[]), "
                                  "$5::text, true, 1.5::float8 FROM generate_series(1, 2)",
                                  params, 5, SOON, &r, &err),
                         ST_OK);
        assert_int_equal(pg_rows(r), 2);
        assert_string_equal(pg_text(r, 1, 0), "caf\xc3\xa9");
        assert_int_equal(pg_len(r, 1, 0), 5);
        assert_true(pg_is_null(r, 0, 1));
        assert_string_equal(pg_text(r, 0, 1), "");
        assert_int_equal(pg_int(r, 0, 2), -42);
        assert_string_equal(pg_text(r, 0, 3), "a\"b\\c,{}");
        assert_int_equal(pg_int(r, 0, 4), 3);
        assert_string_equal(pg_text(r, 0, 5), "cut");
        assert_true(pg_bool(r, 0, 6));
        assert_true(pg_double(r, 0, 7) > 1.49 && pg_double(r, 0, 7) < 1.51);
        pg_result_free(r);
    }
    struct buf bin[4];
    for (int i = 0; i < 4; i++)
        buf_init(&bin[i], 1024);
    pg_bin_begin(&bin[0], PG_ELEM_TEXT);
    pg_bin_add(&bin[0], "a\"b\\c,{}");
    pg_bin_add(&bin[0], NULL);
    pg_bin_add(&bin[0], "");
    pg_bin_begin(&bin[1], PG_ELEM_INT8);
    pg_bin_add_int(&bin[1], INT64_MIN);
    pg_bin_add_int(&bin[1], 42);
    pg_bin_begin(&bin[2], PG_ELEM_XID8);
    pg_bin_add(&bin[2], NULL);
    pg_bin_add_int(&bin[2], 7);
    pg_bin_begin(&bin[3], PG_ELEM_TEXT);
    for (int i = 0; i < 4; i++)
        pg_bin_end(&bin[i]);
    const struct pg_param arrays[] = {pg_p_bin(&bin[0]), pg_p_text("text"), pg_p_bin(&bin[1]), pg_p_bin(&bin[2]),
                                      pg_p_bin(&bin[3])};
    for (int named = 0; named < 2; named++) {
        assert_int_equal(pg_query(pg, named ? "arrays" : NULL,
                                  "SELECT $1::text[]::text, $2::text, $3::bigint[]::text, $4::xid8[]::text, "
                                  "$5::text[]::text",
                                  arrays, 5, SOON, &r, &err),
                         ST_OK);
        assert_string_equal(pg_text(r, 0, 0), "{\"a\\\"b\\\\c,{}\",NULL,\"\"}");
        assert_string_equal(pg_text(r, 0, 1), "text");
        assert_string_equal(pg_text(r, 0, 2), "{-9223372036854775808,42}");
        assert_string_equal(pg_text(r, 0, 3), "{NULL,7}");
        assert_string_equal(pg_text(r, 0, 4), "{}");
        pg_result_free(r);
    }
    buf_clear(&bin[0]);
    bin[0].max = 30;
    pg_bin_begin(&bin[0], PG_ELEM_TEXT);
    pg_bin_add(&bin[0], "does not fit");
    pg_bin_end(&bin[0]);
    const struct pg_param cut[] = {pg_p_bin(&bin[0])};
    assert_int_equal(pg_query(pg, NULL, "SELECT $1::text[]", cut, 1, SOON, NULL, &err), ST_TOO_BIG);
    for (int i = 0; i < 4; i++)
        buf_release(&bin[i]);
    ok_exec(pg, "CREATE TEMP TABLE t (a int)");
    assert_int_equal(pg_query(pg, NULL, "INSERT INTO t SELECT generate_series(1, 7)", NULL, 0, SOON, &r, &err), ST_OK);
    assert_int_equal(pg_affected(r), 7);
    pg_result_free(r);
    assert_string_equal(ok_value(pg, "SHOW search_path"), "pg_catalog");
    assert_string_equal(ok_value(pg, "SHOW client_encoding"), "UTF8");
    buf_release(&list);
    pg_close(pg);
}

static void test_nul_and_failed_buffer_are_refused(void **state)
{
    h = *state;
    struct pg *pg = open_pg();
    struct err err;
    struct buf small;
    buf_init(&small, 4);
    buf_adds(&small, "too long for it");
    const struct pg_param nul = {.data = "a\0b", .len = 3}, failed = pg_p_buf(&small);
    assert_int_equal(pg_query(pg, NULL, "SELECT $1::text", &nul, 1, SOON, NULL, &err), ST_INVALID);
    assert_non_null(strstr(err.text, "$1"));
    assert_int_equal(pg_query(pg, NULL, "SELECT $1::text", &failed, 1, SOON, NULL, &err), ST_TOO_BIG);
    assert_string_equal(ok_value(pg, "SELECT 1"), "1");
    buf_release(&small);
    pg_close(pg);
}

static void test_errors_carry_code_detail_and_hint(void **state)
{
    h = *state;
    struct pg *pg = open_pg();
    struct err err;
    assert_int_equal(pg_exec(pg,
                             "DO $$ BEGIN RAISE EXCEPTION 'no such bar' USING ERRCODE = 'RL001', DETAIL = 'bar is 3', "
                             "HINT = 'use 4'; END $$",
                             SOON, &err),
                     ST_INVALID);
    assert_string_equal(err.code, "RL001");
    assert_string_equal(err.text, "no such bar; bar is 3; hint: use 4");
    assert_int_equal(pg_exec(pg, "SELECT 1; SELECT * FROM relata_nowhere", SOON, &err), ST_MISSING);
    /* An error that comes after the rows: the deferred check at the end of the statement's own transaction. */
    ok_exec(pg, "CREATE TEMP TABLE d (a int UNIQUE DEFERRABLE INITIALLY DEFERRED)");
    assert_int_equal(pg_query(pg, "twice", "INSERT INTO d VALUES (1), (1) RETURNING a", NULL, 0, SOON, NULL, &err),
                     ST_INVALID);
    assert_string_equal(err.code, "23505");
    assert_true(pg_alive(pg));
    pg_close(pg);
}

static void test_deadline_cancels_the_query_at_the_server(void **state)
{
    h = *state;
    struct pg *pg = open_pg(), *watch = open_pg();
    struct err err;
    assert_int_equal(pg_query(pg, NULL, "SELECT pg_sleep(600)", NULL, 0, deadline_in_ms(500), NULL, &err), ST_DEADLINE);
    assert_string_equal(err.code, "57014");
    assert_true(pg_alive(pg));
    until(watch,
          "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%sleep(600)%' AND datname = "
          "current_database() AND pid <> pg_backend_pid()",
          "0");
    assert_string_equal(ok_value(pg, "SELECT 2"), "2"); /* the late cancel hits nothing else */
    assert_int_equal(pg_exec(pg, "SELECT 1", clock_mono_us() - 1, &err), ST_DEADLINE); /* nothing sent */
    ok_exec(pg, "BEGIN");
    assert_int_equal(pg_exec(pg, "SELECT pg_sleep(600)", deadline_in_ms(500), &err), ST_DEADLINE);
    ok_exec(pg, "ROLLBACK");
    pg_close(pg);
    pg_close(watch);
}

static void test_server_timeout_is_retryable(void **state)
{
    h = *state;
    struct pg *pg = open_pg();
    struct err err;
    ok_exec(pg, "SET statement_timeout TO '50ms'");
    assert_int_equal(pg_exec(pg, "SELECT pg_sleep(600)", SOON, &err), ST_RETRY);
    assert_string_equal(err.code, "57014");
    pg_close(pg);
}

static void test_deadlock_and_lock_timeout_are_retryable(void **state)
{
    h = *state;
    struct pg *a = open_pg(), *b = open_pg();
    struct err err;
    ok_exec(a, "SELECT pg_advisory_lock(77)");
    ok_exec(b, "SET lock_timeout TO '50ms'");
    assert_int_equal(pg_exec(b, "SELECT pg_advisory_lock(77)", SOON, &err), ST_RETRY);
    assert_string_equal(err.code, "55P03");
    pg_close(a);
    pg_close(b);
}

/* In a child of its own, because the test itself waits for the query: ends the session once it sleeps. */
static void terminate_when_sleeping(int pid)
{
    struct pg *killer = NULL;
    struct err err;
    char sql[256];
    struct pg_result *r = NULL;
    bool done = false;
    (void)snprintf(sql, sizeof sql,
                   "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %d AND wait_event = 'PgSleep'",
                   pid);
    if (pg_open(&killer, &(struct pg_config){.dsn = h->dsn}, SOON, &err) != ST_OK)
        _exit(1);
    while (!done) {
        if (pg_query(killer, NULL, sql, NULL, 0, SOON, &r, &err) != ST_OK)
            _exit(2);
        done = pg_rows(r) == 1;
        pg_result_free(r);
        (void)usleep(5000);
    }
    pg_close(killer);
}

static enum status cut_while(struct pg *pg, const char *sql, struct err *err)
{
    int pid = pg_backend_pid(pg);
    pid_t child = fork();
    if (child == 0) {
        terminate_when_sleeping(pid);
        _exit(0);
    }
    enum status st = pg_exec(pg, sql, SOON, err);
    int rc = 0;
    assert_int_equal(waitpid(child, &rc, 0), child);
    assert_int_equal(rc, 0);
    return st;
}

static void test_connection_cut_in_the_middle_of_a_query(void **state)
{
    h = *state;
    struct err err;
    struct pg *pg = open_pg();
    assert_int_equal(cut_while(pg, "SELECT pg_sleep(600)", &err), ST_UNKNOWN);
    assert_string_equal(err.code, "57P01");
    assert_false(pg_alive(pg));
    assert_int_equal(pg_exec(pg, "SELECT 1", SOON, &err), ST_RETRY);
    unsigned before = pg_generation(pg);
    assert_int_equal(pg_reopen(pg, SOON, &err), ST_OK);
    assert_int_equal(pg_generation(pg), before + 1);

    /* Inside a transaction nothing can have happened; its COMMIT may have. */
    ok_exec(pg, "BEGIN");
    assert_int_equal(cut_while(pg, "SELECT pg_sleep(600)", &err), ST_RETRY);
    assert_int_equal(pg_reopen(pg, SOON, &err), ST_OK);
    ok_exec(pg,
            "DROP TABLE IF EXISTS public.slow; DROP FUNCTION IF EXISTS public.slow();"
            "CREATE TABLE public.slow (a int); CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS $$ "
            "BEGIN PERFORM pg_sleep(600); RETURN NULL; END $$;"
            "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON public.slow DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION public.slow()");
    ok_exec(pg, "BEGIN; INSERT INTO public.slow VALUES (1)");
    assert_int_equal(cut_while(pg, "COMMIT", &err), ST_UNKNOWN);
    assert_int_equal(pg_reopen(pg, SOON, &err), ST_OK);
    ok_exec(pg, "BEGIN; INSERT INTO public.slow VALUES (1)");
    assert_int_equal(pg_exec(pg, "COMMIT", deadline_in_ms(500), &err), ST_UNKNOWN);
    ok_exec(pg, "DROP TABLE public.slow; DROP FUNCTION public.slow()");
    pg_close(pg);
}

static void test_connection_found_dead_before_sending(void **state)
{
    h = *state;
    struct err err;
    struct pg *pg = open_pg(), *killer = open_pg();
    char sql[128];
    (void)snprintf(sql, sizeof sql, "SELECT pg_terminate_backend(%d, 10000)", pg_backend_pid(pg));
    assert_string_equal(ok_value(killer, sql), "t");
    /* Idle when it died: surely nothing was sent, so this is no unknown outcome. */
    assert_int_equal(pg_exec(pg, "CREATE TABLE public.never (a int)", SOON, &err), ST_RETRY);
    assert_string_equal(ok_value(killer, "SELECT to_regclass('public.never') IS NULL"), "t");
    pg_close(pg);
    pg_close(killer);
}

static void test_commit_not_confirmed_by_a_standby(void **state)
{
    h = *state;
    struct err err;
    struct pg *pg = open_pg();
    ok_exec(pg, "CREATE TABLE public.synced (a int)");
    ok_exec(pg, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    ok_exec(pg, "SELECT pg_reload_conf()");
    until(pg, "SELECT setting FROM pg_settings WHERE name = 'synchronous_standby_names'", "nobody");
    /* Commits begin to wait when the checkpointer, too, has read the setting. */
    enum status st = ST_OK;
    int rows = 0;
    for (mono_us end = SOON; st == ST_OK && clock_mono_us() < end; rows++)
        st = pg_exec(pg, "INSERT INTO public.synced VALUES (1)", deadline_in_ms(2000), &err);
    ok_exec(pg, "SET synchronous_commit TO off");
    ok_exec(pg, "ALTER SYSTEM RESET synchronous_standby_names");
    ok_exec(pg, "SELECT pg_reload_conf()");
    until(pg, "SELECT setting FROM pg_settings WHERE name = 'synchronous_standby_names'", "");
    assert_int_equal(st, ST_UNKNOWN);
    assert_int_equal(strtol(ok_value(pg, "SELECT count(*) FROM public.synced"), NULL, 10), rows);
    ok_exec(pg, "DROP TABLE public.synced");
    pg_close(pg);
}

static void test_prepared_statements_come_back(void **state)
{
    h = *state;
    struct err err;
    struct pg *pg = open_pg();
    struct pg_result *r = NULL;
    const char *sql = "SELECT * FROM public.shape";
    ok_exec(pg, "DROP TABLE IF EXISTS public.shape; CREATE TABLE public.shape AS SELECT 1 AS a");
    assert_int_equal(pg_query(pg, "shape", sql, NULL, 0, SOON, NULL, &err), ST_OK);
    assert_string_equal(ok_value(pg, "SELECT count(*) FROM pg_prepared_statements"), "1");

    ok_exec(pg, "DEALLOCATE ALL"); /* what a transaction pooler looks like */
    assert_int_equal(pg_query(pg, "shape", sql, NULL, 0, SOON, NULL, &err), ST_OK);
    ok_exec(pg, "DEALLOCATE ALL; BEGIN");
    assert_int_equal(pg_query(pg, "shape", sql, NULL, 0, SOON, NULL, &err), ST_RETRY);
    assert_string_equal(err.code, "26000");
    ok_exec(pg, "ROLLBACK; BEGIN");
    assert_int_equal(pg_query(pg, "shape", sql, NULL, 0, SOON, NULL, &err), ST_OK);
    ok_exec(pg, "COMMIT");

    ok_exec(pg, "ALTER TABLE public.shape ADD b int DEFAULT 2"); /* the result's type changes */
    assert_int_equal(pg_query(pg, "shape", sql, NULL, 0, SOON, &r, &err), ST_OK);
    assert_int_equal(pg_int(r, 0, 1), 2);
    pg_result_free(r);
    assert_int_equal(pg_query(pg, "broken", "SELECT nothing FROM public.shape", NULL, 0, SOON, NULL, &err), ST_MISSING);
    ok_exec(pg, "DROP TABLE public.shape");
    pg_close(pg);
}

static void test_prepared_by_another_session_of_the_pool(void **state)
{
    h = *state;
    struct err err;
    struct pg *pg = open_pg(), *other = open_pg();
    char sql[256];
    assert_int_equal(pg_query(other, "pooled", "SELECT 7", NULL, 0, SOON, NULL, &err), ST_OK);
    (void)snprintf(sql, sizeof sql, "PREPARE %s AS SELECT 7",
                   ok_value(other, "SELECT name FROM pg_prepared_statements"));
    ok_exec(pg, sql);
    assert_int_equal(pg_query(pg, "pooled", "SELECT 7", NULL, 0, SOON, NULL, &err), ST_OK);
    pg_close(other);
    other = open_pg();
    ok_exec(other, sql);
    ok_exec(other, "BEGIN");
    assert_int_equal(pg_query(other, "pooled", "SELECT 7", NULL, 0, SOON, NULL, &err), ST_RETRY);
    ok_exec(other, "ROLLBACK; BEGIN");
    assert_int_equal(pg_query(other, "pooled", "SELECT 7", NULL, 0, SOON, NULL, &err), ST_OK);
    pg_close(pg);
    pg_close(other);
}

static enum status open_with(const char *dsn_text, struct err *err)
{
    struct pg *pg = NULL;
    enum status st = pg_open(&pg, &(struct pg_config){.dsn = dsn_text}, SOON, err);
    pg_close(pg);
    return st;
}

static void test_refused_connections_are_classed(void **state)
{
    h = *state;
    struct err err;
    struct pg *pg = open_pg();
    char text[256];
    const char *port = ok_value(pg, "SHOW port");
    (void)snprintf(text, sizeof text, "host=127.0.0.1 port=%s user=nobody_here password=s3cret dbname=postgres", port);
    assert_int_equal(open_with(text, &err), ST_DENIED);
    assert_true(strncmp(err.code, "28", 2) == 0);
    assert_null(strstr(err.text, "s3cret"));
    assert_null(strstr(err.text, "LOCATION"));

    assert_int_equal(open_with(harness_dsn(h, NULL, NULL, "no_such_database"), &err), ST_MISSING);
    assert_string_equal(err.code, "3D000");

    assert_int_equal(open_with("host=127.0.0.1 port=1 user=x dbname=x", &err), ST_RETRY); /* nobody listens */
    assert_int_equal(open_with("host=127.0.0.1 prot=1", &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "prot"));
    pg_close(pg);
}

/* A host that takes the connection and never says a word must not use up the time of the next one. */
static void test_dead_host_leaves_time_for_the_next(void **state)
{
    h = *state;
    struct err err;
    struct pg *pg = NULL;
    struct proxy *dead = proxy_start(strchr(h->dsn, '@') + 1);
    struct pg *probe = open_pg();
    char port[32], text[512];
    assert_non_null(dead);
    proxy_freeze(dead, PROXY_BOTH);
    (void)snprintf(port, sizeof port, "%s", ok_value(probe, "SHOW port"));
    (void)snprintf(text, sizeof text, "%s",
                   harness_dsn(h, NULL, harness_strf(h, "%s,127.0.0.1:%s", proxy_address(dead), port), NULL));
    assert_int_equal(pg_open(&pg, &(struct pg_config){.dsn = text}, deadline_in_ms(harness_ms(3000)), &err), ST_OK);
    assert_string_equal(ok_value(pg, "SHOW port"), port);
    pg_close(pg);
    /* Both reasons are told. */
    (void)snprintf(text, sizeof text, "%s",
                   harness_dsn(h, NULL, harness_strf(h, "127.0.0.1:1,%s", proxy_address(dead)), NULL));
    assert_int_equal(pg_open(&pg, &(struct pg_config){.dsn = text}, deadline_in_ms(2000), &err), ST_RETRY);
    assert_non_null(strstr(err.text, "Connection refused"));
    assert_non_null(strstr(err.text, "no answer in time"));
    pg_close(probe);
    proxy_stop(dead);
}

/* ---- COPY ---- */

#define MILLION 1000000

struct count {
    long rows;
    long sum;
    long stop_at;
};

static enum status count_row(void *arg, char *line, size_t len, struct err *err)
{
    struct count *c = arg;
    char *fields[2];
    if (pg_copy_split(line, len, fields, 2) != 2 || strncmp(fields[1], "some\tpayload\\", 13) != 0)
        return err_set(err, ST_FATAL, "", "row %ld is not what was put", c->rows);
    c->rows++;
    c->sum += strtol(fields[0], NULL, 10);
    return c->rows == c->stop_at ? err_set(err, ST_NOT_FOUND, "", "enough") : ST_OK;
}

static long peak_kib(void)
{
    struct rusage ru;
    assert_int_equal(getrusage(RUSAGE_SELF, &ru), 0);
    return ru.ru_maxrss;
}

static void put_million(struct pg *pg)
{
    struct err err;
    struct buf lines;
    buf_init(&lines, 1 << 20);
    assert_int_equal(pg_copy_in_begin(pg, "COPY public.many FROM STDIN", SOON, &err), ST_OK);
    for (int i = 1; i <= MILLION; i++) {
        buf_addf(&lines, "%d\t", i);
        pg_copy_escape(&lines, "some\tpayload\\ to make the line about fifty bytes");
        buf_addc(&lines, '\n');
        if (lines.len > 60000 || i == MILLION) {
            assert_true(buf_ok(&lines));
            if (pg_copy_in_put(pg, lines.data, lines.len, SOON, &err) != ST_OK)
                fail_msg("put: %s", err.text);
            buf_clear(&lines);
        }
    }
    assert_int_equal(pg_copy_in_end(pg, SOON, &err), ST_OK);
    buf_release(&lines);
}

static void test_copy_of_a_million_rows_in_flat_memory(void **state)
{
    h = *state;
    struct err err;
    struct pg *pg = open_pg();
    ok_exec(pg, "DROP TABLE IF EXISTS public.many; CREATE UNLOGGED TABLE public.many (id int, payload text)");
    long before = peak_kib();
    put_million(pg);
    struct count c = {.rows = 0};
    if (pg_copy_out(pg, "COPY (SELECT * FROM public.many) TO STDOUT", 20000, count_row, &c, &err) != ST_OK)
        fail_msg("copy out: %s", err.text);
    assert_int_equal(c.rows, MILLION);
    assert_true(c.sum == (long)MILLION * (MILLION + 1) / 2);
#ifndef __SANITIZE_ADDRESS__ /* its quarantine keeps freed memory */
    assert_true(peak_kib() - before < 8 * 1024);
#else
    (void)before;
#endif
    /* Ended by the caller: the connection goes on. */
    c = (struct count){.stop_at = 10};
    assert_int_equal(pg_copy_out(pg, "COPY public.many TO STDOUT", 20000, count_row, &c, &err), ST_NOT_FOUND);
    assert_string_equal(err.text, "enough");
    assert_int_equal(c.rows, 10);
    assert_string_equal(ok_value(pg, "SELECT count(*) FROM public.many"), "1000000");
    ok_exec(pg, "DROP TABLE public.many");
    pg_close(pg);
}

static void test_copy_that_goes_wrong(void **state)
{
    h = *state;
    struct err err;
    struct count c = {.rows = 0};
    struct pg *pg = open_pg();
    ok_exec(pg, "CREATE TEMP TABLE few (id int, payload text)");
    assert_int_equal(pg_copy_in_begin(pg, "COPY pg_temp.few FROM STDIN", SOON, &err), ST_OK);
    assert_int_equal(pg_exec(pg, "SELECT 1", SOON, &err), ST_FATAL); /* not while a copy runs */
    assert_int_equal(pg_copy_in_put(pg, "1\tx\nnot a number\ty\n", 19, SOON, &err), ST_OK);
    assert_int_equal(pg_copy_in_end(pg, SOON, &err), ST_INVALID);
    assert_string_equal(err.code, "22P02");
    assert_int_equal(pg_copy_in_begin(pg, "COPY pg_temp.few FROM STDIN", SOON, &err), ST_OK);
    assert_int_equal(pg_copy_in_put(pg, "1\tx\n", 4, SOON, &err), ST_OK);
    pg_copy_in_abort(pg, "changed my mind");
    assert_true(pg_alive(pg));
    assert_string_equal(ok_value(pg, "SELECT count(*) FROM pg_temp.few"), "0");

    assert_int_equal(pg_copy_in_begin(pg, "SELECT 1", SOON, &err), ST_FATAL);
    assert_int_equal(pg_copy_in_begin(pg, "COPY pg_temp.few TO STDOUT", SOON, &err), ST_FATAL);
    assert_int_equal(pg_exec(pg, "COPY pg_temp.few FROM STDIN", SOON, &err), ST_FATAL);
    assert_int_equal(pg_copy_out(pg, "COPY public.nowhere TO STDOUT", 20000, count_row, &c, &err), ST_MISSING);
    assert_int_equal(
        pg_copy_out(pg, "COPY (SELECT 1, 'some\tpayload\\', pg_sleep(600)) TO STDOUT", 100, count_row, &c, &err),
        ST_DEADLINE);
    assert_string_equal(ok_value(pg, "SELECT 3"), "3");
    pg_close(pg);
}

/* ---- NOTIFY ---- */

static void test_notify_wakes(void **state)
{
    h = *state;
    struct err err;
    const char *channel = "x";
    int fds[2];
    struct pg *pg = open_pg(), *other = open_pg();
    assert_int_equal(pipe(fds), 0);
    ok_exec(pg, "LISTEN relata_outbox");
    assert_int_equal(pg_wait_notify(pg, -1, deadline_in_ms(50), &channel, &err), ST_DEADLINE);
    assert_null(channel);
    ok_exec(other, "NOTIFY relata_outbox, 'default'");
    assert_int_equal(pg_wait_notify(pg, fds[0], SOON, &channel, &err), ST_OK);
    assert_string_equal(channel, "relata_outbox");
    /* One that arrived with another answer is not lost. */
    ok_exec(other, "NOTIFY relata_outbox");
    until(other, "SELECT pg_notification_queue_usage() >= 0", "t");
    ok_exec(pg, "SELECT 1");
    assert_int_equal(pg_wait_notify(pg, fds[0], SOON, &channel, &err), ST_OK);
    assert_string_equal(channel, "relata_outbox");
    assert_int_equal(write(fds[1], "x", 1), 1);
    assert_int_equal(pg_wait_notify(pg, fds[0], SOON, &channel, &err), ST_OK);
    assert_null(channel);
    char sql[128];
    (void)snprintf(sql, sizeof sql, "SELECT pg_terminate_backend(%d, 10000)", pg_backend_pid(pg));
    ok_exec(other, sql);
    assert_int_equal(pg_wait_notify(pg, -1, SOON, &channel, &err), ST_RETRY);
    (void)close(fds[0]);
    (void)close(fds[1]);
    pg_close(pg);
    pg_close(other);
}

/* ---- walsender ---- */

static void test_replication_stream(void **state)
{
    h = *state;
    struct err err;
    struct pg *pg = open_pg(), *wal = NULL;
    struct pg_result *r = NULL;
    char *data = NULL;
    size_t len = 0;
    const char *slot = harness_strf(h, "s_%.60s", h->id); /* names of slots are the cluster's */
    ok_exec(pg, "CREATE TABLE public.streamed (a int); CREATE PUBLICATION streamed FOR TABLE public.streamed");
    assert_int_equal(pg_open(&wal, &(struct pg_config){.dsn = h->dsn, .replication = true}, SOON, &err), ST_OK);
    assert_int_equal(pg_query(wal, NULL, "IDENTIFY_SYSTEM", NULL, 0, SOON, &r, &err), ST_OK);
    assert_int_equal(pg_rows(r), 1);
    pg_result_free(r);
    assert_int_equal(pg_stream_start(wal, "START_REPLICATION SLOT nowhere LOGICAL 0/0", SOON, &err), ST_MISSING);
    /* It waits for the end of every transaction of the cluster. */
    assert_int_equal(
        pg_query(wal, NULL,
                 harness_strf(h, "CREATE_REPLICATION_SLOT %s TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT", slot), NULL,
                 0, deadline_in_ms(harness_ms(60000)), NULL, &err),
        ST_OK);
    assert_int_equal(pg_stream_start(wal,
                                     harness_strf(h,
                                                  "START_REPLICATION SLOT %s LOGICAL 0/0 (proto_version '1', "
                                                  "publication_names 'streamed')",
                                                  slot),
                                     SOON, &err),
                     ST_OK);
    ok_exec(pg, "INSERT INTO public.streamed VALUES (1)");
    char status[34] = {'r'};
    assert_int_equal(pg_stream_put(wal, status, sizeof status, SOON, &err), ST_OK);
    bool seen = false;
    mono_us deadline = SOON;
    while (!seen && clock_mono_us() < deadline) {
        enum status st = pg_stream_get(wal, &data, &len, &err);
        assert_true(st == ST_OK || st == ST_NOT_FOUND);
        seen = st == ST_OK && data[0] == 'w' && len > 25 && data[25] == 'I';
        pg_stream_free(data);
        if (st == ST_NOT_FOUND)
            (void)usleep(2000);
    }
    assert_true(seen);
    ok_exec(pg, harness_strf(h,
                             "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE "
                             "slot_name = '%s'",
                             slot));
    deadline = SOON;
    enum status st;
    do {
        st = pg_stream_get(wal, &data, &len, &err);
        pg_stream_free(data);
    } while ((st == ST_OK || st == ST_NOT_FOUND) && clock_mono_us() < deadline);
    assert_int_equal(st, ST_RETRY);
    assert_false(pg_alive(wal));
    pg_close(wal);
    ok_exec(pg, "DROP PUBLICATION streamed; DROP TABLE public.streamed");
    pg_close(pg);
}

/* ---- the server goes away ---- */

static void test_restart_and_reopen(void **state)
{
    h = *state;
    struct err err;
    struct pg *pg = open_pg();
    assert_int_equal(pg_query(pg, "one", "SELECT 1", NULL, 0, SOON, NULL, &err), ST_OK);
    harness_service(h, "restart", "postgres");
    assert_int_equal(pg_query(pg, "one", "SELECT 1", NULL, 0, SOON, NULL, &err), ST_RETRY);
    assert_int_equal(pg_reopen(pg, SOON, &err), ST_OK);
    assert_int_equal(pg_query(pg, "one", "SELECT 1", NULL, 0, SOON, NULL, &err), ST_OK);
    pg_close(pg);
}

struct reopening {
    struct pg *pg;
    enum status status;
};

static void *reopen_main(void *arg)
{
    struct reopening *r = arg;
    r->status = pg_reopen(r->pg, deadline_in_ms(60000), NULL);
    return NULL;
}

static void test_reopen_waits_for_a_server_that_comes_back(void **state)
{
    h = *state;
    struct err err;
    struct pg *pg = open_pg();
    harness_service(h, "kill", "postgres");
    assert_int_equal(pg_exec(pg, "SELECT 1", SOON, &err), ST_RETRY);
    assert_int_equal(pg_reopen(pg, deadline_in_ms(300), &err), ST_RETRY); /* nobody there: given up at the deadline */
    pthread_t thread;
    struct reopening r = {.pg = pg, .status = ST_FATAL};
    assert_int_equal(pthread_create(&thread, NULL, reopen_main, &r), 0);
    harness_service(h, "restart", "postgres");
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(r.status, ST_OK);
    assert_string_equal(ok_value(pg, "SELECT 1"), "1");
    pg_close(pg);
}

static void test_frozen_server(void **state)
{
    h = *state;
    struct err err;
    struct pg *pg = open_pg(), *tx = open_pg(), *copy = open_pg(), *late = NULL;
    struct buf block;
    ok_exec(tx, "BEGIN");
    ok_exec(copy, "CREATE TEMP TABLE few (a text)");
    assert_int_equal(pg_copy_in_begin(copy, "COPY pg_temp.few FROM STDIN", SOON, &err), ST_OK);
    buf_init(&block, 16 << 20);
    for (int i = 0; i < 200000; i++)
        buf_adds(&block, "a line that fills the socket's buffers\n");
    assert_true(buf_ok(&block));
    harness_service(h, "freeze", "postgres");
    /* Each returns: a call that hangs is ended by the alarm. Not even the cancel request is answered. */
    enum status plain = pg_exec(pg, "SELECT 1", deadline_in_ms(200), &err);
    enum status inside = pg_exec(tx, "SELECT 1", deadline_in_ms(200), &err);
    enum status put = pg_copy_in_put(copy, block.data, block.len, deadline_in_ms(200), &err);
    enum status fresh = pg_open(&late, &(struct pg_config){.dsn = h->dsn}, deadline_in_ms(200), &err);
    harness_service(h, "continue", "postgres");
    assert_int_equal(plain, ST_UNKNOWN);
    assert_int_equal(inside, ST_DEADLINE);
    assert_int_equal(put, ST_DEADLINE);
    assert_int_equal(fresh, ST_RETRY);
    assert_null(late);
    assert_false(pg_alive(pg));
    assert_int_equal(pg_reopen(pg, SOON, &err), ST_OK);
    assert_string_equal(ok_value(pg, "SELECT 1"), "1");
    buf_release(&block);
    pg_close(pg);
    pg_close(tx);
    pg_close(copy);
}

static void in_stopped_child(void)
{
    struct err err;
    const char *channel;
    struct pg_config cfg = {.dsn = h->dsn, .watch_stop = true};
    struct pg *pg = NULL, *second = NULL;
    stop_init();
    if (pg_open(&pg, &cfg, SOON, &err) != ST_OK)
        _exit(1);
    stop_request();
    if (pg_exec(pg, "SELECT 1", SOON, &err) != ST_OK) /* statements are finished */
        _exit(2);
    if (pg_wait_notify(pg, -1, SOON, &channel, &err) != ST_STOPPED)
        _exit(3);
    if (pg_open(&second, &cfg, SOON, &err) != ST_STOPPED || second)
        _exit(4);
    if (pg_reopen(pg, SOON, &err) != ST_STOPPED)
        _exit(5);
    pg_close(pg);
    _exit(0);
}

static void test_stop_flag_ends_waits(void **state)
{
    h = *state;
    int rc = 0;
    pid_t child = fork();
    if (child == 0)
        in_stopped_child();
    assert_int_equal(waitpid(child, &rc, 0), child);
    assert_int_equal(rc, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_parameters_and_results, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_nul_and_failed_buffer_are_refused, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_errors_carry_code_detail_and_hint, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_deadline_cancels_the_query_at_the_server, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_server_timeout_is_retryable, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_deadlock_and_lock_timeout_are_retryable, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_connection_cut_in_the_middle_of_a_query, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_connection_found_dead_before_sending, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_commit_not_confirmed_by_a_standby, HARNESS_EMPTY_DB | HARNESS_OWN_PG),
        HARNESS_TEST(test_prepared_statements_come_back, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_prepared_by_another_session_of_the_pool, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_refused_connections_are_classed, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_dead_host_leaves_time_for_the_next, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_copy_of_a_million_rows_in_flat_memory, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_copy_that_goes_wrong, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_notify_wakes, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_replication_stream, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_restart_and_reopen, HARNESS_EMPTY_DB | HARNESS_OWN_PG),
        HARNESS_TEST(test_reopen_waits_for_a_server_that_comes_back, HARNESS_EMPTY_DB | HARNESS_OWN_PG),
        HARNESS_TEST(test_frozen_server, HARNESS_EMPTY_DB | HARNESS_OWN_PG),
        HARNESS_TEST(test_stop_flag_ends_waits, HARNESS_EMPTY_DB),
    };
    (void)alarm((unsigned)harness_ms(600)); /* seconds; a call that hangs ends the test */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
