#include "tuple-writer/hints.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS 16384 /* a power of two; a window of keys, about */
#define OBJECTS 65536 /* a power of two; many more than objects are taken at once */

/* ---- lists ---- */
static void list_append(struct entry_list *l, struct entry *e)
{
    e->prev = l->tail;
    e->next = NULL;
    *(l->tail ? &l->tail->next : &l->head) = e;
    l->tail = e;
    l->len++;
}

static void list_prepend(struct entry_list *l, struct entry *e)
{
    e->prev = NULL;
    e->next = l->head;
    *(l->head ? &l->head->prev : &l->tail) = e;
    l->head = e;
    l->len++;
}

static void list_remove(struct entry_list *l, struct entry *e)
{
    *(e->prev ? &e->prev->next : &l->head) = e->next;
    *(e->next ? &e->next->prev : &l->tail) = e->prev;
    e->prev = e->next = NULL;
    l->len--;
}

/* ---- groups ---- */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    return x ^ (x >> 33);
}

uint64_t hint_group(uint64_t xid, const char *object)
{
    return mix(tuple_object_hash(object) ^ mix(xid));
}

static void group_add(struct hint_table *t, struct entry *e)
{
    struct entry **head = &t->groups[e->group & (BUCKETS - 1)];
    e->gprev = NULL;
    e->gnext = *head;
    if (*head)
        (*head)->gprev = e;
    *head = e;
}

static void group_remove(struct hint_table *t, struct entry *e)
{
    *(e->gprev ? &e->gprev->gnext : &t->groups[e->group & (BUCKETS - 1)]) = e->gnext;
    if (e->gnext)
        e->gnext->gprev = e->gprev;
    e->gprev = e->gnext = NULL;
}

/* Members of the group, at most `max` of them. */
static size_t group_members(struct hint_table *t, uint64_t group, struct entry **out, size_t max)
{
    size_t n = 0;
    for (struct entry *e = t->groups[group & (BUCKETS - 1)]; e && n < max; e = e->gnext)
        if (e->group == group)
            out[n++] = e;
    return n;
}

/* ---- places ---- */
static struct entry_list *queue_of(struct hint_table *t, const struct entry *e)
{
    return e->revoke ? &t->revokes : &t->others;
}

static void enqueue(struct hint_table *t, struct entry *e, bool first)
{
    e->place = ENTRY_QUEUED;
    (first ? list_prepend : list_append)(queue_of(t, e), e);
    group_add(t, e);
}

void hint_table_grab(struct hint_table *t, struct entry *e)
{
    struct hint_object *o = &t->objects[e->object];
    if (e->place == ENTRY_TAKEN)
        return;
    if (e->place == ENTRY_QUEUED) {
        list_remove(queue_of(t, e), e);
        group_remove(t, e);
    } else if (e->place == ENTRY_DELAYED) {
        list_remove(&t->delayed, e);
    }
    hint_table_reserve(t, e, false);
    e->place = ENTRY_TAKEN;
    if (o->taken++ == 0)
        o->take = t->takes;
}

/* The entry is taken no more. */
static void give_back(struct hint_table *t, struct entry *e)
{
    struct hint_object *o = &t->objects[e->object];
    if (e->place == ENTRY_TAKEN && --o->taken == 0)
        o->stuck = false;
    e->place = ENTRY_NOWHERE;
}

bool hint_table_blocked(const struct hint_table *t, const struct entry *e)
{
    return t->objects[e->object].taken > 0;
}

void hint_table_reserve(struct hint_table *t, struct entry *e, bool reserve)
{
    struct hint_object *o = &t->objects[e->object];
    if (e->reserved == reserve)
        return;
    e->reserved = reserve;
    o->reserved = (uint16_t)(reserve ? o->reserved + 1 : o->reserved - 1);
}

void hint_table_requeue(struct hint_table *t, struct entry *e)
{
    give_back(t, e);
    enqueue(t, e, true);
}

void hint_table_rest(struct hint_table *t, struct entry *e)
{
    give_back(t, e);
}

void hint_table_delay(struct hint_table *t, struct entry *e, mono_us not_before)
{
    give_back(t, e);
    e->place = ENTRY_DELAYED;
    e->not_before = not_before;
    e->delays++;
    list_append(&t->delayed, e);
}

mono_us hint_table_wake(struct hint_table *t, mono_us now)
{
    mono_us due = DEADLINE_NONE;
    for (struct entry *e = t->delayed.head, *next; e; e = next) {
        next = e->next;
        if (e->not_before <= now) {
            list_remove(&t->delayed, e);
            enqueue(t, e, true);
        } else {
            due = deadline_min(due, e->not_before);
        }
    }
    return due;
}

static bool can_be_taken(const struct hint_table *t, const struct entry_list *queue)
{
    for (const struct entry *e = queue->head; e; e = e->next)
        if (!hint_table_blocked(t, e) && t->objects[e->object].reserved == 0)
            return true;
    return false;
}

bool hint_table_queued(const struct hint_table *t)
{
    return can_be_taken(t, &t->revokes) || can_be_taken(t, &t->others);
}

size_t hint_table_waiting(const struct hint_table *t)
{
    return t->revokes.len + t->others.len;
}

/* ---- the table ---- */
bool hint_table_init(struct hint_table *t, hints_release *release, void *arg)
{
    memset(t, 0, sizeof *t);
    t->nbuckets = BUCKETS;
    t->buckets = calloc(BUCKETS, sizeof(struct entry *));
    t->groups = calloc(BUCKETS, sizeof(struct entry *));
    t->objects = calloc(OBJECTS, sizeof *t->objects);
    t->release = release;
    t->arg = arg;
    return t->buckets && t->groups && t->objects;
}

static void refs_free(struct offset_ref *refs)
{
    while (refs) {
        struct offset_ref *next = refs->next;
        free(refs);
        refs = next;
    }
}

static void entry_free(struct entry *e)
{
    refs_free(e->refs);
    free(e->key);
    free(e);
}

void hint_table_release(struct hint_table *t)
{
    for (size_t i = 0; t->buckets && i < t->nbuckets; i++) {
        for (struct entry *e = t->buckets[i], *next; e; e = next) {
            next = e->chain;
            entry_free(e);
        }
    }
    free(t->buckets);
    free(t->groups);
    free(t->objects);
    memset(t, 0, sizeof *t);
}

static struct entry **find_slot(struct hint_table *t, const struct tuple_key *key, uint64_t hash)
{
    struct entry **at = &t->buckets[hash & (t->nbuckets - 1)];
    while (*at && !((*at)->hash == hash && tuple_key_cmp((*at)->key, key) == 0))
        at = &(*at)->chain;
    return at;
}

struct entry *hint_table_find(struct hint_table *t, const struct tuple_key *key)
{
    return *find_slot(t, key, tuple_key_hash(key));
}

/* What the hint adds to what is known. Not while the entry's place depends on a field that changes. */
static void entry_merge(struct entry *e, const struct hint *h)
{
    if (h->id > e->hint_id) {
        e->hint_id = h->id;
        e->hint_xid = h->xid;
        e->unseen = h->unseen;
        e->unseen_since = 0;
        e->group = hint_group(h->xid, e->key->object);
        memcpy(e->traceparent, h->traceparent, sizeof e->traceparent);
    }
    e->force |= h->force;
    e->revoke |= h->revoke;
    if (h->created_us && (!e->created_us || h->created_us < e->created_us))
        e->created_us = h->created_us;
    if (h->ref) {
        h->ref->next = e->refs;
        e->refs = h->ref;
    }
}

static enum hint_result entry_update(struct hint_table *t, struct entry *e, const struct hint *h)
{
    bool queued = e->place == ENTRY_QUEUED;
    /* Nothing newer is said of a key that was applied and only waits for its late window. */
    bool news = h->force || h->id > e->hint_id;
    bool moves = queued && ((h->revoke && !e->revoke) || h->id > e->hint_id);
    bool was_revoke = e->revoke;
    if (moves) /* both lists are found by fields that change now */
        group_remove(t, e);
    if (moves && h->revoke && !was_revoke)
        list_remove(&t->others, e);
    entry_merge(e, h);
    if (moves && h->revoke && !was_revoke)
        list_append(&t->revokes, e);
    if (moves)
        group_add(t, e);
    if (e->place == ENTRY_NOWHERE && news)
        enqueue(t, e, false);
    return HINT_MERGED;
}

static struct entry *entry_new(struct hint_table *t, struct entry **slot, const struct tuple_key *key, uint64_t hash)
{
    struct entry *e = calloc(1, sizeof *e);
    struct tuple_key *copy = e ? tuple_key_dup(key) : NULL;
    if (!copy) {
        free(e);
        return NULL;
    }
    e->key = copy;
    e->hash = hash;
    e->object = (uint32_t)(mix(tuple_object_hash(key->object)) & (OBJECTS - 1));
    e->hint_id = -1; /* below every id, the 0 of forced hints included */
    *slot = e;
    t->len++;
    return e;
}

struct entry *hint_table_ensure(struct hint_table *t, const struct tuple_key *key)
{
    uint64_t hash = tuple_key_hash(key);
    struct entry **slot = find_slot(t, key, hash);
    return *slot ? *slot : entry_new(t, slot, key, hash);
}

enum hint_result hint_table_offer(struct hint_table *t, const struct hint *h)
{
    uint64_t hash = tuple_key_hash(&h->key);
    struct entry **slot = find_slot(t, &h->key, hash);
    if (*slot)
        return entry_update(t, *slot, h);
    struct entry *e = entry_new(t, slot, &h->key, hash);
    if (!e) {
        free(h->ref);
        return HINT_NOMEM;
    }
    entry_merge(e, h);
    e->counted_revoke = e->revoke;
    enqueue(t, e, false);
    return HINT_ADDED;
}

/* Nothing of its object is taken, but for what the hint_table_take() under way has taken. */
static bool is_free(const struct hint_table *t, const struct entry *e)
{
    const struct hint_object *o = &t->objects[e->object];
    return o->reserved == 0 && (o->taken == 0 || o->take == t->takes);
}

/* Fill out[n..max) from one queue until `limit` entries are in it. False: the next group does not fit any more. */
static bool take_from(struct hint_table *t, struct entry_list *queue, struct entry **out, size_t *n, size_t limit,
                      size_t max)
{
    struct entry *passed = NULL, *e; /* the last one that is not free; nothing before it is */
    while ((e = passed ? passed->next : queue->head) && *n < limit) {
        struct entry *members[256];
        size_t cap = max < 255 ? max + 1 : 256;
        if (!is_free(t, e)) {
            passed = e;
            continue;
        }
        size_t size = group_members(t, e->group, members, cap);
        size_t room = max - *n;
        if (size > room && size <= max)
            return false;
        if (size > room) { /* too large for any batch: the oldest first */
            hint_table_grab(t, out[(*n)++] = e);
            continue;
        }
        for (size_t i = 0; i < size; i++)
            hint_table_grab(t, out[(*n)++] = members[i]);
    }
    return true;
}

size_t hint_table_take(struct hint_table *t, struct entry **out, size_t max)
{
    size_t n = 0;
    bool both = can_be_taken(t, &t->revokes) && can_be_taken(t, &t->others);
    t->takes++;
    if (both && !t->turn_of_others && hint_table_waiting(t) > max / 4) {
        t->turn_of_others = true;
        (void)take_from(t, &t->revokes, out, &n, max, max);
        return n;
    }
    t->turn_of_others = false;
    size_t share = both && max > 3 ? max - max / 4 : max;
    if (take_from(t, &t->revokes, out, &n, share, max) && take_from(t, &t->others, out, &n, max, max))
        (void)take_from(t, &t->revokes, out, &n, max, max);
    return n;
}

static void entry_unlink(struct hint_table *t, struct entry *e)
{
    struct entry **at = &t->buckets[e->hash & (t->nbuckets - 1)];
    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
    t->len--;
}

void hint_table_done(struct hint_table *t, struct entry *e)
{
    struct offset_ref *refs = e->refs;
    e->refs = NULL;
    give_back(t, e);
    entry_unlink(t, e);
    t->release(t->arg, refs, e->counted_revoke);
    entry_free(e);
}

void hint_table_stick(struct hint_table *t, struct entry *e)
{
    t->objects[e->object].stuck |= e->place == ENTRY_TAKEN;
}

static bool waits_behind_stuck(const struct hint_table *t, const struct entry *e)
{
    return t->objects[e->object].stuck && !e->refs && !e->force && !e->late && !e->late_until;
}

size_t hint_table_shed(struct hint_table *t, size_t keep)
{
    size_t n = 0, waiting = 0;
    struct entry_list *lists[] = {&t->others, &t->revokes};
    for (int i = 0; i < 2; i++)
        for (struct entry *e = lists[i]->head; e; e = e->next)
            waiting += waits_behind_stuck(t, e);
    for (int i = 0; i < 2; i++) {
        for (struct entry *e = lists[i]->tail, *prev; e && waiting > keep; e = prev) {
            prev = e->prev;
            if (!waits_behind_stuck(t, e))
                continue;
            hint_table_grab(t, e);
            hint_table_done(t, e);
            waiting--;
            n++;
        }
    }
    return n;
}

static size_t drop_refs(struct entry *e, const void *part)
{
    size_t n = 0;
    struct offset_ref **at = &e->refs;
    while (*at) {
        struct offset_ref *r = *at;
        if (r->part != part) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        free(r);
        n++;
    }
    return n;
}

size_t hint_table_forget(struct hint_table *t, const void *part, bool keep_taken)
{
    size_t dropped = 0;
    for (size_t i = 0; i < t->nbuckets; i++) {
        for (struct entry *e = t->buckets[i], *next; e; e = next) {
            next = e->chain;
            if (keep_taken && e->place == ENTRY_TAKEN)
                continue;
            size_t n = drop_refs(e, part);
            dropped += n;
            bool waits = e->place == ENTRY_QUEUED || e->place == ENTRY_DELAYED;
            if (n == 0 || !waits || e->refs || e->force || e->late || e->late_until)
                continue;
            hint_table_grab(t, e);
            hint_table_done(t, e);
        }
    }
    return dropped;
}
