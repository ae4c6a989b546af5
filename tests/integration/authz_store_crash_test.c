/*
 * authz_store_crash_test.c - authz-store's stores killed, frozen, cut off and doubled. This program is also the process
 * that is killed: with arguments it runs the stores and says on standard output what was acknowledged and seen.
 */
#include <signal.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/stop.h"
#include "tests/harness/proxy.h"
#include "tests/integration/authz_store_helpers.h"

#define LEASE_MS 400
#define THREADS 4
#define BATCH 5
#define STEPS 20000

/* ---- the process: `writer DSN STORE LEASE`, `reader ..` ---- */

struct child {
    struct stores *s;
    struct served *store;
    int number;
};

static void say(const char *what, int number, long long value)
{
    char line[64];
    int n = snprintf(line, sizeof line, "%s %d %lld\n", what, number, value);

    if (write(1, line, (size_t)n) != n)
        _exit(1);
}

static struct engine_change batch_change(char name[32], bool remove, int thread, long long step, int i)
{
    (void)snprintf(name, 32, "doc:%d-%lld-%d", thread, step, i);
    return authz_change(remove, name, "viewer", "user:a");
}

/* What there is of a step: 0 to BATCH tuples. */
static int step_size(struct served *store, int thread, long long step)
{
    char name[32];
    int n = 0;

    for (int i = 0; i < BATCH; i++) {
        (void)batch_change(name, false, thread, step, i);
        n += authz_has(store, name, "user:a");
    }
    return n;
}

/* Step n writes its tuples and removes those of the step before, in one. */
static enum status write_step(struct stores *s, struct served *store, int thread, long long step)
{
    char names[2 * BATCH][32];
    struct engine_change changes[2 * BATCH];
    size_t n = 0;

    for (int i = 0; i < BATCH; i++, n++)
        changes[n] = batch_change(names[n], false, thread, step, i);
    for (int i = 0; i < BATCH && step > 1; i++, n++)
        changes[n] = batch_change(names[n], true, thread, step - 1, i);
    struct job job = {.kind = JOB_WRITE, .store = store, .changes = changes, .nchanges = n};
    return authz_do(s, &job);
}

static void *child_write(void *arg)
{
    struct child *c = arg;
    long long step = 1;

    while (step_size(c->store, c->number, step) != BATCH && step < STEPS)
        step++;
    if (step == STEPS)
        step = 0;
    for (;;) {
        enum status st = write_step(c->s, c->store, c->number, step + 1);
        if (st == ST_OK)
            say("ack", c->number, ++step);
        else if (st == ST_UNKNOWN && step_size(c->store, c->number, step + 1) == BATCH)
            step++;
        else
            usleep(2000);
    }
    return NULL;
}

/* "seen 1 TIME": a decision that was begun at TIME (monotonic, the machine's) and found the tuple; "seen 0 TIME". */
static void *child_read(void *arg)
{
    struct child *c = arg;

    for (;; usleep(1000)) {
        mono_us began = clock_mono_us();
        if (stores_ready(c->s, NULL) == ST_OK)
            say("seen", authz_has(c->store, "doc:flag", "user:a"), began);
    }
    return NULL;
}

static int child_main(char **argv)
{
    struct cfg_stores cfg = authz_settings(argv[2], "child", (int)strtol(argv[4], NULL, 10));
    struct child c[THREADS];
    pthread_t thread;

    stop_init();
    log_init("child", LOG_LVL_DEBUG, LOG_FMT_LOGFMT);
    struct stores *s = authz_start(&cfg);
    authz_ready(s);
    for (int i = 0; i < THREADS; i++) {
        c[i] = (struct child){s, stores_get(s, argv[3]), i};
        if (!c[i].store || pthread_create(&thread, NULL, *argv[1] == 'w' ? child_write : child_read, &c[i]) != 0)
            return 1;
        if (*argv[1] != 'w')
            break;
    }
    say("ready", 0, 0);
    for (;;)
        pause();
}

static struct proc *child_start(struct harness *h, const char *what, const char *dsn, const char *store)
{
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);

    assert_true(n > 0);
    exe[n] = '\0';
    const char *const args[] = {what, dsn, store, harness_strf(h, "%d", LEASE_MS), NULL};
    return proc_startv(h, harness_strf(h, "%s", exe), args);
}

/* The last value that the child said of this, -1 if none. */
static long long last_said(struct proc *p, const char *what, int number)
{
    const char *log = proc_log(p);
    char key[32];
    long long value = -1;

    (void)snprintf(key, sizeof key, "%s %d ", what, number);
    for (const char *at = strstr(log, key); at; at = strstr(at + 1, key)) {
        char *end;
        long long v = strtoll(at + strlen(key), &end, 10);
        if (*end == '\n')
            value = v;
    }
    return value;
}

/* ---- the world of a test ---- */

/* Static in each test: threads outlive one that fails. */
struct world {
    struct harness *h;
    struct cfg_stores cfg;
    struct stores *s;
    struct served *store;
    const char *store_id;
};

static void begin_at(struct world *w, void **state, const char *dsn, int lease_ms)
{
    *w = (struct world){.h = *state};
    authz_migrate(w->h);
    w->cfg = authz_settings(dsn, "test", lease_ms);
    w->s = authz_start(&w->cfg);
    authz_ready(w->s);
    w->store = authz_store_new(w->s, "s");
    w->store_id = harness_strf(w->h, "%s", w->store->id);
}

static void begin(struct world *w, void **state)
{
    struct harness *h = *state;

    begin_at(w, state, h->dsn, LEASE_MS);
}

static void stop_own(struct world *w)
{
    stores_put(w->store);
    authz_stop(w->s);
    w->s = NULL;
    w->store = NULL;
}

static void start_own(struct world *w)
{
    w->s = authz_start(&w->cfg);
    authz_ready(w->s);
    w->store = stores_get(w->s, w->store_id);
    assert_non_null(w->store);
}

static void end(struct world *w)
{
    if (w->s)
        stop_own(w);
    authz_settings_free(&w->cfg);
    assert_authz_tables(w->h);
}

/* What stands in memory is what stands in the table. */
static void assert_memory_is_table(struct world *w)
{
    assert_int_equal(engine_size(w->store->engine).tuples,
                     harness_sql_int(w->h, "SELECT count(*) FROM relata_store.tuple"));
    struct pg_result *r = NULL;
    struct err err;
    assert_int_equal(pg_query(w->h->pg, NULL, "SELECT object, subject FROM relata_store.tuple", NULL, 0,
                              deadline_in_ms(30000), &r, &err),
                     ST_OK);
    for (int i = 0; i < pg_rows(r); i++)
        assert_true(authz_has(w->store, pg_text(r, i, 0), pg_text(r, i, 1)));
    pg_result_free(r);
}

/* Nothing acknowledged is lost, nothing is half: each thread stands at its last acknowledged step or the one after it.
 */
static void assert_steps(struct world *w, struct proc *p, long long acked[THREADS])
{
    for (int t = 0; t < THREADS; t++) {
        long long said = last_said(p, "ack", t);
        if (said > acked[t])
            acked[t] = said;
        const char *steps = harness_sql_text(
            w->h,
            harness_strf(w->h,
                         "SELECT string_agg(step || ':' || n, ' ') FROM (SELECT split_part(object, '-', 2) AS step, "
                         "count(*) AS n FROM relata_store.tuple WHERE object LIKE 'doc:%d-%%' GROUP BY 1) s",
                         t));
        const char *now = harness_strf(w->h, "%lld:%d", acked[t], BATCH),
                   *next = harness_strf(w->h, "%lld:%d", acked[t] + 1, BATCH);
        if (acked[t] == 0 && !*steps)
            continue;
        if (strcmp(steps, now) != 0 && strcmp(steps, next) != 0)
            fail_msg("thread %d was told of step %lld, the table holds \"%s\"", t, acked[t], steps);
        acked[t] = strtoll(steps, NULL, 10);
    }
}

/* ---- tests ---- */

static void test_killed_while_it_writes(void **state)
{
    static struct world w;
    long long acked[THREADS] = {0};
    unsigned seed = (unsigned)harness_seed();
    begin(&w, state);
    stop_own(&w);
    for (int i = 0; i < harness_soak(200); i++) {
        struct proc *p = child_start(w.h, "writer", w.h->dsn, w.store_id);
        assert_logged(p, "ack ", WAIT_MS);
        usleep((unsigned)rand_r(&seed) % 60000);
        proc_kill(p);
        harness_sql(w.h,
                    "BEGIN; SELECT 1 FROM relata_store.leader FOR UPDATE; COMMIT"); /* its last transaction has ended */
        assert_steps(&w, p, acked);
    }
    start_own(&w);
    assert_memory_is_table(&w);
    end(&w);
}

/* Postgres is killed and comes back: writes are refused or of unknown outcome meanwhile, and go on. */
static void test_postgres_crashes(void **state)
{
    static struct world w;
    long long acked[THREADS] = {0};
    begin(&w, state);
    stop_own(&w);
    struct proc *p = child_start(w.h, "writer", w.h->dsn, w.store_id);
    for (int i = 0; i < 3; i++) {
        long long before = last_said(p, "ack", 0);
        while (last_said(p, "ack", 0) < before + 20)
            usleep(5000);
        harness_service(w.h, i == 1 ? "restart" : "kill", "postgres");
        if (i != 1)
            harness_service(w.h, "start", "postgres");
    }
    long long before = last_said(p, "ack", 0);
    mono_us give_up = deadline_in_ms(harness_ms(WAIT_MS));
    while (last_said(p, "ack", 0) < before + 20 && clock_mono_us() < give_up)
        usleep(5000);
    assert_true(last_said(p, "ack", 0) >= before + 20);
    proc_kill(p);
    pg_close(w.h->pg);
    w.h->pg = harness_connect(w.h, NULL);
    harness_sql(w.h, "BEGIN; SELECT 1 FROM relata_store.leader FOR UPDATE; COMMIT");
    assert_steps(&w, p, acked);
    start_own(&w);
    assert_memory_is_table(&w);
    end(&w);
}

/* Begins with a store behind a proxy: its statements are prepared, and no sign of life is due for a second. */
static struct proxy *begin_proxied(struct world *w, void **state)
{
    struct harness *h = *state;
    const char *port = harness_sql_text(h, "SELECT current_setting('port')");
    struct proxy *p = proxy_start(harness_strf(h, "127.0.0.1:%s", port));

    assert_non_null(p);
    begin_at(w, state, harness_dsn(h, NULL, proxy_address(p), NULL), 4000);
    assert_int_equal(authz_write(w->s, w->store, "doc:0", "user:a"), ST_OK);
    return p;
}

static bool all_is_held(void *arg)
{
    struct proxy *p = arg;
    return proxy_held(p) > 300;
}

static bool two_more(void *arg)
{
    return harness_sql_int(arg, "SELECT count(*) FROM relata_store.change") == 3;
}

static bool authz_is_unready(void *s)
{
    return stores_ready(s, NULL) == ST_RETRY;
}

static void submit_pair(struct world *w, struct engine_change changes[2], struct job *job, struct authz_wait *wait)
{
    changes[0] = authz_change(false, "doc:1", "viewer", "user:a");
    changes[1] = authz_change(false, "doc:2", "viewer", "user:a");
    *job = (struct job){.kind = JOB_WRITE, .store = w->store, .changes = changes, .nchanges = 2};
    authz_submit(w->s, job, wait);
}

/* The commit is done and its answer lost: Postgres is asked, and the write was done. */
static void test_the_answer_to_a_commit_is_lost(void **state)
{
    static struct world w;
    struct engine_change changes[2];
    struct authz_wait wait;
    struct job job;
    struct proxy *p = begin_proxied(&w, state);
    proxy_drop(p, PROXY_DOWN);
    submit_pair(&w, changes, &job, &wait);
    assert_eventually(two_more, w.h, WAIT_MS);
    proxy_cut(p);
    proxy_pass(p);
    assert_int_equal(authz_await(&job, &wait), ST_OK);
    assert_true(authz_has(w.store, "doc:1", "user:a") && authz_has(w.store, "doc:2", "user:a"));
    assert_int_equal(authz_write(w.s, w.store, "doc:3", "user:a"), ST_OK);
    end(&w);
    proxy_stop(p);
}

/* The transaction never got there: it was not done, and can be sent again. */
static void test_the_transaction_is_lost(void **state)
{
    static struct world w;
    struct engine_change changes[2];
    struct authz_wait wait;
    struct job job;
    struct proxy *p = begin_proxied(&w, state);
    proxy_freeze(p, PROXY_UP);
    submit_pair(&w, changes, &job, &wait);
    assert_eventually(all_is_held, p, WAIT_MS);
    proxy_cut(p);
    proxy_pass(p);
    assert_int_equal(authz_await(&job, &wait), ST_RETRY);
    assert_false(authz_has(w.store, "doc:1", "user:a"));
    submit_pair(&w, changes, &job, &wait);
    assert_int_equal(authz_await(&job, &wait), ST_OK);
    end(&w);
    proxy_stop(p);
}

/* The transaction arrives long after its sender has made another connection: its epoch is over by then. */
static void test_a_late_transaction_changes_nothing(void **state)
{
    static struct world w;
    struct engine_change changes[2];
    struct authz_wait wait;
    struct job job;
    struct proxy *p = begin_proxied(&w, state);
    proxy_late(p, harness_ms(1500));
    submit_pair(&w, changes, &job, &wait);
    assert_eventually(all_is_held, p, WAIT_MS);
    proxy_cut(p);
    proxy_pass(p);
    assert_int_equal(authz_await(&job, &wait), ST_RETRY);
    int64_t epoch = harness_sql_int(w.h, "SELECT epoch FROM relata_store.leader");
    assert_true(epoch >= 2);
    usleep((unsigned)harness_ms(2500) * 1000);
    assert_int_equal(harness_sql_int(w.h, "SELECT count(*) FROM relata_store.change"), 1);
    end(&w);
    proxy_stop(p);
}

/* Postgres cannot be asked for longer than unknown_after: that is said; what became of it is known later, in memory
 * too. */
static void test_an_outcome_that_cannot_be_known_in_time(void **state)
{
    static struct world w;
    struct engine_change changes[2];
    struct authz_wait wait;
    struct job job;
    struct proxy *p = begin_proxied(&w, state);
    w.cfg.unknown_after_ms = 300;
    proxy_drop(p, PROXY_DOWN);
    submit_pair(&w, changes, &job, &wait);
    assert_eventually(two_more, w.h, WAIT_MS);
    proxy_refuse(p, true);
    proxy_cut(p);
    assert_int_equal(authz_await(&job, &wait), ST_UNKNOWN);
    assert_int_equal(authz_write(w.s, w.store, "doc:3", "user:a"), ST_RETRY);
    assert_eventually(authz_is_unready, w.s, WAIT_MS); /* another one may be active by now */
    proxy_pass(p);
    proxy_refuse(p, false);
    authz_ready(w.s);
    assert_true(authz_has(w.store, "doc:1", "user:a") && authz_has(w.store, "doc:2", "user:a"));
    assert_memory_is_table(&w);
    end(&w);
    proxy_stop(p);
}

static void test_a_second_one_takes_over(void **state)
{
    static struct world w;
    struct err err;
    begin(&w, state);
    struct cfg_stores cfg = authz_settings(w.h->dsn, "second", LEASE_MS);
    struct stores *second = authz_start(&cfg);
    for (int i = 0; i < 30; i++)
        assert_int_equal(authz_write(w.s, w.store, harness_strf(w.h, "doc:%d", i), "user:a"), ST_OK);
    struct served *third = authz_store_new(w.s, "third");
    assert_int_equal(authz_write(w.s, third, "doc:1", "user:a"), ST_OK);
    stores_put(third);
    assert_int_equal(stores_ready(second, &err), ST_RETRY);
    struct engine_change c = authz_change(false, "doc:x", "viewer", "user:a");
    struct job job = {.kind = JOB_WRITE, .store = w.store, .changes = &c, .nchanges = 1};
    assert_int_equal(authz_do(second, &job), ST_RETRY);
    stop_own(&w); /* gives the lease back */
    authz_ready(second);
    w.store = stores_get(second, w.store_id);
    w.s = second;
    assert_int_equal(engine_size(w.store->engine).tuples, 30);
    assert_int_equal(authz_write(w.s, w.store, "doc:30", "user:a"), ST_OK);
    struct served *all[4];
    assert_int_equal(stores_list(w.s, NULL, NULL, all, 4), 2);
    stores_put(all[0]);
    stores_put(all[1]);
    assert_int_equal(harness_sql_int(w.h, "SELECT count(*) FROM relata_store.takeover"), 2);
    end(&w);
    authz_settings_free(&cfg);
}

/* It is frozen while it answers and while it writes; another one takes over; then it goes on. */
static void test_a_frozen_one_neither_answers_nor_writes(void **state)
{
    static struct world w;
    begin(&w, state);
    stop_own(&w);
    struct proc *reader = child_start(w.h, "reader", w.h->dsn, w.store_id);
    assert_logged(reader, "seen 0", WAIT_MS);
    proc_freeze(reader);
    start_own(&w);
    assert_int_equal(authz_write(w.s, w.store, "doc:flag", "user:a"), ST_OK);
    mono_us written = clock_mono_us();
    proc_continue(reader);
    assert_logged(reader, "standing by", WAIT_MS);
    assert_true(last_said(reader, "seen", 0) < written);
    assert_int_equal(last_said(reader, "seen", 1), -1);
    stop_own(&w);
    assert_logged(reader, "seen 1", WAIT_MS); /* its turn again, with what was written meanwhile */
    assert_true(last_said(reader, "seen", 0) < written);
    proc_kill(reader);

    struct proc *writer = child_start(w.h, "writer", w.h->dsn, w.store_id);
    long long acked[THREADS] = {0};
    while (last_said(writer, "ack", 0) < 10)
        usleep(5000);
    proc_freeze(writer);
    start_own(&w);
    assert_steps(&w, writer, acked);
    int64_t changes = harness_sql_int(w.h, "SELECT count(*) FROM relata_store.change");
    proc_continue(writer);
    assert_logged(writer, "another process has taken over", WAIT_MS);
    assert_logged(writer, "standing by", WAIT_MS);
    assert_int_equal(harness_sql_int(w.h, "SELECT count(*) FROM relata_store.change"), changes);
    assert_memory_is_table(&w);
    proc_kill(writer);
    end(&w);
}

static bool is_reloaded(void *arg)
{
    struct world *w = arg;
    struct served *store = stores_ready(w->s, NULL) == ST_OK ? stores_get(w->s, w->store_id) : NULL;
    bool gone = store && !authz_has(store, "doc:2", "user:a") && authz_has(store, "doc:1", "user:a");

    stores_put(store);
    return gone;
}

/* As if a backup had been restored under it. */
static void test_postgres_is_set_back(void **state)
{
    static struct world w;
    begin(&w, state);
    assert_int_equal(authz_write(w.s, w.store, "doc:1", "user:a"), ST_OK);
    int64_t then = harness_sql_int(w.h, "SELECT max(id) FROM relata_store.change");
    assert_int_equal(authz_write(w.s, w.store, "doc:2", "user:a"), ST_OK);
    harness_sqlf(
        w.h,
        "BEGIN; DELETE FROM relata_store.tuple WHERE object = 'doc:2'; DELETE FROM relata_store.change WHERE id > "
        "%lld; UPDATE relata_store.leader SET last_id = %lld; COMMIT; SELECT pg_terminate_backend(pid) FROM "
        "pg_stat_activity WHERE application_name LIKE 'authz-store%%' AND datname = current_database()",
        (long long)then, (long long)then);
    assert_eventually(is_reloaded, &w, WAIT_MS);
    stores_put(w.store);
    w.store = stores_get(w.s, w.store_id);
    assert_int_equal(authz_write(w.s, w.store, "doc:3", "user:a"), ST_OK);
    assert_memory_is_table(&w);
    end(&w);
}

/* Both are killed and started in turn: whoever is active has all that was acknowledged. */
static void test_two_take_turns(void **state)
{
    static struct world w;
    long long acked[THREADS] = {0};
    struct proc *p[2];
    begin(&w, state);
    stop_own(&w);
    for (int i = 0; i < 2; i++)
        p[i] = child_start(w.h, "writer", w.h->dsn, w.store_id);
    for (int i = 0; i < harness_soak(40); i++) {
        mono_us give_up = deadline_in_ms(harness_ms(WAIT_MS));
        while (last_said(p[0], "ack", 0) <= 0 && last_said(p[1], "ack", 0) <= 0 && clock_mono_us() < give_up)
            usleep(5000);
        int active = last_said(p[0], "ack", 0) > 0 ? 0 : 1;
        proc_kill(p[active]);
        harness_sql(w.h, "BEGIN; SELECT 1 FROM relata_store.leader FOR UPDATE; COMMIT");
        for (int t = 0; t < THREADS; t++) {
            long long said = last_said(p[active], "ack", t);
            if (said > acked[t])
                acked[t] = said;
            long long stands = harness_sql_int(
                w.h, harness_strf(w.h,
                                  "SELECT coalesce(max(split_part(object, '-', 2)::bigint), 0) FROM relata_store.tuple "
                                  "WHERE object LIKE 'doc:%d-%%'",
                                  t));
            assert_true(stands >= acked[t]);
        }
        p[active] = child_start(w.h, "writer", w.h->dsn, w.store_id);
    }
    proc_kill(p[0]);
    proc_kill(p[1]);
    start_own(&w);
    assert_memory_is_table(&w);
    end(&w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_killed_while_it_writes, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_postgres_crashes, HARNESS_EMPTY_DB | HARNESS_OWN_PG),
        HARNESS_TEST(test_the_answer_to_a_commit_is_lost, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_the_transaction_is_lost, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_a_late_transaction_changes_nothing, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_an_outcome_that_cannot_be_known_in_time, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_a_second_one_takes_over, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_a_frozen_one_neither_answers_nor_writes, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_postgres_is_set_back, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_two_take_turns, HARNESS_EMPTY_DB),
    };

    return argc == 5 ? child_main(argv) : cmocka_run_group_tests(tests, NULL, NULL);
}
