/*
 * watermark_test.c - how far a partition may be committed: to the first message that is not done.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tuple-writer/watermark.h"

static void test_nothing_is_committed_before_anything_is_done(void **state)
{
    struct watermark w;
    uint64_t seq;
    (void)state;
    watermark_init(&w, 3);
    assert_int_equal(w.next, -1);
    assert_true(watermark_add(&w, 10, 0, &seq));
    assert_int_equal(w.next, -1);
    watermark_done(&w, seq);
    assert_int_equal(w.next, 11);
    watermark_done(&w, seq);
    watermark_done(&w, 99);
    assert_int_equal(w.next, 11);
    watermark_release(&w);
}

static void test_W43_the_mark_stops_at_the_first_that_is_open(void **state)
{
    struct watermark w;
    uint64_t seq[5];
    (void)state;
    watermark_init(&w, 0);
    for (int i = 0; i < 5; i++) /* offsets have gaps: compaction, transactions */
        assert_true(watermark_add(&w, 100 + 10 * i, (mono_us)(7 + i) * 1000000 + 5, &seq[i]));
    watermark_done(&w, seq[4]);
    watermark_done(&w, seq[1]);
    assert_int_equal(w.next, -1);
    int64_t offset;
    mono_us added;
    assert_int_equal(watermark_kept(&w), 5); /* done or not */
    assert_true(watermark_oldest(&w, &offset, &added));
    assert_true(offset == 100 && added == 7000000);
    watermark_done(&w, seq[0]);
    assert_int_equal(w.next, 111);
    assert_true(watermark_oldest(&w, &offset, &added));
    assert_true(offset == 120 && added == 9000000);
    watermark_done(&w, seq[2]);
    assert_int_equal(w.next, 121);
    watermark_done(&w, seq[3]);
    assert_int_equal(w.next, 141);
    assert_int_equal(watermark_kept(&w), 0);
    assert_false(watermark_oldest(&w, &offset, &added));
    watermark_release(&w);
}

/* Random orders against the plain definition. */
static void test_any_order(void **state)
{
    enum { N = 3000 };
    static uint64_t seq[N];
    static bool added[N], done[N];
    struct watermark w;
    int next = 0;
    (void)state;
    srand(7);
    watermark_init(&w, 0);
    for (int step = 0; step < 20 * N; step++) {
        if (next < N && rand() % 3 > 0) {
            assert_true(watermark_add(&w, next, 0, &seq[next]));
            added[next++] = true;
        }
        int low = w.next < 0 ? 0 : (int)w.next;
        int i = low + rand() % 200;
        if (i < N && added[i] && !done[i]) {
            watermark_done(&w, seq[i]);
            done[i] = true;
        }
        int want = 0;
        for (want = low; want < N && done[want]; want++)
            continue;
        assert_int_equal(w.next, want == 0 ? -1 : want);
    }
    watermark_release(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_committed_before_anything_is_done),
        cmocka_unit_test(test_W43_the_mark_stops_at_the_first_that_is_open),
        cmocka_unit_test(test_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
