/*
 * internal.h - private to authz-store/stores: what its threads share.
 *
 * The keeper (keeper.c) is the only thread that changes engines, the table of stores and its own Postgres session.
 * Readers of pages (reads.c) have sessions of their own. Everybody else pins stores and hands over jobs.
 */
#ifndef RELATA_AUTHZ_STORES_INTERNAL_H
#define RELATA_AUTHZ_STORES_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "authz-store/stores/stores.h"

/* Threads that read decisions; each keeps its place among the readers of each store. */
#define READERS_MAX 256

struct served_impl {
    struct served pub; /* first: a store is its impl */
    struct stores *stores;
    atomic_uint pins;
    struct engine_reader *readers[READERS_MAX]; /* by the thread's number; made and used by that thread alone */

    pthread_rwlock_t lock;        /* models, assertions */
    struct served_model **models; /* oldest first; each lives as long as the store */
    size_t nmodels, models_cap;
    json_t *assertions; /* by model id */

    struct engine_reader *find; /* the keeper's */
    struct served_impl *dead;   /* the next in the list of those that wait for their last pin */
};

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct job *first, **last;
    size_t n, max;
    bool closed; /* nothing is taken in any more */
};

struct stores {
    const struct cfg_stores *cfg;
    struct admin *admin;
    char holder[128], token_key[80];

    pthread_rwlock_t lock;      /* the table */
    struct served_impl **table; /* sorted by id */
    size_t n, cap;
    struct served_impl *dead; /* the keeper's: deleted, still pinned or to be freed */

    struct queue writes, reads;
    pthread_t keeper, *readers;
    size_t nreaders;
    bool keeper_runs;

    /* state: written by the keeper alone */
    _Atomic int64_t serve_until; /* monotonic: this process is the active one until then, at least */
    atomic_bool writing;         /* changes are taken in */
    atomic_bool failed, stopping;
    _Atomic mono_us stop_by;
    pthread_mutex_t why_lock;
    char why[512]; /* why it is not ready */
};

/* table.c */
struct served_impl *served_impl_new(struct stores *s, const char *id, const char *name, int64_t created_us,
                                    int64_t updated_us); /* NULL: no memory */
void served_impl_free(struct served_impl *store);
/* The keeper, in no hurry: neither pins. */
struct served_impl *table_find(struct stores *s, const char *id);
bool table_add(struct stores *s, struct served_impl *store);
void table_remove(struct stores *s, struct served_impl *store); /* into `dead` */
void table_bury(struct stores *s);                              /* frees the dead that nobody pins */

/* models.c, the keeper */
void served_models_free(struct served_impl *store);
enum status served_model_add(struct served_impl *store, const char *id, struct model *model, json_t *json,
                             struct err *err); /* takes both over, unless it fails */
enum status served_assertions_set(struct served_impl *store, const char *model_id, json_t *json, struct err *err);

/* queue.c */
void queue_init(struct queue *q, size_t max);
void queue_free(struct queue *q);
bool queue_put(struct queue *q, struct job *job); /* false: full or closed */
/* Waits until there is a job, or `deadline`, or the queue is closed; NULL then. */
struct job *queue_take(struct queue *q, mono_us deadline);
void queue_rest(struct queue *q, mono_us deadline); /* until then, or until it is closed */
struct job *queue_poll(struct queue *q);
void queue_close(struct queue *q);
void job_end(struct job *job, enum status st, const char *why); /* `why` NULL = err is filled */

/* keeper.c, reads.c: thread functions; arg is struct stores */
void *keeper_run(void *arg);
void *reads_run(void *arg);
/* Why not ready; "" = ready. */
void stores_tell(struct stores *s, const char *why);

#endif
