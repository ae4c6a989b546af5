/*
 * engine.h - the tuples of one store in memory, and decisions about them: check, batch check, list objects, list users,
 * expand, as OpenFGA 1.22 makes them, its errors included.
 *
 * No I/O, no threads, no globals; uses nothing of ours. Clocks and cancelling are the caller's (struct engine_limits).
 *
 * An *engine* holds tuples and the names in them, of any model. A `struct model` (model.h) says what is well formed; a
 * `struct rules` is one model made ready for one engine: several models of a store serve side by side.
 *
 * Threads: any number of readers, one writer at a time (the caller sees to that: engine_apply, engine_load_*,
 * rules_new). Readers never wait and never see half of an engine_apply(): each change set makes a new version of what
 * it touches, copied on write, and publishes it by one atomic store of the root; a reader keeps the root that it
 * began with, and what it may still read is freed after it has ended (epochs, one slot a reader; not liburcu, whose
 * call_rcu needs threads and globals). A revision, given by the writer, names each state.
 *
 * Memory: under 100 bytes a tuple at a million tuples with names of 20 bytes; names that no tuple holds any more are
 * given back. Readers that stay inside one read for long hold garbage up.
 */
#ifndef RELATA_ENGINE_ENGINE_H
#define RELATA_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/model.h"

struct engine;
struct engine_reader;
struct rules;

enum engine_status {
    ENGINE_OK,
    ENGINE_NOMEM,       /* nothing was changed or answered */
    ENGINE_NO_TYPE,     /* the model has no such type */
    ENGINE_NO_RELATION, /* the type has no such relation */
    ENGINE_BAD_TUPLE,   /* not well formed, or not of this model (contextual tuples) */
    ENGINE_TOO_DEEP,    /* OpenFGA's 2002: over limits.depth */
    ENGINE_CONDITIONAL, /* the decision depends on a condition; engine_reason() names it */
    ENGINE_ENDLESS,     /* a relation excludes itself by way of its own tuples: no answer is right */
    ENGINE_STOPPED      /* limits.stop said so */
};

/* ---- tuples ---- */

struct engine_text {
    const char *s; /* need not end with NUL */
    size_t len;
};

/* "type:id", "relation", "type:id" | "type:*" | "type:id#relation". Well formed by the store's grammar: the caller has
 * checked that. `context` are bytes that the engine keeps and gives back, never reads. */
struct engine_tuple {
    struct engine_text object, relation, subject;
    struct engine_text condition, context; /* len 0 = none */
};

struct engine_change {
    struct engine_tuple tuple;
    bool remove;
};

/* NULL: no memory. */
struct engine *engine_new(void);
void engine_free(struct engine *e); /* accepts NULL; no reader may be left */

/* Writer. All of it becomes visible at once, or nothing (ENGINE_NOMEM). Writing what is there replaces its condition;
 * removing what is not there does nothing. Changes apply in order. `revision` is greater than the one before. */
enum engine_status engine_apply(struct engine *e, const struct engine_change *changes, size_t n, uint64_t revision);

/* Writer, on an engine that nobody reads yet: many tuples at a time in any order, several times faster than apply and
 * packed tightly. A tuple given twice counts once (the last condition). Visible after engine_load_end(). */
enum engine_status engine_load(struct engine *e, const struct engine_tuple *tuples, size_t n);
enum engine_status engine_load_end(struct engine *e, uint64_t revision);

/* Any thread. */
uint64_t engine_revision(const struct engine *e);
struct engine_size {
    uint64_t tuples, objects, bytes; /* bytes: everything the engine holds, garbage too */
    uint64_t garbage;                /* bytes that readers hold up */
};
struct engine_size engine_size(const struct engine *e);

/* ---- reading ---- */

/* A thread's place among the readers, with its scratch memory. NULL: no memory. Used by one thread at a time; free
 * before the engine. */
struct engine_reader *engine_reader_new(struct engine *e);
void engine_reader_free(struct engine_reader *r); /* accepts NULL */

/* Everything between begin and end sees one state; the calls below may come only there. Pairs do not nest. */
uint64_t engine_begin(struct engine_reader *r); /* its revision */
void engine_end(struct engine_reader *r);

/* Whether a tuple is there; its condition and context are valid until engine_end(). */
bool engine_find(struct engine_reader *r, const struct engine_tuple *key, struct engine_text *condition,
                 struct engine_text *context);

/* ---- decisions ---- */

/* Writer. Binds a model, which must outlive the rules, to the engine (its names become the engine's). NULL: no memory.
 * Readers that use the rules must have ended before rules_free(). */
struct rules *rules_new(struct engine *e, const struct model *m);
void rules_free(struct rules *rules); /* accepts NULL */

struct engine_limits {
    unsigned depth;          /* OpenFGA's resolve-node-limit; 0 = 25 */
    bool (*stop)(void *arg); /* asked now and then; true ends it with ENGINE_STOPPED; NULL = never */
    void *arg;
    size_t results;                        /* list_objects, list_users: end after so many; 0 = all */
    const struct engine_tuple *contextual; /* tuples that count for this call only; checked against the model */
    size_t ncontextual;
};

struct engine_check {
    struct engine_text subject, relation, object; /* subject may be a userset or a wildcard */
    enum engine_status status;                    /* answer: ENGINE_OK, and then allowed */
    bool allowed;
};

/* Decides each; the work for a subject is shared by all of them, in any order. Status is each one's own; the result is
 * ENGINE_OK but for NOMEM, STOPPED (those not decided say so) and BAD_TUPLE (a contextual tuple; none is decided). */
enum engine_status engine_checks(struct engine_reader *r, const struct rules *rules, const struct engine_limits *limits,
                                 struct engine_check *checks, size_t n);

/* Names go to `take`, in no order, each once; false from it ends the listing (ENGINE_STOPPED). Valid during the call.
 */
typedef bool engine_take(void *arg, struct engine_text name);

/* Objects ("type:id") of `type` on which subject has relation. */
enum engine_status engine_list_objects(struct engine_reader *r, const struct rules *rules,
                                       const struct engine_limits *limits, struct engine_text subject,
                                       struct engine_text relation, struct engine_text type, engine_take *take,
                                       void *arg);
/* Users of a filter: a type ("user"), or type and relation ("team", "member": usersets). Gives "type:id", "type:*",
 * "type:id#relation", as OpenFGA's ListUsers does. filter_relation.len 0 = none. */
enum engine_status engine_list_users(struct engine_reader *r, const struct rules *rules,
                                     const struct engine_limits *limits, struct engine_text object,
                                     struct engine_text relation, struct engine_text filter_type,
                                     struct engine_text filter_relation, engine_take *take, void *arg);

/* OpenFGA's Expand: one level of the rewrite of object#relation. */
enum engine_node_kind {
    ENGINE_NODE_UNION,
    ENGINE_NODE_INTERSECTION,
    ENGINE_NODE_DIFFERENCE, /* two nodes: base, subtract */
    ENGINE_NODE_USERS,      /* leaf: names are subjects */
    ENGINE_NODE_COMPUTED,   /* leaf: names[0] is a userset */
    ENGINE_NODE_TTU         /* leaf: tupleset is a userset, names are the computed usersets */
};
struct engine_node {
    enum engine_node_kind kind;
    char *name; /* "object#relation" */
    char *tupleset;
    char **names;
    size_t nnames;
    struct engine_node **nodes;
    size_t nnodes;
};
enum engine_status engine_expand(struct engine_reader *r, const struct rules *rules, const struct engine_limits *limits,
                                 struct engine_text object, struct engine_text relation, struct engine_node **out);
void engine_node_free(struct engine_node *node); /* accepts NULL */

/* About the reader's last status that was not OK: one line for a person ("type 'doc' has no relation 'x'", the name of
 * the condition). Valid until its next call. */
const char *engine_reason(const struct engine_reader *r);

#endif
