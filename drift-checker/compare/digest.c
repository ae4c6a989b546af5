/* digest.c - the sums of all three sides, side by side, and the buckets in which they differ. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "drift-checker/compare/internal.h"

/* One line of a digest. */
struct group {
    const struct pair *pair;
    int32_t bucket; /* -1: conditional tuples */
    int64_t n;
    uint64_t sum; /* of 64 bits, modulo 2^64 */
};

struct digesting {
    struct sides *s;
    struct pairs *pairs;
    enum side side;
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
    *g = (struct group){pair, (int32_t)strtol(f[2], NULL, 10), strtoll(f[3], NULL, 10), wrapped(f[4])};
    if (d->source)
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
    side_digest_sql(d->s, d->side, d->source, &sql);
    st = pg_copy_out(d->s->pg[d->side], buf_str(&sql), sides_ms(d->s), take_group, d, err);
    buf_release(&sql);
    if (st == ST_OK && d->source)
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
        d->source->tuples = d->source->nulls = 0;
        d->st = digest_one(d, &d->err);
    }
    return NULL;
}

/* ---- what differs ---- */

struct sums {
    int64_t n[COMPARE_BUCKETS];
    uint64_t sum[COMPARE_BUCKETS];
};

static void add_to(struct sums *sums, const struct digesting *d, int sign, bool expected_only, bool *conditional)
{
    for (size_t i = 0; i < d->len; i++) {
        const struct group *g = &d->groups[i];

        if (!pair_judged(g->pair) || (expected_only && !g->pair->expected))
            continue;
        if (g->bucket < 0 || g->bucket >= COMPARE_BUCKETS) {
            *conditional = true;
            continue;
        }
        sums->n[g->bucket] += sign * g->n;
        sums->sum[g->bucket] += sign > 0 ? g->sum : 0 - g->sum;
    }
}

/* Buckets in which two sides differ, added to `buckets`. */
static void differences(const struct digesting *a, const struct digesting *b, bool expected_only, struct sums *sums,
                        bool *buckets, bool *conditional)
{
    memset(sums, 0, sizeof *sums);
    add_to(sums, a, 1, expected_only, conditional);
    add_to(sums, b, -1, expected_only, conditional);
    for (int i = 0; i < COMPARE_BUCKETS; i++)
        buckets[i] = buckets[i] || sums->n[i] || sums->sum[i];
}

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

        if (pair_judged(g->pair))
            *judged += g->n;
        else if (d->side == SIDE_LEDGER)
            *(g->pair->skipped ? &out->skipped_ledger : &out->not_owned_ledger) += g->n;
        else if (d->side == SIDE_OBSERVED)
            *(g->pair->skipped ? &out->skipped_observed : &out->not_owned_observed) += g->n;
    }
}

/* What a source reads stands for pairs of which it speaks. */
static void expect(const struct digesting *d)
{
    for (size_t i = 0; i < d->len; i++)
        ((struct pair *)(uintptr_t)d->groups[i].pair)->expected = true;
}

/* Groups of another type than the one that is audited go. */
static void keep_scope(struct digesting *d)
{
    size_t kept = 0;

    for (size_t i = 0; i < d->len; i++) {
        if (in_scope(d, d->groups[i].pair))
            d->groups[kept++] = d->groups[i];
    }
    d->len = kept;
}

static enum status run_all(struct digesting d[SIDES], struct err *err)
{
    enum status st = ST_OK;

    for (int i = 0; i < SIDES && st == ST_OK; i++) {
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

enum status digest_sides(struct sides *s, struct pairs *pairs, struct comparison *out, bool *buckets, struct err *err)
{
    struct digesting d[SIDES] = {0};
    struct sums *sums = calloc(1, sizeof *sums);
    bool conditional = false;
    enum status st = sums ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory for digests");

    for (int i = 0; i < SIDES; i++)
        d[i] = (struct digesting){.s = s, .pairs = pairs, .side = (enum side)i};
    if (st == ST_OK)
        st = run_all(d, err);
    if (st == ST_OK) {
        expect(&d[SIDE_EXPECTED]);
        for (int i = 0; i < SIDES; i++) {
            keep_scope(&d[i]);
            count(&d[i], out);
        }
        differences(&d[SIDE_EXPECTED], &d[SIDE_LEDGER], true, sums, buckets, &conditional);
        differences(&d[SIDE_LEDGER], &d[SIDE_OBSERVED], false, sums, buckets, &conditional);
        for (int i = 0; i < COMPARE_BUCKETS; i++)
            out->buckets_differ += buckets[i];
        out->buckets = COMPARE_BUCKETS;
        out->conditional = conditional;
    }
    for (int i = 0; i < SIDES; i++)
        free(d[i].groups);
    free(sums);
    return st;
}
