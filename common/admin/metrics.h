/*
 * metrics.h - counters, gauges and histograms in Prometheus text format.
 *
 * Metrics are declared once as static tables, registered before threads start,
 * and updated by any thread without locks. Names follow Prometheus: relata_<program>_<what>_<unit>[_total];
 * base units (seconds, bytes). Help text is one sentence. docs/reference/metrics.md is made from the registry.
 */
#ifndef RELATA_ADMIN_METRICS_H
#define RELATA_ADMIN_METRICS_H

#include <stdatomic.h>
#include <stdint.h>

#include "common/base/buf.h"

#define METRIC_BUCKETS 18 /* upper bounds of a histogram: 100 us .. 60 s */

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

/* One time series; label is a ready "name=\"value\"" list or NULL (constant strings). Series that differ only in their
 * label share name, kind and help. A zeroed or static struct is ready: updates work before and without registering. */
struct metric {
    enum metric_kind kind;
    const char *name;
    const char *help;
    const char *label;
    /* private */
    _Atomic int64_t value; /* counters: count; gauges: the bits of a double; histograms: sum in microseconds */
    _Atomic int64_t buckets[METRIC_BUCKETS + 1]; /* not cumulative; the last is beyond all bounds */
    struct metric *next;
};

/* static struct metric sent = METRIC_INIT(METRIC_COUNTER, "relata_relay_sent_total", "Messages sent.", NULL); */
#define METRIC_INIT(kind_, name_, help_, label_)                                                                       \
    {                                                                                                                  \
        .kind = kind_, .name = name_, .help = help_, .label = label_                                                   \
    }

/* Registers for metrics_render (histograms: fixed buckets, values in microseconds, shown in seconds). Call before
 * threads start; the metric must live as long as the process. Again is harmless. */
void metric_register(struct metric *m);
void metric_register_all(struct metric *const *list, size_t n);

void metric_add(struct metric *m, int64_t n); /* counter */
void metric_set(struct metric *m, double v);  /* gauge */
void metric_observe_us(struct metric *m, int64_t us);
int64_t metric_count(const struct metric *m); /* counter value, or observations of a histogram */

/* All registered metrics, and process_cpu_seconds_total, process_resident_memory_bytes, process_start_time_seconds,
 * relata_build_info. */
void metrics_render(struct buf *out);
/* Table of all registered metrics in Markdown (cfg_program.metrics). */
void metrics_reference(struct buf *out);

#endif
