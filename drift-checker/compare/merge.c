/* merge.c - three streams in key order become one: what differs in it is a candidate. */
#include <stdlib.h>
#include <string.h>

#include "common/base/stop.h"
#include "drift-checker/compare/internal.h"

#define FETCH "FETCH 2000 FROM drift"

/* A row as it was read first: duplicates of a side collapse. */
struct held {
    bool present;
    bool conditional;
    struct buf name, context;
};

struct stream {
    struct sides *s;
    enum side side;
    const char *buckets; /* NULL: all */
    struct pg_result *r;
    int row;
    bool end;
    struct held held;
    pthread_t thread; /* opens it */
    bool started;
    enum status st;
    struct err err;
};

struct merging {
    struct sides *s;
    struct pairs *pairs;
    struct comparison *out;
    bool count;
    struct stream stream[SIDES];
    struct buf object, relation, subject;
    found_fn *found;
    void *arg;
};

static enum status fetch(struct stream *t, struct err *err)
{
    enum status st;

    pg_result_free(t->r);
    t->r = NULL;
    t->row = 0;
    st = side_ask(t->s, t->s->pg[t->side], FETCH, &t->r, err);
    t->end = st != ST_OK || pg_rows(t->r) == 0;
    return st;
}

static enum status stream_begin(struct stream *t, struct err *err)
{
    struct sides *s = t->s;
    struct buf sql;
    enum status st;

    t->end = s->same[t->side];
    if (t->end)
        return ST_OK;
    buf_init(&sql, 1 << 22);
    buf_adds(&sql, "DECLARE drift NO SCROLL CURSOR FOR ");
    side_stream_sql(s, t->side, t->buckets, &sql);
    st = side_ask(s, s->pg[t->side], buf_str(&sql), NULL, err);
    buf_release(&sql);
    if (st == ST_OK)
        st = fetch(t, err);
    if (st != ST_OK && t->side == SIDE_EXPECTED && st != ST_DEADLINE && st != ST_STOPPED) {
        (void)err_prefix(err, "a source of expected tuples failed");
        (void)snprintf(err->code, sizeof err->code, "expected");
    }
    return st;
}

static void *stream_main(void *arg)
{
    struct stream *t = arg;

    t->st = stream_begin(t, &t->err);
    return NULL;
}

/* The first rows of all sides, which take as long as the sort: side by side. */
static enum status streams_open(struct merging *m, const char *buckets, struct err *err)
{
    enum status st = ST_OK;

    for (int i = 0; i < SIDES; i++) {
        struct stream *t = &m->stream[i];

        *t = (struct stream){.s = m->s, .side = (enum side)i, .buckets = buckets};
        buf_init(&t->held.name, 1 << 16);
        buf_init(&t->held.context, 1 << 20);
        t->started = pthread_create(&t->thread, NULL, stream_main, t) == 0;
        if (!t->started)
            st = err_set(err, ST_NOMEM, NULL, "cannot start a thread");
    }
    for (int i = 0; i < SIDES; i++) {
        struct stream *t = &m->stream[i];

        if (t->started)
            pthread_join(t->thread, NULL);
        if (st == ST_OK && t->st != ST_OK) {
            st = t->st;
            if (err)
                *err = t->err;
        }
    }
    return st;
}

static void stream_close(struct stream *t)
{
    pg_result_free(t->r);
    buf_release(&t->held.name);
    buf_release(&t->held.context);
}

static struct tuple_key head(const struct stream *t)
{
    return (struct tuple_key){pg_text(t->r, t->row, 0), pg_text(t->r, t->row, 1), pg_text(t->r, t->row, 2)};
}

static enum status advance(struct stream *t, struct err *err)
{
    return ++t->row < pg_rows(t->r) ? ST_OK : fetch(t, err);
}

static enum status hold(struct stream *t, struct err *err)
{
    struct held *h = &t->held;
    bool fine = true;

    h->present = true;
    h->conditional = !pg_is_null(t->r, t->row, 3);
    buf_clear(&h->name);
    buf_clear(&h->context);
    buf_adds(&h->name, pg_text(t->r, t->row, 3));
    if (t->side == SIDE_OBSERVED && !t->s->pages && !t->s->authz)
        fine = context_decode(pg_text(t->r, t->row, 4), &h->context);
    else
        buf_adds(&h->context, pg_text(t->r, t->row, 4));
    if (!fine)
        return err_set(err, ST_FATAL, NULL, "%s: the store's condition context is no Struct", pg_text(t->r, t->row, 0));
    return buf_ok(&h->name) && buf_ok(&h->context) ? ST_OK : err_set(err, ST_TOO_BIG, NULL, "a context is too large");
}

/* The smallest key of the three heads, copied, and what each side says of it. False in *any at the end. */
static enum status next_key(struct merging *m, struct tuple_key *key, bool *any, struct err *err)
{
    const struct stream *least = NULL;
    enum status st = ST_OK;

    for (int i = 0; i < SIDES; i++) {
        const struct stream *t = &m->stream[i];
        struct tuple_key a, b;

        if (t->end)
            continue;
        a = head(t);
        if (least)
            b = head(least);
        if (!least || tuple_key_cmp(&a, &b) < 0)
            least = t;
    }
    *any = least;
    if (!least)
        return ST_OK;
    *key = head(least);
    buf_clear(&m->object);
    buf_clear(&m->relation);
    buf_clear(&m->subject);
    buf_adds(&m->object, key->object);
    buf_adds(&m->relation, key->relation);
    buf_adds(&m->subject, key->subject);
    *key = (struct tuple_key){buf_str(&m->object), buf_str(&m->relation), buf_str(&m->subject)};
    for (int i = 0; i < SIDES && st == ST_OK; i++) {
        struct stream *t = &m->stream[i];

        t->held.present = false;
        while (st == ST_OK && !t->end) {
            struct tuple_key k = head(t);

            if (tuple_key_cmp(&k, key) != 0)
                break;
            if (!t->held.present)
                st = hold(t, err);
            if (st == ST_OK)
                st = advance(t, err);
            m->out->streamed++;
        }
    }
    return st;
}

static bool equal(const struct held *a, const struct held *b)
{
    if (a->present != b->present)
        return false;
    if (!a->present)
        return true;
    return a->conditional == b->conditional && strcmp(buf_str(&a->name), buf_str(&b->name)) == 0 &&
           (!a->conditional || store_context_equal(buf_str(&a->context), buf_str(&b->context)));
}

static void count_key(struct merging *m, const struct pair *pair)
{
    int64_t *const judged[SIDES] = {&m->out->expected, &m->out->ledger, &m->out->observed};

    if (!m->count)
        return;
    for (int i = 0; i < SIDES; i++) {
        if (!m->stream[i].held.present)
            continue;
        if (pair_judged(pair))
            ++*judged[i];
        else if (i == SIDE_LEDGER)
            ++*(pair->skipped ? &m->out->skipped_ledger : &m->out->not_owned_ledger);
        else if (i == SIDE_OBSERVED)
            ++*(pair->skipped ? &m->out->skipped_observed : &m->out->not_owned_observed);
    }
}

static bool allowed(const struct merging *m, const struct tuple_key *key, const struct held *h)
{
    return !h->present || model_allows(m->s->job->model, key->object, key->relation, key->subject, buf_str(&h->name));
}

static enum status judge_key(struct merging *m, const struct tuple_key *key, struct err *err)
{
    const struct held *l = &m->stream[SIDE_LEDGER].held;
    const struct held *o = m->s->same[SIDE_OBSERVED] ? l : &m->stream[SIDE_OBSERVED].held;
    struct bytes type = tuple_type(key->object);
    struct pair *pair = pairs_get(m->pairs, type.data, type.len, key->relation);
    /* Of pairs that no source speaks of nothing is expected, equal or not. */
    const struct held *e = m->s->same[SIDE_EXPECTED] && pair && pair->expected ? l : &m->stream[SIDE_EXPECTED].held;
    struct candidate c = {.key = *key};

    if (!pair)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    if (e->present && !pair->expected) /* a scope's rows say it too */
        pair->expected = true;
    count_key(m, pair);
    if (!pair_judged(pair))
        return ST_OK;
    c.judged_expected = pair->expected;
    c.invalid = !allowed(m, key, l) || !allowed(m, key, o);
    if (equal(l, o) && (!c.judged_expected || equal(e, l)) && !(c.invalid && m->s->job->check_model))
        return ST_OK;
    return m->found(m->arg, &c, err);
}

enum status merge_sides(struct sides *s, struct pairs *pairs, const char *buckets, bool count, struct comparison *out,
                        found_fn *found, void *arg, struct err *err)
{
    struct merging m = {.s = s, .pairs = pairs, .out = out, .count = count, .found = found, .arg = arg};
    const struct compare_job *job = s->job;
    enum status st;
    bool any = true;

    buf_init(&m.object, 1 << 16);
    buf_init(&m.relation, 1 << 16);
    buf_init(&m.subject, 1 << 16);
    st = streams_open(&m, buckets, err);
    for (int64_t n = 0; st == ST_OK && any; n++) {
        struct tuple_key key;

        st = next_key(&m, &key, &any, err);
        if (st == ST_OK && any)
            st = judge_key(&m, &key, err);
        if (st == ST_OK && n % 1000 == 0) {
            if (stop_requested())
                st = err_set(err, ST_STOPPED, NULL, "interrupted");
            else if (job->progress)
                job->progress(job->progress_arg, "comparing", n, 0);
        }
    }
    for (int i = 0; i < SIDES; i++)
        stream_close(&m.stream[i]);
    buf_release(&m.object);
    buf_release(&m.relation);
    buf_release(&m.subject);
    return st;
}
