/* stores.c - start, end, what is told of the whole, and where jobs go. */
#include "authz-store/stores/stores.h"

#include <stdlib.h>
#include <unistd.h>

#include "authz-store/stores/internal.h"
#include "authz-store/stores/metrics.h"
#include "common/admin/admin.h"

void stores_tell(struct stores *s, const char *why)
{
    pthread_mutex_lock(&s->why_lock);
    (void)snprintf(s->why, sizeof s->why, "%s", why);
    pthread_mutex_unlock(&s->why_lock);
    admin_ready(s->admin, "stores", !*why, why);
}

enum status stores_ready(struct stores *s, struct err *err)
{
    if (clock_mono_us() < atomic_load_explicit(&s->serve_until, memory_order_acquire))
        return ST_OK;
    pthread_mutex_lock(&s->why_lock);
    enum status st =
        err_set(err, ST_RETRY, NULL, "%s", *s->why ? s->why : "no sign of life from Postgres within the lease");
    pthread_mutex_unlock(&s->why_lock);
    return st;
}

bool stores_failed(const struct stores *s)
{
    return atomic_load(&s->failed);
}

/* Postgres may be gone for a moment: changes wait, as decisions go on. */
static bool takes_changes(const struct stores *s)
{
    return atomic_load(&s->writing) || clock_mono_us() < atomic_load(&s->serve_until);
}

void stores_submit(struct stores *s, struct job *job)
{
    bool read = job->kind == JOB_READ || job->kind == JOB_READ_CHANGES;
    struct queue *q = read ? &s->reads : &s->writes;

    if (atomic_load(&s->stopping))
        job_end(job, ST_RETRY, "this process is ending");
    else if (!read && !takes_changes(s))
        job_end(job, ST_RETRY, "this process takes no changes now");
    else if (!queue_put(q, job)) {
        metric_add(&m_throttled, 1);
        job_end(job, ST_THROTTLED, read ? "too many reads wait" : "too many changes wait");
    }
}

static void name_holder(struct stores *s)
{
    char host[64] = "";

    if (*s->cfg->name) {
        (void)snprintf(s->holder, sizeof s->holder, "%s", s->cfg->name);
        return;
    }
    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(s->holder, sizeof s->holder, "%s:%d", host, (int)getpid());
}

static enum status start_threads(struct stores *s, struct err *err)
{
    int rc = pthread_create(&s->keeper, NULL, keeper_run, s);

    s->keeper_runs = rc == 0;
    for (int64_t i = 0; rc == 0 && i < s->cfg->readers; i++) {
        rc = pthread_create(&s->readers[i], NULL, reads_run, s);
        s->nreaders += rc == 0;
    }
    return rc == 0 ? ST_OK : err_set(err, ST_NOMEM, NULL, "cannot start a thread: %s", strerror(rc));
}

enum status stores_start(struct stores **out, const struct cfg_stores *cfg, struct admin *admin, struct err *err)
{
    struct stores *s = calloc(1, sizeof *s);

    *out = NULL;
    if (!s || !(s->readers = calloc((size_t)cfg->readers, sizeof *s->readers))) {
        free(s);
        return err_set(err, ST_NOMEM, NULL, "no memory");
    }
    s->cfg = cfg;
    s->admin = admin;
    name_holder(s);
    pthread_rwlock_init(&s->lock, NULL);
    pthread_mutex_init(&s->why_lock, NULL);
    queue_init(&s->writes, (size_t)cfg->queue);
    queue_init(&s->reads, (size_t)cfg->queue);
    atomic_store(&s->stop_by, DEADLINE_NONE);
    stores_tell(s, "starting");
    enum status st = start_threads(s, err);
    if (st == ST_OK)
        *out = s;
    else
        stores_stop(s, clock_mono_us());
    return st;
}

/* Threads end when their queue is closed and empty. */
void stores_stop(struct stores *s, mono_us deadline)
{
    if (!s)
        return;
    atomic_store(&s->stop_by, deadline);
    atomic_store(&s->stopping, true);
    queue_close(&s->writes);
    queue_close(&s->reads);
    if (s->keeper_runs)
        pthread_join(s->keeper, NULL);
    for (size_t i = 0; i < s->nreaders; i++)
        pthread_join(s->readers[i], NULL);
    while (s->n)
        table_remove(s, s->table[s->n - 1]);
    while (s->dead) {
        struct served_impl *store = s->dead;
        s->dead = store->dead;
        served_impl_free(store);
    }
    free(s->table);
    queue_free(&s->writes);
    queue_free(&s->reads);
    pthread_rwlock_destroy(&s->lock);
    pthread_mutex_destroy(&s->why_lock);
    free(s->readers);
    free(s);
}
