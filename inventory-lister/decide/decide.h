/*
 * decide.h - the one interface through which decisions come: who asks does not know whether cache, store or something
 * else answered. Deny by default: an item that nobody decided stays DECISION_FAILED. One whose object no tuple can have
 * (by the store's grammar: the id is too long, say) is denied, by nobody.
 */
#ifndef RELATA_LISTER_DECIDE_DECIDE_H
#define RELATA_LISTER_DECIDE_DECIDE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"

enum decision {
    DECISION_FAILED = 0, /* no answer; never to be taken for a denial in what is said, always in what is shown */
    DECISION_DENY,
    DECISION_ALLOW,
};

/* Where an answer came from. */
enum decided_by { BY_NOBODY, BY_CACHE, BY_STORE };

struct decide_item {
    const char *object;   /* "type:id"; the strings must live until decide_finish() */
    const char *relation; /* one that the model has for that type */
    enum decision decision;
    enum decided_by by;
};

/* What is the same for all items of one request. Lives until its last decide_finish(). */
struct decide_query {
    const char *subject;
    mono_us not_before; /* read your writes: no answer whose check began before this, and none of the cache; 0 = any */
    bool no_cache;      /* ask, whatever is cached (explain) */
    mono_us deadline;
    const atomic_bool *cancelled; /* the client has hung up; may be NULL */
    const char *traceparent;      /* passed on to the store; NULL = none */
    uint64_t round;               /* private: which turn this request has had last */
    /* filled: the model that all items of this request were decided by ("" before the first) */
    char model_id[32];
};

struct decider;
struct decide_group;

/*
 * Begin to decide the items. What the cache knows is answered at once; the rest is put to the store in BatchChecks of
 * at most 50, bounded for the whole process, equal checks in flight asked once. BatchChecks of several requests (a
 * struct decide_query each) take turns, however many one of them has. Never blocks on the network.
 * ST_OK with *out; else nothing was begun (ST_THROTTLED: too many checks wait already, ST_RETRY: there is no model
 * yet).
 */
enum status decide_start(struct decider *d, struct decide_query *q, struct decide_item *items, size_t n,
                         struct decide_group **out, struct err *err) MUST_CHECK;
/* True if all items are decided: decide_finish() will not wait. */
bool decide_done(const struct decide_group *g);
/* Wait until each item is decided, has failed for good (it is tried again once before; an answer that an event made
 * old on its way is asked for again until the deadline), or the deadline or the cancellation ended it. A check that
 * nobody waits for any more is not sent, or its BatchCheck given up if it holds no other. Fills the items; the group is
 * gone afterwards. *why (may be NULL) gets the reason of the first failure. */
void decide_finish(struct decide_group *g, struct err *why);

#endif
