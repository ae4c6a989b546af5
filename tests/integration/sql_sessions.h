/*
 * sql_sessions.h - several database sessions in one test, to force an order of events: a statement can be left waiting
 * for a lock while others go on.
 *
 * A session is one connection with one thread. Functions that take a session fail the test if they do not succeed.
 */
#ifndef RELATA_TESTS_SQL_SESSIONS_H
#define RELATA_TESTS_SQL_SESSIONS_H

#include <pthread.h>

#include "tests/harness/harness.h"

#define SESSION_MS 1800000 /* the longest statement, not a wait */

struct session {
    struct harness *h;
    struct pg *pg;
    int pid;
    pthread_t thread;
    bool running;
    char *sql;
    /* What the last statement gave; read it after session_end. */
    enum status status;
    struct err err;
    char value[512]; /* first column of the first row */
    int64_t rows;    /* affected */
};

static inline struct session session_open(struct harness *h)
{
    struct pg *pg = harness_connect(h, NULL);
    return (struct session){.h = h, .pg = pg, .pid = pg_backend_pid(pg)};
}

static inline void *session_thread(void *arg)
{
    struct session *s = arg;
    struct pg_result *r = NULL;

    s->status = pg_query(s->pg, NULL, s->sql, NULL, 0, deadline_in_ms(harness_ms(SESSION_MS)), &r, &s->err);
    s->value[0] = '\0';
    s->rows = 0;
    if (s->status == ST_OK) {
        s->rows = pg_affected(r);
        if (pg_rows(r) > 0)
            (void)snprintf(s->value, sizeof s->value, "%s", pg_text(r, 0, 0));
    } else {
        (void)snprintf(s->value, sizeof s->value, "%s", s->err.code);
    }
    pg_result_free(r);
    return NULL;
}

/* Starts one statement and does not wait for its end. */
static inline void session_begin(struct session *s, const char *sql)
{
    assert_false(s->running);
    s->sql = strdup(sql);
    s->running = true;
    s->err = (struct err){0};
    assert_int_equal(pthread_create(&s->thread, NULL, session_thread, s), 0);
}

/* Waits for its end; returns its first value, or the SQLSTATE if it failed. */
static inline const char *session_end(struct session *s)
{
    assert_true(s->running);
    assert_int_equal(pthread_join(s->thread, NULL), 0);
    s->running = false;
    free(s->sql);
    s->sql = NULL;
    return s->value;
}

/* A statement that must succeed; returns its first value. */
static inline const char *session_run(struct session *s, const char *sql)
{
    session_begin(s, sql);
    (void)session_end(s);
    if (s->status != ST_OK)
        fail_msg("%s: %s\n%s", s->err.code, s->err.text, sql);
    return s->value;
}

/* A statement that must fail with this SQLSTATE. */
static inline void session_fails(struct session *s, const char *sql, const char *sqlstate)
{
    session_begin(s, sql);
    (void)session_end(s);
    if (s->status == ST_OK || strcmp(s->err.code, sqlstate) != 0)
        fail_msg("\"%s\" (%s) instead of %s: %s", s->value, s->err.text, sqlstate, sql);
}

/* Until the statement that was begun waits for a lock. */
static inline void session_waits(struct session *s)
{
    const char *sql = harness_strf(s->h,
                                   "SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND state = 'active' AND "
                                   "wait_event_type = 'Lock' AND cardinality(pg_blocking_pids(pid)) > 0",
                                   s->pid);
    assert_sql_eventually(s->h, sql, "1", 10000);
}

static inline void session_close(struct session *s)
{
    if (s->running)
        (void)session_end(s);
    pg_close(s->pg);
    s->pg = NULL;
}

/* "op object relation subject" lines of the outbox in id order, separated by ", ". */
static inline const char *outbox_ops(struct harness *h)
{
    return harness_sql_text(h,
                            "SELECT coalesce(string_agg(op || ' ' || object || '#' || relation || '@' || subject, ', ' "
                            "ORDER BY id), '') FROM relata.outbox");
}

/* Present tuples, sorted. */
static inline const char *ledger_present(struct harness *h)
{
    return harness_sql_text(h,
                            "SELECT coalesce(string_agg(object || '#' || relation || '@' || subject || "
                            "coalesce('{' || condition_name || '}', ''), ', ' ORDER BY object, relation, subject), '') "
                            "FROM relata.tuple WHERE present");
}

/* As if a writer had applied everything. */
static inline void apply_all(struct harness *h)
{
    harness_sql(h, "DELETE FROM relata.outbox");
}

#endif
