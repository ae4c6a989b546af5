/* proto_test.c - the bytes of proto/relata.proto: what is on a topic or a subject today must be read for ever. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/relata.pb-c.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static char s_store[] = "default", s_object[] = "doc:1", s_relation[] = "viewer", s_subject[] = "user:anne",
            s_condition[] = "in_hours", s_context[] = "{}", s_actor[] = "me", s_model[] = "01M", s_nats[] = "relata.x";

/* Field numbers, wire types and values as first released. Never edit: add cases. */
static const uint8_t change_bytes[] = "\x0A\x07"
                                      "default"      /* 1 store */
                                      "\x10\xE8\x07" /* 2 id */
                                      "\x18\xD2\x09" /* 3 xid */
                                      "\x20\x02"     /* 4 op */
                                      "\x2A\x05"
                                      "doc:1" /* 5 object */
                                      "\x32\x06"
                                      "viewer" /* 6 relation */
                                      "\x3A\x09"
                                      "user:anne" /* 7 subject */
                                      "\x42\x08"
                                      "in_hours" /* 8 condition_name */
                                      "\x4A\x02"
                                      "{}" /* 9 condition_context */
                                      "\x52\x02"
                                      "me"                /* 10 actor */
                                      "\x58\x80\x89\x7A"; /* 11 created_at_us */

static const uint8_t changed_bytes[] = "\x0A\x07"
                                       "default"  /* 1 store */
                                       "\x10\x05" /* 2 writer_id */
                                       "\x18\x06" /* 3 epoch */
                                       "\x20\x07" /* 4 sequence */
                                       "\x2A\x03"
                                       "01M"      /* 5 model_id */
                                       "\x32\x21" /* 6 tuples */
                                       "\x0A\x05"
                                       "doc:1"
                                       "\x12\x06"
                                       "viewer"
                                       "\x1A\x09"
                                       "user:anne"    /* 1 object, 2 relation, 3 subject */
                                       "\x20\x01"     /* 4 present */
                                       "\x28\xE8\x07" /* 5 version */
                                       "\x30\x09";    /* 6 xid */

static const uint8_t heartbeat_bytes[] = "\x0A\x07"
                                         "default"  /* 1 store */
                                         "\x10\x05" /* 2 writer_id */
                                         "\x18\x06" /* 3 epoch */
                                         "\x22\x0C" /* 4 last */
                                         "\x0A\x08"
                                         "relata.x"
                                         "\x10\x07"; /* 1 subject, 2 sequence */

static void test_tuple_change_bytes(void **state)
{
    Relata__V1__TupleChange m;
    uint8_t out[200];

    (void)state;
    relata__v1__tuple_change__init(&m);
    m.store = s_store;
    m.id = 1000;
    m.xid = 1234;
    m.op = RELATA__V1__OP__OP_DELETE;
    m.object = s_object;
    m.relation = s_relation;
    m.subject = s_subject;
    m.condition_name = s_condition;
    m.condition_context = s_context;
    m.actor = s_actor;
    m.created_at_us = 2000000;
    assert_int_equal(relata__v1__tuple_change__get_packed_size(&m), sizeof change_bytes - 1);
    assert_int_equal(relata__v1__tuple_change__pack(&m, out), sizeof change_bytes - 1);
    assert_memory_equal(out, change_bytes, sizeof change_bytes - 1);
}

static void test_tuples_changed_bytes(void **state)
{
    Relata__V1__TupleState t;
    Relata__V1__TupleState *list[] = {&t};
    Relata__V1__TuplesChanged m;
    uint8_t out[200];

    (void)state;
    relata__v1__tuple_state__init(&t);
    relata__v1__tuples_changed__init(&m);
    t.object = s_object;
    t.relation = s_relation;
    t.subject = s_subject;
    t.present = 1;
    t.version = 1000;
    t.xid = 9;
    m.store = s_store;
    m.writer_id = 5;
    m.epoch = 6;
    m.sequence = 7;
    m.model_id = s_model;
    m.n_tuples = 1;
    m.tuples = list;
    assert_int_equal(relata__v1__tuples_changed__pack(&m, out), sizeof changed_bytes - 1);
    assert_memory_equal(out, changed_bytes, sizeof changed_bytes - 1);
}

static void test_heartbeat_bytes(void **state)
{
    Relata__V1__LastSequence l;
    Relata__V1__LastSequence *list[] = {&l};
    Relata__V1__Heartbeat m;
    uint8_t out[200];

    (void)state;
    relata__v1__last_sequence__init(&l);
    relata__v1__heartbeat__init(&m);
    l.subject = s_nats;
    l.sequence = 7;
    m.store = s_store;
    m.writer_id = 5;
    m.epoch = 6;
    m.n_last = 1;
    m.last = list;
    assert_int_equal(relata__v1__heartbeat__pack(&m, out), sizeof heartbeat_bytes - 1);
    assert_memory_equal(out, heartbeat_bytes, sizeof heartbeat_bytes - 1);
}

static void test_numbers_of_operations(void **state)
{
    (void)state;
    assert_int_equal(RELATA__V1__OP__OP_UNSPECIFIED, 0);
    assert_int_equal(RELATA__V1__OP__OP_WRITE, 1);
    assert_int_equal(RELATA__V1__OP__OP_DELETE, 2);
    assert_int_equal(RELATA__V1__OP__OP_TOUCH, 3);
}

/* A newer sender's fields are passed over, an older sender's missing ones are empty. */
static void test_unknown_and_missing_fields(void **state)
{
    uint8_t longer[sizeof change_bytes + 20];
    static const uint8_t later[] = "\xA2\x06\x03new\xA8\x06\x05"; /* 100: text, 101: number */
    Relata__V1__TupleChange *m;

    (void)state;
    memcpy(longer, later, sizeof later - 1);
    memcpy(longer + sizeof later - 1, change_bytes, sizeof change_bytes - 1);
    m = relata__v1__tuple_change__unpack(NULL, sizeof later - 1 + sizeof change_bytes - 1, longer);
    assert_non_null(m);
    assert_int_equal(m->id, 1000);
    assert_string_equal(m->subject, "user:anne");
    relata__v1__tuple_change__free_unpacked(m, NULL);

    m = relata__v1__tuple_change__unpack(NULL, 9, change_bytes);
    assert_non_null(m);
    assert_string_equal(m->store, "default");
    assert_string_equal(m->object, "");
    assert_string_equal(m->condition_name, "");
    assert_int_equal(m->op, RELATA__V1__OP__OP_UNSPECIFIED);
    relata__v1__tuple_change__free_unpacked(m, NULL);
}

static void test_broken_bytes_are_refused(void **state)
{
    static const char *const broken[] = {"\x0A\x07"
                                         "def",
                                         "\x10", "\xFF\xFF\xFF", "\x0B\x07"};

    (void)state;
    for (size_t i = 0; i < COUNT(broken); i++)
        assert_null(relata__v1__tuple_change__unpack(NULL, strlen(broken[i]), (const uint8_t *)broken[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tuple_change_bytes),
        cmocka_unit_test(test_tuples_changed_bytes),
        cmocka_unit_test(test_heartbeat_bytes),
        cmocka_unit_test(test_numbers_of_operations),
        cmocka_unit_test(test_unknown_and_missing_fields),
        cmocka_unit_test(test_broken_bytes_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
