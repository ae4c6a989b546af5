#include "drift-checker/compare/compare.h"

#include <stdlib.h>
#include <string.h>

#include "drift-checker/compare/internal.h"

#define UNRESOLVABLE_MAX 10000

/* Objects of which a view's row lacks a part; "type:" if it is the object itself. */
struct unresolvable {
    char **names;
    size_t n;
};

struct comparing {
    struct sides sides;
    struct pairs *pairs;
    struct unresolvable unresolvable;
    found_fn *found;
    void *arg;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_unresolvable(const struct unresolvable *u, const char *object)
{
    struct bytes type = tuple_type(object);
    char name[300];
    const char *key = name;

    if (!u->n)
        return false;
    (void)snprintf(name, sizeof name, "%.*s:", (int)type.len, type.data);
    return bsearch(&object, u->names, u->n, sizeof *u->names, by_name) ||
           bsearch(&key, u->names, u->n, sizeof *u->names, by_name);
}

/* What a source cannot tell is not absent: nothing of such an object counts as an orphan. */
static enum status found_one(void *arg, const struct candidate *c, struct err *err)
{
    struct comparing *x = arg;
    struct candidate own = *c;

    if (own.judged_expected && is_unresolvable(&x->unresolvable, c->key.object))
        own.judged_expected = false;
    return x->found(x->arg, &own, err);
}

static enum status take_unresolvable(struct comparing *x, const struct source *v, struct err *err)
{
    struct unresolvable *u = &x->unresolvable;
    struct pg_result *r = NULL;
    struct buf sql;
    enum status st;

    buf_init(&sql, 1 << 16);
    buf_addf(
        &sql,
        "SELECT DISTINCT coalesce(object::text, '%s:') FROM %s WHERE object IS NULL OR relation IS NULL OR subject "
        "IS NULL LIMIT %d",
        v->type, v->name, UNRESOLVABLE_MAX + 1);
    st = side_ask(&x->sides, x->sides.pg[SIDE_EXPECTED], buf_str(&sql), &r, err);
    if (st == ST_OK && u->n + (size_t)pg_rows(r) > UNRESOLVABLE_MAX)
        st = err_set(
            err, ST_INVALID, "expected",
            "%s cannot tell what more than %d objects stand for: their rows lack an object, relation or subject",
            v->name, UNRESOLVABLE_MAX);
    for (int i = 0; st == ST_OK && i < pg_rows(r); i++) {
        char **grown = realloc(u->names, (u->n + 1) * sizeof *grown);

        if (grown)
            u->names = grown;
        if (!grown || !(u->names[u->n] = strdup(pg_text(r, i, 0))))
            st = err_set(err, ST_NOMEM, NULL, "no memory");
        else
            u->n++;
    }
    pg_result_free(r);
    buf_release(&sql);
    return st;
}

static enum status find_unresolvable(struct comparing *x, struct comparison *out, bool counted, struct err *err)
{
    enum status st = ST_OK;

    for (size_t i = 0; i < out->sources.len && st == ST_OK; i++) {
        const struct source *v = &out->sources.items[i];

        if (!v->tracked && (v->nulls || !counted))
            st = take_unresolvable(x, v, err);
    }
    if (x->unresolvable.n)
        qsort(x->unresolvable.names, x->unresolvable.n, sizeof *x->unresolvable.names, by_name);
    out->unresolvable = (int64_t)x->unresolvable.n;
    return st;
}

/* Of a view of another type than the audited one nothing is read. */
static bool within_type(const struct settings *cfg, const struct source *s)
{
    return !*cfg->type || !s->type || strcmp(s->type, cfg->type) == 0;
}

/* Some source must have a tuple: all of them together, or the views of the audited type. */
static bool some_expected(const struct settings *cfg, const struct sources *sources)
{
    if (!*cfg->type)
        return sources->len > 0;
    for (size_t i = 0; i < sources->len; i++) {
        if (sources->items[i].type && within_type(cfg, &sources->items[i]))
            return true;
    }
    return false;
}

/* A source that is suddenly empty, or much smaller, has lost rows rather than rights. */
static enum status check_sources(const struct comparing *x, const struct comparison *out, struct err *err)
{
    const struct settings *cfg = x->sides.job->cfg;

    for (size_t i = 0; i < out->sources.len && !cfg->accept_shrink; i++) {
        const struct source *s = &out->sources.items[i];

        if (!within_type(cfg, s))
            continue;
        if (s->before > 0 && s->tuples == 0)
            return err_set(err, ST_INVALID, "expected",
                           "the source %s is empty and had %lld tuples in the last audit; if that is right, say "
                           "--accept-shrink",
                           s->name, (long long)s->before);
        if (s->before > 0 && (double)s->tuples < (double)s->before * (double)(100 - cfg->max_shrink) / 100)
            return err_set(
                err, ST_INVALID, "expected",
                "the source %s has %lld tuples and had %lld in the last audit, more than %lld%% less; if that "
                "is right, say --accept-shrink",
                s->name, (long long)s->tuples, (long long)s->before, (long long)cfg->max_shrink);
    }
    if (some_expected(cfg, &out->sources) && out->expected == 0 && out->ledger > 0 && !cfg->accept_shrink)
        return err_set(err, ST_INVALID, "expected",
                       "all sources of expected tuples are empty, and the ledger has %lld; if that is right, say "
                       "--accept-shrink",
                       (long long)out->ledger);
    return ST_OK;
}

/* A scope reads little; but a view that is empty as a whole tells nothing of it. */
static enum status check_views(const struct comparing *x, const struct comparison *out, struct err *err)
{
    enum status st = ST_OK;

    for (size_t i = 0; i < out->sources.len && st == ST_OK && !x->sides.job->cfg->accept_shrink; i++) {
        const struct source *v = &out->sources.items[i];
        struct pg_result *r = NULL;
        struct buf sql;

        if (v->tracked)
            continue;
        buf_init(&sql, 4096);
        buf_addf(&sql, "SELECT EXISTS (SELECT FROM %s)", v->name);
        st = side_ask(&x->sides, x->sides.pg[SIDE_EXPECTED], buf_str(&sql), &r, err);
        if (st == ST_OK && !pg_bool(r, 0, 0))
            st = err_set(err, ST_INVALID, "expected", "the source %s is empty; if that is right, say --accept-shrink",
                         v->name);
        else if (st != ST_OK)
            (void)snprintf(err->code, sizeof err->code, "expected");
        pg_result_free(r);
        buf_release(&sql);
    }
    return st;
}

/* The differing buckets as an array; empty: there is nothing to stream. */
static void list_buckets(const bool *buckets, struct buf *out)
{
    int n = 0;

    buf_addc(out, '{');
    for (int i = 0; i < COMPARE_BUCKETS; i++) {
        if (buckets[i])
            buf_addf(out, "%s%d", n++ ? "," : "", i);
    }
    buf_addc(out, '}');
}

static enum status compare_all(struct comparing *x, struct comparison *out, struct err *err)
{
    const struct settings *cfg = x->sides.job->cfg;
    bool *buckets = calloc(COMPARE_BUCKETS, sizeof *buckets);
    struct buf list;
    enum status st = buckets ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory");

    buf_init(&list, 1 << 20);
    if (st == ST_OK && x->sides.job->progress)
        x->sides.job->progress(x->sides.job->progress_arg, "summing", 0, 0);
    if (st == ST_OK)
        st = digest_sides(&x->sides, x->pairs, out, buckets, err);
    if (st == ST_OK)
        st = check_sources(x, out, err);
    if (st == ST_OK)
        st = find_unresolvable(x, out, true, err);
    if (st == ST_OK && !cfg->full)
        list_buckets(buckets, &list);
    out->by_tuple = cfg->full;
    if (st == ST_OK && (cfg->full || out->buckets_differ || out->conditional))
        st = merge_sides(&x->sides, x->pairs, cfg->full ? NULL : buf_str(&list), false, out, found_one, x, err);
    if (st == ST_OK && x->sides.job->check_model && !cfg->full)
        st = invalid_find(&x->sides, x->pairs, out, found_one, x, err);
    free(buckets);
    buf_release(&list);
    return st;
}

/* One object or one subject: few tuples, by index. */
static enum status compare_few(struct comparing *x, struct comparison *out, struct err *err)
{
    enum status st = check_views(x, out, err);

    out->by_tuple = true;
    if (st == ST_OK)
        st = find_unresolvable(x, out, false, err);
    return st == ST_OK ? merge_sides(&x->sides, x->pairs, NULL, true, out, found_one, x, err) : st;
}

static enum status remember(struct pairs *pairs, struct comparison *out, struct err *err)
{
    size_t at, n = 0;

    for (struct pair *p = pairs_first(pairs, &at); p; p = pairs_next(pairs, &at, p))
        n += p->expected;
    out->known_pairs = calloc(n + 1, sizeof *out->known_pairs);
    if (!out->known_pairs)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    n = 0;
    for (struct pair *p = pairs_first(pairs, &at); p; p = pairs_next(pairs, &at, p)) {
        if (p->expected && asprintf(&out->known_pairs[n++], "%s#%s", p->type, p->relation) < 0)
            return err_set(err, ST_NOMEM, NULL, "no memory");
    }
    return ST_OK;
}

void comparison_free(struct comparison *c)
{
    for (char **p = c->known_pairs; p && *p; p++)
        free(*p);
    free(c->known_pairs);
    c->known_pairs = NULL;
    sources_free(&c->sources);
}

enum status compare_run(const struct compare_job *job, struct comparison *out,
                        enum status (*found)(void *arg, const struct candidate *c, struct err *err), void *arg,
                        struct err *err)
{
    struct comparing x = {.found = found, .arg = arg};
    mono_us began;
    enum status st = pairs_new(&x.pairs, job, &out->sources, err);

    if (st == ST_OK)
        st = sides_open(&x.sides, job, &out->sources, err);
    began = clock_mono_us();
    out->pages = x.sides.pages;
    out->authz = x.sides.authz;
    if (st == ST_OK)
        st = *job->cfg->object || *job->cfg->subject ? compare_few(&x, out, err) : compare_all(&x, out, err);
    out->snapshot_ms = (clock_mono_us() - began) / 1000;
    if (st == ST_OK)
        st = remember(x.pairs, out, err);
    if (st == ST_DEADLINE && clock_mono_us() >= x.sides.until)
        (void)err_prefix(err, "the snapshots were held for audit.snapshot_max (%lld s)",
                         (long long)job->cfg->snapshot_max_ms / 1000);
    sides_close(&x.sides);
    pairs_free(x.pairs);
    for (size_t i = 0; i < x.unresolvable.n; i++)
        free(x.unresolvable.names[i]);
    free(x.unresolvable.names);
    return st;
}
