/* Several statements in one snapshot: what they see, how they fail, and what the connection is worth afterwards. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/pg/snapshot.h"
#include "tests/harness/harness.h"

#define SOON deadline_in_ms(harness_ms(20000))

static struct pg *open_pg(struct harness *h)
{
    struct pg *pg = harness_connect(h, NULL);
    harness_sql(h, "CREATE TABLE public.t(i int); INSERT INTO public.t VALUES (1), (2)");
    return pg;
}

static int64_t count_rows(struct pg *pg, const char *name)
{
    struct pg_result *r = NULL;
    struct err err = {.text = ""};
    int64_t n;

    if (pg_snapshot_query(pg, name, "SELECT count(*) FROM public.t WHERE i < $1::int",
                          &(struct pg_param){.data = "100"}, 1, SOON, &r, &err) != ST_OK)
        fail_msg("%s", err.text);
    n = pg_int(r, 0, 0);
    pg_result_free(r);
    return n;
}

static void test_statements_share_one_snapshot(void **state)
{
    struct harness *h = *state;
    struct pg *pg = open_pg(h);

    for (int64_t round = 0; round < 3; round++) {
        const char *name = round ? "count" : NULL;
        int64_t before = 2 + 2 * round;
        assert_int_equal(count_rows(pg, name), before);
        harness_sql(h, "INSERT INTO public.t VALUES (3)");
        assert_int_equal(count_rows(pg, name), before);
        pg_snapshot_end(pg);
        pg_snapshot_end(pg); /* nothing more to end */
        assert_int_equal(count_rows(pg, name), before + 1);
        pg_snapshot_end(pg);
        harness_sql(h, "INSERT INTO public.t VALUES (4)");
    }
    /* Ended without anybody reading the outcome: no transaction stays open. */
    assert_sql_eventually(h, harness_strf(h, "SELECT state FROM pg_stat_activity WHERE pid = %d", pg_backend_pid(pg)),
                          "idle", 10000);
    pg_close(pg);
}

static void test_nothing_can_be_written(void **state)
{
    struct harness *h = *state;
    struct pg *pg = open_pg(h);
    struct err err = {0};

    assert_int_not_equal(pg_snapshot_query(pg, NULL, "INSERT INTO public.t VALUES (9)", NULL, 0, SOON, NULL, &err),
                         ST_OK);
    assert_string_equal(err.code, "25006");
    pg_snapshot_end(pg);
    assert_int_equal(count_rows(pg, "count"), 2);
    /* Other calls work in it, and after it. */
    assert_int_equal(pg_query(pg, NULL, "SELECT 1/0", NULL, 0, SOON, NULL, &err), ST_INVALID);
    pg_snapshot_end(pg);
    assert_int_equal(pg_exec(pg, "INSERT INTO public.t VALUES (9)", SOON, &err), ST_OK);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM public.t"), 3);
    pg_close(pg);
}

static void test_prepared_statement_is_gone(void **state)
{
    struct harness *h = *state;
    struct pg *pg = open_pg(h);
    struct err err = {0};

    assert_int_equal(count_rows(pg, "count"), 2);
    pg_snapshot_end(pg);
    assert_int_equal(pg_exec(pg, "DEALLOCATE ALL", SOON, &err), ST_OK);
    assert_int_equal(count_rows(pg, "count"), 2);
    pg_snapshot_end(pg);
    assert_int_equal(count_rows(pg, "count"), 2);
    pg_close(pg);
}

static void test_deadline_and_loss(void **state)
{
    struct harness *h = *state;
    struct pg *pg = open_pg(h);
    struct err err = {0};

    assert_int_equal(pg_snapshot_query(pg, NULL, "SELECT pg_sleep(60)", NULL, 0, deadline_in_ms(500), NULL, &err),
                     ST_DEADLINE);
    assert_true(pg_alive(pg));
    pg_snapshot_end(pg);
    assert_int_equal(count_rows(pg, NULL), 2);
    harness_sqlf(h, "SELECT pg_terminate_backend(%d, 10000)", pg_backend_pid(pg));
    assert_int_equal(pg_snapshot_query(pg, NULL, "SELECT 1", NULL, 0, SOON, NULL, &err), ST_RETRY);
    pg_snapshot_end(pg);
    assert_int_equal(pg_reopen(pg, SOON, &err), ST_OK);
    assert_int_equal(count_rows(pg, "count"), 2);
    pg_snapshot_end(pg);
    harness_sqlf(h, "SELECT pg_terminate_backend(%d, 10000)", pg_backend_pid(pg));
    assert_int_equal(pg_snapshot_query(pg, "count", "SELECT count(*) FROM public.t WHERE i < $1::int",
                                       &(struct pg_param){.data = "1"}, 1, SOON, NULL, &err),
                     ST_RETRY);
    assert_int_equal(pg_snapshot_query(pg, NULL, "SELECT 1", NULL, 0, SOON, NULL, &err), ST_RETRY);
    assert_int_equal(pg_reopen(pg, SOON, &err), ST_OK);
    /* Ended in the middle of a statement's pipeline. */
    assert_int_equal(
        pg_snapshot_query(pg, NULL, "SELECT pg_terminate_backend(pg_backend_pid())", NULL, 0, SOON, NULL, &err),
        ST_RETRY);
    assert_int_equal(pg_reopen(pg, SOON, &err), ST_OK);
    assert_int_equal(count_rows(pg, "count"), 2);
    pg_close(pg);
}

struct leaving {
    struct harness *h;
    atomic_bool gone;
};

/* Raises the flag once the statement runs. */
static void *leave(void *arg)
{
    struct leaving *it = arg;

    assert_sql_eventually(it->h,
                          "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%SELECT "
                          "pg_sleep%' AND pid <> pg_backend_pid() "
                          "AND datname = current_database()",
                          "1", 20000);
    atomic_store(&it->gone, true);
    return NULL;
}

static enum status no_row(void *arg, char *line, size_t len, struct err *err)
{
    (void)arg;
    (void)line;
    (void)len;
    return err_set(err, ST_FATAL, NULL, "no row was to come");
}

/* The same of a COPY that has given no row yet. */
static void test_flag_ends_a_copy(void **state)
{
    struct harness *h = *state;
    struct pg *pg = open_pg(h);
    struct leaving it = {.h = h};
    struct err err = {0};
    pthread_t t;

    pg_heed(pg, &it.gone);
    assert_int_equal(pthread_create(&t, NULL, leave, &it), 0);
    assert_int_equal(pg_copy_out(pg, "COPY (SELECT pg_sleep(3600)) TO STDOUT", 3600000, no_row, NULL, &err),
                     ST_DEADLINE);
    pthread_join(t, NULL);
    pg_heed(pg, NULL);
    assert_int_equal(pg_query(pg, NULL, "SELECT 1", NULL, 0, SOON, NULL, &err), ST_OK);
    pg_close(pg);
}

/* A statement whose result nobody wants any more is cancelled; none is sent; the connection stays good. */
static void test_flag(void **state)
{
    struct harness *h = *state;
    struct pg *pg = open_pg(h);
    struct leaving it = {.h = h};
    struct err err = {0};
    pthread_t t;
    int pid = pg_backend_pid(pg);

    pg_heed(pg, &it.gone);
    for (int i = 0; i < 3; i++) {
        atomic_store(&it.gone, false);
        assert_int_equal(count_rows(pg, "count"), 2);
        if (i < 2) /* as the first statement of its transaction, and as a later one */
            pg_snapshot_end(pg);
        assert_int_equal(pthread_create(&t, NULL, leave, &it), 0);
        if (i == 1)
            assert_int_equal(pg_query(pg, NULL, "SELECT pg_sleep(3600)", NULL, 0, DEADLINE_NONE, NULL, &err),
                             ST_DEADLINE);
        else
            assert_int_equal(pg_snapshot_query(pg, NULL, "SELECT pg_sleep(3600)", NULL, 0, DEADLINE_NONE, NULL, &err),
                             ST_DEADLINE);
        pthread_join(t, NULL);
        pg_snapshot_end(pg);
        assert_int_equal(pg_query(pg, NULL, "SELECT 1", NULL, 0, SOON, NULL, &err), ST_DEADLINE);
    }
    pg_heed(pg, NULL);
    assert_int_equal(count_rows(pg, "count"), 2);
    assert_int_equal(pg_backend_pid(pg), pid);
    pg_close(pg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_statements_share_one_snapshot, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_nothing_can_be_written, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_prepared_statement_is_gone, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_deadline_and_loss, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_flag_ends_a_copy, HARNESS_DB),
        HARNESS_TEST(test_flag, HARNESS_EMPTY_DB),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
