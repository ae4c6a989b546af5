/* tuple_grammar_test.c - common/tuple, relata.tuple_ok and a real OpenFGA take and refuse the same tuples. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tuple/tuple.h"
#include "tests/harness/harness.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

#define E_ACUTE "\xC3\xA9"
#define LS "\xE2\x80\xA8" /* U+2028 */
#define A_LS_B "a\xE2\x80\xA8z"
#define WIDE_SPACE "\xE3\x80\x80" /* U+3000 */
#define X10 "xxxxxxxxxx"
#define X50 X10 X10 X10 X10 X10
#define X250 X50 X50 X50 X50 X50
#define E10 E_ACUTE E_ACUTE E_ACUTE E_ACUTE E_ACUTE E_ACUTE E_ACUTE E_ACUTE E_ACUTE E_ACUTE
#define E50 E10 E10 E10 E10 E10
#define E250 E50 E50 E50 E50 E50

/* The model has these; the first two have the relations, which take everything. */
static const char *const types[] = {"doc", "ty*pe", "user", "*", WIDE_SPACE "x", E250 "abcd"};
static const char *const relations[] = {"viewer", "*", "r*" LS, E50};
#define TYPES_WITH_RELATIONS 2

static const char *const odd_types[] = {"", "a b", "a#b", "a@b", "a:b", E250 "abcde", "\x01", "no_such_type"};
static const char *const odd_relations[] = {"", "a b", "a#b", "a@b", "a:b", E50 "x", "\x01", "\xC2\x85", "no_such"};
static const char *const ids[] = {"1",
                                  "a",
                                  "**",
                                  "a*",
                                  "a@b",
                                  "@",
                                  E_ACUTE,
                                  WIDE_SPACE,
                                  A_LS_B,
                                  "\"\\",
                                  "%2F",
                                  "{}[],;",
                                  "\xE2\x80\x8B",
                                  "\xEF\xBB\xBF",
                                  "\xF0\x9F\x98\x80",
                                  "\xEF\xBF\xBF",
                                  "\xEE\x80\x80",
                                  "-",
                                  "a.b/c|d=e+f"};
static const char *const odd_ids[] = {"",
                                      "*",
                                      ":",
                                      "a:b",
                                      "#",
                                      "a#b",
                                      " ",
                                      "a b",
                                      "a ",
                                      "\t",
                                      "\n",
                                      "\x01",
                                      "\x1F",
                                      "\x7F",
                                      "\xC2\x80",
                                      "\xC2\x85",
                                      "\xC2\x9F",
                                      "1#",
                                      "1##m",
                                      X250 "1234",
                                      X250 "12345",
                                      X250 X250 "123456",
                                      X250 X250 "1234567",
                                      E250 "1",
                                      E250 E_ACUTE E_ACUTE E_ACUTE E_ACUTE E_ACUTE};
static const char *const odd_parts[] = {"", ":", "x", "doc", "*", "#", "user:", ":1", "a#b", "doc:1#viewer#viewer"};

struct generator {
    uint64_t state;
};

static uint64_t next(struct generator *g)
{
    g->state += 0x9E3779B97F4A7C15ULL;
    uint64_t z = g->state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

static bool one_in(struct generator *g, unsigned n)
{
    return next(g) % n == 0;
}

#define PICK(g, list) (list)[next(g) % COUNT(list)]

static void add_type_id(struct generator *g, struct buf *out)
{
    if (one_in(g, 40)) {
        buf_adds(out, PICK(g, odd_parts));
        return;
    }
    buf_adds(out, one_in(g, 30) ? PICK(g, odd_types) : one_in(g, 3) ? PICK(g, types) : types[0]);
    buf_addc(out, ':');
    buf_adds(out, one_in(g, 4) ? PICK(g, odd_ids) : PICK(g, ids));
    if (one_in(g, 6))
        buf_adds(out, PICK(g, ids));
}

static const char *some_relation(struct generator *g)
{
    return one_in(g, 25) ? PICK(g, odd_relations) : PICK(g, relations);
}

struct sample {
    struct buf object, subject;
    const char *relation;
    bool ours;
};

static void sample_make(struct generator *g, struct sample *s)
{
    struct err err;

    buf_init(&s->object, 8192);
    buf_init(&s->subject, 8192);
    add_type_id(g, &s->object);
    s->relation = some_relation(g);
    if (one_in(g, 30)) {
        buf_addf(&s->subject, "%s#%s", buf_str(&s->object), s->relation);
    } else {
        add_type_id(g, &s->subject);
        if (one_in(g, 3))
            buf_addf(&s->subject, "#%s", some_relation(g));
    }
    assert_true(buf_ok(&s->object) && buf_ok(&s->subject));
    s->ours = tuple_check((struct bytes){buf_str(&s->object), s->object.len},
                          (struct bytes){s->relation, strlen(s->relation)},
                          (struct bytes){buf_str(&s->subject), s->subject.len}, &err) == ST_OK;
}

static void sample_release(struct sample *s)
{
    buf_release(&s->object);
    buf_release(&s->subject);
}

static void show(const char *who, bool taken, const struct sample *s)
{
    print_error("%s %s what common/tuple %s: object \"%s\" relation \"%s\" subject \"%s\"\n", who,
                taken ? "takes" : "refuses", s->ours ? "takes" : "refuses", buf_str(&s->object), s->relation,
                buf_str(&s->subject));
}

/* ---- SQL ---- */

static void compare_sql(struct harness *h, struct sample *samples, size_t n)
{
    struct buf object = {.max = 64 << 20}, relation = {.max = 64 << 20}, subject = {.max = 64 << 20};
    struct pg_result *r = NULL;
    struct err err;
    size_t different = 0;

    pg_array_begin(&object);
    pg_array_begin(&relation);
    pg_array_begin(&subject);
    for (size_t i = 0; i < n; i++) {
        pg_array_add(&object, buf_str(&samples[i].object));
        pg_array_add(&relation, samples[i].relation);
        pg_array_add(&subject, buf_str(&samples[i].subject));
    }
    pg_array_end(&object);
    pg_array_end(&relation);
    pg_array_end(&subject);
    struct pg_param params[] = {pg_p_buf(&object), pg_p_buf(&relation), pg_p_buf(&subject)};
    if (pg_query(h->pg, NULL,
                 "SELECT relata.tuple_ok(o, r, s) FROM ROWS FROM (unnest($1::text[]), unnest($2::text[]), "
                 "unnest($3::text[])) WITH ORDINALITY AS t(o, r, s, n) ORDER BY n",
                 params, 3, deadline_in_ms(60000), &r, &err) != ST_OK)
        fail_msg("%s", err.text);
    assert_int_equal(pg_rows(r), n);
    for (size_t i = 0; i < n; i++) {
        if (pg_bool(r, (int)i, 0) == samples[i].ours)
            continue;
        show("SQL", !samples[i].ours, &samples[i]);
        different++;
    }
    pg_result_free(r);
    buf_release(&object);
    buf_release(&relation);
    buf_release(&subject);
    assert_int_equal(different, 0);
}

static void test_sql_equals_c(void **state)
{
    struct harness *h = *state;
    struct generator g = {harness_seed()};
    size_t left = (size_t)harness_soak(50000), taken = 0, total = left;
    static struct sample samples[1000];

    while (left > 0) {
        size_t n = left < COUNT(samples) ? left : COUNT(samples);

        for (size_t i = 0; i < n; i++) {
            sample_make(&g, &samples[i]);
            taken += samples[i].ours;
        }
        compare_sql(h, samples, n);
        for (size_t i = 0; i < n; i++)
            sample_release(&samples[i]);
        left -= n;
    }
    /* The samples are worth comparing. */
    assert_true(taken > total / 10 && taken < total * 9 / 10);
}

/* ---- OpenFGA ---- */

static void add_json_string(struct buf *out, const char *s)
{
    buf_addc(out, '"');
    for (; *s; s++)
        buf_addf(out, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
    buf_addc(out, '"');
}

static void add_subjects(struct buf *out)
{
    for (size_t t = 0; t < COUNT(types); t++) {
        buf_adds(out, t ? ",{\"type\":" : "{\"type\":");
        add_json_string(out, types[t]);
        buf_adds(out, "},{\"type\":");
        add_json_string(out, types[t]);
        buf_adds(out, ",\"wildcard\":{}}");
        for (size_t r = 0; t < TYPES_WITH_RELATIONS && r < COUNT(relations); r++) {
            buf_adds(out, ",{\"type\":");
            add_json_string(out, types[t]);
            buf_adds(out, ",\"relation\":");
            add_json_string(out, relations[r]);
            buf_addc(out, '}');
        }
    }
}

static void add_relations(struct buf *out, bool metadata)
{
    for (size_t r = 0; r < COUNT(relations); r++) {
        if (r)
            buf_addc(out, ',');
        add_json_string(out, relations[r]);
        if (!metadata) {
            buf_adds(out, ":{\"this\":{}}");
            continue;
        }
        buf_adds(out, ":{\"directly_related_user_types\":[");
        add_subjects(out);
        buf_adds(out, "]}");
    }
}

static void make_model(struct buf *out)
{
    buf_adds(out, "{\"schema_version\":\"1.1\",\"type_definitions\":[");
    for (size_t t = 0; t < COUNT(types); t++) {
        buf_adds(out, t ? ",{\"type\":" : "{\"type\":");
        add_json_string(out, types[t]);
        if (t < TYPES_WITH_RELATIONS) {
            buf_adds(out, ",\"relations\":{");
            add_relations(out, false);
            buf_adds(out, "},\"metadata\":{\"relations\":{");
            add_relations(out, true);
            buf_adds(out, "}}");
        }
        buf_addc(out, '}');
    }
    buf_adds(out, "]}");
    assert_true(buf_ok(out));
}

static bool in_list(const char *const *list, size_t n, const char *s, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (strlen(list[i]) == len && memcmp(list[i], s, len) == 0)
            return true;
    }
    return false;
}

/* Whether the model has all names of a tuple that the grammar takes. */
static bool in_model(const struct sample *s)
{
    struct bytes object = tuple_type(buf_str(&s->object)), subject = tuple_type(buf_str(&s->subject));
    const char *relation = strchr(buf_str(&s->subject), '#');

    if (!in_list(types, TYPES_WITH_RELATIONS, object.data, object.len) ||
        !in_list(relations, COUNT(relations), s->relation, strlen(s->relation)))
        return false;
    if (!relation)
        return in_list(types, COUNT(types), subject.data, subject.len);
    return in_list(types, TYPES_WITH_RELATIONS, subject.data, subject.len) &&
           in_list(relations, COUNT(relations), relation + 1, strlen(relation + 1));
}

static void test_openfga_equals_c(void **state)
{
    struct harness *h = *state;
    struct generator g = {harness_seed()};
    int left = harness_soak(3000), taken = 0, different = 0, total = left;
    struct buf model = {.max = 1 << 20};
    const char *model_id;

    make_model(&model);
    model_id = harness_model_write(h, buf_str(&model));
    for (; left > 0; left--) {
        struct sample s;
        struct err err = {0};
        enum status st;

        sample_make(&g, &s);
        struct store_tuple t = {.key = {buf_str(&s.object), s.relation, buf_str(&s.subject)}};
        st = store_write(h->store_conn, model_id, &t, 1, NULL, 0, deadline_in_ms(harness_ms(30000)), &err);
        if (st != ST_OK && st != ST_INVALID)
            fail_msg("%s: %s", status_name(st), err.text);
        taken += st == ST_OK;
        if ((st == ST_OK) != (s.ours && in_model(&s))) {
            show("OpenFGA", st == ST_OK, &s);
            print_error("  %s\n", err.text);
            different++;
        }
        sample_release(&s);
    }
    buf_release(&model);
    assert_int_equal(different, 0);
    assert_true(taken > total / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_sql_equals_c, HARNESS_DB),
        HARNESS_TEST(test_openfga_equals_c, HARNESS_STORE),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
