/* outbox-relay/pgoutput: frames, relation mapping, rows in both formats, hostile bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "outbox-relay/pgoutput.h"

/* ---- building messages ---- */

static void put(struct buf *b, uint64_t v, int n)
{
    for (int i = n - 1; i >= 0; i--)
        buf_addc(b, (char)(v >> (8 * i)));
}

static void put_name(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s) + 1);
}

static void relation_begin(struct buf *b, uint32_t oid, const char *schema, const char *table, int columns)
{
    buf_clear(b);
    buf_addc(b, 'R');
    put(b, oid, 4);
    put_name(b, schema);
    put_name(b, table);
    buf_addc(b, 'd');
    put(b, (uint64_t)columns, 2);
}

static void relation_column(struct buf *b, const char *name)
{
    buf_addc(b, 0);
    put_name(b, name);
    put(b, 25, 4);
    put(b, 0xffffffff, 4);
}

static const char *const columns[] = {
    "id",    "store",   "op",  "object",    "relation", "subject", "condition_name", "condition_context",
    "actor", "headers", "xid", "created_at"};

static void outbox_relation(struct buf *b)
{
    relation_begin(b, 7, "relata", "outbox", 12);
    for (int i = 0; i < 12; i++)
        relation_column(b, columns[i]);
}

static void insert_begin(struct buf *b, uint32_t oid, int n)
{
    buf_clear(b);
    buf_addc(b, 'I');
    put(b, oid, 4);
    buf_addc(b, 'N');
    put(b, (uint64_t)n, 2);
}

static void value(struct buf *b, char kind, const void *data, size_t len)
{
    buf_addc(b, kind);
    put(b, len, 4);
    buf_add(b, data, len);
}

static void text(struct buf *b, const char *s)
{
    value(b, 't', s, strlen(s));
}

static void int64(struct buf *b, uint64_t v)
{
    buf_addc(b, 'b');
    put(b, 8, 4);
    put(b, v, 8);
}

/* Binary, as our streams are. */
static void outbox_insert(struct buf *b)
{
    insert_begin(b, 7, 12);
    int64(b, 42);
    value(b, 'b', "default", 7);
    value(b, 'b', "write", 5);
    value(b, 'b', "doc:1", 5);
    value(b, 'b', "viewer", 6);
    value(b, 'b', "user:anne", 9);
    buf_addc(b, 'n');
    value(b, 'b', "\x01{\"a\": 1}", 9);
    buf_addc(b, 'n');
    buf_addc(b, 'n');
    int64(b, UINT64_C(0x1122334455));
    int64(b, 820454400000001); /* 2026-01-01 00:00:00.000001 */
}

/* A message in exactly its bytes and one more, so that sanitizers see every step beyond. */
static enum status decode(struct pgoutput *p, const struct buf *b, size_t len, struct pgoutput_event *ev, char **keep)
{
    char *copy = malloc(len + 1);
    assert_non_null(copy);
    memcpy(copy, b->data, len);
    copy[len] = 'x';
    struct err err;
    enum status st = pgoutput_decode(p, copy, len, ev, &err);
    if (keep)
        *keep = copy;
    else
        free(copy);
    return st;
}

static struct buf message;

static int setup(void **state)
{
    (void)state;
    buf_init(&message, 1 << 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    buf_release(&message);
    return 0;
}

/* ---- frames ---- */

static void test_frames(void **state)
{
    (void)state;
    struct wal_frame f;
    struct err err;
    put(&message, 'k', 1);
    put(&message, UINT64_C(0x1600000010), 8);
    put(&message, 0, 8);
    put(&message, 1, 1);
    assert_int_equal(wal_frame_parse(message.data, message.len, &f, &err), ST_OK);
    assert_int_equal(f.kind, WAL_FRAME_KEEPALIVE);
    assert_true(f.end_lsn == UINT64_C(0x1600000010));
    assert_true(f.reply_wanted);
    for (size_t n = 0; n < message.len; n++)
        assert_int_equal(wal_frame_parse(message.data, n, &f, &err), ST_INVALID);

    buf_clear(&message);
    put(&message, 'w', 1);
    put(&message, 5, 8);
    put(&message, 6, 8);
    put(&message, 7, 8);
    buf_adds(&message, "abc");
    assert_int_equal(wal_frame_parse(message.data, message.len, &f, &err), ST_OK);
    assert_int_equal(f.kind, WAL_FRAME_DATA);
    assert_true(f.end_lsn == 6);
    assert_int_equal(f.len, 3);
    assert_memory_equal(f.data, "abc", 3);

    message.data[0] = 'z';
    assert_int_equal(wal_frame_parse(message.data, message.len, &f, &err), ST_INVALID);
}

static void test_status_and_lsn_text(void **state)
{
    (void)state;
    char out[WAL_STATUS_LEN];
    wal_status_format(out, UINT64_C(0x0102030405060708), 9, INT64_C(946684800000001), true);
    assert_memory_equal(out, "r\1\2\3\4\5\6\7\10\0\0\0\0\0\0\0\11\0\0\0\0\0\0\0\11\0\0\0\0\0\0\0\1\1", WAL_STATUS_LEN);
    char lsn_text[LSN_TEXT_LEN];
    lsn_format(UINT64_C(0x16B374D848), lsn_text);
    assert_string_equal(lsn_text, "16/B374D848");
    uint64_t lsn;
    assert_true(lsn_parse("16/B374D848", &lsn));
    assert_true(lsn == UINT64_C(0x16B374D848));
    assert_false(lsn_parse("16B374D848", &lsn));
    assert_false(lsn_parse("16/B374D848x", &lsn));
    assert_false(lsn_parse("", &lsn));
}

/* ---- rows ---- */

static void test_row_in_binary(void **state)
{
    (void)state;
    struct pgoutput p;
    struct pgoutput_event ev;
    char *keep;
    pgoutput_init(&p);
    outbox_relation(&message);
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    assert_int_equal(ev.kind, PGOUTPUT_OTHER);
    outbox_insert(&message);
    assert_int_equal(decode(&p, &message, message.len, &ev, &keep), ST_OK);
    assert_int_equal(ev.kind, PGOUTPUT_ROW);
    assert_true(ev.row.id == 42);
    assert_string_equal(ev.row.store, "default");
    assert_string_equal(ev.row.op, "write");
    assert_string_equal(ev.row.object, "doc:1");
    assert_string_equal(ev.row.relation, "viewer");
    assert_string_equal(ev.row.subject, "user:anne");
    assert_null(ev.row.condition_name);
    assert_string_equal(ev.row.condition_context, "{\"a\": 1}");
    assert_null(ev.row.actor);
    assert_null(ev.row.headers);
    assert_true(ev.row.xid == UINT64_C(0x1122334455));
    assert_true(ev.row.created_at_us == INT64_C(820454400000001) + INT64_C(946684800000000));
    free(keep);
}

static void test_row_in_text(void **state)
{
    (void)state;
    struct pgoutput p;
    struct pgoutput_event ev;
    char *keep;
    pgoutput_init(&p);
    outbox_relation(&message);
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    insert_begin(&message, 7, 12);
    static const char *const v[] = {"42",
                                    "default",
                                    "delete",
                                    "doc:1",
                                    "viewer",
                                    "user:*",
                                    "in_hours",
                                    "{}",
                                    "anne",
                                    "{\"traceparent\": \"x\"}",
                                    "18446744073709551615",
                                    "2026-01-01 00:00:00.25+00"};
    for (int i = 0; i < 12; i++)
        text(&message, v[i]);
    assert_int_equal(decode(&p, &message, message.len, &ev, &keep), ST_OK);
    assert_true(ev.row.id == 42);
    assert_string_equal(ev.row.headers, v[9]);
    assert_true(ev.row.xid == UINT64_MAX);
    assert_true(ev.row.created_at_us == INT64_C(1767225600250000));
    free(keep);
}

static void test_columns_are_found_by_name(void **state)
{
    (void)state;
    struct pgoutput p;
    struct pgoutput_event ev;
    char *keep;
    pgoutput_init(&p);
    relation_begin(&message, 7, "relata", "outbox", 14);
    relation_column(&message, "added_first");
    for (int i = 11; i >= 0; i--)
        relation_column(&message, columns[i]);
    relation_column(&message, "added_last");
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    insert_begin(&message, 7, 14);
    text(&message, "ignored");
    text(&message, "2026-01-01 00:00:00+00");
    text(&message, "5");
    for (int i = 0; i < 4; i++)
        buf_addc(&message, 'n');
    text(&message, "user:bob");
    text(&message, "editor");
    text(&message, "doc:2");
    text(&message, "touch");
    text(&message, "other");
    text(&message, "9");
    buf_addc(&message, 'u'); /* a value that was not sent */
    assert_int_equal(decode(&p, &message, message.len, &ev, &keep), ST_OK);
    assert_true(ev.row.id == 9);
    assert_true(ev.row.xid == 5);
    assert_string_equal(ev.row.store, "other");
    assert_string_equal(ev.row.subject, "user:bob");
    free(keep);
}

static void test_what_is_missing_is_named(void **state)
{
    (void)state;
    struct pgoutput p;
    struct pgoutput_event ev;
    struct err err;
    pgoutput_init(&p);
    relation_begin(&message, 7, "relata", "outbox", 11);
    for (int i = 1; i < 12; i++)
        relation_column(&message, columns[i]);
    assert_int_equal(pgoutput_decode(&p, message.data, message.len, &ev, &err), ST_INVALID);
    assert_non_null(strstr(err.text, "\"id\""));

    outbox_relation(&message);
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    insert_begin(&message, 7, 12);
    for (int i = 0; i < 12; i++)
        buf_addc(&message, 'n');
    buf_addc(&message, 0); /* libpq's byte after the end */
    assert_int_equal(pgoutput_decode(&p, message.data, message.len - 1, &ev, &err), ST_INVALID);
    assert_non_null(strstr(err.text, "\"id\""));
}

static void test_other_tables_are_skipped(void **state)
{
    (void)state;
    struct pgoutput p;
    struct pgoutput_event ev;
    pgoutput_init(&p);
    /* A row before any relation message, then of another table, then of a table that was renamed away. */
    outbox_insert(&message);
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    assert_int_equal(ev.kind, PGOUTPUT_OTHER);
    outbox_relation(&message);
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    relation_begin(&message, 8, "public", "outbox", 1);
    relation_column(&message, "id");
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    insert_begin(&message, 8, 1);
    text(&message, "1");
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    assert_int_equal(ev.kind, PGOUTPUT_OTHER);
    relation_begin(&message, 7, "relata", "outbox_old", 1);
    relation_column(&message, "id");
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    outbox_insert(&message);
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    assert_int_equal(ev.kind, PGOUTPUT_OTHER);
}

static void test_transactions_and_messages(void **state)
{
    (void)state;
    struct pgoutput p;
    struct pgoutput_event ev;
    pgoutput_init(&p);
    put(&message, 'B', 1);
    put(&message, 100, 8);
    put(&message, 0, 8); /* commit time */
    put(&message, 0, 4); /* xid */
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    assert_int_equal(ev.kind, PGOUTPUT_BEGIN);
    assert_true(ev.lsn == 100);

    buf_clear(&message);
    put(&message, 'C', 1);
    put(&message, 0, 1);
    put(&message, 100, 8);
    put(&message, 148, 8);
    put(&message, 0, 8);
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    assert_int_equal(ev.kind, PGOUTPUT_COMMIT);
    assert_true(ev.lsn == 100 && ev.end_lsn == 148);

    buf_clear(&message);
    put(&message, 'M', 1);
    put(&message, 0, 1);
    put(&message, 200, 8);
    put_name(&message, "relata");
    put(&message, 0, 4);
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    assert_int_equal(ev.kind, PGOUTPUT_MESSAGE);
    assert_true(ev.lsn == 200);

    static const char unknown[] = "TODYSE?"; /* truncate, origin, delete, type, streams, nonsense */
    for (size_t i = 0; i < sizeof unknown - 1; i++) {
        buf_clear(&message);
        buf_addc(&message, unknown[i]);
        assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
        assert_int_equal(ev.kind, PGOUTPUT_OTHER);
    }
}

/* ---- hostile bytes ---- */

static void test_every_cut_is_refused(void **state)
{
    (void)state;
    struct pgoutput p;
    struct pgoutput_event ev;
    pgoutput_init(&p);
    outbox_relation(&message);
    for (size_t n = 0; n < message.len; n++)
        assert_int_equal(decode(&p, &message, n, &ev, NULL), ST_INVALID);
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    outbox_insert(&message);
    for (size_t n = 0; n < message.len; n++)
        assert_int_equal(decode(&p, &message, n, &ev, NULL), ST_INVALID);
}

static void test_wrong_lengths_and_kinds(void **state)
{
    (void)state;
    struct pgoutput p;
    struct pgoutput_event ev;
    pgoutput_init(&p);
    relation_begin(&message, 7, "relata", "outbox", 2000); /* more columns than Postgres has */
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_INVALID);

    outbox_relation(&message);
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    insert_begin(&message, 7, 11); /* another number of columns than announced */
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_INVALID);

    insert_begin(&message, 7, 12);
    buf_addc(&message, 'b');
    put(&message, 0xffffffff, 4); /* a length beyond everything */
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_INVALID);

    insert_begin(&message, 7, 12);
    buf_addc(&message, 'q');
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_INVALID);

    outbox_insert(&message); /* an id of 4 bytes */
    message.data[12] = 4;
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_INVALID);
}

static void bad_value(int column, const char *v, size_t len, char kind)
{
    struct pgoutput p;
    struct pgoutput_event ev;
    static const char *const good[] = {"42", "default", "delete", "doc:1", "viewer", "user:*",
                                       "c",  "{}",      "anne",   "{}",    "7",      "2026-01-01 00:00:00+00"};
    pgoutput_init(&p);
    outbox_relation(&message);
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_OK);
    insert_begin(&message, 7, 12);
    for (int i = 0; i < 12; i++) {
        if (i == column)
            value(&message, kind, v, len);
        else
            text(&message, good[i]);
    }
    assert_int_equal(decode(&p, &message, message.len, &ev, NULL), ST_INVALID);
}

static void test_bad_values(void **state)
{
    (void)state;
    bad_value(0, "", 0, 't');
    bad_value(0, "12x", 3, 't');
    bad_value(3, "doc:\0x", 6, 't'); /* NUL within text */
    bad_value(3, "doc:\0x", 6, 'b');
    bad_value(7, "\x02{}", 3, 'b'); /* unknown version of jsonb */
    bad_value(7, "", 0, 'b');
    bad_value(11, "yesterday", 9, 't');
    bad_value(11, "2026-01-01 00:00:00+02", 22, 't');
    bad_value(11, "\x7f\xff\xff\xff\xff\xff\xff\xff", 8, 'b'); /* infinity */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_frames, setup, teardown),
        cmocka_unit_test_setup_teardown(test_status_and_lsn_text, setup, teardown),
        cmocka_unit_test_setup_teardown(test_row_in_binary, setup, teardown),
        cmocka_unit_test_setup_teardown(test_row_in_text, setup, teardown),
        cmocka_unit_test_setup_teardown(test_columns_are_found_by_name, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_missing_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_tables_are_skipped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_transactions_and_messages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_cut_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_wrong_lengths_and_kinds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_values, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
