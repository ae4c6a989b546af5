/*
 * hints.h - what is known of the keys that may have changed: one entry a key, however many hints named it.
 *
 * An entry stands in exactly one place: a queue (revocations, others), the delayed list (its row was not visible yet),
 * a batch that is being converged (taken), or, when nothing newer is known of it, only in a late batch: applied, but a
 * request that was given up may still take effect. A hint for an entry that is taken or late only
 * raises what is known of it; whoever holds the entry then decides.
 *
 * While one entry of an object is taken, no other of that object is: one Write in flight an object. (Objects are told
 * apart by a hash; two with the same one wait for each other, that is all.)
 *
 * Not thread-safe: the lanes share one table, under their mutex. Only `key` may be read without it while the entry is
 * taken.
 */
#ifndef RELATA_WRITER_HINTS_H
#define RELATA_WRITER_HINTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/tuple/tuple.h"

struct late;

/* The place in a source that may be given up once the hint is dealt with (Kafka: a message's offset). Owned by the
 * hint, then by the entry; handed to hint_table's `release` when the entry is done. */
struct offset_ref {
    struct offset_ref *next;
    void *part;   /* struct watermark * */
    uint64_t seq; /* within it */
};

/* Something that says: this key may have changed. Strings are copied. */
struct hint {
    struct tuple_key key;
    int64_t id;         /* outbox id; 0 = converge whatever the id (forced) */
    uint64_t xid;       /* its transaction, 0 = unknown */
    bool unseen;        /* the row may not be visible yet to a reader of the ledger (synchronous replication) */
    int64_t created_us; /* wall time at which the change was made, 0 = unknown */
    bool revoke;        /* goes ahead of others */
    bool force;         /* converge even if nothing of the key is pending */
    char traceparent[56];
    struct offset_ref *ref; /* may be NULL */
};

enum entry_place { ENTRY_NOWHERE, ENTRY_QUEUED, ENTRY_DELAYED, ENTRY_TAKEN };

struct entry {
    struct tuple_key *key;
    uint64_t hash;
    uint32_t object; /* in hint_table's objects */
    enum entry_place place;
    bool revoke, force, unseen;
    bool counted_revoke; /* what it was when it was added */
    bool reserved;       /* its object is (hint_table_reserve) */
    int64_t hint_id;
    uint64_t hint_xid;
    int64_t created_us;   /* of the oldest change not applied yet; 0 = all applied */
    mono_us unseen_since; /* since when its row is waited for; 0 = is not */
    mono_us not_before;   /* while delayed */
    unsigned delays;
    mono_us late_until; /* 0, or: not to be acknowledged before */
    struct late *late;  /* the late batch it stands in, or NULL */
    mono_us late_due;   /* of that batch */
    int64_t applied_version;
    char traceparent[56];
    struct offset_ref *refs;
    /* links */
    struct entry *chain;         /* hash bucket */
    struct entry *prev, *next;   /* queue or delayed list */
    struct entry *gprev, *gnext; /* group's bucket, while queued */
    uint64_t group;              /* (transaction, object) */
};

struct entry_list {
    struct entry *head, *tail;
    size_t len;
};

/* Called for every entry that ends, with its refs (a list, to be freed by the callee; may be NULL). */
typedef void hints_release(void *arg, struct offset_ref *refs, bool revoke);

/* The entries of one object. */
struct hint_object {
    uint16_t taken;    /* how many */
    uint16_t reserved; /* for how many */
    bool stuck;        /* what was taken gets nowhere (hint_table_stick); until it is given back */
    uint32_t take;     /* the hint_table_take() that took the first */
};

struct hint_table {
    struct entry **buckets;
    struct hint_object *objects;
    uint32_t takes;
    size_t nbuckets, len;
    struct entry **groups; /* queued entries by group */
    struct entry_list revokes, others, delayed;
    bool turn_of_others;
    hints_release *release;
    void *arg;
};

/* False = no memory. */
bool hint_table_init(struct hint_table *t, hints_release *release, void *arg);
/* Frees all entries; refs are freed, not released. */
void hint_table_release(struct hint_table *t);

enum hint_result { HINT_ADDED, HINT_MERGED, HINT_NOMEM };
/* Takes the hint's ref in any case. */
enum hint_result hint_table_offer(struct hint_table *t, const struct hint *h);
struct entry *hint_table_find(struct hint_table *t, const struct tuple_key *key);
/* The key's entry, made if there is none (then nowhere); NULL = no memory. */
struct entry *hint_table_ensure(struct hint_table *t, const struct tuple_key *key);

/*
 * Move up to `max` queued entries, a batch, into `out`, none of an object of which one is taken already. What fills at
 * most a quarter of a batch goes together. Else, while both kinds wait, revocations alone (a small Write is a quick
 * one) take turns with both, of which at least a quarter are others. Entries of one (transaction, object) come
 * together, from both queues; a group that would fit into an empty batch, but not into the rest of this one, ends it.
 */
size_t hint_table_take(struct hint_table *t, struct entry **out, size_t max);
/* Take this entry out of the queue or delayed list it stands in. */
void hint_table_grab(struct hint_table *t, struct entry *e);
/* True if an entry of its object, or itself, is taken. */
bool hint_table_blocked(const struct hint_table *t, const struct entry *e);
/* Nothing of its object is moved by hint_table_take() until this entry was grabbed, or this is taken back: it is its
 * turn next. */
void hint_table_reserve(struct hint_table *t, struct entry *e, bool reserve);
/* True if something can be taken. */
bool hint_table_queued(const struct hint_table *t);
/* Entries in both queues, blocked ones too. */
size_t hint_table_waiting(const struct hint_table *t);

/* Taken entries go back: to the head of their queue, or until `not_before` to the delayed list. */
void hint_table_requeue(struct hint_table *t, struct entry *e);
void hint_table_delay(struct hint_table *t, struct entry *e, mono_us not_before);
/* A taken entry that only its late batch holds from now on. */
void hint_table_rest(struct hint_table *t, struct entry *e);
/* Delayed entries whose time has come are queued; returns when the next one is due, DEADLINE_NONE if none is. */
mono_us hint_table_wake(struct hint_table *t, mono_us now);
/* The entry is done: released and freed. It must be taken or nowhere, and in no late batch. */
void hint_table_done(struct hint_table *t, struct entry *e);

/* A taken entry gets nowhere: what waits behind its object may be shed. */
void hint_table_stick(struct hint_table *t, struct entry *e);
/* Of the queued entries that wait behind such an object, drop those that nothing but a hint speaks for (no refs, not
 * forced, not late), the newest of the others first, until at most `keep` are left. Returns how many went. */
size_t hint_table_shed(struct hint_table *t, size_t keep);

/* A partition is not ours any more: its refs are freed (not released) and counted, and entries that nothing else needs
 * are dropped. With `keep_taken`, entries that are taken keep their refs: their batch may still end. */
size_t hint_table_forget(struct hint_table *t, const void *part, bool keep_taken);

/* The group of a transaction's changes to one object. */
uint64_t hint_group(uint64_t xid, const char *object);

#endif
