/* outbox-relay: rows as messages, snapshots' text, and "have the writers read it all?" */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "outbox-relay/db.h"
#include "outbox-relay/message.h"
#include "outbox-relay/resend.h"
#include "proto/relata.pb-c.h"

static struct outbox_row sample(void)
{
    return (struct outbox_row){.id = 7,
                               .xid = UINT64_C(1) << 40,
                               .created_at_us = 1767225600250000,
                               .store = "default",
                               .op = "delete",
                               .object = "doc:a|b",
                               .relation = "viewer",
                               .subject = "team:x#member",
                               .condition_name = "in_hours",
                               .condition_context = "{\"tz\": \"UTC\"}",
                               .actor = "anne"};
}

static const struct kafka_header *header(const struct message *m, const char *name)
{
    for (size_t i = 0; i < m->nheaders; i++)
        if (strcmp(m->headers[i].name, name) == 0)
            return &m->headers[i];
    return NULL;
}

static void test_a_row_as_a_message(void **state)
{
    (void)state;
    struct message m;
    struct err err;
    struct outbox_row row = sample();
    message_init(&m);
    assert_int_equal(message_encode(&m, &row, &err), ST_OK);
    assert_string_equal(buf_str(&m.key), "default|doc:a|b");
    Relata__V1__TupleChange *c = relata__v1__tuple_change__unpack(NULL, m.payload.len, (const uint8_t *)m.payload.data);
    assert_non_null(c);
    assert_true(c->id == 7 && c->xid == UINT64_C(1) << 40 && c->created_at_us == 1767225600250000);
    assert_int_equal(c->op, RELATA__V1__OP__OP_DELETE);
    assert_string_equal(c->store, "default");
    assert_string_equal(c->object, "doc:a|b");
    assert_string_equal(c->relation, "viewer");
    assert_string_equal(c->subject, "team:x#member");
    assert_string_equal(c->condition_name, "in_hours");
    assert_string_equal(c->condition_context, "{\"tz\": \"UTC\"}");
    assert_string_equal(c->actor, "anne");
    relata__v1__tuple_change__free_unpacked(c, NULL);
    message_release(&m);
}

static void test_headers(void **state)
{
    (void)state;
    struct message m;
    struct err err;
    struct outbox_row row = sample();
    message_init(&m);
    row.headers = "{\"traceparent\": \"00-abc-def-01\", \"n\": 1, \"o\": {}, \"content-type\": \"text/evil\", "
                  "\"relata-outbox-id\": \"999\", \"\": \"x\", \"empty\": \"\"}";
    for (int i = 0; i < 2; i++) { /* the struct is reused */
        assert_int_equal(message_encode(&m, &row, &err), ST_OK);
        assert_int_equal(m.nheaders, 5);
        assert_memory_equal(header(&m, "relata-outbox-id")->value, "7", 1);
        assert_int_equal(header(&m, "relata-outbox-id")->len, 1);
        assert_memory_equal(header(&m, "relata-schema")->value, "1", 1);
        assert_memory_equal(header(&m, "content-type")->value, "application/protobuf", 20);
        assert_memory_equal(header(&m, "traceparent")->value, "00-abc-def-01", 13);
        assert_int_equal(header(&m, "empty")->len, 0);
    }
    row.headers = "[1, 2]"; /* not an object, or not JSON: the change goes without */
    assert_int_equal(message_encode(&m, &row, &err), ST_OK);
    assert_int_equal(m.nheaders, 3);
    row.headers = "{";
    assert_int_equal(message_encode(&m, &row, &err), ST_OK);
    assert_int_equal(m.nheaders, 3);
    message_release(&m);
}

static void test_R10_a_row_without_a_key_is_refused(void **state)
{
    (void)state;
    struct message m;
    struct err err;
    message_init(&m);
    struct outbox_row row = sample();
    row.object = NULL;
    assert_int_equal(message_encode(&m, &row, &err), ST_INVALID);
    row.object = "";
    assert_int_equal(message_encode(&m, &row, &err), ST_INVALID);
    assert_non_null(strstr(err.text, "object"));
    row = sample();
    row.store = NULL;
    assert_int_equal(message_encode(&m, &row, &err), ST_INVALID);
    row = sample();
    row.actor = "\xff\xfe";
    assert_int_equal(message_encode(&m, &row, &err), ST_INVALID);
    assert_string_equal(err.code, "row_not_utf8");
    message_release(&m);
}

static void test_snapshots(void **state)
{
    (void)state;
    struct snapshot s;
    assert_true(snapshot_parse("10:20:10,12,19", &s));
    assert_true(s.xmin == 10 && s.xmax == 20);
    assert_string_equal(s.open, "10,12,19");
    assert_true(snapshot_parse("10:10:", &s));
    assert_string_equal(s.open, "");
    assert_true(snapshot_parse(SNAPSHOT_NONE, &s));
    assert_false(snapshot_parse("", &s));
    assert_false(snapshot_parse("10:20", &s));
    assert_false(snapshot_parse("10:20:1}, now()", &s));
}

static void test_when_the_topic_is_read(void **state)
{
    (void)state;
    struct kafka_lag noted[2] = {{0, 100, -1}, {0, 50, -1}};
    struct kafka_lag now[3] = {{0, 120, 100}, {0, 50, 49}, {0, 7, -1}};
    assert_false(watch_is_read(noted, 2, now, 3)); /* one to go */
    now[1].committed = 50;
    assert_true(watch_is_read(noted, 2, now, 3)); /* what came later, and a new partition, do not matter */

    now[0] = (struct kafka_lag){0, 120, -1}; /* a group that has committed nothing has everything to read */
    assert_false(watch_is_read(noted, 2, now, 3));
    now[0] = (struct kafka_lag){110, 120, -1}; /* retention has passed all of it */
    assert_true(watch_is_read(noted, 2, now, 3));
    now[0] = (struct kafka_lag){50, 120, 60}; /* .. a part of it */
    assert_false(watch_is_read(noted, 2, now, 3));

    now[0] = (struct kafka_lag){0, 0, -1}; /* the topic was made anew: its ends go backwards */
    assert_true(watch_is_read(noted, 2, now, 3));
    assert_true(noted[0].end == 0);
    now[0] = (struct kafka_lag){0, 5, -1};
    assert_true(watch_is_read(noted, 2, now, 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_row_as_a_message),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_R10_a_row_without_a_key_is_refused),
        cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_when_the_topic_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
