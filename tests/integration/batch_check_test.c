/* BatchCheck against a real OpenFGA, and against a peer that misbehaves. */
#include "tests/harness/harness.h"

#include <stdlib.h>
#include <string.h>

#include "common/store/batch_check.h"
#include "tests/harness/fake_store.h"

static mono_us soon(void)
{
    return deadline_in_ms(harness_ms(15000));
}

static void grant(struct harness *h, const char *object, const char *subject)
{
    struct store_tuple t = {{object, "viewer", subject}, NULL, NULL};
    struct err err;
    assert_int_equal(store_write(h->store_conn, h->model_id, &t, 1, NULL, 0, soon(), &err), ST_OK);
}

static void test_L37_fifty_checks_and_bad_neighbours(void **state)
{
    struct harness *h = *state;
    struct store_check_item items[STORE_CHECK_MAX];
    char objects[STORE_CHECK_MAX][16];
    struct store_batch b = {.model_id = h->model_id, .subject = "user:anne", .items = items, .n = STORE_CHECK_MAX};
    struct err err = {0};

    memset(items, 0, sizeof(items));
    for (int i = 0; i < STORE_CHECK_MAX; i++) {
        (void)snprintf(objects[i], sizeof(objects[i]), "doc:%d",
                       i / 2); /* each twice: equal checks are answered alike */
        items[i].object = objects[i];
        items[i].relation = "viewer";
    }
    grant(h, "doc:0", "user:anne");
    grant(h, "doc:7", "user:anne");
    items[20].object = "doc:no such"; /* no tuple: its neighbours are decided all the same */
    items[21].relation = "no-such-relation";
    items[22].object = "nosuchtype:1";
    for (int higher = 0; higher < 2; higher++) {
        b.higher = higher;
        assert_int_equal(store_batch_check(h->store_conn, &b, soon(), &err), ST_OK);
        assert_int_equal(b.strange, 0);
        for (int i = 0; i < STORE_CHECK_MAX; i++) {
            if (i >= 20 && i <= 22) {
                assert_int_equal(items[i].status, ST_INVALID);
                assert_false(items[i].allowed);
                continue;
            }
            assert_int_equal(items[i].status, ST_OK);
            assert_int_equal(items[i].allowed, i / 2 == 0 || i / 2 == 7);
        }
    }
}

static void test_wrong_model_fails_the_call(void **state)
{
    struct harness *h = *state;
    struct store_check_item item = {.object = "doc:1", .relation = "viewer"};
    struct store_batch b = {.model_id = "01HVMMBCMGZNT3SED4Z17ECXCA", .subject = "user:anne", .items = &item, .n = 1};
    struct err err = {0};

    assert_int_equal(store_batch_check(h->store_conn, &b, soon(), &err), ST_MISSING);
    assert_int_equal(item.status, ST_MISSING);
    assert_false(item.allowed);
    assert_non_null(strstr(err.text, "BatchCheck"));
}

static void test_L34_nothing_to_ask_sends_nothing(void **state)
{
    struct harness *h = *state;
    struct fake_store *f = fake_store_start(NULL);
    struct cfg_store cfg = *h->store_cfg;
    struct store *s;
    struct store_conn *c;
    struct store_check_item items[2] = {{.object = "doc", .relation = "viewer"}, {.object = "doc:1", .relation = ""}};
    struct store_batch b = {.model_id = h->model_id, .subject = "user:anne", .items = items, .n = 0};
    struct err err = {0};
    char *headers;

    cfg.url = strdup(fake_store_url(f));
    assert_int_equal(store_new(&s, &cfg, &err), ST_OK);
    assert_int_equal(store_conn_new(&c, s, h->store_id, &err), ST_OK);
    assert_int_equal(store_batch_check(c, &b, soon(), &err), ST_OK);
    b.n = 2; /* none of them fit to be sent */
    assert_int_equal(store_batch_check(c, &b, soon(), &err), ST_OK);
    assert_int_equal(items[0].status, ST_INVALID);
    assert_int_equal(items[1].status, ST_INVALID);
    assert_int_equal(fake_store_count(f, NULL), 0);

    fake_store_rule(f, &(struct fake_rule){.path = "/batch-check",
                                           .action = FAKE_REPLY,
                                           .status = 200,
                                           .reply = "{\"result\":{\"0\":{\"allowed\":true}}}"});
    b.n = 1;
    items[0].object = "doc:1";
    b.traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert_int_equal(store_batch_check(c, &b, soon(), &err), ST_OK);
    assert_true(items[0].allowed);
    headers = fake_store_headers(f, "/batch-check", -1);
    assert_non_null(strcasestr(headers, "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
    free(headers);
    store_conn_free(c);
    store_free(s);
    free(cfg.url);
    fake_store_stop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_L37_fifty_checks_and_bad_neighbours, HARNESS_STORE),
        HARNESS_TEST(test_wrong_model_fails_the_call, HARNESS_STORE),
        HARNESS_TEST(test_L34_nothing_to_ask_sends_nothing, HARNESS_STORE),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
