/*
 * engine_graph_test.c - tuples in memory: random changes against a plain list, views that stay as they were, want of
 * memory at every allocation, names that come and go, loading, size.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/graph_internal.h"

#define OBJECTS 12
#define SUBJECTS 900 /* enough for trees of two levels below one object */
#define RELATIONS 3
#define COUNT (OBJECTS * RELATIONS * SUBJECTS * 2)

/* The plain list: every tuple that there can be, and whether it is there: 0 no, 1 yes, 2 .. with condition c2, c3 ...
 */
static unsigned char truth[COUNT];

struct text_tuple {
    char object[32], relation[16], subject[48], condition[16], context[32];
    struct engine_tuple t;
};

static struct engine_text text(const char *s)
{
    return (struct engine_text){s, strlen(s)};
}

static void tuple_of(int i, int value, struct text_tuple *out)
{
    int userset = i % 2, s = i / 2 % SUBJECTS, r = i / 2 / SUBJECTS % RELATIONS, o = i / 2 / SUBJECTS / RELATIONS;
    snprintf(out->object, sizeof out->object, "doc:%d", o);
    snprintf(out->relation, sizeof out->relation, "r%d", r);
    if (s == 0)
        snprintf(out->subject, sizeof out->subject, userset ? "doc:*" : "user:*");
    else
        snprintf(out->subject, sizeof out->subject, userset ? "doc:%d#r%d" : "user:%d", s, s % RELATIONS);
    snprintf(out->condition, sizeof out->condition, "c%d", value);
    snprintf(out->context, sizeof out->context, "{\"x\":%d}", i + value);
    out->t = (struct engine_tuple){
        .object = text(out->object), .relation = text(out->relation), .subject = text(out->subject)};
    if (value > 1) {
        out->t.condition = text(out->condition);
        out->t.context = text(out->context);
    }
}

static uint64_t seed = 88172645463325252u;
static unsigned dice(unsigned n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (unsigned)(seed >> 11) % n;
}

/* n random changes, each also of `list`. `hot` objects get most of them. */
static struct engine_change *some_changes(size_t n, unsigned char *list, bool mostly_removing)
{
    struct engine_change *changes = calloc(n, sizeof *changes);
    struct text_tuple *texts = calloc(n, sizeof *texts);
    assert_non_null(changes);
    assert_non_null(texts);
    for (size_t k = 0; k < n; k++) {
        int i = (int)dice(dice(4) ? COUNT / OBJECTS : COUNT);
        int value = dice(10) < (mostly_removing ? 8u : 3u) ? 0 : dice(8) ? 1 : 2 + (int)dice(3);
        tuple_of(i, value, &texts[k]);
        changes[k] = (struct engine_change){.tuple = texts[k].t, .remove = value == 0};
        list[i] = (unsigned char)value;
    }
    changes[0].tuple.object.s = texts[0].object; /* the texts are found again by it */
    return changes;
}

static void changes_free(struct engine_change *changes)
{
    free((void *)(uintptr_t)changes[0].tuple.object.s);
    free(changes);
}

/* All that the view holds, by every way there is of asking, is `list` and nothing else. */
static void assert_holds(struct engine_reader *r, const unsigned char *list)
{
    const struct view *v = reader_view(r);
    struct engine *e = v->engine;
    size_t forward = 0, backward = 0, conditional = 0, present = 0;
    for (int i = 0; i < COUNT; i++) {
        struct text_tuple x;
        struct engine_text condition, context;
        tuple_of(i, list[i], &x);
        bool there = engine_find(r, &x.t, &condition, &context);
        if (there != (list[i] != 0))
            fail_msg("%s %s %s: found %d, truth %d", x.object, x.relation, x.subject, there, list[i]);
        present += there;
        if (there && list[i] > 1) {
            assert_int_equal(condition.len, x.t.condition.len);
            assert_memory_equal(condition.s, x.condition, condition.len);
            assert_int_equal(context.len, x.t.context.len);
            assert_memory_equal(context.s, x.context, context.len);
        } else {
            assert_int_equal(condition.len, 0);
        }
    }
    const char *types[] = {"doc", "user"};
    for (int k = 0; k < 2; k++) {
        name_id type = graph_name_find(e, types[k], strlen(types[k]));
        for (object_id o = 0; type && (o = graph_next_object(v, type, o)) != 0;) {
            struct graph_walk w;
            const uint64_t *keys;
            const struct graph_condition *c;
            uint64_t last = 0;
            size_t n;
            assert_int_equal(graph_type(graph_object(v, o)), type);
            graph_walk(&w, graph_object(v, o), FORWARD, 0, UINT64_MAX);
            while ((n = graph_run(&w, &keys)) > 0)
                for (size_t i = 0; i < n; i++, forward++) {
                    assert_true(keys[i] > last);
                    last = keys[i];
                    assert_true(graph_has(graph_object(v, o), FORWARD, keys[i]));
                    assert_true(graph_has(graph_object(v, key_object(keys[i])), BACKWARD,
                                          graph_key(key_second(keys[i]), key_first(keys[i]), o)));
                }
            last = 0;
            graph_walk(&w, graph_object(v, o), BACKWARD, 0, UINT64_MAX);
            while ((n = graph_run(&w, &keys)) > 0)
                for (size_t i = 0; i < n; i++, backward++) {
                    assert_true(keys[i] > last);
                    last = keys[i];
                }
            n = graph_conditions(graph_object(v, o), 0, UINT64_MAX, &c);
            assert_int_equal(n > 0, graph_has_conditions(graph_object(v, o)));
            conditional += n;
        }
    }
    assert_int_equal(forward + conditional, present);
    assert_int_equal(backward, present);
}

static void assert_now(struct engine *e, const unsigned char *list)
{
    struct engine_reader *r = engine_reader_new(e);
    size_t n = 0;
    assert_non_null(r);
    engine_begin(r);
    assert_holds(r, list);
    engine_end(r);
    engine_reader_free(r);
    for (int i = 0; i < COUNT; i++)
        n += list[i] != 0;
    assert_int_equal(engine_size(e).tuples, n);
}

static void test_random_changes_against_a_list(void **state)
{
    (void)state;
    struct engine *e = engine_new();
    memset(truth, 0, sizeof truth);
    assert_now(e, truth);
    for (uint64_t round = 1; round <= 60; round++) {
        size_t n = 1 + dice(round % 3 ? 40 : 4000);
        struct engine_change *c = some_changes(n, truth, round % 20 > 12);
        assert_int_equal(engine_apply(e, c, n, round), ENGINE_OK);
        assert_int_equal(engine_revision(e), round);
        changes_free(c);
        if (round % 4 == 0)
            assert_now(e, truth);
    }
    engine_free(e);
}

static void test_ranges(void **state)
{
    (void)state;
    struct engine *e = engine_new();
    struct engine_reader *r = engine_reader_new(e);
    memset(truth, 0, sizeof truth);
    for (uint64_t round = 1; round <= 8; round++) {
        struct engine_change *c = some_changes(2000, truth, false);
        assert_int_equal(engine_apply(e, c, 2000, round), ENGINE_OK);
        changes_free(c);
    }
    engine_begin(r);
    const struct view *v = reader_view(r);
    object_id o = graph_object_find(v, graph_name_find(e, "doc", 3), "0", 1);
    const uint64_t *keys;
    struct graph_walk w;
    uint64_t all[COUNT];
    size_t n, total = 0;
    graph_walk(&w, graph_object(v, o), FORWARD, 0, UINT64_MAX);
    while ((n = graph_run(&w, &keys)) > 0) {
        memcpy(all + total, keys, n * sizeof *keys);
        total += n;
    }
    assert_true(total > 2 * LEAF_MAX);
    for (int k = 0; k < 3000; k++) {
        size_t a = dice((unsigned)total), b = a + dice((unsigned)(total - a)), got = 0;
        uint64_t low = all[a] - dice(2), high = all[b] + dice(2);
        while (a > 0 && all[a - 1] >= low)
            a--;
        while (b + 1 < total && all[b + 1] <= high)
            b++;
        graph_walk(&w, graph_object(v, o), FORWARD, low, high);
        while ((n = graph_run(&w, &keys)) > 0) {
            assert_memory_equal(keys, all + a + got, n * sizeof *keys);
            got += n;
        }
        assert_int_equal(got, b - a + 1);
    }
    engine_end(r);
    engine_reader_free(r);
    engine_free(e);
}

static void test_views_stay_as_they_were(void **state)
{
    (void)state;
    enum { VIEWS = 6 };
    static unsigned char seen[VIEWS][COUNT];
    struct engine_reader *readers[VIEWS];
    struct engine *e = engine_new();
    memset(truth, 0, sizeof truth);
    for (int k = 0; k < VIEWS; k++) {
        for (int round = 0; round < 8; round++) {
            struct engine_change *c = some_changes(500, truth, k == 3);
            assert_int_equal(engine_apply(e, c, 500, (uint64_t)(k * 8 + round + 1)), ENGINE_OK);
            changes_free(c);
        }
        memcpy(seen[k], truth, sizeof truth);
        readers[k] = engine_reader_new(e);
        assert_int_equal(engine_begin(readers[k]), (k + 1) * 8);
    }
    assert_true(engine_size(e).garbage > 0);
    for (int k = 0; k < VIEWS; k++)
        assert_holds(readers[k], seen[k]);
    for (int k = 0; k < VIEWS; k++) {
        engine_end(readers[k]);
        engine_reader_free(readers[k]);
    }
    struct engine_change *c = some_changes(1, truth, false);
    assert_int_equal(engine_apply(e, c, 1, 1000), ENGINE_OK);
    changes_free(c);
    assert_int_equal(engine_size(e).garbage, 0);
    engine_free(e);
}

static void test_no_memory_changes_nothing(void **state)
{
    (void)state;
    static unsigned char next[COUNT];
    struct engine *e = engine_new();
    size_t refused = 0;
    memset(truth, 0, sizeof truth);
    for (uint64_t round = 1; round <= 12; round++) {
        size_t n = round < 6 ? 400 : 60;
        memcpy(next, truth, sizeof truth);
        struct engine_change *c = some_changes(n, next, round > 6);
        enum engine_status st = ENGINE_NOMEM;
        for (long fail = 1; st == ENGINE_NOMEM; fail += 1 + fail / 16) {
            graph_fail_in(e, fail);
            st = engine_apply(e, c, n, round);
            graph_fail_in(e, 0);
            refused += st == ENGINE_NOMEM;
            if (st == ENGINE_NOMEM && (fail < 4 || dice(12) == 0))
                assert_now(e, truth);
            if (st == ENGINE_NOMEM)
                assert_int_equal(engine_revision(e), round - 1);
        }
        memcpy(truth, next, sizeof truth);
        assert_now(e, truth);
        changes_free(c);
    }
    assert_true(refused > 100);
    engine_free(e);
}

static void test_names_are_given_back(void **state)
{
    (void)state;
    struct engine *e = engine_new();
    size_t after_first = 0;
    for (uint64_t round = 1; round <= 40; round++) {
        struct engine_change c[100];
        char objects[100][32], subjects[100][32];
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < 100; i++) {
                snprintf(objects[i], sizeof objects[i], "doc:%d-%d", (int)round, i);
                snprintf(subjects[i], sizeof subjects[i], "user:%d-%d", (int)round, i);
                c[i] = (struct engine_change){
                    .tuple = {.object = text(objects[i]), .relation = text("r"), .subject = text(subjects[i])},
                    .remove = half == 1};
            }
            assert_int_equal(engine_apply(e, c, 100, round * 2 + (uint64_t)half), ENGINE_OK);
        }
        assert_int_equal(engine_size(e).tuples, 0);
        assert_int_equal(engine_size(e).objects, 0);
        if (round == 4)
            after_first = engine_size(e).bytes;
    }
    assert_true(engine_size(e).bytes <= after_first + 4096);
    assert_true(e->next_id < 1000);
    engine_free(e);
}

/* An id must not name another object while somebody may still hold it. */
static void test_a_reader_keeps_its_names(void **state)
{
    (void)state;
    struct engine *e = engine_new();
    struct engine_reader *r = engine_reader_new(e);
    struct engine_change c = {.tuple = {.object = text("doc:old"), .relation = text("r"), .subject = text("user:old")}};
    assert_int_equal(engine_apply(e, &c, 1, 1), ENGINE_OK);
    engine_begin(r);
    object_id old = graph_object_find(reader_view(r), graph_name_find(e, "doc", 3), "old", 3);
    assert_int_not_equal(old, 0);
    c.remove = true;
    assert_int_equal(engine_apply(e, &c, 1, 2), ENGINE_OK);
    for (uint64_t i = 3; i < 300; i++) {
        char object[32];
        snprintf(object, sizeof object, "doc:%d", (int)i);
        struct engine_change other = {
            .tuple = {.object = text(object), .relation = text("r"), .subject = text("user:new")}};
        assert_int_equal(engine_apply(e, &other, 1, i), ENGINE_OK);
    }
    assert_int_equal(graph_object_find(reader_view(r), graph_name_find(e, "doc", 3), "old", 3), old);
    struct engine_text name = graph_object_name(reader_view(r), old);
    assert_int_equal(name.len, 3);
    assert_memory_equal(name.s, "old", 3);
    assert_int_equal(graph_object_find(reader_view(r), graph_name_find(e, "doc", 3), "299", 3), 0);
    engine_end(r);
    engine_begin(r);
    assert_int_equal(graph_object_find(reader_view(r), graph_name_find(e, "doc", 3), "old", 3), 0);
    engine_end(r);
    engine_reader_free(r);
    engine_free(e);
}

static void test_loading_equals_applying(void **state)
{
    (void)state;
    struct engine *e = engine_new();
    size_t n = 0;
    memset(truth, 0, sizeof truth);
    for (int i = 0; i < COUNT; i++)
        truth[i] = dice(3) ? 0 : dice(9) ? 1 : (unsigned char)(2 + dice(3));
    for (int twice = 0; twice < 2; twice++)
        for (int i = 0; i < COUNT; i++) {
            int k = (int)((i * 7919L) % COUNT); /* 7919 is prime to COUNT */
            struct text_tuple x;
            if (!truth[k] || (twice && dice(2)))
                continue;
            tuple_of(k, truth[k], &x);
            assert_int_equal(engine_load(e, &x.t, 1), ENGINE_OK);
            n++;
        }
    assert_true(n > COUNT / 4);
    assert_int_equal(engine_load_end(e, 7), ENGINE_OK);
    assert_int_equal(engine_revision(e), 7);
    assert_now(e, truth);
    for (uint64_t round = 8; round < 20; round++) {
        struct engine_change *c = some_changes(700, truth, round & 1);
        assert_int_equal(engine_apply(e, c, 700, round), ENGINE_OK);
        changes_free(c);
    }
    assert_now(e, truth);
    engine_free(e);
    for (long fail = 1; fail < 3000; fail += 1 + fail / 8) { /* frees all, says so */
        e = engine_new();
        enum engine_status st = ENGINE_OK;
        graph_fail_in(e, fail);
        for (int i = 0; i < 600 && st == ENGINE_OK; i++) {
            struct text_tuple x;
            tuple_of(i, 1 + i % 3, &x);
            st = engine_load(e, &x.t, 1);
        }
        if (st == ENGINE_OK)
            st = engine_load_end(e, 1);
        graph_fail_in(e, 0);
        assert_true(st == ENGINE_OK || st == ENGINE_NOMEM);
        if (st == ENGINE_NOMEM)
            assert_int_equal(engine_size(e).tuples, 0);
        engine_free(e);
    }
}

/* The inventory's shape: an instance has a parent and an owner team. */
static void test_bytes_a_tuple(void **state)
{
    (void)state;
    enum { N = 100000 };
    struct engine *e = engine_new();
    for (int i = 0; i < N; i++) {
        char object[64], parent[64], team[64];
        snprintf(object, sizeof object, "resource_instance:ri-%07d", i);
        snprintf(parent, sizeof parent, "catalog_item:ci-%06d", i / 2);
        snprintf(team, sizeof team, "team:org-%02d-team-%d#member", i % 20, i % 4);
        struct engine_tuple t[2] = {{.object = text(object), .relation = text("parent"), .subject = text(parent)},
                                    {.object = text(object), .relation = text("editor"), .subject = text(team)}};
        assert_int_equal(engine_load(e, t, 2), ENGINE_OK);
    }
    assert_int_equal(engine_load_end(e, 1), ENGINE_OK);
    struct engine_size size = engine_size(e);
    assert_int_equal(size.tuples, 2 * N);
    assert_true(size.objects > N);
    if (size.bytes > 100 * size.tuples)
        fail_msg("%zu bytes a tuple", (size_t)(size.bytes / size.tuples));
    engine_free(e);
}

/* ---- readers beside a writer ---- */

#define PLACES 7
#define CROWD 300

static struct engine *shared;
static atomic_bool writing;
static atomic_ullong looked;

/* At revision v the tuple is at object v % PLACES and nowhere else, and the crowd there is whole or gone. */
static void *look(void *arg)
{
    struct engine_reader *r = engine_reader_new(shared);
    size_t *wrong = arg;
    while (atomic_load(&writing)) {
        uint64_t v = engine_begin(r);
        size_t found = 0, crowd = 0;
        for (unsigned k = 0; k < PLACES; k++) {
            char object[16];
            struct engine_text condition, context;
            snprintf(object, sizeof object, "doc:%u", k);
            struct engine_tuple t = {.object = text(object), .relation = text("r"), .subject = text("user:one")};
            bool there = engine_find(r, &t, &condition, &context);
            found += there;
            *wrong += v > 0 && there != (v % PLACES == k);
            object_id o = graph_object_find(reader_view(r), graph_name_find(shared, "doc", 3), object + 4, 1);
            struct graph_walk w;
            const uint64_t *keys;
            size_t n;
            graph_walk(&w, graph_object(reader_view(r), o), FORWARD, 0, UINT64_MAX);
            while (o && (n = graph_run(&w, &keys)) > 0)
                crowd += n;
        }
        *wrong += v > 0 && (found != 1 || crowd != 1 + (v % 2 ? CROWD : 0));
        engine_end(r);
        atomic_fetch_add(&looked, 1);
    }
    engine_reader_free(r);
    return NULL;
}

static void test_readers_beside_a_writer(void **state)
{
    (void)state;
    enum { READERS = 3, ROUNDS = 400 };
    static char crowd[CROWD][16];
    static struct engine_change c[CROWD + 2];
    size_t wrong[READERS] = {0};
    pthread_t threads[READERS];
    shared = engine_new();
    atomic_store(&writing, true);
    for (int i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, look, &wrong[i]), 0);
    for (uint64_t v = 1; v <= ROUNDS || atomic_load(&looked) < 400; v++) {
        char from[16], to[16];
        snprintf(from, sizeof from, "doc:%d", (int)((v - 1) % PLACES));
        snprintf(to, sizeof to, "doc:%d", (int)(v % PLACES));
        struct engine_tuple one = {.relation = text("r"), .subject = text("user:one")};
        c[0] = (struct engine_change){.tuple = one, .remove = true};
        c[0].tuple.object = text(from);
        c[1] = (struct engine_change){.tuple = one};
        c[1].tuple.object = text(to);
        for (int i = 0; i < CROWD; i++) {
            snprintf(crowd[i], sizeof crowd[i], "user:%d", i);
            c[2 + i] = (struct engine_change){
                .tuple = {.object = v % 2 ? text(to) : text(from), .relation = text("r"), .subject = text(crowd[i])},
                .remove = v % 2 == 0};
        }
        assert_int_equal(engine_apply(shared, c, CROWD + 2, v), ENGINE_OK);
    }
    atomic_store(&writing, false);
    for (int i = 0; i < READERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(wrong[i], 0);
    }
    engine_free(shared);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_changes_against_a_list), cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_views_stay_as_they_were),       cmocka_unit_test(test_no_memory_changes_nothing),
        cmocka_unit_test(test_names_are_given_back),          cmocka_unit_test(test_a_reader_keeps_its_names),
        cmocka_unit_test(test_loading_equals_applying),       cmocka_unit_test(test_bytes_a_tuple),
        cmocka_unit_test(test_readers_beside_a_writer),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
