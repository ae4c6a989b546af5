/* tuple_test.c - the grammar, order, hashes and text form of tuple keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/tuple/tuple.h"

#define E_ACUTE "\xC3\xA9"        /* 2 bytes, 1 code point */
#define WIDE_SPACE "\xE3\x80\x80" /* U+3000 */
#define NBSP "\xC2\xA0"

static struct bytes bytes_of(const char *s)
{
    return (struct bytes){s, strlen(s)};
}

static enum status check(const char *object, const char *relation, const char *subject, struct err *err)
{
    *err = (struct err){0};
    return tuple_check(bytes_of(object), bytes_of(relation), bytes_of(subject), err);
}

/* "type:" and n times the character. */
static const char *repeated(const char *head, const char *character, size_t n, const char *tail)
{
    static char slots[3][2000];
    static int next;
    char *out = slots[next++ % 3];
    size_t len = strlen(head), size = strlen(character);

    memcpy(out, head, len);
    for (size_t i = 0; i < n; i++, len += size)
        memcpy(out + len, character, size);
    memcpy(out + len, tail, strlen(tail) + 1);
    return out;
}

static void test_accepted(void **state)
{
    static const char *const cases[][3] = {
        {"doc:1", "viewer", "user:anne"},
        {"doc:1", "viewer", "user:*"},
        {"doc:1", "viewer", "team:1#member"},
        {"d:x", "r", "u:y"},
        {"doc:a@b.c", "viewer", "user:a@b"}, /* '@' in ids */
        {"doc:a*", "viewer", "user:*a"},     /* '*' in ids */
        {"doc:**", "viewer", "user:**"},
        {"doc:a/b.c|d=e+f%2F,\"\\'", "can_view.all", "user:{}[]"},
        {"ty*pe:1", "*", "ty*pe:1"}, /* '*' in names */
        {"doc:1", "viewer", "ty*pe:1#member"},
        {"doc:" NBSP, "vi" WIDE_SPACE "ewer", "user:" WIDE_SPACE}, /* only U+0020 is a space to the store */
        {"doc:\xE2\x80\x8B\xEF\xBB\xBF", "viewer", "user:\xF0\x9F\x98\x80"},
        {E_ACUTE ":" E_ACUTE, E_ACUTE, E_ACUTE ":1#" E_ACUTE},
        {"doc:1", "viewer", "doc:1"},
        {"doc:1", "viewer", "doc:1#editor"},
        {"doc:1", "viewer", "doc:2#viewer"},
        {"doc:1", "this", "self:1"}, /* the model refuses these names, not the grammar */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err;

        if (check(cases[i][0], cases[i][1], cases[i][2], &err) != ST_OK)
            print_error("%s\n", err.text);
        assert_int_equal(check(cases[i][0], cases[i][1], cases[i][2], &err), ST_OK);
    }
}

static void test_refused_objects(void **state)
{
    static const char *const cases[][2] = {
        {"", "object \"\" must be type:id: it has no ':'"},
        {"doc", "object \"doc\" must be type:id: it has no ':'"},
        {":", "object \":\" must be type:id: the type is empty"},
        {":1", "object \":1\" must be type:id: the type is empty"},
        {"doc:", "object \"doc:\" must be type:id: the id is empty"},
        {"doc:#", "object \"doc:#\" must be type:id: the id is empty"},
        {"doc:1:2", "object \"doc:1:2\" holds a second ':'"},
        {"doc::", "object \"doc::\" holds a second ':'"},
        {"do#c:1", "object \"do#c:1\" has a type that holds '#' or '@'"},
        {"do@c:1", "object \"do@c:1\" has a type that holds '#' or '@'"},
        {"doc:1#x", "object \"doc:1#x\" holds a '#'"},
        {"doc:1#", "object \"doc:1#\" holds a '#'"},
        {"doc:*", "object \"doc:*\" is a wildcard, which only a subject may be"},
        {"doc:a b", "object \"doc:a b\" holds a space"},
        {"doc:1 ", "object \"doc:1 \" holds a space"},
        {"doc:a\tb", "object \"doc:a?b\" holds a control character"},
        {"doc:a\nb", "object \"doc:a?b\" holds a control character"},
        {"doc:\x7F", "object \"doc:?\" holds a control character"},
        {"doc:\xC2\x85", "object \"doc:\xC2\x85\" holds a control character"},
        {"doc:\xC2\x9F", "object \"doc:\xC2\x9F\" holds a control character"},
        {"doc:\xFF", "object \"doc:\xFF\" is not valid UTF-8"},
        {"doc:\xED\xA0\x80", "object \"doc:\xED\xA0\x80\" is not valid UTF-8"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err;

        assert_int_equal(check(cases[i][0], "viewer", "user:1", &err), ST_INVALID);
        assert_string_equal(err.text, cases[i][1]);
        assert_string_equal(err.code, "object");
    }
}

static void test_refused_relations(void **state)
{
    static const char *const cases[][2] = {
        {"", "relation \"\" is empty"},
        {"a:b", "relation \"a:b\" holds '#', ':' or '@'"},
        {"a#b", "relation \"a#b\" holds '#', ':' or '@'"},
        {"a@b", "relation \"a@b\" holds '#', ':' or '@'"},
        {"a b", "relation \"a b\" holds a space"},
        {"a\x01", "relation \"a?\" holds a control character"},
        {"\xC3", "relation \"\xC3\" is not valid UTF-8"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err;

        assert_int_equal(check("doc:1", cases[i][0], "user:1", &err), ST_INVALID);
        assert_string_equal(err.text, cases[i][1]);
        assert_string_equal(err.code, "relation");
    }
}

static void test_refused_subjects(void **state)
{
#define BAD_RELATION " has a relation behind '#' that is empty, too long or holds '#', ':' or '@'"
    static const char *const cases[][2] = {
        {"", "subject \"\" must be type:id: it has no ':'"},
        {"*", "subject \"*\" must be type:id: it has no ':'"},
        {"anne", "subject \"anne\" must be type:id: it has no ':'"},
        {":x", "subject \":x\" must be type:id: the type is empty"},
        {"user:", "subject \"user:\" must be type:id: the id is empty"},
        {"user:#member", "subject \"user:#member\" must be type:id: the id is empty"},
        {"user:1#", "subject \"user:1#\"" BAD_RELATION},
        {"user:1##m", "subject \"user:1##m\"" BAD_RELATION},
        {"user:1#m#n", "subject \"user:1#m#n\"" BAD_RELATION},
        {"user:1#m:n", "subject \"user:1#m:n\"" BAD_RELATION},
        {"user:1#m@n", "subject \"user:1#m@n\"" BAD_RELATION},
        {"user:*#member", "subject \"user:*#member\" holds '*' and a relation: a userset has no wildcard"},
        {"user:a*#member", "subject \"user:a*#member\" holds '*' and a relation: a userset has no wildcard"},
        {"user:1#m*", "subject \"user:1#m*\" holds '*' and a relation: a userset has no wildcard"},
        {"user#m:1", "subject \"user#m:1\" has a type that holds '#' or '@'"},
        {"us@er:1", "subject \"us@er:1\" has a type that holds '#' or '@'"},
        {"user:1:2", "subject \"user:1:2\" holds a second ':'"},
        {"user:a b", "subject \"user:a b\" holds a space"},
        {"user:a\r", "subject \"user:a?\" holds a control character"},
        {"doc:1#viewer", "subject \"doc:1#viewer\" is the object and relation themselves, which always holds"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err;

        assert_int_equal(check("doc:1", "viewer", cases[i][0], &err), ST_INVALID);
        assert_string_equal(err.text, cases[i][1]);
        assert_string_equal(err.code, "subject");
    }
}

static void test_lengths(void **state)
{
    struct err err;

    (void)state;
    /* Objects, types and relations in code points, subjects in bytes. */
    assert_int_equal(check(repeated("d:", E_ACUTE, 254, ""), "r", "u:1", &err), ST_OK);
    assert_int_equal(check(repeated("d:", E_ACUTE, 255, ""), "r", "u:1", &err), ST_INVALID);
    assert_non_null(strstr(err.text, " has more than 256 characters"));
    assert_int_equal(check(repeated("", E_ACUTE, 254, ":1"), "r", "u:1", &err), ST_OK);
    assert_int_equal(check(repeated("", "t", 255, ":"), "r", "u:1", &err), ST_INVALID);
    assert_int_equal(check(repeated("", "t", 255, ":1"), "r", "u:1", &err), ST_INVALID);
    assert_int_equal(check("d:1", repeated("", E_ACUTE, 50, ""), "u:1", &err), ST_OK);
    assert_int_equal(check("d:1", repeated("", "r", 51, ""), "u:1", &err), ST_INVALID);
    assert_int_equal(check("d:1", "r", repeated("u:", E_ACUTE, 255, ""), &err), ST_OK);
    assert_int_equal(check("d:1", "r", repeated("u:x", E_ACUTE, 255, ""), &err), ST_INVALID);
    assert_int_equal(check("d:1", "r", repeated("u:", "x", 510, ""), &err), ST_OK);
    assert_int_equal(check("d:1", "r", repeated("u:", "x", 511, ""), &err), ST_INVALID);
    assert_int_equal(check("d:1", "r", repeated("u:1#", "r", 50, ""), &err), ST_OK);
    assert_int_equal(check("d:1", "r", repeated("u:1#", "r", 51, ""), &err), ST_INVALID);
    assert_int_equal(check("d:1", "r", repeated("", "t", 255, ":1"), &err), ST_INVALID);
    assert_non_null(strstr(err.text, "has a type of more than 254 characters"));
}

static void test_nul_is_seen(void **state)
{
    struct err err = {0};
    struct bytes object = {"doc:1\0x", 7}, relation = {"viewer", 6}, subject = {"user:1", 6}, empty = {NULL, 0};

    (void)state;
    assert_int_equal(tuple_check(object, relation, subject, &err), ST_INVALID);
    assert_string_equal(err.text, "object \"doc:1?x\" holds a NUL");
    assert_int_equal(tuple_check(subject, (struct bytes){"a\0", 2}, subject, &err), ST_INVALID);
    assert_int_equal(tuple_check(subject, relation, (struct bytes){"u:\0", 3}, &err), ST_INVALID);
    assert_int_equal(tuple_check(empty, empty, empty, &err), ST_INVALID);
    assert_int_equal(tuple_check(empty, empty, empty, NULL), ST_INVALID);
}

static void test_long_values_are_cut_in_the_message(void **state)
{
    struct err err;

    (void)state;
    assert_int_equal(check(repeated("d:", E_ACUTE, 500, ""), "r", "u:1", &err), ST_INVALID);
    assert_true(strlen(err.text) < 200);
    assert_non_null(strstr(err.text, E_ACUTE "...\" has more than 256 characters"));
}

static void test_order_is_by_bytes(void **state)
{
    static const struct tuple_key sorted[] = {
        {"a:1", "b", "u:1"}, {"a:1", "b", "u:2"},       {"a:1", "c", "u:1"},
        {"a:10", "a", "a"},  {"a:1" E_ACUTE, "a", "a"}, {"b", "a", "a"},
    };

    (void)state;
    for (int i = 0; i < 6; i++) {
        for (int j = 0; j < 6; j++) {
            int c = tuple_key_cmp(&sorted[i], &sorted[j]);

            assert_int_equal((c > 0) - (c < 0), (i > j) - (i < j));
        }
    }
}

static void test_hashes(void **state)
{
    struct tuple_key k = {"doc:1", "viewer", "user:anne"};
    struct tuple_key shifted[] = {
        {"doc:1v", "iewer", "user:anne"}, {"doc:1", "vieweru", "ser:anne"}, {"doc:1", "user:anne", "viewer"},
        {"", "doc:1viewer", "user:anne"}, {"doc:1vieweruser:anne", "", ""},
    };

    (void)state;
    /* Lanes, keys of caches: the same on every machine and in every version. */
    assert_true(tuple_object_hash("doc:1") == 0xD5A598E9F7A8922BULL);
    assert_true(tuple_key_hash(&k) == 0xFE91759F850BA9CAULL);
    for (size_t i = 0; i < sizeof shifted / sizeof shifted[0]; i++)
        assert_true(tuple_key_hash(&shifted[i]) != 0xFE91759F850BA9CAULL);
}

static void test_dup_is_one_block(void **state)
{
    struct tuple_key k = {"doc:1", "", "user:anne"};
    struct tuple_key *copy = tuple_key_dup(&k);

    (void)state;
    assert_non_null(copy);
    assert_int_equal(tuple_key_cmp(copy, &k), 0);
    assert_ptr_not_equal(copy->object, k.object);
    free(copy);
}

static void test_text_form_is_exact(void **state)
{
    static const struct tuple_key keys[] = {
        {"doc:1", "viewer", "user:anne"},  {"doc:a@b", "viewer", "user:c@d#member@"}, /* not valid: refused when parsed
                                                                                       */
        {"doc:a@b", "viewer", "user:c@d"}, {"doc:@", "*", "team:@@#member"},          {"doc:" NBSP, E_ACUTE, "user:*"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        struct tuple_key *back = NULL;
        struct err err = {0};
        struct buf text;
        enum status valid = check(keys[i].object, keys[i].relation, keys[i].subject, &err);

        buf_init(&text, 2000);
        tuple_key_format(&keys[i], &text);
        assert_int_equal(tuple_key_parse(buf_str(&text), &back, &err), valid);
        if (valid == ST_OK)
            assert_int_equal(tuple_key_cmp(back, &keys[i]), 0);
        else
            assert_null(back);
        free(back);
        buf_release(&text);
    }
}

static void test_refused_texts(void **state)
{
    static const char *const cases[][2] = {
        {"", "\"\" is no tuple: must be type:id#relation@subject"},
        {"doc:1", "\"doc:1\" is no tuple: must be type:id#relation@subject"},
        {"doc:1@user:anne", "\"doc:1@user:anne\" is no tuple: must be type:id#relation@subject"},
        {"doc:a@b#viewer", "\"doc:a@b#viewer\" is no tuple: must be type:id#relation@subject"},
        {"doc:1#@user:1", "relation \"\" is empty"},
        {"doc#viewer@user:1", "object \"doc\" must be type:id: it has no ':'"},
        {"doc:1#viewer@", "subject \"\" must be type:id: it has no ':'"},
        {"doc:1#viewer@user:1 ", "subject \"user:1 \" holds a space"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tuple_key *k = NULL;
        struct err err = {0};

        assert_int_equal(tuple_key_parse(cases[i][0], &k, &err), ST_INVALID);
        assert_null(k);
        assert_string_equal(err.text, cases[i][1]);
    }
}

static void test_type(void **state)
{
    struct bytes t = tuple_type("doc:a:b");

    (void)state;
    assert_int_equal(t.len, 3);
    assert_memory_equal(t.data, "doc", 3);
    assert_int_equal(tuple_type("team:1#member").len, 4);
    assert_int_equal(tuple_type("none").len, 0);
}

static void test_ids_are_encoded_as_in_sql(void **state)
{
    static const char *const cases[][2] = {
        {"anne", "anne"},
        {"a:b#c*d%e f", "a%3Ab%23c%2Ad%25e%20f"},
        {"a@b.c/d|e", "a@b.c/d|e"},
        {"*", "%2A"},
        {"\x7f\xc2\x80\xc2\x9f\xc2\xa0\xc3\xa9", "%7F%C2%80%C2%9F\xc2\xa0\xc3\xa9"},
        {"\t\n", "%09%0A"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf out;

        buf_init(&out, 1024);
        tuple_encode_id(bytes_of(cases[i][0]), &out);
        assert_string_equal(buf_str(&out), cases[i][1]);
        buf_release(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_refused_objects),
        cmocka_unit_test(test_refused_relations),
        cmocka_unit_test(test_refused_subjects),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_nul_is_seen),
        cmocka_unit_test(test_long_values_are_cut_in_the_message),
        cmocka_unit_test(test_order_is_by_bytes),
        cmocka_unit_test(test_hashes),
        cmocka_unit_test(test_dup_is_one_block),
        cmocka_unit_test(test_text_form_is_exact),
        cmocka_unit_test(test_refused_texts),
        cmocka_unit_test(test_type),
        cmocka_unit_test(test_ids_are_encoded_as_in_sql),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
