/*
 * compare.h - sets of tuples with their conditions, and where they come from: expected by the test, ledger, store.
 *
 * Functions fail the test when a source cannot be read. Main thread only.
 */
#ifndef RELATA_TESTS_COMPARE_H
#define RELATA_TESTS_COMPARE_H

#include "common/base/buf.h"
#include "tests/harness/harness.h"

struct tuple_set;

struct tuple_set *tuple_set_new(void);
void tuple_set_free(struct tuple_set *s); /* accepts NULL */
/* Copies. condition_name and context may be NULL. Adding a key again replaces its condition. */
void tuple_set_add(struct tuple_set *s, const char *object, const char *relation, const char *subject,
                   const char *condition_name, const char *context);
void tuple_set_remove(struct tuple_set *s, const char *object, const char *relation, const char *subject);
size_t tuple_set_len(struct tuple_set *s);
bool tuple_set_has(struct tuple_set *s, const char *object, const char *relation, const char *subject);

/* What relata.tuple says is present, for the test's store name. */
struct tuple_set *tuple_set_ledger(struct harness *h);
/* What the store answers to Read, page by page, to the end. */
struct tuple_set *tuple_set_store(struct harness *h);
/* Rows of a query: object, relation, subject [, condition name, condition context]. */
struct tuple_set *tuple_set_query(struct harness *h, const char *sql);

/* Number of keys that are in one set only or differ in their condition; the first 20 are described in `out`. Contexts
 * are compared by meaning (store_context_equal). */
size_t tuple_set_diff(struct tuple_set *a, const char *a_name, struct tuple_set *b, const char *b_name,
                      struct buf *out);
void assert_tuple_sets_equal(struct tuple_set *a, const char *a_name, struct tuple_set *b, const char *b_name);

/* Waits until outbox and intents are empty, then asserts that ledger and store are equal, tuple by tuple. */
void assert_converged(struct harness *h, int timeout_ms);
/* The same, and equal to what the test expects. */
void assert_converged_to(struct harness *h, struct tuple_set *expected, int timeout_ms);

#endif
