/* fake_store_test.c - the scripted store: what it answers, and what the real one behind it gets to see. */
#include "tests/harness/compare.h"
#include "tests/harness/fake_store.h"
#include "tests/harness/harness.h"

struct client {
    struct cfg_store cfg;
    struct store *store;
    struct store_conn *conn;
};

static void client_open(struct harness *h, struct fake_store *f, struct client *c, int timeout_ms)
{
    struct err err;

    c->cfg = *h->store_cfg;
    c->cfg.url = (char *)(uintptr_t)fake_store_url(f);
    c->cfg.request_timeout_ms = timeout_ms;
    assert_int_equal(store_new(&c->store, &c->cfg, &err), ST_OK);
    assert_int_equal(store_conn_new(&c->conn, c->store, h->store_id, &err), ST_OK);
}

static void client_close(struct client *c)
{
    store_conn_free(c->conn);
    store_free(c->store);
}

static enum status write_one(struct harness *h, struct client *c, const char *object, struct err *err)
{
    struct store_tuple t = {{object, "viewer", "user:anne"}, NULL, NULL};

    return store_write(c->conn, h->model_id, &t, 1, NULL, 0, deadline_in_ms(harness_ms(10000)), err);
}

static bool stored(struct harness *h, const char *object)
{
    struct tuple_key key = {object, "viewer", "user:anne"};
    struct err err;
    bool found = false;

    assert_int_equal(store_read_tuple(h->store_conn, &key, &found, NULL, deadline_in_ms(harness_ms(10000)), &err),
                     ST_OK);
    return found;
}

static void test_passes_to_the_real_store(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct client c;
    struct err err;
    char *body;

    client_open(h, f, &c, 10000);
    assert_int_equal(write_one(h, &c, "doc:1", &err), ST_OK);
    assert_true(stored(h, "doc:1"));
    assert_int_equal(fake_store_count(f, "/write"), 1);
    body = fake_store_body(f, "/write", 0);
    assert_non_null(strstr(body, "doc:1"));
    free(body);
    assert_null(fake_store_body(f, "/write", 1));
    client_close(&c);
    fake_store_stop(f);
}

static void test_answers_by_rule_then_passes(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct fake_rule busy = {.path = "/write",
                             .body = "doc:2",
                             .skip = 1,
                             .times = 1,
                             .action = FAKE_REPLY,
                             .status = 429,
                             .headers = "Retry-After: 7",
                             .reply = "{\"code\":\"rate_limit_exceeded\",\"message\":\"slow down\"}"};
    struct client c;
    struct err err;
    int rule;

    client_open(h, f, &c, 10000);
    rule = fake_store_rule(f, &busy);
    assert_int_equal(write_one(h, &c, "doc:1", &err), ST_OK);
    assert_int_equal(write_one(h, &c, "doc:2", &err), ST_OK); /* skipped once */
    assert_int_equal(write_one(h, &c, "doc:2", &err), ST_THROTTLED);
    assert_int_equal(err.retry_after_ms, 7000);
    assert_int_equal(write_one(h, &c, "doc:2", &err), ST_OK); /* used up */
    assert_int_equal(fake_store_used(f, rule), 1);
    fake_store_clear(f);
    assert_int_equal(fake_store_used(f, rule), 1);
    client_close(&c);
    fake_store_stop(f);
}

static void test_effect_without_answer(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct client c;
    struct err err;

    client_open(h, f, &c, 10000);
    fake_store_rule(f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_CUT_AFTER});
    assert_int_equal(write_one(h, &c, "doc:1", &err), ST_UNKNOWN);
    assert_true(stored(h, "doc:1"));
    fake_store_rule(f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_CUT});
    assert_int_not_equal(write_one(h, &c, "doc:2", &err), ST_OK);
    assert_false(stored(h, "doc:2"));
    fake_store_rule(
        f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_REPLY_AFTER, .status = 500, .reply = "{}"});
    assert_int_equal(write_one(h, &c, "doc:3", &err), ST_UNKNOWN);
    assert_true(stored(h, "doc:3"));
    client_close(&c);
    fake_store_stop(f);
}

static bool none_late(void *arg)
{
    return fake_store_late_pending(arg) == 0;
}

static void test_late_effect_after_the_sender_gave_up(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(h->store_url);
    struct client c;
    struct err err;

    client_open(h, f, &c, 300);
    fake_store_rule(f, &(struct fake_rule){.path = "/write", .times = 1, .action = FAKE_LATE, .delay_ms = 1000});
    assert_int_equal(write_one(h, &c, "doc:1", &err), ST_UNKNOWN);
    assert_int_equal(fake_store_late_pending(f), 1);
    assert_false(stored(h, "doc:1"));
    assert_eventually(none_late, f, 10000);
    assert_true(stored(h, "doc:1"));
    fake_store_rule(f, &(struct fake_rule){.path = "/write", .action = FAKE_HANG});
    assert_int_equal(write_one(h, &c, "doc:2", &err), ST_UNKNOWN);
    assert_false(stored(h, "doc:2"));
    client_close(&c);
    fake_store_stop(f);
}

static void test_without_a_real_store(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(NULL);
    struct client c;
    struct err err;

    client_open(h, f, &c, 10000);
    assert_int_equal(write_one(h, &c, "doc:1", &err), ST_UNKNOWN);
    fake_store_rule(f, &(struct fake_rule){.action = FAKE_REPLY, .status = 200, .reply = "{}"});
    assert_int_equal(write_one(h, &c, "doc:1", &err), ST_OK);
    client_close(&c);
    fake_store_stop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_passes_to_the_real_store, HARNESS_STORE),
        HARNESS_TEST(test_answers_by_rule_then_passes, HARNESS_STORE),
        HARNESS_TEST(test_effect_without_answer, HARNESS_STORE),
        HARNESS_TEST(test_late_effect_after_the_sender_gave_up, HARNESS_STORE),
        HARNESS_TEST(test_without_a_real_store, HARNESS_STORE),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
