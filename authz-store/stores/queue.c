/* queue.c - jobs that wait. */
#include "authz-store/stores/internal.h"
#include "common/base/wait.h"

void queue_init(struct queue *q, size_t max)
{
    *q = (struct queue){.max = max};
    q->last = &q->first;
    pthread_mutex_init(&q->lock, NULL);
    wait_cond_init(&q->wake);
}

void queue_free(struct queue *q)
{
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->wake);
}

bool queue_put(struct queue *q, struct job *job)
{
    pthread_mutex_lock(&q->lock);
    bool ok = !q->closed && q->n < q->max;
    if (ok) {
        job->next = NULL;
        *q->last = job;
        q->last = &job->next;
        q->n++;
        pthread_cond_signal(&q->wake);
    }
    pthread_mutex_unlock(&q->lock);
    return ok;
}

static struct job *take(struct queue *q)
{
    struct job *job = q->first;

    if (job) {
        q->first = job->next;
        if (!q->first)
            q->last = &q->first;
        q->n--;
    }
    return job;
}

struct job *queue_take(struct queue *q, mono_us deadline)
{
    pthread_mutex_lock(&q->lock);
    while (!q->first && !q->closed && wait_cond(&q->wake, &q->lock, deadline))
        ;
    struct job *job = take(q);
    pthread_mutex_unlock(&q->lock);
    return job;
}

void queue_rest(struct queue *q, mono_us deadline)
{
    pthread_mutex_lock(&q->lock);
    while (!q->closed && wait_cond(&q->wake, &q->lock, deadline))
        ;
    pthread_mutex_unlock(&q->lock);
}

struct job *queue_poll(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    struct job *job = take(q);
    pthread_mutex_unlock(&q->lock);
    return job;
}

void queue_close(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->wake);
    pthread_mutex_unlock(&q->lock);
}

void job_end(struct job *job, enum status st, const char *why)
{
    job->st = st;
    if (why)
        err_set(&job->err, st, NULL, "%s", why);
    job->done(job);
}
