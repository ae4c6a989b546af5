/*
 * report.h - what an audit tells: people on standard output, programs in JSON lines, Prometheus by a text file, and
 * whoever waits by a line on standard error. Main thread only.
 */
#ifndef RELATA_DRIFT_REPORT_H
#define RELATA_DRIFT_REPORT_H

#include <jansson.h>

#include "drift-checker/repair/repair.h"
#include "drift-checker/report/record.h"

struct outcome {
    const struct run *run;
    const struct comparison *comparison;
    const struct findings *findings;
    const struct repairs *repairs;
    const char *state; /* as in relata.audit_run */
    const char *why;
    bool repair; /* it was asked for */
    double seconds;
};

/* Counts as relata.audit_run has them, and the sources' sizes. The caller's to release. */
json_t *report_counts(const struct outcome *o);
json_t *report_sources(const struct comparison *c);

/* Appends the command that repairs a finding, quoted for a shell: ids are other people's text. */
void report_repair(const struct finding *f, struct buf *out);

void report_text(const struct settings *cfg, const struct outcome *o, const struct pg_result *renamed);
void report_json(const struct settings *cfg, const struct outcome *o);
/* Replaces the file at once. ST_CONFIG if it cannot be written. */
enum status report_textfile(const struct settings *cfg, const struct outcome *o, struct err *err) MUST_CHECK;

/* How far it is (common/cli/progress.h), unless audit.progress is off. `what` is a literal: another one, or another
 * total, begins a new bar. */
void report_progress(void *settings, const char *what, int64_t done, int64_t total);
void report_progress_end(void);

#endif
