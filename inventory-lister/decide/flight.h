/*
 * flight.h - private to decide_store: checks on their way to the store.
 *
 * A flight is one check, shared by all who wait for its answer. A bunch is the flights of one BatchCheck. A waiter is
 * one item of one group. Everything here is under the decider's lock but for what a worker reads of a bunch that it
 * took: strings and keys do not change, and nobody joins or leaves without the lock.
 */
#ifndef RELATA_LISTER_DECIDE_FLIGHT_H
#define RELATA_LISTER_DECIDE_FLIGHT_H

#include <pthread.h>

#include "common/store/batch_check.h"
#include "inventory-lister/decide/cache.h"
#include "inventory-lister/decide/decide.h"
#include "inventory-lister/decide/decide_store.h"

struct flight;
struct bunch;

struct waiter {
    struct decide_group *group;
    struct decide_item *item;
    struct cache_key key;
    bool conditional;       /* never cached */
    unsigned char failures; /* how often it got no answer */
    unsigned stale;         /* how often an answer was no longer current when it came */
    struct flight *flight;  /* NULL once decided or failed */
    struct waiter *next, **link;
};

struct flight {
    struct cache_key key;
    char *text; /* both of these */
    const char *object, *relation;
    bool conditional;
    bool sent;   /* somebody waited for it when its bunch was taken */
    bool listed; /* in the table, so that others may join */
    struct bunch *bunch;
    struct waiter *waiters;
    struct flight *next; /* in the table */
};

struct bunch {
    struct bunch *next, *prev;
    uint64_t round;          /* its turn */
    size_t waiting;          /* waiters of all its flights */
    struct store_conn *conn; /* that it is in flight on; NULL = it waits, or is answered */
    atomic_bool given_up;    /* in flight, and nobody waits for it any more */
    char *subject, *traceparent;
    char store_id[32], model_id[32];
    mono_us at;    /* not to be sent before; 0 = at once */
    mono_us began; /* when its check began; 0 = it waits */
    bool higher;
    size_t n, max;
    struct flight flights[];
};

#define FLIGHT_SLOTS 4096

struct decider {
    struct decide_store_settings cfg;
    struct store *store;
    struct world *world;
    struct cache *cache;

    pthread_mutex_t lock;
    pthread_cond_t work;
    struct bunch *head, *tail; /* waiting to be sent, in the order of their turns */
    uint64_t round;            /* the turn of the one that was sent last */
    size_t queued;             /* checks in them */
    struct flight *table[FLIGHT_SLOTS];
    mono_us paused_until; /* the store throttles */
    size_t flying;        /* bunches sent and not answered */
    double limit;         /* of those: halved when the store shows that it has too much to do, grows back slowly */
    mono_us narrowed_at;
    mono_us warned_at;               /* of strange results */
    mono_us warned_context_at;       /* of conditions without a context */
    _Atomic mono_us warned_unfit_at; /* of objects that no tuple can have; not under the lock */
    bool stop;
    size_t nthreads;
    pthread_t *threads;
};

/* What waits for the answers of one decide_start(). */
struct decide_group {
    struct decider *d;
    struct decide_query *q;
    char store_id[32];
    size_t pending;
    pthread_cond_t done;
    struct err why; /* of the first failure; status ST_OK = none */
    size_t n;
    struct waiter waiters[];
};

/* Join the waiters to flights that will do, or put new ones into the queue. `at`: not to be sent before (a repetition;
 * such flights are not joined by others); 0 = at once. False = no memory: those without a flight are to be failed. */
bool flights_enqueue(struct decider *d, struct waiter **list, size_t n, mono_us at, bool higher);
/* The next bunch whose turn it is and that may be sent at `now`, marked as begun. NULL if there is
 * none; *next is when there may be one (DEADLINE_NONE = when somebody enqueues). */
struct bunch *flights_take(struct decider *d, mono_us now, mono_us *next);
/* No one may join any more. */
void flight_unlist(struct decider *d, struct flight *f);
void bunch_free(struct bunch *b);

/* The last one to leave a bunch in flight gives it up. */
void waiter_leave(struct waiter *w);
/* The waiter's outcome; wakes its group after the last one. */
void waiter_decide(struct waiter *w, bool allowed);
void waiter_fail(struct waiter *w, const struct err *why);

/* The threads (worker.c). */
void *decide_worker(void *decider);

extern struct metric m_decide_joined, m_decide_waiting;
void decide_worker_metrics(void);

#endif
