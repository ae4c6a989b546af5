/* reads.c - threads that read pages from Postgres. */
#include <stdlib.h>

#include "authz-store/durable/pages.h"
#include "authz-store/stores/internal.h"
#include "authz-store/stores/metrics.h"

#define SCOPE_MAX 64
#define PAGE_DEFAULT 50

static enum status bad_token(struct job *job, const char *code)
{
    return err_set(&job->err, ST_INVALID, code, "the continuation token is none of this list's");
}

static bool has_token(const struct job *job)
{
    return job->token && *job->token;
}

static char *text_dup(struct engine_text text)
{
    return strndup(text.s ? text.s : "", text.len);
}

/* "object\nrelation\nsubject": no part holds a control character. */
static bool split_key(char *text, struct pages_key *key)
{
    char *relation = strchr(text, '\n');
    char *subject = relation ? strchr(relation + 1, '\n') : NULL;

    if (!subject)
        return false;
    *relation = *subject = '\0';
    *key = (struct pages_key){text, relation + 1, subject + 1};
    return true;
}

static char *seal_key(struct stores *s, const char *scope, const struct pages_last *last)
{
    struct buf b;

    if (!last->object)
        return strdup("");
    buf_init(&b, 65536);
    buf_addf(&b, "%s\n%s\n%s", last->object, last->relation, last->subject);
    char *token = buf_ok(&b) ? stores_seal(s, scope, b.data) : NULL;
    buf_release(&b);
    return token;
}

static enum status read_page(struct stores *s, struct pg *pg, struct job *job)
{
    char scope[SCOPE_MAX];
    struct pages_key after;
    struct pages_last last = {0};
    char *at = NULL, *object = text_dup(job->object), *relation = text_dup(job->relation),
         *subject = text_dup(job->subject);
    enum status st = object && relation && subject ? ST_OK : err_set(&job->err, ST_NOMEM, NULL, "no memory");

    (void)snprintf(scope, sizeof scope, "read %s", job->store->id);
    if (st == ST_OK && has_token(job) && (!(at = stores_unseal(s, scope, job->token)) || !split_key(at, &after)))
        st = bad_token(job, "token");
    if (st == ST_OK) {
        const struct pages_read what = {.store = job->store->id,
                                        .object = object,
                                        .relation = relation,
                                        .subject = subject,
                                        .after = at ? &after : NULL,
                                        .size = job->page_size ? job->page_size : PAGE_DEFAULT};
        st = pages_read(pg, &what, &job->result, &last,
                        deadline_min(job->deadline, deadline_in_ms(s->cfg->statement_timeout_ms)), &job->err);
    }
    if (st == ST_OK && !(job->next_token = seal_key(s, scope, &last)))
        st = err_set(&job->err, ST_NOMEM, NULL, "no memory");
    pages_last_free(&last);
    free(at);
    free(object);
    free(relation);
    free(subject);
    return st;
}

/* The token of changes holds the last id and the type: "17 doc". */
static enum status read_changes(struct stores *s, struct pg *pg, struct job *job)
{
    char scope[SCOPE_MAX], text[400], *at = NULL, *rest = NULL;
    const char *type = job->type ? job->type : "";
    int64_t after = job->start_us > 0 ? job->start_us - 1 : 0, last = 0;
    enum status st = ST_OK;

    (void)snprintf(scope, sizeof scope, "changes %s", job->store->id);
    if (has_token(job)) {
        at = stores_unseal(s, scope, job->token);
        if (at)
            after = strtoll(at, &rest, 10);
        if (!at || *rest != ' ')
            st = bad_token(job, "token");
        else if (strcmp(rest + 1, type) != 0)
            st = bad_token(job, "token_type");
    }
    if (st == ST_OK)
        st =
            pages_changes(pg, job->store->id, type, after, job->page_size ? job->page_size : PAGE_DEFAULT, &job->result,
                          &last, deadline_min(job->deadline, deadline_in_ms(s->cfg->statement_timeout_ms)), &job->err);
    if (st == ST_OK && last == after) {
        job->next_token = strdup(has_token(job) ? job->token : "");
    } else if (st == ST_OK) {
        (void)snprintf(text, sizeof text, "%lld %s", (long long)last, type);
        job->next_token = stores_seal(s, scope, text);
    }
    if (st == ST_OK && !job->next_token)
        st = err_set(&job->err, ST_NOMEM, NULL, "no memory");
    free(at);
    return st;
}

static enum status connect(struct stores *s, struct pg **pg, mono_us deadline, struct err *err)
{
    const struct pg_config cfg = {.dsn = s->cfg->pg_dsn, .application_name = "authz-store pages"};

    if (*pg && pg_alive(*pg))
        return ST_OK;
    pg_close(*pg);
    *pg = NULL;
    return pg_open(pg, &cfg, deadline, err);
}

/* A connection that was lost while idle is made again at once; reading twice harms nobody. */
static enum status page(struct stores *s, struct pg **pg, struct job *job)
{
    enum status st = ST_RETRY;

    for (int i = 0; i < 2 && (st == ST_RETRY || st == ST_UNKNOWN) && clock_mono_us() < job->deadline; i++) {
        st = connect(s, pg, deadline_min(job->deadline, deadline_in_ms(s->cfg->statement_timeout_ms)), &job->err);
        if (st == ST_OK)
            st = job->kind == JOB_READ ? read_page(s, *pg, job) : read_changes(s, *pg, job);
    }
    metric_add(&m_pages, st == ST_OK);
    return st == ST_UNKNOWN ? ST_RETRY : st;
}

void *reads_run(void *arg)
{
    struct stores *s = arg;
    struct pg *pg = NULL;
    struct job *job;

    pthread_setname_np(pthread_self(), "pages");
    while ((job = queue_take(&s->reads, DEADLINE_NONE))) {
        if (clock_mono_us() >= job->deadline || clock_mono_us() >= atomic_load(&s->stop_by)) {
            job_end(job, ST_DEADLINE, "the deadline passed before the page was read");
            continue;
        }
        job->st = page(s, &pg, job);
        job->done(job);
    }
    pg_close(pg);
    return NULL;
}
