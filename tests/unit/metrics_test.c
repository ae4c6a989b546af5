/* metrics_test.c - values, the text format, and the rules that a linter of Prometheus metrics has. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/admin/metrics.h"
#include "tests/harness/metrics_lint.h"

static struct metric things = METRIC_INIT(METRIC_COUNTER, "relata_test_things_total", "Things seen.", NULL);
static struct metric size_a = METRIC_INIT(METRIC_GAUGE, "relata_test_size_bytes", "Size, by kind.", "kind=\"a\"");
static struct metric took =
    METRIC_INIT(METRIC_HISTOGRAM, "relata_test_took_seconds", "Time it took \\ with\nbreak.", NULL);
static struct metric size_b = METRIC_INIT(METRIC_GAUGE, "relata_test_size_bytes", "Size, by kind.", "kind=\"b\"");
static struct metric wait_x = METRIC_INIT(METRIC_HISTOGRAM, "relata_test_wait_seconds", "Wait, by op.", "op=\"x\"");
static struct metric wait_y = METRIC_INIT(METRIC_HISTOGRAM, "relata_test_wait_seconds", "Wait, by op.", "op=\"y\"");
static struct metric *const all[] = {&things, &size_a, &took, &size_b, &wait_x, &wait_y};

static struct buf page;

static const char *render(void)
{
    buf_init(&page, 1 << 20);
    metrics_render(&page);
    assert_true(buf_ok(&page));
    return buf_str(&page);
}

static void assert_has(const char *line)
{
    const char *text = render();
    const char *found = strstr(text, line);

    if (!found)
        fail_msg("missing: %s in\n%s", line, text);
    else
        assert_true(found == text || found[-1] == '\n');
    buf_release(&page);
}

static void test_counter_and_gauge(void **state)
{
    (void)state;
    metric_add(&things, 1);
    metric_add(&things, 41);
    assert_int_equal(metric_count(&things), 42);
    assert_has("# HELP relata_test_things_total Things seen.\n# TYPE relata_test_things_total counter\n"
               "relata_test_things_total 42\n");
    metric_set(&size_a, 0);
    metric_set(&size_b, 1234567890123.0);
    assert_has("# HELP relata_test_size_bytes Size, by kind.\n# TYPE relata_test_size_bytes gauge\n"
               "relata_test_size_bytes{kind=\"a\"} 0\nrelata_test_size_bytes{kind=\"b\"} 1234567890123\n");
    metric_set(&size_a, -0.1);
    assert_has("relata_test_size_bytes{kind=\"a\"} -0.1\n");
    metric_set(&size_a, 1.0 / 3);
    assert_has("relata_test_size_bytes{kind=\"a\"} 0.3333333333333333\n");
    metric_set(&size_a, (double)INFINITY);
    assert_has("relata_test_size_bytes{kind=\"a\"} +Inf\n");
    metric_set(&size_a, (double)NAN);
    assert_has("relata_test_size_bytes{kind=\"a\"} NaN\n");
    metric_set(&size_a, 1);
}

static void test_histogram(void **state)
{
    (void)state;
    metric_observe_us(&took, -1);       /* as 0 */
    metric_observe_us(&took, 100);      /* a bound belongs to its bucket */
    metric_observe_us(&took, 101);      /* the next */
    metric_observe_us(&took, 90000000); /* beyond all */
    assert_int_equal(metric_count(&took), 4);
    assert_has(
        "# HELP relata_test_took_seconds Time it took \\\\ with\\nbreak.\n# TYPE relata_test_took_seconds histogram\n"
        "relata_test_took_seconds_bucket{le=\"0.0001\"} 2\nrelata_test_took_seconds_bucket{le=\"0.00025\"} 3\n");
    assert_has("relata_test_took_seconds_bucket{le=\"60\"} 3\nrelata_test_took_seconds_bucket{le=\"+Inf\"} 4\n"
               "relata_test_took_seconds_sum 90.000201\nrelata_test_took_seconds_count 4\n");
    metric_observe_us(&wait_y, 2000000);
    assert_has("relata_test_wait_seconds_bucket{op=\"y\",le=\"2.5\"} 1\n");
    assert_has("relata_test_wait_seconds_sum{op=\"y\"} 2\nrelata_test_wait_seconds_count{op=\"y\"} 1\n");
}

static void *update(void *arg)
{
    (void)arg;
    for (int i = 0; i < 20000; i++) {
        metric_add(&things, 1);
        metric_observe_us(&wait_x, i);
        metric_set(&size_b, i);
    }
    return NULL;
}

static void test_updates_from_many_threads_add_up(void **state)
{
    pthread_t threads[4];
    int64_t before = metric_count(&things);

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, update, NULL), 0);
    for (int i = 0; i < 50; i++) {
        assert_null(metrics_lint(render())); /* agrees with itself while it changes */
        buf_release(&page);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(metric_count(&things), before + 80000);
    assert_int_equal(metric_count(&wait_x), 80000);
}

static void test_registering_twice_shows_once(void **state)
{
    const char *text;

    (void)state;
    metric_register(&things);
    metric_register_all(all, sizeof all / sizeof all[0]);
    text = render();
    text = strstr(text, "\nrelata_test_things_total ");
    if (!text)
        text = buf_str(&page);
    assert_null(strstr(text + 1, "\nrelata_test_things_total "));
    buf_release(&page);
}

static void test_own_process(void **state)
{
    const char *text = render();
    double cpu = -1, resident = -1, start = -1;

    (void)state;
    sscanf(strstr(text, "\nprocess_cpu_seconds_total "), " process_cpu_seconds_total %lf", &cpu);
    sscanf(strstr(text, "\nprocess_resident_memory_bytes "), " process_resident_memory_bytes %lf", &resident);
    sscanf(strstr(text, "\nprocess_start_time_seconds "), " process_start_time_seconds %lf", &start);
    assert_true(cpu > 0 && cpu < 3600);
    assert_true(resident > 100000);
    assert_true(start > 1700000000);
    assert_true(start <= (double)time(NULL) + 1);
    assert_non_null(strstr(text, "\nrelata_build_info{version=\"" RELATA_VERSION "\"} 1\n"));
    buf_release(&page);
}

static void test_lint_of_all(void **state)
{
    (void)state;
    assert_null(metrics_lint(render()));
    buf_release(&page);
}

/* The linter itself must see faults. */
static void test_lint_finds_faults(void **state)
{
    static const char *const bad[] = {
        "relata_x 1\n",                                                              /* no HELP, no TYPE */
        "# HELP relata_x_total X.\n# TYPE relata_x_total counter\nrelata_x_total 1", /* no newline at the end */
        "# HELP relata_x X.\n# TYPE relata_x counter\nrelata_x 1\n",                 /* counter without _total */
        "# HELP relata_x_total X.\n# TYPE relata_x_total gauge\nrelata_x_total 1\n",
        "# HELP relata_x_total X.\n# TYPE relata_x_total counter\nrelata_x_total -1\n",
        "# HELP relata_x_ms X.\n# TYPE relata_x_ms gauge\nrelata_x_ms 1\n",
        "# HELP relata_X X.\n# TYPE relata_X gauge\nrelata_X 1\n",
        "# HELP relata_x \n# TYPE relata_x gauge\nrelata_x 1\n",
        "# HELP relata_x X.\n# TYPE relata_x gauge\nrelata_x 1\nrelata_x 2\n",
        "# HELP relata_x X.\n# TYPE relata_x gauge\nrelata_x one\n",
        "# HELP relata_x X.\n# TYPE relata_x gauge\nrelata_x{a=1} 1\n",
        "# HELP relata_x X.\n# TYPE relata_x gauge\nrelata_x 1\n# HELP relata_x X.\n# TYPE relata_x "
        "gauge\nrelata_x{a=\"b\"} 1\n",
        "# HELP relata_h_seconds H.\n# TYPE relata_h_seconds histogram\nrelata_h_seconds_bucket{le=\"1\"} 2\n"
        "relata_h_seconds_bucket{le=\"+Inf\"} 1\nrelata_h_seconds_sum 1\nrelata_h_seconds_count 1\n",
        "# HELP relata_h_seconds H.\n# TYPE relata_h_seconds histogram\nrelata_h_seconds_bucket{le=\"1\"} 1\n"
        "relata_h_seconds_bucket{le=\"+Inf\"} 1\nrelata_h_seconds_sum 1\nrelata_h_seconds_count 2\n",
        "# HELP relata_h_seconds H.\n# TYPE relata_h_seconds histogram\nrelata_h_seconds_bucket{le=\"1\"} 1\n"
        "relata_h_seconds_sum 1\nrelata_h_seconds_count 1\n",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (!metrics_lint(bad[i]))
            print_error("not found: %s\n", bad[i]);
        assert_non_null(metrics_lint(bad[i]));
    }
}

static void test_reference(void **state)
{
    struct buf text;

    (void)state;
    buf_init(&text, 1 << 20);
    metrics_reference(&text);
    assert_memory_equal(buf_str(&text), "| metric | type | labels | meaning |\n|---|---|---|---|\n", 55);
    assert_non_null(strstr(buf_str(&text), "| `relata_test_things_total` | counter |  | Things seen. |\n"));
    assert_non_null(
        strstr(buf_str(&text), "| `relata_test_size_bytes` | gauge | `kind=\"a\"`, `kind=\"b\"` | Size, by kind. |\n"));
    assert_non_null(strstr(buf_str(&text), "| `process_cpu_seconds_total` | counter |"));
    buf_release(&text);
}

static int begin(void **state)
{
    (void)state;
    metric_register_all(all, sizeof all / sizeof all[0]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counter_and_gauge),
        cmocka_unit_test(test_histogram),
        cmocka_unit_test(test_updates_from_many_threads_add_up),
        cmocka_unit_test(test_registering_twice_shows_once),
        cmocka_unit_test(test_own_process),
        cmocka_unit_test(test_lint_of_all),
        cmocka_unit_test(test_lint_finds_faults),
        cmocka_unit_test(test_reference),
    };

    return cmocka_run_group_tests(tests, begin, NULL);
}
