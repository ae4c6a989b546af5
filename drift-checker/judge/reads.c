/* reads.c - single tuples from the store, several at once. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/stop.h"
#include "drift-checker/judge/internal.h"

#define TRIES 5

struct reading {
    struct judge *j;
    struct suspect **batch;
    size_t n;
    atomic_size_t next;
    atomic_bool failed;
};

struct reader {
    struct reading *all;
    pthread_t thread;
    bool started;
    enum status st;
    struct err err;
};

/* Where it ended. */
static enum status name_tuple(const struct tuple_key *key, enum status st, struct err *err)
{
    struct buf text;

    buf_init(&text, 4096);
    tuple_key_format(key, &text);
    (void)err_prefix(err, "reading %s from the store", buf_str(&text));
    buf_release(&text);
    return st;
}

static enum status read_one(struct judge *j, struct store_conn *conn, struct suspect *s, struct err *err)
{
    struct store_tuples found = {0};
    struct holding *h = &s->facts.observed;
    enum status st = ST_OK;

    for (unsigned i = 0; i < TRIES; i++) {
        st = store_read_tuple(conn, s->key, &h->present, &found, deadline_in_ms(j->job->cfg->store.request_timeout_ms),
                              err);
        if (!status_is_retryable(st))
            break;
        if (stop_sleep_until(deadline_in_ms(err->retry_after_ms ? err->retry_after_ms : backoff_ms(i, 100, 2000))) !=
            ST_OK)
            return err_set(err, ST_STOPPED, NULL, "interrupted");
    }
    if (st == ST_OK && h->present && found.len) {
        const struct store_tuple *t = &found.items[0];

        if (t->condition_name && *t->condition_name) {
            h->condition = strdup(t->condition_name);
            h->context = t->condition_context ? strdup(t->condition_context) : NULL;
            if (!h->condition || (t->condition_context && !h->context))
                st = err_set(err, ST_NOMEM, NULL, "no memory");
        }
    }
    store_tuples_free(&found);
    return st == ST_OK || st == ST_STOPPED ? st : name_tuple(s->key, st, err);
}

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    struct reading *all = r->all;
    struct store_conn *conn = NULL;

    r->st = store_conn_new(&conn, all->j->store, all->j->job->store_id, &r->err);
    if (conn)
        store_conn_heed_stop(conn, true);
    while (r->st == ST_OK && !atomic_load(&all->failed) && !stop_requested()) {
        size_t i = atomic_fetch_add(&all->next, 1);

        if (i >= all->n)
            break;
        if (!all->batch[i]->facts.pending)
            r->st = read_one(all->j, conn, all->batch[i], &r->err);
    }
    if (r->st != ST_OK)
        atomic_store(&all->failed, true);
    store_conn_free(conn);
    return NULL;
}

enum status reads_run(struct judge *j, struct suspect **batch, size_t n, struct err *err)
{
    struct reading all = {.j = j, .batch = batch, .n = n};
    size_t threads = (size_t)j->job->cfg->concurrency < n ? (size_t)j->job->cfg->concurrency : n;
    struct reader *readers = calloc(threads ? threads : 1, sizeof *readers);
    enum status st = readers ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory");

    for (size_t i = 0; st == ST_OK && i < threads; i++) {
        readers[i].all = &all;
        readers[i].started = pthread_create(&readers[i].thread, NULL, reader_main, &readers[i]) == 0;
        if (!readers[i].started && i == 0)
            st = err_set(err, ST_NOMEM, NULL, "cannot start a thread");
    }
    for (size_t i = 0; readers && i < threads; i++) {
        if (!readers[i].started)
            continue;
        pthread_join(readers[i].thread, NULL);
        if (readers[i].st != ST_OK && st == ST_OK) {
            st = readers[i].st;
            *err = readers[i].err;
        }
    }
    free(readers);
    return st == ST_OK && stop_requested() ? err_set(err, ST_STOPPED, NULL, "interrupted") : st;
}
