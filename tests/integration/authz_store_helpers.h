/* authz_store_helpers.h - the rooms stores and durable of authz-store within a test: started, asked and waited for. */
#ifndef RELATA_TESTS_AUTHZ_STORE_HELPERS_H
#define RELATA_TESTS_AUTHZ_STORE_HELPERS_H

#include <pthread.h>

#include "authz-store/stores/stores.h"
#include "common/base/wait.h"
#include "tests/harness/proc.h"

#define WAIT_MS 20000

static const char authz_model[] =
    "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},{\"type\":\"doc\",\"relations\":{"
    "\"viewer\":{\"this\":{}}},\"metadata\":{\"relations\":{\"viewer\":{\"directly_related_user_types\":[{\"type\":"
    "\"user\"},{\"type\":\"user\",\"wildcard\":{}}]}}}}]}";

static inline struct cfg_stores authz_settings(const char *dsn, const char *name, int lease_ms)
{
    return (struct cfg_stores){.pg_dsn = strdup(dsn),
                               .statement_timeout_ms = 10000,
                               .name = strdup(name),
                               .lease_ms = lease_ms,
                               .queue = 1024,
                               .readers = 2,
                               .unknown_after_ms = harness_ms(10000)};
}

static inline void authz_settings_free(struct cfg_stores *cfg)
{
    free(cfg->pg_dsn);
    free(cfg->name);
}

static inline struct stores *authz_start(const struct cfg_stores *cfg)
{
    struct stores *s;
    struct err err;

    if (stores_start(&s, cfg, NULL, &err) != ST_OK)
        fail_msg("%s", err.text);
    return s;
}

static inline bool authz_is_ready(void *s)
{
    return stores_ready(s, NULL) == ST_OK;
}

static inline void authz_ready(struct stores *s)
{
    struct err err = {.status = ST_OK};

    if (!eventually(authz_is_ready, s, WAIT_MS)) {
        (void)stores_ready(s, &err);
        fail_msg("not ready: %s", err.text);
    }
}

static inline void authz_stop(struct stores *s)
{
    stores_stop(s, deadline_in_ms(10000));
}

/* ---- jobs, waited for ---- */

struct authz_wait {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool done;
};

static inline void authz_done(struct job *job)
{
    struct authz_wait *w = job->arg;

    pthread_mutex_lock(&w->lock);
    w->done = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

static inline void authz_submit(struct stores *s, struct job *job, struct authz_wait *w)
{
    pthread_mutex_init(&w->lock, NULL);
    wait_cond_init(&w->wake);
    w->done = false;
    job->done = authz_done;
    job->arg = w;
    if (!job->deadline)
        job->deadline = deadline_in_ms(harness_ms(30000));
    stores_submit(s, job);
}

static inline enum status authz_await(struct job *job, struct authz_wait *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->done)
        (void)wait_cond(&w->wake, &w->lock, DEADLINE_NONE);
    pthread_mutex_unlock(&w->lock);
    return job->st;
}

static inline enum status authz_do(struct stores *s, struct job *job)
{
    struct authz_wait w;

    authz_submit(s, job, &w);
    return authz_await(job, &w);
}

static inline void assert_job_ok(struct stores *s, struct job *job)
{
    if (authz_do(s, job) != ST_OK)
        fail_msg("job %d: %s: %s", (int)job->kind, status_name(job->st), job->err.text);
}

static inline struct served *authz_store_new(struct stores *s, const char *name)
{
    struct job job = {.kind = JOB_CREATE_STORE, .name = name};

    assert_job_ok(s, &job);
    struct served *store = stores_get(s, job.id);
    assert_non_null(store);
    return store;
}

static inline struct engine_text authz_text(const char *s)
{
    return (struct engine_text){s, strlen(s)};
}

static inline struct engine_change authz_change(bool remove, const char *object, const char *relation,
                                                const char *subject)
{
    return (struct engine_change){
        .remove = remove,
        .tuple = {.object = authz_text(object), .relation = authz_text(relation), .subject = authz_text(subject)}};
}

/* One change; "!" before the object removes. */
static inline enum status authz_write(struct stores *s, struct served *store, const char *object, const char *subject)
{
    bool remove = *object == '!';
    struct engine_change change = authz_change(remove, object + remove, "viewer", subject);
    struct job job = {.kind = JOB_WRITE, .store = store, .changes = &change, .nchanges = 1};

    return authz_do(s, &job);
}

static inline bool authz_has(struct served *store, const char *object, const char *subject)
{
    struct engine_reader *r = served_reader(store);
    struct engine_text condition, context;
    const struct engine_change c = authz_change(false, object, "viewer", subject);

    engine_begin(r);
    bool found = engine_find(r, &c.tuple, &condition, &context);
    engine_end(r);
    return found;
}

static inline void authz_migrate(struct harness *h)
{
    const char *out;

    if (relatactl(h, &out, "migrate", "--store", NULL) != 0)
        fail_msg("%s", out);
}

/* What must hold of the tables whatever happened: changes replayed are the tuples, each write found its tuple absent
 * and each removal found it present. */
static inline void assert_authz_tables(struct harness *h)
{
    assert_int_equal(
        harness_sql_int(h,
                        "SELECT count(*) FROM (SELECT removed, lag(removed) OVER w AS before FROM relata_store.change "
                        "WINDOW w AS (PARTITION BY store, object, relation, subject ORDER BY id)) c "
                        "WHERE removed = coalesce(before, true)"),
        0);
    assert_int_equal(
        harness_sql_int(
            h,
            "SELECT count(*) FROM (SELECT DISTINCT ON (store, object, relation, subject) * FROM relata_store.change "
            "ORDER BY store, object, relation, subject, id DESC) c FULL JOIN relata_store.tuple t USING (store, "
            "object, "
            "relation, subject) WHERE (NOT c.removed) IS DISTINCT FROM (t.inserted_at IS NOT NULL) "
            "OR t.inserted_at IS NOT NULL AND (t.condition IS DISTINCT FROM c.condition OR t.context IS DISTINCT FROM "
            "c.context OR (extract(epoch FROM t.inserted_at) * 1000000)::bigint <> c.id)"),
        0);
}

#endif
