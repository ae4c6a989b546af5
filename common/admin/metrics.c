#include "common/admin/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"

static const int64_t bounds_us[METRIC_BUCKETS] = {100,     250,     500,     1000,     2500,     5000,
                                                  10000,   25000,   50000,   100000,   250000,   500000,
                                                  1000000, 2500000, 5000000, 10000000, 30000000, 60000000};
static const char *const bounds_text[METRIC_BUCKETS] = {"0.0001", "0.00025", "0.0005", "0.001", "0.0025", "0.005",
                                                        "0.01",   "0.025",   "0.05",   "0.1",   "0.25",   "0.5",
                                                        "1",      "2.5",     "5",      "10",    "30",     "60"};

static struct metric *first;

void metric_register(struct metric *m)
{
    struct metric **at = &first;

    for (; *at; at = &(*at)->next) {
        if (*at == m)
            return;
    }
    *at = m;
}

void metric_register_all(struct metric *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        metric_register(list[i]);
}

static int64_t load(const _Atomic int64_t *v)
{
    return atomic_load_explicit(v, memory_order_relaxed);
}

void metric_add(struct metric *m, int64_t n)
{
    atomic_fetch_add_explicit(&m->value, n, memory_order_relaxed);
}

void metric_set(struct metric *m, double v)
{
    int64_t bits;

    memcpy(&bits, &v, sizeof bits);
    atomic_store_explicit(&m->value, bits, memory_order_relaxed);
}

static double gauge_value(const struct metric *m)
{
    int64_t bits = load(&m->value);
    double v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

void metric_observe_us(struct metric *m, int64_t us)
{
    int i = 0;

    if (us < 0)
        us = 0;
    while (i < METRIC_BUCKETS && us > bounds_us[i])
        i++;
    atomic_fetch_add_explicit(&m->buckets[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->value, us, memory_order_relaxed);
}

int64_t metric_count(const struct metric *m)
{
    int64_t n = 0;

    if (m->kind != METRIC_HISTOGRAM)
        return load(&m->value);
    for (int i = 0; i <= METRIC_BUCKETS; i++)
        n += load(&m->buckets[i]);
    return n;
}

/* The shortest form that reads back as the same number. */
static void add_double(struct buf *out, double v)
{
    char text[40];

    if (isnan(v) || isinf(v)) {
        buf_adds(out, isnan(v) ? "NaN" : v > 0 ? "+Inf" : "-Inf");
        return;
    }
    for (int digits = 6; digits <= 17; digits++) {
        double again;

        snprintf(text, sizeof text, "%.*g", digits, v);
        again = strtod(text, NULL);
        if (memcmp(&again, &v, sizeof v) == 0)
            break;
    }
    buf_adds(out, text);
}

static void add_help(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_addf(out, "# HELP %s ", name);
    for (; *help; help++) {
        if (*help == '\\')
            buf_adds(out, "\\\\");
        else if (*help == '\n')
            buf_adds(out, "\\n");
        else
            buf_addc(out, *help);
    }
    buf_addf(out, "\n# TYPE %s %s\n", name, type);
}

static const char *kind_name(enum metric_kind kind)
{
    return kind == METRIC_COUNTER ? "counter" : kind == METRIC_GAUGE ? "gauge" : "histogram";
}

static void add_name(struct buf *out, const char *name, const char *suffix, const char *label)
{
    buf_addf(out, "%s%s", name, suffix);
    if (label)
        buf_addf(out, "{%s}", label);
    buf_addc(out, ' ');
}

/* The count is the sum of the buckets just read, so that the block agrees with itself while others update it. */
static void add_histogram(struct buf *out, const struct metric *m)
{
    const char *label = m->label ? m->label : "", *comma = m->label ? "," : "";
    int64_t sum_us = load(&m->value), n = 0;

    for (int i = 0; i < METRIC_BUCKETS; i++) {
        n += load(&m->buckets[i]);
        buf_addf(out, "%s_bucket{%s%sle=\"%s\"} %" PRId64 "\n", m->name, label, comma, bounds_text[i], n);
    }
    n += load(&m->buckets[METRIC_BUCKETS]);
    buf_addf(out, "%s_bucket{%s%sle=\"+Inf\"} %" PRId64 "\n", m->name, label, comma, n);
    add_name(out, m->name, "_sum", m->label);
    add_double(out, (double)sum_us / 1e6);
    buf_addc(out, '\n');
    add_name(out, m->name, "_count", m->label);
    buf_addf(out, "%" PRId64 "\n", n);
}

static void add_series(struct buf *out, const struct metric *m)
{
    if (m->kind == METRIC_HISTOGRAM) {
        add_histogram(out, m);
        return;
    }
    add_name(out, m->name, "", m->label);
    if (m->kind == METRIC_COUNTER)
        buf_addf(out, "%" PRId64, load(&m->value));
    else
        add_double(out, gauge_value(m));
    buf_addc(out, '\n');
}

static bool is_first_of_name(const struct metric *m)
{
    const struct metric *p = first;

    while (strcmp(p->name, m->name) != 0)
        p = p->next;
    return p == m;
}

/* A whole small file of /proc; its length, 0 if it cannot be read. */
static size_t read_proc(const char *path, char *out, size_t size)
{
    FILE *f = fopen(path, "re");
    size_t n = 0;

    if (f) {
        n = fread(out, 1, size - 1, f);
        fclose(f);
    }
    out[n] = '\0';
    return n;
}

static double resident_bytes(void)
{
    char text[256];
    long long pages = 0;

    if (read_proc("/proc/self/statm", text, sizeof text) == 0 || sscanf(text, "%*d %lld", &pages) != 1)
        return 0;
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

/* Seconds since the Unix epoch: boot time plus the 22nd field of stat, counted behind the name, which may hold
 * anything. */
static double start_time(void)
{
    char text[4096];
    const char *p;
    long long btime = 0, ticks = 0;

    if (read_proc("/proc/stat", text, sizeof text) == 0 || !(p = strstr(text, "\nbtime ")))
        return 0;
    if (sscanf(p, " btime %lld", &btime) != 1)
        return 0;
    if (read_proc("/proc/self/stat", text, sizeof text) == 0 || !(p = strrchr(text, ')')))
        return 0;
    for (int field = 2; field < 22 && p; field++)
        p = strchr(p + 1, ' ');
    if (!p || sscanf(p, " %lld", &ticks) != 1)
        return 0;
    return (double)btime + (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

static void add_value(struct buf *out, const char *name, const char *type, const char *help, double v)
{
    add_help(out, name, type, help);
    buf_addf(out, "%s ", name);
    add_double(out, v);
    buf_addc(out, '\n');
}

void metrics_render(struct buf *out)
{
    for (const struct metric *m = first; m; m = m->next) {
        if (!is_first_of_name(m))
            continue;
        add_help(out, m->name, kind_name(m->kind), m->help);
        for (const struct metric *p = m; p; p = p->next) {
            if (strcmp(p->name, m->name) == 0)
                add_series(out, p);
        }
    }
    add_value(out, "process_cpu_seconds_total", "counter", "User and system CPU time spent in seconds.",
              (double)clock_cpu_us() / 1e6);
    add_value(out, "process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", resident_bytes());
    add_value(out, "process_start_time_seconds", "gauge", "Start time of the process since the Unix epoch in seconds.",
              start_time());
    add_help(out, "relata_build_info", "gauge", "Always 1; the label tells the version.");
    buf_addf(out, "relata_build_info{version=\"%s\"} 1\n", RELATA_VERSION);
}

static void reference_row(struct buf *out, const char *name, const char *type, const char *labels, const char *help)
{
    buf_addf(out, "| `%s` | %s | %s%s%s | %s |\n", name, type, *labels ? "`" : "", labels, *labels ? "`" : "", help);
}

/* The labels of all series of one name. */
static void add_labels(struct buf *out, const struct metric *m)
{
    for (const struct metric *p = m; p; p = p->next) {
        if (strcmp(p->name, m->name) == 0 && p->label)
            buf_addf(out, "%s%s", out->len ? "`, `" : "", p->label);
    }
}

void metrics_reference(struct buf *out)
{
    struct buf labels;

    buf_init(&labels, 4096);
    buf_adds(out, "| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for (const struct metric *m = first; m; m = m->next) {
        if (!is_first_of_name(m))
            continue;
        buf_clear(&labels);
        add_labels(&labels, m);
        reference_row(out, m->name, kind_name(m->kind), buf_str(&labels), m->help);
    }
    reference_row(out, "process_cpu_seconds_total", "counter", "", "User and system CPU time spent in seconds.");
    reference_row(out, "process_resident_memory_bytes", "gauge", "", "Resident memory size in bytes.");
    reference_row(out, "process_start_time_seconds", "gauge", "",
                  "Start time of the process since the Unix epoch in seconds.");
    reference_row(out, "relata_build_info", "gauge", "version", "Always 1; the label tells the version.");
    buf_release(&labels);
}
