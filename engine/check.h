/*
 * check.h - private to engine/: decisions about one subject, remembered while the subject stays the same.
 *
 * A relation of an object is a node. Its value is found depth first, as OpenFGA's Check does it, with six values:
 *   CHECK_YES, CHECK_NO
 *   CHECK_CYCLE_IF   no, and perhaps CHECK_CYCLE: that depends on a condition
 *   CHECK_CYCLE   no, and on the way a node was met again that is still being asked: an exclusion whose subtracted side
 *                 says this is no, too
 *   CHECK_IF      depends on a condition
 *   CHECK_DEEP    more dispatches (usersets, tuple-to-usersets) than the limit on the way there
 * Union is yes if any is; else it is unknown if any is; intersection and exclusion likewise (Kleene's logic). OpenFGA
 * asks operands at once, and of two that decide alike, but one by a cycle, the faster one counts: here the first does.
 *
 * A node met again counts as no. What was found under that assumption is remembered for good only when the node it was
 * made about turns out to be no; else it is forgotten (Tarjan's components). So the work is bounded by the number of
 * nodes, however many ways lead through them. Under an intersection, an exclusion or a condition the value of a node on
 * a cycle can depend on the way to it: there it is found anew each time, as OpenFGA does, but for at most a few
 * thousand nodes a subject.
 */
#ifndef RELATA_ENGINE_CHECK_H
#define RELATA_ENGINE_CHECK_H

#include "engine/rules.h"

enum check_value { CHECK_NO, CHECK_CYCLE_IF, CHECK_CYCLE, CHECK_IF, CHECK_DEEP, CHECK_YES };

struct check;

/* The subject, by text: type:id, type:* or type:id#relation. False: no memory. `tuples` must live until check_close().
 * Statuses of a subject that the model does not have are the caller's. */
struct check *check_open(struct engine_reader *r, const struct rules *rules, struct tuples *tuples,
                         const struct engine_limits *limits);
bool check_subject(struct check *c, struct engine_text subject);
/* ENGINE_OK with *yes, ENGINE_TOO_DEEP, ENGINE_CONDITIONAL, ENGINE_STOPPED, ENGINE_NOMEM. `object` 0: one that no tuple
 * names; then `text` says which. */
enum engine_status check_object(struct check *c, object_id object, struct engine_text text, int pair, bool *yes);
/* The condition of the last ENGINE_CONDITIONAL. */
struct engine_text check_condition(const struct check *c);

/* For what is told by engine_reason(). Returns st. */
enum engine_status reader_refuse(struct engine_reader *r, enum engine_status st, const char *what,
                                 struct engine_text name);
/* ENGINE_OK, or ENGINE_BAD_TUPLE. */
enum engine_status contextual_fit(struct engine_reader *r, const struct rules *rules,
                                  const struct engine_limits *limits);

#endif
