/*
 * digest.c - the sums of all three sides, side by side: first over all tuples, if all are judged, or by (type,
 * relation); then, where these differ, by bucket. A pass asks only the sides and pairs that the passes before it left
 * open.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "drift-checker/compare/internal.h"

/* One line of a digest by pair. */
struct group {
    struct pair *pair;
    const struct source *source; /* NULL for ledger and store */
    bool conditional;
    int64_t n;
    uint64_t sum; /* of 64 bits, modulo 2^64 */
};

struct total {
    int64_t n, conditional;
    uint64_t sum;
};

struct sums {
    struct {
        int64_t n;
        uint64_t sum;
    } bucket[COMPARE_BUCKETS];
};

/* One side. */
struct digesting {
    struct sides *s;
    struct pairs *pairs;
    enum side side;
    bool ask; /* this side in this pass */
    enum digest_by by;
    struct pairs *only;    /* by bucket: of the pairs that differ; NULL: of all */
    bool *wanted;          /* by bucket: which sources */
    struct source *source; /* under way; NULL for ledger and store */
    struct group *groups;  /* by pair */
    size_t len, cap;
    struct total total;          /* over all */
    struct sums *sums, *of_some; /* by bucket: of all pairs, and of those that sources speak of (ledger only) */
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

static enum status take_group(struct digesting *d, struct pair *pair, const struct group *line, struct err *err)
{
    if (!pair)
        return err_set(err, ST_NOMEM, NULL, "no memory for digests");
    if (d->len == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 256;
        struct group *grown = realloc(d->groups, cap * sizeof *grown);

        if (!grown)
            return err_set(err, ST_NOMEM, NULL, "no memory for digests");
        d->groups = grown;
        d->cap = cap;
    }
    d->groups[d->len] = *line;
    d->groups[d->len].pair = pair;
    d->groups[d->len++].source = d->source;
    if (d->source)
        d->source->tuples += line->n;
    return ST_OK;
}

static void take_bucket(struct digesting *d, int64_t bucket, bool unexpected, int64_t n, uint64_t sum)
{
    if (bucket < 0 || bucket >= COMPARE_BUCKETS)
        return;
    d->sums->bucket[bucket].n += n;
    d->sums->bucket[bucket].sum += sum;
    if (d->of_some && !unexpected) {
        d->of_some->bucket[bucket].n += n;
        d->of_some->bucket[bucket].sum += sum;
    }
}

static enum status take_line(void *arg, char *line, size_t len, struct err *err)
{
    struct digesting *d = arg;
    char *f[5];
    struct group g;
    int64_t bucket;

    if (pg_copy_split(line, len, f, 5) != 5 || !f[0] || !f[1] || !f[2] || !f[3] || !f[4])
        return err_set(err, ST_FATAL, NULL, "a digest has a line of another form");
    bucket = strtoll(f[2], NULL, 10);
    g = (struct group){.conditional = bucket < 0, .n = strtoll(f[3], NULL, 10), .sum = wrapped(f[4])};
    if (d->by == BY_PAIR)
        return take_group(d, pairs_get(d->pairs, f[0], strlen(f[0]), f[1]), &g, err);
    if (d->by == BY_ALL) {
        *(g.conditional ? &d->total.conditional : &d->total.n) += g.n;
        d->total.sum += g.conditional ? 0 : g.sum;
        return ST_OK;
    }
    if (d->source && d->source->tracked && d->only) { /* it gives all of its pairs */
        const struct pair *pair = pairs_get(d->pairs, f[0], strlen(f[0]), f[1]);

        if (!pair || !pair->differs)
            return pair ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory for digests");
    }
    take_bucket(d, bucket, *f[1] == 'x' && !d->source, g.n, g.sum);
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
    side_digest_sql(d->s, d->side, d->source, d->by, d->only, &sql);
    st = pg_exec(d->s->pg[d->side], "SET LOCAL enable_sort = off; SET LOCAL work_mem = '64MB'",
                 deadline_in_ms(sides_ms(d->s)), err);
    if (st == ST_OK)
        st = pg_copy_out(d->s->pg[d->side], buf_str(&sql), sides_ms(d->s), take_line, d, err);
    buf_release(&sql);
    if (st == ST_OK)
        st = pg_exec(d->s->pg[d->side], "SET LOCAL enable_sort = on", deadline_in_ms(sides_ms(d->s)), err);
    if (st == ST_OK && d->source && d->by == BY_PAIR)
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
        if (d->by == BY_BUCKET && !d->wanted[i])
            continue;
        if (d->by == BY_PAIR)
            d->source->tuples = d->source->nulls = 0;
        d->st = digest_one(d, &d->err);
    }
    return NULL;
}

/* One pass of the sides that are asked. */
static enum status run_pass(struct digesting d[SIDES], struct err *err)
{
    enum status st = ST_OK;

    for (int i = 0; i < SIDES && st == ST_OK; i++) {
        d[i].started = d[i].ask && pthread_create(&d[i].thread, NULL, digest_main, &d[i]) == 0;
        if (d[i].ask && !d[i].started)
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

/* ---- over all, and by pair ---- */

static bool in_scope(const struct digesting *d, const struct pair *p)
{
    const char *type = d->s->job->cfg->type;

    return !*type || strcmp(type, p->type) == 0;
}

/* What the groups of a side say of its pairs. */
static void note_pairs(struct digesting *d)
{
    for (size_t i = 0; i < d->len; i++) {
        const struct group *g = &d->groups[i];

        if (d->side == SIDE_EXPECTED)
            g->pair->expected = true; /* what a source reads stands for pairs of which it speaks */
        if (!in_scope(d, g->pair))
            continue;
        if (g->conditional) {
            d->total.conditional += pair_judged(g->pair) ? g->n : 0;
            continue;
        }
        g->pair->n[d->side] += g->n;
        g->pair->sum[d->side] += g->sum;
        if (pair_judged(g->pair)) {
            d->total.n += g->n;
            d->total.sum += g->sum;
        }
    }
}

/* What is not judged is counted. */
static void count_others(const struct digesting *d, struct comparison *out)
{
    for (size_t i = 0; i < d->len; i++) {
        const struct group *g = &d->groups[i];

        if (!in_scope(d, g->pair) || pair_judged(g->pair))
            continue;
        if (d->side == SIDE_LEDGER)
            *(g->pair->skipped ? &out->skipped_ledger : &out->not_owned_ledger) += g->n;
        else if (d->side == SIDE_OBSERVED)
            *(g->pair->skipped ? &out->skipped_observed : &out->not_owned_observed) += g->n;
    }
}

static void count_judged(const struct digesting d[SIDES], struct comparison *out)
{
    int64_t *const judged[SIDES] = {&out->expected, &out->ledger, &out->observed};

    for (int i = 0; i < SIDES; i++) {
        *judged[i] = d[i].total.n + d[i].total.conditional;
        out->conditional = out->conditional || d[i].total.conditional;
    }
}

static bool totals_differ(const struct digesting *a, const struct digesting *b)
{
    return a->total.n != b->total.n || a->total.sum != b->total.sum;
}

/* Sides that differ from the ledger, in tuples without a condition. */
struct differing {
    bool expected, observed;
    bool by_pair; /* pairs say which of them */
};

/* Sums over all differ: which pairs it is; the store's are the ledger's if these two agree. */
static enum status split_totals(struct digesting d[SIDES], struct differing *differ, struct pairs *pairs,
                                struct err *err)
{
    enum status st;
    size_t at;

    d[SIDE_EXPECTED].ask = false;
    d[SIDE_OBSERVED].ask = differ->observed;
    for (int i = SIDE_LEDGER; i < SIDES; i++)
        d[i].by = BY_PAIR;
    st = run_pass(d, err);
    for (int i = SIDE_LEDGER; i < SIDES && st == ST_OK; i++) {
        if (d[i].ask)
            note_pairs(&d[i]);
    }
    for (struct pair *p = pairs_first(pairs, &at); p && !differ->observed; p = pairs_next(pairs, &at, p)) {
        p->n[SIDE_OBSERVED] = p->n[SIDE_LEDGER];
        p->sum[SIDE_OBSERVED] = p->sum[SIDE_LEDGER];
    }
    return st;
}

static bool pair_differs(const struct pair *p, enum side side)
{
    return p->n[side] != p->n[SIDE_LEDGER] || p->sum[side] != p->sum[SIDE_LEDGER];
}

static void compare_pairs(const struct digesting *d, struct pairs *pairs, struct differing *differ)
{
    size_t at;

    *differ = (struct differing){.by_pair = true};
    for (struct pair *p = pairs_first(pairs, &at); p; p = pairs_next(pairs, &at, p)) {
        bool judged = pair_judged(p) && in_scope(d, p);
        bool expected = judged && p->expected && pair_differs(p, SIDE_EXPECTED);
        bool observed = judged && pair_differs(p, SIDE_OBSERVED);

        p->differs = expected || observed;
        differ->expected = differ->expected || expected;
        differ->observed = differ->observed || observed;
    }
}

static enum status first_passes(struct digesting d[SIDES], struct pairs *pairs, struct comparison *out,
                                struct differing *differ, struct err *err)
{
    bool all = pairs_all_judged(pairs);
    enum status st;

    for (int i = 0; i < SIDES; i++) {
        d[i].ask = true;
        d[i].by = all && i != SIDE_EXPECTED ? BY_ALL : BY_PAIR;
    }
    st = run_pass(d, err);
    for (int i = 0; i < SIDES && st == ST_OK; i++) {
        note_pairs(&d[i]);
        count_others(&d[i], out);
    }
    if (st != ST_OK)
        return st;
    count_judged(d, out);
    if (!all) {
        compare_pairs(&d[0], pairs, differ);
        return ST_OK;
    }
    differ->expected = totals_differ(&d[SIDE_EXPECTED], &d[SIDE_LEDGER]);
    differ->observed = totals_differ(&d[SIDE_OBSERVED], &d[SIDE_LEDGER]);
    if (!differ->expected || d[0].s->job->cfg->full)
        return ST_OK;
    st = split_totals(d, differ, pairs, err);
    if (st == ST_OK)
        compare_pairs(&d[0], pairs, differ);
    return st;
}

/* ---- by bucket ---- */

/* Buckets in which two sides differ, added to `buckets`. */
static void differences(const struct sums *a, const struct sums *b, bool *buckets)
{
    for (int i = 0; i < COMPARE_BUCKETS; i++)
        buckets[i] = buckets[i] || a->bucket[i].n != b->bucket[i].n || a->bucket[i].sum != b->bucket[i].sum;
}

static enum status find_buckets(struct digesting d[SIDES], const struct differing *differ, struct pairs *pairs,
                                struct comparison *out, bool *buckets, struct err *err)
{
    const struct sources *sources = d[0].s->sources;
    struct sums *sums = calloc(SIDES + 1, sizeof *sums);
    bool *wanted = calloc(sources->len + 1, sizeof *wanted);
    enum status st = sums && wanted ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory for digests");

    for (size_t i = 0; st == ST_OK && i < d[SIDE_EXPECTED].len; i++) {
        const struct group *g = &d[SIDE_EXPECTED].groups[i];

        if (g->pair->differs)
            wanted[g->source - sources->items] = true;
    }
    for (int i = 0; i < SIDES && st == ST_OK; i++) {
        d[i].by = BY_BUCKET;
        d[i].only = differ->by_pair ? pairs : NULL;
        d[i].wanted = wanted;
        d[i].sums = &sums[i];
        d[i].of_some = i == SIDE_LEDGER ? &sums[SIDES] : NULL;
    }
    d[SIDE_EXPECTED].ask = differ->expected;
    d[SIDE_LEDGER].ask = true;
    d[SIDE_OBSERVED].ask = differ->observed;
    if (st == ST_OK)
        st = run_pass(d, err);
    if (st == ST_OK && differ->expected)
        differences(&sums[SIDE_EXPECTED], &sums[SIDES], buckets);
    if (st == ST_OK && differ->observed)
        differences(&sums[SIDE_OBSERVED], &sums[SIDE_LEDGER], buckets);
    for (int i = 0; st == ST_OK && i < COMPARE_BUCKETS; i++)
        out->buckets_differ += buckets[i];
    free(sums);
    free(wanted);
    return st;
}

enum status digest_sides(struct sides *s, struct pairs *pairs, struct comparison *out, bool *buckets, struct err *err)
{
    struct digesting d[SIDES] = {0};
    struct differing differ = {0};
    enum status st;

    out->buckets = COMPARE_BUCKETS;
    for (int i = 0; i < SIDES; i++)
        d[i] = (struct digesting){.s = s, .pairs = pairs, .side = (enum side)i};
    st = first_passes(d, pairs, out, &differ, err);
    if (st == ST_OK && !s->job->cfg->full) {
        s->same[SIDE_EXPECTED] = !differ.expected && !out->conditional;
        s->same[SIDE_OBSERVED] = !differ.observed && !out->conditional;
        if (differ.expected || differ.observed)
            st = find_buckets(d, &differ, pairs, out, buckets, err);
    }
    for (int i = 0; i < SIDES; i++)
        free(d[i].groups);
    return st;
}
