/* drift_parts_test.c - parts of the drift-checker that need no server: caps, plans, condition contexts. */
#include <stdio.h>
#include <string.h>

#include "drift-checker/compare/internal.h"
#include "drift-checker/repair/repair.h"
#include "tests/harness/harness.h"

static int64_t cap(const char *text, int64_t tuples)
{
    struct cap c;
    struct err err = {0};

    if (cap_parse(text, &c, &err) != ST_OK)
        fail_msg("%s: %s", text, err.text);
    return cap_of(&c, tuples);
}

static void test_D04_caps(void **state)
{
    static const char *const bad[] = {"", "x", "1,2", "1%,2%", "101%", "-1", "1.5", "1%%", "1,", ",1", "1,1%,3", "1e3"};
    struct cap c;

    (void)state;
    assert_int_equal(cap("48", 49), 48);
    assert_int_equal(cap("1000,1%", 13440), 134);
    assert_int_equal(cap("1%, 100", 1000000), 100);
    assert_int_equal(cap("0.1%", 13440), 13);
    assert_int_equal(cap("0.1%", 10), 1); /* at least one */
    assert_int_equal(cap("0%", 1000), 0);
    assert_int_equal(cap("0", 1000), 0);
    assert_int_equal(cap("100%", 7), 7);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (cap_parse(bad[i], &c, NULL) != ST_CONFIG)
            fail_msg("\"%s\" was taken", bad[i]);
    }
}

#define HEADER                                                                                                         \
    "{\"plan\":1,\"store\":\"default\",\"store_id\":\"S\",\"model_id\":\"M\",\"sources\":[\"public.shares\"],\"made_"  \
    "at\":\"2026-12-01T00:00:00Z\","                                                                                   \
    "\"run\":7,"                                                                                                       \
    "\"repairs\":%d,\"deletions\":0}\n"
#define SIDES ",\"expected\":{\"condition\":\"c\",\"context\":null},\"ledger\":null,\"observed\":null"
#define REPAIR                                                                                                         \
    "{\"object\":\"doc:1\",\"relation\":\"viewer\",\"subject\":\"user:a\",\"cause\":\"lost\",\"action\":\"touch\","    \
    "\"expected_known\":true,\"version\":5" SIDES "}\n"

static enum status parse(const char *text, struct plan *plan)
{
    return plan_parse((struct bytes){text, strlen(text)}, plan, NULL);
}

static void test_plans(void **state)
{
    static const char *const bad_lines[] = {
        "{}",
        "[]",
        "x",
        "{\"object\":\"doc\",\"relation\":\"viewer\",\"subject\":\"user:a\",\"cause\":\"lost\",\"action\":\"touch\","
        "\"expected_known\":true,\"version\":5" SIDES "}",
        "{\"object\":\"doc:1\",\"relation\":\"viewer\",\"subject\":\"user:a\",\"cause\":\"tired\",\"action\":\"touch\","
        "\"expected_known\":true,\"version\":5" SIDES "}",
        "{\"object\":\"doc:1\",\"relation\":\"viewer\",\"subject\":\"user:a\",\"cause\":\"lost\",\"action\":\"drop\","
        "\"expected_known\":true,\"version\":5" SIDES "}",
        "{\"object\":\"doc:1\",\"relation\":\"viewer\",\"subject\":\"user:a\",\"cause\":\"lost\",\"action\":\"touch\","
        "\"expected_known\":true,\"version\":5" SIDES ",\"more\":1}",
        "{\"object\":\"doc:1\",\"relation\":\"viewer\",\"subject\":\"user:a\",\"cause\":\"lost\",\"action\":\"none\","
        "\"expected_known\":true,\"version\":5" SIDES "}",
        "{\"object\":\"doc:1\",\"relation\":\"viewer\",\"subject\":\"user:a\",\"cause\":\"lost\",\"action\":\"touch\","
        "\"expected_known\":true,\"version\":5,\"expected\":{\"condition\":5,\"context\":null},\"ledger\":null,"
        "\"observed\":null}",
    };
    char text[2048];
    struct plan plan;

    (void)state;
    snprintf(text, sizeof text, HEADER REPAIR, 1);
    assert_int_equal(parse(text, &plan), ST_OK);
    assert_int_equal(plan.len, 1);
    assert_string_equal(plan.store_id, "S");
    assert_string_equal(plan.items[0].key->object, "doc:1");
    assert_int_equal(plan.items[0].cause, CAUSE_LOST);
    assert_int_equal(plan.items[0].version, 5);
    assert_string_equal(plan.items[0].expected.condition, "c");
    assert_false(plan.items[0].ledger.present);
    assert_string_equal(plan.sources[0], "public.shares");
    plan_free(&plan);
    snprintf(text, sizeof text, HEADER, 0);
    assert_int_equal(parse(text, &plan), ST_OK);
    plan_free(&plan);

    assert_int_equal(parse("", &plan), ST_CONFIG);
    assert_int_equal(parse(REPAIR, &plan), ST_CONFIG);
    snprintf(text, sizeof text, HEADER REPAIR, 2); /* a line was lost */
    assert_int_equal(parse(text, &plan), ST_CONFIG);
    snprintf(text, sizeof text, HEADER REPAIR REPAIR, 1); /* one was added */
    assert_int_equal(parse(text, &plan), ST_CONFIG);
    for (size_t i = 0; i < sizeof bad_lines / sizeof *bad_lines; i++) {
        snprintf(text, sizeof text, HEADER "%s\n", 1, bad_lines[i]);
        if (parse(text, &plan) != ST_CONFIG)
            fail_msg("%s was taken", bad_lines[i]);
    }
}

/* Bytes as OpenFGA 1.22 stores them. */
static void test_D29_contexts_of_openfga(void **state)
{
    static const struct {
        const char *hex, *json;
    } cases[] = {
        {"", "{}"},
        {"0a110a0466726f6d120911000000000000f03f", "{\"from\": 1}"},
        {"0a0b0a046e616d6512031a0161", "{\"name\": \"a\"}"},
        {"0a090a04626f6f6c12012001", NULL}, /* a length that is not */
        {"0a070a016212022001", "{\"b\": true}"},
        {"0a070a016e12020800", "{\"n\": null}"},
        {"0a0c0a016c120732050a031a0178", "{\"l\": [\"x\"]}"},
        {"zz", NULL},
        {"0a", NULL},
    };
    struct buf out;

    (void)state;
    buf_init(&out, 4096);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool fine;

        buf_clear(&out);
        fine = context_decode(cases[i].hex, &out);
        if (cases[i].json && (!fine || !store_context_equal(buf_str(&out), cases[i].json)))
            fail_msg("%s: %s, not %s", cases[i].hex, fine ? buf_str(&out) : "nothing", cases[i].json);
        if (!cases[i].json)
            assert_false(fine);
    }
    buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_D04_caps),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_D29_contexts_of_openfga),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
