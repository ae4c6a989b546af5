/*
 * digest.c - the sums of all three sides, side by side: first by (type, relation), which costs hardly more than reading
 * the tuples; then, of those that differ, by bucket.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "drift-checker/compare/internal.h"

/* One line of a digest. */
struct group {
    struct pair *pair;
    const struct source *source; /* NULL for ledger and store */
    int32_t bucket;              /* -1: conditional tuples */
    int64_t n;
    uint64_t sum; /* of 64 bits, modulo 2^64 */
};

struct digesting {
    struct sides *s;
    struct pairs *pairs;
    enum side side;
    struct pairs *only;    /* by bucket, of the pairs that differ; NULL: by pair */
    bool *wanted;          /* which sources, then */
    struct source *source; /* under way; NULL for ledger and store */
    struct group *groups;
    size_t len, cap;
    pthread_t thread;
    bool started;
    enum status st;
    struct err err;
};

/* A numeric without fraction, modulo 2^64. */
static uint64_t wrapped(const char *text)
{
    bool minus = *text == '-';
    uint64_t v = 0;

    for (text += minus; *text >= '0' && *text <= '9'; text++)
        v = v * 10 + (uint64_t)(*text - '0');
    return minus ? 0 - v : v;
}

static enum status take_group(void *arg, char *line, size_t len, struct err *err)
{
    struct digesting *d = arg;
    char *f[5];
    struct pair *pair;
    struct group *g;

    if (pg_copy_split(line, len, f, 5) != 5 || !f[2] || !f[3] || !f[4])
        return err_set(err, ST_FATAL, NULL, "a digest has a line of another form");
    if (!f[0] || !f[1]) { /* a view's rows that lack a part are counted elsewhere */
        return ST_OK;
    }
    pair = pairs_get(d->pairs, f[0], strlen(f[0]), f[1]);
    if (d->len == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4096;
        struct group *grown = realloc(d->groups, cap * sizeof *grown);

        if (!grown)
            return err_set(err, ST_NOMEM, NULL, "no memory for digests");
        d->groups = grown;
        d->cap = cap;
    }
    if (!pair)
        return err_set(err, ST_NOMEM, NULL, "no memory for digests");
    g = &d->groups[d->len++];
    *g = (struct group){pair, d->source, (int32_t)strtol(f[2], NULL, 10), strtoll(f[3], NULL, 10), wrapped(f[4])};
    if (d->source && !d->only)
        d->source->tuples += g->n;
    return ST_OK;
}

/* Rows of a view that lack a part: which source cannot tell what it stands for. */
static enum status count_nulls(struct digesting *d, struct err *err)
{
    struct pg_result *r = NULL;
    struct buf sql;
    enum status st;

    if (d->source->tracked)
        return ST_OK;
    buf_init(&sql, 1 << 16);
    buf_addf(&sql, "SELECT count(*) FROM %s WHERE object IS NULL OR relation IS NULL OR subject IS NULL",
             d->source->name);
    st = side_ask(d->s, d->s->pg[d->side], buf_str(&sql), &r, err);
    if (st == ST_OK)
        d->source->nulls = pg_int(r, 0, 0);
    pg_result_free(r);
    buf_release(&sql);
    return st;
}

static enum status digest_one(struct digesting *d, struct err *err)
{
    struct buf sql;
    enum status st;

    buf_init(&sql, 1 << 20);
    side_digest_sql(d->s, d->side, d->source, d->only, &sql);
    st = pg_exec(d->s->pg[d->side], "SET LOCAL enable_sort = off; SET LOCAL work_mem = '64MB'",
                 deadline_in_ms(sides_ms(d->s)), err);
    if (st == ST_OK)
        st = pg_copy_out(d->s->pg[d->side], buf_str(&sql), sides_ms(d->s), take_group, d, err);
    buf_release(&sql);
    if (st == ST_OK)
        st = pg_exec(d->s->pg[d->side], "SET LOCAL enable_sort = on", deadline_in_ms(sides_ms(d->s)), err);
    if (st == ST_OK && d->source && !d->only)
        st = count_nulls(d, err);
    if (st != ST_OK && d->source && st != ST_STOPPED && st != ST_DEADLINE) {
        (void)err_prefix(err, "the source %s of expected tuples failed", d->source->name);
        (void)snprintf(err->code, sizeof err->code, "expected");
    }
    return st;
}

static void *digest_main(void *arg)
{
    struct digesting *d = arg;
    const struct sources *sources = d->s->sources;

    if (d->side != SIDE_EXPECTED) {
        d->st = digest_one(d, &d->err);
        return NULL;
    }
    for (size_t i = 0; i < sources->len && d->st == ST_OK; i++) {
        d->source = &sources->items[i];
        if (d->only && !d->wanted[i])
            continue;
        if (!d->only)
            d->source->tuples = d->source->nulls = 0;
        d->st = digest_one(d, &d->err);
    }
    return NULL;
}

static enum status run_all(struct digesting d[SIDES], struct err *err)
{
    enum status st = ST_OK;

    for (int i = 0; i < SIDES && st == ST_OK; i++) {
        d[i].len = 0;
        d[i].started = pthread_create(&d[i].thread, NULL, digest_main, &d[i]) == 0;
        if (!d[i].started)
            st = err_set(err, ST_NOMEM, NULL, "cannot start a thread");
    }
    for (int i = 0; i < SIDES; i++) {
        if (d[i].started)
            pthread_join(d[i].thread, NULL);
    }
    for (int i = 0; i < SIDES && st == ST_OK; i++) {
        st = d[i].st;
        if (st != ST_OK && err)
            *err = d[i].err;
    }
    return st;
}

/* ---- by pair ---- */

static bool in_scope(const struct digesting *d, const struct pair *p)
{
    const char *type = d->s->job->cfg->type;

    return !*type || strcmp(type, p->type) == 0;
}

static void count(const struct digesting *d, struct comparison *out)
{
    int64_t *judged = d->side == SIDE_EXPECTED ? &out->expected
                      : d->side == SIDE_LEDGER ? &out->ledger
                                               : &out->observed;

    for (size_t i = 0; i < d->len; i++) {
        const struct group *g = &d->groups[i];

        if (d->side == SIDE_EXPECTED)
            g->pair->expected = true; /* what a source reads stands for pairs of which it speaks */
        if (!in_scope(d, g->pair))
            continue;
        if (pair_judged(g->pair))
            *judged += g->n;
        else if (d->side == SIDE_LEDGER)
            *(g->pair->skipped ? &out->skipped_ledger : &out->not_owned_ledger) += g->n;
        else if (d->side == SIDE_OBSERVED)
            *(g->pair->skipped ? &out->skipped_observed : &out->not_owned_observed) += g->n;
        if (g->bucket < 0) {
            out->conditional = out->conditional || pair_judged(g->pair);
            continue;
        }
        g->pair->n[d->side] += g->n;
        g->pair->sum[d->side] += g->sum;
    }
}

static bool sides_differ(const struct pair *p, enum side a, enum side b)
{
    return p->n[a] != p->n[b] || p->sum[a] != p->sum[b];
}

static bool any_pair_differs(const struct digesting *d, struct pairs *pairs)
{
    bool any = false;
    size_t at;

    for (struct pair *p = pairs_first(pairs, &at); p; p = pairs_next(pairs, &at, p)) {
        p->differs = pair_judged(p) && in_scope(d, p) &&
                     (sides_differ(p, SIDE_LEDGER, SIDE_OBSERVED) ||
                      (p->expected && sides_differ(p, SIDE_EXPECTED, SIDE_LEDGER)));
        any = any || p->differs;
    }
    return any;
}

/* ---- by bucket ---- */

struct sums {
    int64_t n[COMPARE_BUCKETS];
    uint64_t sum[COMPARE_BUCKETS];
};

static void add_to(struct sums *sums, const struct digesting *d, int sign, bool expected_only)
{
    for (size_t i = 0; i < d->len; i++) {
        const struct group *g = &d->groups[i];

        if (!g->pair->differs || (expected_only && !g->pair->expected) || g->bucket < 0 || g->bucket >= COMPARE_BUCKETS)
            continue;
        sums->n[g->bucket] += sign * g->n;
        sums->sum[g->bucket] += sign > 0 ? g->sum : 0 - g->sum;
    }
}

/* Buckets in which two sides differ, added to `buckets`. */
static void differences(const struct digesting *a, const struct digesting *b, bool expected_only, struct sums *sums,
                        bool *buckets)
{
    memset(sums, 0, sizeof *sums);
    add_to(sums, a, 1, expected_only);
    add_to(sums, b, -1, expected_only);
    for (int i = 0; i < COMPARE_BUCKETS; i++)
        buckets[i] = buckets[i] || sums->n[i] || sums->sum[i];
}

static enum status find_buckets(struct digesting d[SIDES], struct pairs *pairs, struct comparison *out, bool *buckets,
                                struct err *err)
{
    struct sums *sums = calloc(1, sizeof *sums);
    const struct sources *sources = d[0].s->sources;
    bool *wanted = calloc(sources->len + 1, sizeof *wanted);
    enum status st = sums && wanted ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory for digests");

    for (size_t i = 0; st == ST_OK && i < d[SIDE_EXPECTED].len; i++) {
        const struct group *g = &d[SIDE_EXPECTED].groups[i];

        if (g->pair->differs)
            wanted[g->source - sources->items] = true;
    }
    for (int i = 0; i < SIDES; i++) {
        d[i].only = pairs;
        d[i].wanted = wanted;
    }
    if (st == ST_OK)
        st = run_all(d, err);
    if (st == ST_OK) {
        differences(&d[SIDE_EXPECTED], &d[SIDE_LEDGER], true, sums, buckets);
        differences(&d[SIDE_LEDGER], &d[SIDE_OBSERVED], false, sums, buckets);
    }
    for (int i = 0; st == ST_OK && i < COMPARE_BUCKETS; i++)
        out->buckets_differ += buckets[i];
    free(sums);
    free(wanted);
    return st;
}

enum status digest_sides(struct sides *s, struct pairs *pairs, struct comparison *out, bool *buckets, struct err *err)
{
    struct digesting d[SIDES] = {0};
    enum status st;

    out->buckets = COMPARE_BUCKETS;
    for (int i = 0; i < SIDES; i++)
        d[i] = (struct digesting){.s = s, .pairs = pairs, .side = (enum side)i};
    st = run_all(d, err);
    for (int i = 0; i < SIDES && st == ST_OK; i++)
        count(&d[i], out);
    if (st == ST_OK && !s->job->cfg->full && any_pair_differs(&d[0], pairs))
        st = find_buckets(d, pairs, out, buckets, err);
    for (int i = 0; i < SIDES; i++)
        free(d[i].groups);
    return st;
}
