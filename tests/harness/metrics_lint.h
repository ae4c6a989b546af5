/*
 * metrics_lint.h - what a linter of Prometheus metrics would say about a page of them.
 *
 * HELP and TYPE before the samples and once a name, sentences as help, names and units by Prometheus' rules, label
 * syntax, no sample twice, numbers, histograms that are cumulative and agree with their count.
 * Main thread only.
 */
#ifndef RELATA_TESTS_METRICS_LINT_H
#define RELATA_TESTS_METRICS_LINT_H

/* NULL if there is nothing to say, else the first fault with its line; valid until the next call. */
const char *metrics_lint(const char *page);

#endif
