#include <stdlib.h>
#include <string.h>

#include "inventory-lister/http/internal.h"

struct worker {
    struct queue *queue;
    pthread_t thread;
    int number;
    bool created;
};

struct queue {
    const struct http_app *app;
    void (*done)(struct job *job);
    struct worker *workers;
    int64_t nworkers;

    pthread_mutex_t lock; /* guards the following */
    pthread_cond_t wake, begun;
    struct job *first, **last;
    int64_t waiting, max; /* reserved places included */
    int64_t begun_well, begun_badly;
    bool stop;
};

/* ---- workers ---- */

static struct job *pop(struct queue *q, bool *stopping)
{
    struct job *job;

    pthread_mutex_lock(&q->lock);
    while (!q->first && !q->stop)
        pthread_cond_wait(&q->wake, &q->lock);
    job = q->first;
    if (job) {
        q->first = job->next;
        if (!q->first)
            q->last = &q->first;
        q->waiting--;
    }
    *stopping = q->stop;
    pthread_mutex_unlock(&q->lock);
    return job;
}

static void run(struct queue *q, void *worker, struct job *job, bool stopping)
{
    mono_us now = clock_mono_us();

    metric_observe_us(&http_queue_wait, now - job->queued);
    if (now >= job->rq.deadline || stopping)
        answer_refuse(job, &http_refused_waited, 503, "overloaded", "the request waited too long for its turn");
    else if (!atomic_load(&job->rq.cancelled))
        q->app->handle(worker, &job->rq);
    q->done(job);
}

static void *work(void *arg)
{
    struct worker *self = arg;
    struct queue *q = self->queue;
    void *worker = q->app->worker_begin(q->app->arg, self->number);
    struct job *job;
    bool stopping = false;

    pthread_mutex_lock(&q->lock);
    if (worker)
        q->begun_well++;
    else
        q->begun_badly++;
    pthread_cond_signal(&q->begun);
    pthread_mutex_unlock(&q->lock);
    while (worker && (job = pop(q, &stopping)))
        run(q, worker, job, stopping);
    if (worker)
        q->app->worker_end(worker);
    return NULL;
}

static enum status start_workers(struct queue *q, struct err *err)
{
    int64_t n = q->nworkers, bad;

    for (int64_t i = 0; i < n; i++) {
        struct worker *w = &q->workers[i];
        int rc;

        w->queue = q;
        w->number = (int)i;
        rc = pthread_create(&w->thread, NULL, work, w);
        if (rc != 0)
            return err_set(err, ST_FATAL, NULL, "cannot start worker %lld of %lld: %s", (long long)i + 1, (long long)n,
                           strerror(rc));
        w->created = true;
    }
    pthread_mutex_lock(&q->lock);
    while (q->begun_well + q->begun_badly < n)
        pthread_cond_wait(&q->begun, &q->lock);
    bad = q->begun_badly;
    pthread_mutex_unlock(&q->lock);
    if (bad > 0)
        return err_set(err, ST_FATAL, NULL, "%lld of %lld workers could not begin", (long long)bad, (long long)n);
    return ST_OK;
}

/* ---- the queue ---- */

enum status queue_new(struct queue **out, const struct cfg_http *cfg, const struct http_app *app,
                      void (*done)(struct job *job), struct err *err)
{
    struct queue *q = calloc(1, sizeof *q);
    enum status st;

    *out = NULL;
    if (q)
        q->workers = calloc((size_t)cfg->workers, sizeof *q->workers);
    if (!q || !q->workers) {
        free(q);
        return err_set(err, ST_NOMEM, NULL, "no memory for workers");
    }
    q->app = app;
    q->done = done;
    q->nworkers = cfg->workers;
    q->max = cfg->queue;
    q->last = &q->first;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->wake, NULL);
    pthread_cond_init(&q->begun, NULL);
    st = start_workers(q, err);
    if (st != ST_OK) {
        queue_free(q);
        return st;
    }
    *out = q;
    return ST_OK;
}

void queue_close(struct queue *q)
{
    if (!q)
        return;
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_broadcast(&q->wake);
    pthread_mutex_unlock(&q->lock);
}

void queue_stop(struct queue *q)
{
    if (!q)
        return;
    queue_close(q);
    for (int64_t i = 0; i < q->nworkers; i++) {
        if (q->workers[i].created)
            pthread_join(q->workers[i].thread, NULL);
        q->workers[i].created = false;
    }
}

void queue_free(struct queue *q)
{
    if (!q)
        return;
    queue_stop(q);
    pthread_cond_destroy(&q->begun);
    pthread_cond_destroy(&q->wake);
    pthread_mutex_destroy(&q->lock);
    free(q->workers);
    free(q);
}

bool queue_reserve(struct queue *q)
{
    bool room;

    pthread_mutex_lock(&q->lock);
    room = q->waiting < q->max && !q->stop;
    q->waiting += room;
    pthread_mutex_unlock(&q->lock);
    return room;
}

bool queue_push(struct queue *q, struct job *job)
{
    bool taken;

    job->next = NULL;
    pthread_mutex_lock(&q->lock);
    taken = !q->stop; /* workers may be gone */
    if (taken) {
        *q->last = job;
        q->last = &job->next;
        pthread_cond_signal(&q->wake);
    } else {
        q->waiting--;
    }
    pthread_mutex_unlock(&q->lock);
    return taken;
}

void queue_cancel(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->waiting--;
    pthread_mutex_unlock(&q->lock);
}
