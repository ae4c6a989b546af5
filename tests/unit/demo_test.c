/* The demo's set comparison and its numbers for people. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "demo/compare/set.h"
#include "demo/life/ops.h"
#include "demo/life/progress.h"

static void fill(struct set *s, const char *const *lines)
{
    for (; *lines; lines++)
        assert_int_equal(set_add(s, *lines, strlen(*lines), NULL), ST_OK);
    set_sort(s);
}

static void note(void *arg, const char *line, unsigned has)
{
    buf_addf(arg, "%s:%u ", line, has);
}

static void test_sort_drops_repetitions(void **state)
{
    (void)state;
    struct set s = {0};
    fill(&s, (const char *const[]){"b", "a", "b", "ab", "a", NULL});
    assert_int_equal(s.len, 3);
    assert_string_equal(s.lines[0], "a");
    assert_string_equal(s.lines[1], "ab");
    assert_string_equal(s.lines[2], "b");
    set_release(&s);
}

static void test_compare_names_each_difference(void **state)
{
    (void)state;
    struct set sets[3] = {0};
    struct buf seen;
    buf_init(&seen, 4096);
    fill(&sets[0], (const char *const[]){"a", "b", "c", NULL});
    fill(&sets[1], (const char *const[]){"a", "c", "d", NULL});
    fill(&sets[2], (const char *const[]){"z", "c", NULL});
    assert_int_equal(sets_compare(sets, 3, note, &seen), 4);
    assert_string_equal(buf_str(&seen), "a:3 b:1 d:2 z:4 ");
    for (int i = 0; i < 3; i++)
        set_release(&sets[i]);
    buf_release(&seen);
}

static void test_compare_of_equal_and_empty_sets(void **state)
{
    (void)state;
    struct set sets[3] = {0};
    assert_int_equal(sets_compare(sets, 3, note, NULL), 0);
    for (int i = 0; i < 3; i++)
        fill(&sets[i], (const char *const[]){"x", "y", NULL});
    assert_int_equal(sets_compare(sets, 3, note, NULL), 0);
    for (int i = 0; i < 3; i++)
        set_release(&sets[i]);
}

/* More than one block, and more lines than the first array holds. */
static void test_set_of_many_lines(void **state)
{
    (void)state;
    struct set s = {0};
    char line[128];
    for (int i = 0; i < 30000; i++) {
        int n = snprintf(line, sizeof line, "resource_instance:%08d#parent@catalog_item:%060d", 29999 - i, i);
        assert_int_equal(set_add(&s, line, (size_t)n, NULL), ST_OK);
    }
    set_sort(&s);
    assert_int_equal(s.len, 30000);
    assert_memory_equal(s.lines[0], "resource_instance:00000000#", 27);
    assert_memory_equal(s.lines[29999], "resource_instance:00029999#", 27);
    set_release(&s);
}

static void test_numbers_for_people(void **state)
{
    (void)state;
    char out[32];
    assert_string_equal(progress_count(0, out), "0");
    assert_string_equal(progress_count(999, out), "999");
    assert_string_equal(progress_count(1000, out), "1,000");
    assert_string_equal(progress_count(1270740, out), "1,270,740");
    assert_string_equal(progress_time(420, out), "0.42 ms");
    assert_string_equal(progress_time(13100, out), "13.1 ms");
    assert_string_equal(progress_time(250000, out), "250 ms");
    assert_string_equal(progress_time(1300000, out), "1.30 s");
}

/* Every operation is reached, in proportion, and the ends of the range stay inside the table. */
static void test_operations_are_picked_by_weight(void **state)
{
    (void)state;
    unsigned total = 0, seen[64] = {0};
    for (size_t i = 0; i < ops_len; i++)
        total += ops[i].weight;
    for (unsigned i = 0; i < total; i++)
        seen[op_pick((i + 0.5) / total) - ops]++;
    for (size_t i = 0; i < ops_len; i++)
        assert_int_equal(seen[i], ops[i].weight);
    assert_ptr_equal(op_pick(0), &ops[0]);
    assert_ptr_equal(op_pick(0.9999999999), &ops[ops_len - 1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sort_drops_repetitions),
        cmocka_unit_test(test_compare_names_each_difference),
        cmocka_unit_test(test_compare_of_equal_and_empty_sets),
        cmocka_unit_test(test_set_of_many_lines),
        cmocka_unit_test(test_numbers_for_people),
        cmocka_unit_test(test_operations_are_picked_by_weight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
