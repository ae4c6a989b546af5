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
    return (const char *const[]){"touch", "emit", "delete", "none"}[a];
}

/* ---- causes ---- */

static bool allowed(const struct judge *j, const struct suspect *s, const struct holding *h)
{
    return !h->present || model_allows(j->job->model, s->key->object, s->key->relation, s->key->subject, h->condition);
}

bool is_allowed(const struct judge *j, const struct suspect *s)
{
    return allowed(j, s, &s->facts.ledger) && allowed(j, s, &s->facts.observed);
}

/* What a source cannot tell is not absent. */
static bool expected_known(const struct suspect *s)
{
    return s->judged_expected && !s->facts.unknown;
}

int cause_of_facts(const struct judge *j, const struct suspect *s)
{
    const struct facts *f = &s->facts;
    const struct holding *e = &f->expected, *l = &f->ledger, *o = &f->observed;

    if (!is_allowed(j, s))
        return CAUSE_INVALID_IN_MODEL;
    if (expected_known(s) && e->present != l->present)
        return e->present ? CAUSE_NEVER_EMITTED : CAUSE_ORPHAN;
    if (l->present != o->present)
        return f->reason ? CAUSE_PARKED : l->present ? CAUSE_LOST : CAUSE_OUT_OF_BAND;
    if (!holding_equal(l, o))
        return f->reason ? CAUSE_PARKED : CAUSE_CONDITION_MISMATCH;
    if (expected_known(s) && !holding_equal(e, l))
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

    if (j->more) /* of a store that was wiped a million differ */
        return ST_OK;
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
            if (unsettled(again[i]))
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
        if (unsettled(items[i]))
            out->in_flight++;
        else if (items[i]->cause < 0)
            out->vanished++;
        else
            items[kept++] = items[i];
    }
    *n = kept;
    return st;
}

/* ---- findings ---- */

static void move(struct holding *to, struct holding *from)
{
    *to = *from;
    *from = (struct holding){0};
}

/* What the repair is, whether somebody has too much, and whether the repair takes something from somebody. */
static void weigh(struct finding *f)
{
    const struct holding *truth = f->judged_expected ? &f->expected : &f->ledger;
    bool wider = f->observed.present && !f->observed.condition && (f->ledger.condition || truth->condition);

    switch (f->cause) {
    case CAUSE_ORPHAN: /* what the store does not have, nobody can use */
        f->excess = f->observed.present;
        f->deletes = true;
        f->action = ACTION_EMIT;
        break;
    case CAUSE_NEVER_EMITTED:
        f->action = ACTION_EMIT;
        break;
    case CAUSE_OUT_OF_BAND:
        f->excess = f->deletes = true;
        break;
    case CAUSE_PARKED:
        f->excess = !f->ledger.present || wider;
        f->deletes = !f->ledger.present;
        break;
    case CAUSE_CONDITION_MISMATCH:
        f->excess = wider;
        f->action = holding_equal(&f->ledger, &f->observed) ? ACTION_EMIT : ACTION_TOUCH;
        break;
    case CAUSE_INVALID_IN_MODEL: /* checks ignore it: nobody may do more for it */
        /* What the inventory stands for, or what waits parked for its model, is no leftover: a deletion would come
         * back, or take a grant away. */
        if (f->ledger.present && (f->expected.present || (f->reason && !f->observed.present)))
            f->action = ACTION_NONE;
        else
            f->action = f->ledger.present ? ACTION_DELETE : ACTION_TOUCH;
        f->deletes = f->action != ACTION_NONE;
        break;
    case CAUSE_LOST:
    default:
        break;
    }
}

static void fill(struct finding *f, struct suspect *s)
{
    *f = (struct finding){.key = s->key,
                          .cause = (enum cause)s->cause,
                          .judged_expected = expected_known(s),
                          .version = s->facts.version,
                          .reason = s->facts.reason};
    s->key = NULL;
    s->facts.reason = NULL;
    move(&f->expected, &s->facts.expected);
    move(&f->ledger, &s->facts.ledger);
    move(&f->observed, &s->facts.observed);
    weigh(f);
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

/* What a suspect was at the first look. */
struct first {
    struct suspect *suspect;
    struct facts facts;
    int cause;
};

static bool same(const struct first *f, const struct suspect *s)
{
    return s->cause == f->cause && s->facts.version == f->facts.version && s->facts.unknown == f->facts.unknown &&
           holding_equal(&s->facts.expected, &f->facts.expected) && holding_equal(&s->facts.ledger, &f->facts.ledger) &&
           holding_equal(&s->facts.observed, &f->facts.observed);
}

/* `items` is a part of `first`, in its order. */
static enum status conclude(const struct first *first, struct suspect **items, size_t n, struct findings *out,
                            struct err *err)
{
    out->items = calloc(n ? n : 1, sizeof *out->items);
    if (!out->items)
        return err_set(err, ST_NOMEM, NULL, "no memory for findings");
    for (size_t i = 0; i < n; i++, first++) {
        while (first->suspect != items[i])
            first++;
        if (same(first, items[i]))
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
    struct first *first = calloc(n + 1, sizeof *first);
    size_t left = n;
    enum status st = first ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory");

    for (size_t i = 0; i < n && st == ST_OK; i++) {
        first[i] = (struct first){items[i], items[i]->facts, items[i]->cause};
        items[i]->facts = (struct facts){0};
    }
    if (st == ST_OK && n) {
        tell(j, "waiting for what may be late", 0, 0);
        if (stop_sleep_until(deadline_in_ms(j->job->cfg->store.late_window_ms)) != ST_OK)
            st = err_set(err, ST_STOPPED, NULL, "interrupted");
        if (st == ST_OK)
            st = settle(j, items, &left, out, "confirming", err);
    }
    if (st == ST_OK)
        st = conclude(first, items, left, out, err);
    for (size_t i = 0; first && i < n; i++)
        facts_clear(&first[i].facts);
    free(first);
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
    pg_heed(j->job->pg, stop_flag());
    st = settle(j, items, &n, out, "looking again", err);
    if (st == ST_OK)
        st = confirm(j, items, n, out, err);
    pg_heed(j->job->pg, NULL);
    free(items);
    if (st != ST_OK)
        findings_free(out);
    return st;
}

void findings_free(struct findings *f)
{
    for (size_t i = 0; i < f->len; i++) {
        struct finding *x = &f->items[i];

        holding_free(&x->expected);
        holding_free(&x->ledger);
        holding_free(&x->observed);
        free(x->reason);
        free(x->key);
    }
    free(f->items);
    *f = (struct findings){0};
}
