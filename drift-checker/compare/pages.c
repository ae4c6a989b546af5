/* pages.c - the store by Read pages, into a temporary table: from then on it is compared as the others are. */
#include <stdlib.h>
#include <string.h>

#include "common/base/stop.h"
#include "common/base/wait.h"
#include "drift-checker/compare/internal.h"

#define TRIES 5
#define EMPTY_MAX 1000 /* pages without a tuple, one after the other: a store that gives more will not end */

struct reading {
    struct sides *s;
    struct buf line;
    int64_t done;
};

static enum status read_page(const struct compare_job *job, const char *object, const char *subject, const char *token,
                             struct store_tuples *page, char **next, struct err *err)
{
    enum status st = ST_OK;

    for (unsigned i = 0; i < TRIES; i++) {
        st = store_read_about(job->store, object, subject, token, page, next,
                              deadline_in_ms(job->cfg->store.request_timeout_ms), err);
        if (!status_is_retryable(st))
            return st;
        if (stop_sleep_until(deadline_in_ms(err->retry_after_ms ? err->retry_after_ms : backoff_ms(i, 100, 2000))) !=
            ST_OK)
            return err_set(err, ST_STOPPED, NULL, "interrupted");
    }
    return st;
}

static enum status put_page(struct reading *r, const struct store_tuples *page, struct err *err)
{
    buf_clear(&r->line);
    for (size_t i = 0; i < page->len; i++) {
        const struct store_tuple *t = &page->items[i];
        const char *const fields[] = {t->key.object, t->key.relation, t->key.subject,
                                      t->condition_name && *t->condition_name ? t->condition_name : NULL,
                                      t->condition_context};

        for (int f = 0; f < 5; f++) {
            pg_copy_escape(&r->line, fields[f]);
            buf_addc(&r->line, f < 4 ? '\t' : '\n');
        }
    }
    if (!buf_ok(&r->line))
        return err_set(err, ST_NOMEM, NULL, "no memory for a page");
    return pg_copy_in_put(r->s->pg[SIDE_OBSERVED], buf_str(&r->line), r->line.len,
                          deadline_in_ms(r->s->job->cfg->statement_timeout_ms), err);
}

static enum status read_all(struct reading *r, const char *object, const char *subject, struct err *err)
{
    const struct compare_job *job = r->s->job;
    char *token = strdup("");
    enum status st = token ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory");
    int empty = 0;

    while (st == ST_OK) {
        struct store_tuples page = {0};
        char *next = NULL;

        st = stop_requested() ? err_set(err, ST_STOPPED, NULL, "interrupted")
                              : read_page(job, object, subject, token, &page, &next, err);
        if (st == ST_OK && page.len)
            st = put_page(r, &page, err);
        empty = page.len ? 0 : empty + 1;
        r->done += (int64_t)page.len;
        store_tuples_free(&page);
        free(token);
        token = next;
        if (st == ST_OK && empty > EMPTY_MAX)
            st = err_set(err, ST_FATAL, NULL, "the store gives %d empty pages one after the other", EMPTY_MAX);
        if (st != ST_OK || !*token)
            break;
        if (job->progress)
            job->progress(job->progress_arg, "reading the store", r->done, 0);
    }
    free(token);
    return st;
}

/* What a subject holds: OpenFGA wants to know on objects of which type. */
static enum status read_subject(struct reading *r, const char *subject, struct err *err)
{
    const struct model *m = r->s->job->model;
    enum status st = ST_OK;
    struct buf type;

    buf_init(&type, 4096);
    for (int i = 0; i < model_pairs(m) && st == ST_OK; i++) {
        if (i && strcmp(model_pair_type(m, i), model_pair_type(m, i - 1)) == 0)
            continue; /* pairs are sorted by type */
        buf_clear(&type);
        buf_addf(&type, "%s:", model_pair_type(m, i));
        st = read_all(r, buf_str(&type), subject, err);
    }
    buf_release(&type);
    return st;
}

enum status pages_read(struct sides *s, struct err *err)
{
    const struct settings *cfg = s->job->cfg;
    struct pg *pg = s->pg[SIDE_OBSERVED];
    struct reading r = {.s = s};
    mono_us deadline = deadline_in_ms(cfg->statement_timeout_ms);
    enum status st = pg_exec(pg,
                             "CREATE TEMPORARY TABLE observed (object text COLLATE \"C\", relation text COLLATE \"C\", "
                             "subject text COLLATE \"C\", condition_name text COLLATE \"C\", condition_context text)",
                             deadline, err);

    buf_init(&r.line, 1 << 24);
    if (st == ST_OK)
        st = pg_copy_in_begin(pg, "COPY pg_temp.observed FROM STDIN", deadline, err);
    if (st == ST_OK) {
        if (*cfg->subject)
            st = read_subject(&r, cfg->subject, err);
        else
            st = read_all(&r, *cfg->object ? cfg->object : NULL, NULL, err);
        if (st == ST_OK)
            st = pg_copy_in_end(pg, deadline_in_ms(cfg->statement_timeout_ms), err);
        else
            pg_copy_in_abort(pg, "reading the store failed");
    }
    if (st != ST_OK)
        (void)err_prefix(err, "reading the store, after %lld tuples", (long long)r.done);
    buf_release(&r.line);
    return st;
}
