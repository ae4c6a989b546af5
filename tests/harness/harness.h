/*
 * harness.h - one integration test's world: its own database, store, topic and subjects on real servers.
 *
 *   static void test_W05_something(void **state) { struct harness *h = *state; ... }
 *   const struct CMUnitTest tests[] = {HARNESS_TEST(test_W05_something, HARNESS_DB | HARNESS_STORE)};
 *   return cmocka_run_group_tests(tests, NULL, NULL);
 *
 * The servers are those of the environment (SERVICES_*, see scripts/services; scripts/test starts them), shared with
 * the tests that run at the same time: they must not be stopped or frozen. A test that needs that asks for private ones
 * (HARNESS_OWN_*): started under its own folder, ended with it.
 *
 * Every function here fails the running test with a clear message when the world does not do as it is told, so callers
 * need not check. Main thread only. Strings belong to the harness. Nothing of a test remains: processes are killed, the
 * database, its slots and roles' sessions dropped.
 */
#ifndef RELATA_TESTS_HARNESS_H
#define RELATA_TESTS_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* It does not return, which cmocka.h does not say: fail_msg() ends a test for compilers and analyzers too. */
void _fail(const char *file, int line) __attribute__((noreturn));

#include "common/base/clock.h"
#include "common/pg/pg.h"
#include "common/store/store.h"

enum harness_part {
    HARNESS_DB = 1,    /* a database with the migrations applied; h->pg is connected to it as superuser */
    HARNESS_STORE = 2, /* a store with harness_model in it; with HARNESS_DB it is pinned in relata.store */
    HARNESS_KAFKA = 4, /* a broker; h->topic is a fresh name (nothing is created) */
    HARNESS_NATS = 8,
    HARNESS_OWN_PG = 16,      /* private servers, which harness_service may stop, kill, freeze, restart */
    HARNESS_OWN_OPENFGA = 32, /* on private Postgres with HARNESS_OWN_PG, else in memory */
    HARNESS_OWN_NATS = 64,
    HARNESS_OWN_KAFKA = 128,
    HARNESS_EMPTY_DB = 256, /* like HARNESS_DB, but without migrations */
};

/* Settings of a test; `options` go to scripts/services for the private servers. */
struct harness_spec {
    const char *name;
    unsigned parts;
    const char *const *options; /* NULL, or ended by NULL: "--fsync=on", "--kafka-disk=64M", "--pg-set=.." */
};

#define HARNESS_TEST(f, parts)                                                                                         \
    cmocka_unit_test_prestate_setup_teardown(f, harness_setup, harness_teardown,                                       \
                                             &((struct harness_spec){#f, parts, NULL}))
#define HARNESS_TEST_OPTIONS(f, parts, options)                                                                        \
    cmocka_unit_test_prestate_setup_teardown(f, harness_setup, harness_teardown,                                       \
                                             &((struct harness_spec){#f, parts, options}))

struct harness {
    const char *name; /* the test's */
    const char *dir;  /* its folder: logs, private servers; kept when it fails */
    const char *id;   /* a word unique to this test run, [a-z0-9_] */

    const char *dsn;      /* the test's database, superuser, TCP */
    const char *pg_admin; /* database "postgres" of the same server */
    struct pg *pg;        /* to dsn */

    const char *store_name; /* "default": its name in relata.store and outbox rows */
    const char *store_url;
    const char *store_id;
    const char *model_id;
    struct cfg_store *store_cfg;
    struct store *store;
    struct store_conn *store_conn;

    const char *nats_url;
    const char *brokers;
    const char *topic;

    struct harness_private *private;
};

/* cmocka's setup and teardown. The teardown also fails the test if a program's log shows a sanitizer's report. */
int harness_setup(void **state);
int harness_teardown(void **state);

/* A model with direct, computed and inherited relations, usersets, wildcards and a condition. Types: user, team
 * (member: user, team#member), folder (owner, editor, viewer: user, team#member, user:*, user with in_hours; parent:
 * folder), doc (the same; parent: folder; blocked: user). */
extern const char harness_model[];

/* ---- SQL, on h->pg, bounded by 30 s ---- */
/* Any statements. Tables are named in full (public.x): the search path is pg_catalog alone. */
void harness_sql(struct harness *h, const char *sql);
void harness_sqlf(struct harness *h, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* First column of the first row, "" if there is none or NULL. Valid until the test ends. */
const char *harness_sql_text(struct harness *h, const char *sql);
int64_t harness_sql_int(struct harness *h, const char *sql);
/* After synchronous_standby_names was set to one that does not exist: wait until commits wait for it, which they do
 * when the checkpointer, too, has read the setting. */
void harness_commits_wait(struct harness *h);
/* Another connection to the test's database; NULL dsn = h->dsn. Close it with pg_close. */
struct pg *harness_connect(struct harness *h, const char *dsn);
/* The DSN of the test's database with another user, host:port (e.g. of a proxy) or database; NULL = unchanged. */
const char *harness_dsn(struct harness *h, const char *user, const char *host_port, const char *database);
/* Apply migrations/ to the database behind `dsn`. */
void harness_migrate(const char *dsn);
/* Record store and model in relata.store as the ones in force. */
void harness_pin(struct harness *h, const char *store_id, const char *model_id);

/* ---- store ---- */
/* Another store on the same server, with the given model (NULL = harness_model). Results are valid until the test
 * ends; either may be NULL. */
void harness_store_new(struct harness *h, const char *model, const char **store_id, const char **model_id);
const char *harness_model_write(struct harness *h, const char *model_json);

/* ---- private servers ---- */
/* verb: stop, kill, freeze, continue, restart, start; name: postgres, openfga, nats, kafka. */
void harness_service(struct harness *h, const char *verb, const char *name);
/* The server's process id. */
int harness_service_pid(struct harness *h, const char *name);

/* ---- waiting ---- */
/* Polls `cond` (first at once, then every few ms) until it holds; false after `timeout_ms`, which is stretched under
 * sanitizers. */
bool eventually(bool (*cond)(void *arg), void *arg, int timeout_ms);
#define assert_eventually(cond, arg, timeout_ms)                                                                       \
    do {                                                                                                               \
        if (!eventually((cond), (arg), (timeout_ms)))                                                                  \
            fail_msg("%s did not hold within %d ms", #cond, (timeout_ms));                                             \
    } while (0)
/* Until the query's first value equals `want`; shows the last value if not. */
void assert_sql_eventually(struct harness *h, const char *sql, const char *want, int timeout_ms);
/* `ms`, stretched under sanitizers (they make programs several times slower). */
int harness_ms(int ms);

/* printf into memory of the test, valid until it ends. */
const char *harness_strf(struct harness *h, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A seed for random tests: $RELATA_SEED if set; else a new one when soaking, and always the same one when not: `make
 * test` repeats itself, `make soak` explores. Printed, so that a failure can be repeated. */
uint64_t harness_seed(void);
/* `count` at full size with RELATA_SOAK=1 (make soak), else a tenth of it, at least 1. */
int harness_soak(int count);

#endif
