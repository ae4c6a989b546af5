/* outbox-relay/window: numbers, marks, and where to begin again; checked against a naive model too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "outbox-relay/window.h"

static const struct position nowhere = {0, 0};

static void test_a_mark_waits_for_all_before_it(void **state)
{
    (void)state;
    struct window w;
    assert_int_equal(window_init(&w, 10, NULL), ST_OK);
    window_mark(&w, 5); /* nothing in flight */
    assert_true(w.confirmed == 5);

    uint64_t a = window_add(&w, 1, (struct position){100, 0}, 10);
    uint64_t b = window_add(&w, 2, (struct position){100, 1}, 10);
    window_mark(&w, 110);
    uint64_t c = window_add(&w, 3, (struct position){200, 0}, 10);
    window_mark(&w, 210);
    assert_int_equal(window_len(&w), 3);

    window_done(&w, c); /* a later transaction is acknowledged first */
    window_done(&w, b);
    assert_true(w.confirmed == 5);
    window_done(&w, b); /* a second report of the same */
    window_done(&w, 99);
    assert_true(w.confirmed == 5);
    window_done(&w, a);
    assert_true(w.confirmed == 210);
    assert_true(window_empty(&w));
    window_release(&w);
}

static void test_an_unfinished_transaction_is_not_confirmed(void **state)
{
    (void)state;
    struct window w;
    assert_int_equal(window_init(&w, 4, NULL), ST_OK);
    for (uint64_t i = 0; i < 1000; i++) { /* far more rows than room: each is acknowledged before the next */
        uint64_t n = window_add(&w, (int64_t)i, (struct position){100, i}, 1);
        window_done(&w, n);
        assert_true(w.confirmed == 0);
    }
    window_mark(&w, 150);
    assert_true(w.confirmed == 150);
    window_release(&w);
}

static void test_full_undo_and_marks_of_nothing(void **state)
{
    (void)state;
    struct window w;
    assert_int_equal(window_init(&w, 2, NULL), ST_OK);
    uint64_t a = window_add(&w, 1, nowhere, 1);
    uint64_t b = window_add(&w, 2, nowhere, 1);
    assert_true(window_full(&w));
    window_undo(&w, b);
    assert_false(window_full(&w));
    for (uint64_t lsn = 10; lsn < 200; lsn++) /* transactions without a row of ours: one mark, the last */
        window_mark(&w, lsn);
    assert_true(w.confirmed == 0);
    window_done(&w, a);
    assert_true(w.confirmed == 199);
    window_release(&w);
}

static void test_where_to_begin_again(void **state)
{
    (void)state;
    struct window w;
    assert_int_equal(window_init(&w, 10, NULL), ST_OK);
    assert_true(window_first_open(&w).lsn == 0);
    window_add(&w, 1, nowhere, 1); /* sent again: of no place in the stream */
    uint64_t b = window_add(&w, 2, (struct position){100, 7}, 1);
    window_add(&w, 3, (struct position){100, 8}, 1);
    assert_true(window_first_open(&w).lsn == 100 && window_first_open(&w).index == 7);
    window_done(&w, b);
    assert_true(window_first_open(&w).index == 8);

    uint64_t next = w.next;
    window_clear(&w); /* a new producer: late reports of the old numbers mean nothing */
    assert_true(window_empty(&w));
    assert_null(window_item(&w, b));
    assert_true(window_add(&w, 4, nowhere, 1) == next);
    window_mark(&w, 300);
    window_restart(&w, 50);
    assert_true(w.confirmed == 50 && window_empty(&w));
    window_release(&w);
}

/* Random reports, in any order, against a model that keeps everything. */
static void test_random_orders_equal_a_naive_model(void **state)
{
    (void)state;
    enum { N = 3000, LIMIT = 50 };
    static bool done[N + 1];
    static uint64_t covers[N + 1]; /* the position that is confirmed once 1..i are done; 0 = none */
    struct window w;
    uint64_t seed = 42, sent = 0, lsn = 1;
    memset(done, 0, sizeof done);
    assert_int_equal(window_init(&w, LIMIT, NULL), ST_OK);
    while (w.low <= N) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407U;
        unsigned dice = (unsigned)(seed >> 33);
        if (sent < N && !window_full(&w) && dice % 2 == 0) {
            sent++;
            assert_true(window_add(&w, (int64_t)sent, (struct position){lsn, 0}, 1) == sent);
            if (dice % 6 == 0) {
                lsn += 10;
                covers[sent] = lsn;
                window_mark(&w, lsn);
            }
        } else if (!window_empty(&w)) {
            uint64_t n = w.low + dice % window_len(&w);
            done[n] = true;
            window_done(&w, n);
        }
        uint64_t low = 1, confirmed = 0;
        while (low <= sent && done[low]) {
            if (covers[low])
                confirmed = covers[low];
            low++;
        }
        assert_true(w.low == low);
        assert_true(w.confirmed == confirmed);
    }
    window_release(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_mark_waits_for_all_before_it),
        cmocka_unit_test(test_an_unfinished_transaction_is_not_confirmed),
        cmocka_unit_test(test_full_undo_and_marks_of_nothing),
        cmocka_unit_test(test_where_to_begin_again),
        cmocka_unit_test(test_random_orders_equal_a_naive_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
