#include "drift-checker/judge/judge.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/stop.h"
#include "drift-checker/judge/internal.h"

#define AGAIN_MS 300 /* between two looks at what is pending */

static const char *const cause_names[CAUSES] = {
    [CAUSE_NEVER_EMITTED] = "never_emitted",
    [CAUSE_LOST] = "lost",
    [CAUSE_PARKED] = "parked",
    [CAUSE_OUT_OF_BAND] = "out_of_band",
    [CAUSE_ORPHAN] = "orphan",
    [CAUSE_CONDITION_MISMATCH] = "condition_mismatch",
    [CAUSE_INVALID_IN_MODEL] = "invalid_in_model",
};

const char *cause_name(enum cause c)
{
    return cause_names[c];
}

int cause_of(const char *name)
{
    for (int i = 0; i < CAUSES; i++) {
        if (strcmp(cause_names[i], name) == 0)
            return i;
    }
    return -1;
}

const char *action_name(enum action a)
{
    return (const char *const[]){"touch", "emit", "delete"}[a];
}

/* ---- causes ---- */

static bool conditions_equal(const struct holding *a, const struct holding *b)
{
    return !a->condition == !b->condition &&
           (!a->condition || (strcmp(a->condition, b->condition) == 0 && store_context_equal(a->context, b->context)));
}

static bool allowed(const struct judge *j, const struct suspect *s, const struct holding *h)
{
    return !h->present || model_allows(j->job->model, s->key->object, s->key->relation, s->key->subject, h->condition);
}

int cause_of_facts(const struct judge *j, const struct suspect *s)
{
    const struct facts *f = &s->facts;
    const struct holding *e = &f->expected, *l = &f->ledger, *o = &f->observed;

    if (!allowed(j, s, l) || !allowed(j, s, o))
        return CAUSE_INVALID_IN_MODEL;
    if (s->judged_expected && e->present != l->present)
        return e->present ? CAUSE_NEVER_EMITTED : CAUSE_ORPHAN;
    if (l->present != o->present)
        return f->reason ? CAUSE_PARKED : l->present ? CAUSE_LOST : CAUSE_OUT_OF_BAND;
    if (l->present && !conditions_equal(l, o))
        return f->reason ? CAUSE_PARKED : CAUSE_CONDITION_MISMATCH;
    if (s->judged_expected && l->present && !conditions_equal(e, l))
        return CAUSE_CONDITION_MISMATCH;
    return -1;
}

/* ---- candidates ---- */

enum status judge_new(struct judge **out, const struct compare_job *job, struct store *store,
                      const struct sources *sources, struct err *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    **out = (struct judge){.job = job, .store = store, .sources = sources};
    return ST_OK;
}

void judge_free(struct judge *j)
{
    if (!j)
        return;
    for (size_t i = 0; i < j->len; i++) {
        facts_clear(&j->items[i].facts);
        free(j->items[i].key);
    }
    free(j->items);
    free(j);
}

static int by_key(const void *a, const void *b)
{
    const struct suspect *x = a, *y = b;

    return tuple_key_cmp(x->key, y->key);
}

/* Each tuple once; judged by what is expected if anybody said so. */
static void unite(struct judge *j)
{
    size_t kept = 0;

    if (j->len)
        qsort(j->items, j->len, sizeof *j->items, by_key);
    for (size_t i = 0; i < j->len; i++) {
        if (kept && by_key(&j->items[kept - 1], &j->items[i]) == 0) {
            j->items[kept - 1].judged_expected |= j->items[i].judged_expected;
            free(j->items[i].key);
        } else {
            j->items[kept++] = j->items[i];
        }
    }
    j->len = kept;
}

enum status judge_add(void *judge, const struct candidate *c, struct err *err)
{
    struct judge *j = judge;

    if ((int64_t)j->len >= j->job->cfg->max_findings) {
        unite(j);
        if ((int64_t)j->len >= j->job->cfg->max_findings) {
            j->more = true;
            return ST_OK;
        }
    }
    if (j->len == j->cap) {
        size_t cap = j->cap ? j->cap * 2 : 256;
        struct suspect *grown = realloc(j->items, cap * sizeof *grown);

        if (!grown)
            return err_set(err, ST_NOMEM, NULL, "no memory for candidates");
        j->items = grown;
        j->cap = cap;
    }
    j->items[j->len] = (struct suspect){.key = tuple_key_dup(&c->key), .judged_expected = c->judged_expected};
    if (!j->items[j->len].key)
        return err_set(err, ST_NOMEM, NULL, "no memory for candidates");
    j->len++;
    return ST_OK;
}

/* ---- looking ---- */

static bool unsettled(const struct suspect *s)
{
    return s->facts.pending || s->facts.moved;
}

static void tell(const struct judge *j, const char *what, int64_t done, int64_t total)
{
    if (j->job->progress)
        j->job->progress(j->job->progress_arg, what, done, total);
}

static enum status look_at_all(struct judge *j, struct suspect **items, size_t n, const char *what, struct err *err)
{
    enum status st = ST_OK;

    for (size_t at = 0; at < n && st == ST_OK; at += BATCH) {
        st = look(j, items + at, n - at < BATCH ? n - at : BATCH, err);
        tell(j, what, (int64_t)(at + BATCH < n ? at + BATCH : n), (int64_t)n);
    }
    return st;
}

/* Looks until nothing is pending, or audit.settle has passed. What agrees, or is still in flight, is taken off the
 * list. */
static enum status settle(struct judge *j, struct suspect **items, size_t *n, struct findings *out, const char *what,
                          struct err *err)
{
    mono_us end = deadline_in_ms(j->job->cfg->settle_ms);
    size_t waiting = *n, kept = 0;
    enum status st = ST_OK;
    struct suspect **again = calloc(*n ? *n : 1, sizeof *again);

    if (!again)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    memcpy(again, items, *n * sizeof *again);
    for (;;) {
        size_t left = 0;

        st = look_at_all(j, again, waiting, what, err);
        for (size_t i = 0; i < waiting && st == ST_OK; i++) {
            if (again[i]->cause >= 0 && unsettled(again[i]))
                again[left++] = again[i];
        }
        waiting = left;
        if (st != ST_OK || !waiting || clock_mono_us() >= end)
            break;
        if (stop_sleep_until(deadline_in_ms(AGAIN_MS)) != ST_OK) {
            st = err_set(err, ST_STOPPED, NULL, "interrupted");
            break;
        }
    }
    free(again);
    for (size_t i = 0; i < *n && st == ST_OK; i++) {
        if (items[i]->cause < 0)
            out->vanished++;
        else if (unsettled(items[i]))
            out->in_flight++;
        else
            items[kept++] = items[i];
    }
    *n = kept;
    return st;
}

/* ---- findings ---- */

static bool hold(struct holding *to, struct holding *from)
{
    *to = *from;
    *from = (struct holding){0};
    return true;
}

static void fill(struct finding *f, struct suspect *s)
{
    *f = (struct finding){.key = s->key,
                          .cause = (enum cause)s->cause,
                          .judged_expected = s->judged_expected,
                          .version = s->facts.version,
                          .reason = s->facts.reason};
    s->key = NULL;
    s->facts.reason = NULL;
    (void)hold(&f->expected, &s->facts.expected);
    (void)hold(&f->ledger, &s->facts.ledger);
    (void)hold(&f->observed, &s->facts.observed);
    switch (f->cause) {
    case CAUSE_ORPHAN:
        f->excess = f->deletes = true;
        f->action = ACTION_EMIT;
        break;
    case CAUSE_NEVER_EMITTED:
        f->action = ACTION_EMIT;
        break;
    case CAUSE_OUT_OF_BAND:
        f->excess = f->deletes = true;
        break;
    case CAUSE_PARKED:
        f->excess = f->deletes = !f->ledger.present;
        break;
    case CAUSE_CONDITION_MISMATCH:
        f->excess = f->ledger.condition && !f->observed.condition;
        f->action = conditions_equal(&f->ledger, &f->observed) ? ACTION_EMIT : ACTION_TOUCH;
        break;
    case CAUSE_INVALID_IN_MODEL: /* checks ignore it: nobody may do more for it */
        f->deletes = true;
        f->action = f->ledger.present ? ACTION_DELETE : ACTION_TOUCH;
        break;
    case CAUSE_LOST:
    default:
        break;
    }
}

static int by_weight(const void *a, const void *b)
{
    const struct finding *x = a, *y = b;

    if (x->excess != y->excess)
        return x->excess ? -1 : 1;
    if (x->cause != y->cause)
        return x->cause < y->cause ? -1 : 1;
    return tuple_key_cmp(x->key, y->key);
}

static enum status conclude(struct suspect **items, size_t n, const int *before, const int64_t *versions,
                            struct findings *out, struct err *err)
{
    out->items = calloc(n ? n : 1, sizeof *out->items);
    if (!out->items)
        return err_set(err, ST_NOMEM, NULL, "no memory for findings");
    for (size_t i = 0; i < n; i++) {
        if (items[i]->cause == before[i] && items[i]->facts.version == versions[i])
            fill(&out->items[out->len++], items[i]);
        else
            out->in_flight++;
    }
    if (out->len)
        qsort(out->items, out->len, sizeof *out->items, by_weight);
    return ST_OK;
}

/* The second look, which has to say what the first did. */
static enum status confirm(struct judge *j, struct suspect **items, size_t n, struct findings *out, struct err *err)
{
    int *cause = calloc(n + 1, sizeof *cause);
    int64_t *version = calloc(n + 1, sizeof *version);
    struct suspect **second = calloc(n + 1, sizeof *second);
    size_t left = n, kept = 0;
    enum status st = cause && version && second ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory");

    for (size_t i = 0; i < n && st == ST_OK; i++) {
        cause[i] = items[i]->cause;
        version[i] = items[i]->facts.version;
        second[i] = items[i];
    }
    if (st == ST_OK && n) {
        tell(j, "waiting for what may be late", 0, 0);
        if (stop_sleep_until(deadline_in_ms(j->job->cfg->store.late_window_ms)) != ST_OK)
            st = err_set(err, ST_STOPPED, NULL, "interrupted");
        if (st == ST_OK)
            st = settle(j, second, &left, out, "confirming", err);
    }
    /* What is left, beside what was said of it the first time: both lists are in one order. */
    for (size_t i = 0; i < n && st == ST_OK && kept < left; i++) {
        if (items[i] != second[kept])
            continue;
        cause[kept] = cause[i];
        version[kept++] = version[i];
    }
    if (st == ST_OK)
        st = conclude(second, left, cause, version, out, err);
    free(cause);
    free(version);
    free(second);
    return st;
}

enum status judge_finish(struct judge *j, struct findings *out, struct err *err)
{
    struct suspect **items;
    size_t n;
    enum status st;

    *out = (struct findings){.more = j->more};
    unite(j);
    n = j->len;
    out->candidates = (int64_t)n;
    items = calloc(n + 1, sizeof *items);
    if (!items)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    for (size_t i = 0; i < n; i++)
        items[i] = &j->items[i];
    st = settle(j, items, &n, out, "looking again", err);
    if (st == ST_OK)
        st = confirm(j, items, n, out, err);
    free(items);
    if (st != ST_OK)
        findings_free(out);
    return st;
}

void findings_free(struct findings *f)
{
    for (size_t i = 0; i < f->len; i++) {
        struct finding *x = &f->items[i];
        struct facts own = {x->expected, x->ledger, x->observed, 0, false, false, x->reason};

        facts_clear(&own);
        free(x->key);
    }
    free(f->items);
    *f = (struct findings){0};
}
