/* rows.c - the keeper reads what Postgres has. */
#include "authz-store/stores/rows.h"

#include "authz-store/stores/metrics.h"

#include <stdlib.h>

#include "common/base/log.h"

#define IDLE_MS 60000
#define TELL_US 1000000
#define APPLY_MAX 4096

struct reading {
    struct stores *s;
    struct sweep *sweep;
    struct served_impl *last; /* of the row before */
    uint64_t tuples, estimate;
    mono_us began, told;

    /* follow: changes of one store that wait to be applied together */
    struct served_impl *store;
    struct engine_change changes[APPLY_MAX];
    size_t n;
    int64_t change, applied;
    struct buf text; /* what `changes` point into: offsets until they are applied */
};

bool sweep_add(struct sweep *w, const char *id)
{
    if (w->n == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 16;
        void *ids = realloc(w->ids, cap * sizeof *w->ids);
        if (!ids)
            return false;
        w->ids = ids;
        w->cap = cap;
    }
    (void)snprintf(w->ids[w->n++], sizeof *w->ids, "%s", id);
    return true;
}

static enum status no_memory(struct err *err)
{
    return err_set(err, ST_NOMEM, NULL, "no memory for what Postgres holds");
}

static struct served_impl *find(struct reading *r, const char *id)
{
    if (!r->last || strcmp(r->last->pub.id, id) != 0)
        r->last = table_find(r->s, id);
    return r->last;
}

static enum status take_store(void *arg, const char *id, const char *name, int64_t created_us, int64_t updated_us,
                              bool deleted, bool swept, struct err *err)
{
    struct reading *r = arg;
    struct served_impl *store = find(r, id);

    if (deleted && store) {
        table_remove(r->s, store);
        r->last = NULL;
    }
    if (deleted)
        return swept || sweep_add(r->sweep, id) ? ST_OK : no_memory(err);
    if (store)
        return ST_OK;
    store = served_impl_new(r->s, id, name, created_us, updated_us);
    if (store && table_add(r->s, store))
        return ST_OK;
    served_impl_free(store);
    return no_memory(err);
}

static enum status take_model(void *arg, const char *store_id, const char *id, const char *json, struct err *err)
{
    struct reading *r = arg;
    struct served_impl *store = find(r, store_id);
    struct model *model = NULL;
    struct model_err why;

    if (!store || served_model(&store->pub, id))
        return ST_OK;
    if (!model_parse(&model, json, strlen(json), &why))
        return err_set(err, *why.code ? ST_FATAL : ST_NOMEM, NULL, "model %s of store %s cannot be read: %s", id,
                       store_id, why.text);
    json_t *tree = json_loads(json, JSON_ALLOW_NUL, NULL);
    enum status st = tree ? served_model_add(store, id, model, tree, err) : no_memory(err);
    if (st != ST_OK) {
        json_decref(tree);
        model_free(model);
    }
    return st;
}

static enum status take_assertions(void *arg, const char *store_id, const char *model, const char *json,
                                   struct err *err)
{
    struct reading *r = arg;
    struct served_impl *store = find(r, store_id);
    json_t *tree = store ? json_loads(json, JSON_ALLOW_NUL, NULL) : NULL;

    if (!store)
        return ST_OK;
    enum status st = tree ? served_assertions_set(store, model, tree, err) : no_memory(err);
    json_decref(tree);
    return st;
}

/* ---- tuples ---- */

static void progress(struct reading *r)
{
    char text[160], seconds[16], tuples[24];
    mono_us now = clock_mono_us();

    if (now < r->told + TELL_US)
        return;
    r->told = now;
    (void)snprintf(text, sizeof text, "loading: %llu of about %llu tuples", (unsigned long long)r->tuples,
                   (unsigned long long)(r->estimate > r->tuples ? r->estimate : r->tuples));
    stores_tell(r->s, text);
    (void)snprintf(seconds, sizeof seconds, "%.1f", (double)(now - r->began) / 1e6);
    (void)snprintf(tuples, sizeof tuples, "%llu", (unsigned long long)r->tuples);
    log_info("loading", "tuples", tuples, "seconds", seconds, NULL);
}

static struct engine_text text_of(const char *s)
{
    return (struct engine_text){s, s ? strlen(s) : 0};
}

static enum status load_tuple(void *arg, const struct load_tuple *t, struct err *err)
{
    struct reading *r = arg;
    struct served_impl *store = find(r, t->store);
    const struct engine_tuple tuple = {.object = text_of(t->object),
                                       .relation = text_of(t->relation),
                                       .subject = text_of(t->subject),
                                       .condition = text_of(t->condition),
                                       .context = text_of(t->context)};

    if (!store)
        return ST_OK; /* of a deleted one */
    if (engine_load(store->pub.engine, &tuple, 1) != ENGINE_OK)
        return no_memory(err);
    if ((++r->tuples & 0xffff) == 0)
        progress(r);
    return atomic_load(&r->s->stopping) ? err_set(err, ST_STOPPED, NULL, "stopped while loading") : ST_OK;
}

/* Texts move while the buffer grows, so that pointers are made of offsets at the end. */
static struct engine_text put_text(struct buf *b, const char *s)
{
    struct engine_text text = {(const char *)(uintptr_t)b->len, s ? strlen(s) : 0};

    buf_add(b, s ? s : "", text.len);
    return text;
}

static void settle_text(struct engine_text *text, const struct buf *b)
{
    text->s = b->data + (uintptr_t)text->s;
}

static enum status apply(struct reading *r, struct err *err)
{
    if (!r->n)
        return ST_OK;
    if (!buf_ok(&r->text))
        return no_memory(err);
    for (size_t i = 0; i < r->n; i++) {
        struct engine_tuple *t = &r->changes[i].tuple;
        settle_text(&t->object, &r->text);
        settle_text(&t->relation, &r->text);
        settle_text(&t->subject, &r->text);
        settle_text(&t->condition, &r->text);
        settle_text(&t->context, &r->text);
    }
    enum engine_status st = engine_apply(r->store->pub.engine, r->changes, r->n, (uint64_t)r->change);
    r->n = 0;
    buf_clear(&r->text);
    if (st != ENGINE_OK)
        return no_memory(err);
    r->applied = r->change;
    return ST_OK;
}

static enum status follow_tuple(void *arg, const struct load_tuple *t, struct err *err)
{
    struct reading *r = arg;
    struct served_impl *store = find(r, t->store);
    enum status st = ST_OK;

    if (!store)
        return ST_OK;
    if (r->n == APPLY_MAX || store != r->store)
        st = apply(r, err);
    if (st != ST_OK)
        return st;
    r->store = store;
    r->change = t->change;
    r->changes[r->n++] = (struct engine_change){.tuple = {.object = put_text(&r->text, t->object),
                                                          .relation = put_text(&r->text, t->relation),
                                                          .subject = put_text(&r->text, t->subject),
                                                          .condition = put_text(&r->text, t->condition),
                                                          .context = put_text(&r->text, t->context)},
                                                .remove = t->removed};
    return ST_OK;
}

/* ---- all of it ---- */

static enum status end_load(struct reading *r, int64_t last_id, struct err *err)
{
    char tuples[24], stores[24], seconds[16];

    for (size_t i = 0; i < r->s->n; i++)
        if (engine_load_end(r->s->table[i]->pub.engine, (uint64_t)last_id) != ENGINE_OK)
            return no_memory(err);
    (void)snprintf(tuples, sizeof tuples, "%llu", (unsigned long long)r->tuples);
    (void)snprintf(stores, sizeof stores, "%zu", r->s->n);
    double took = (double)(clock_mono_us() - r->began) / 1e6;
    metric_set(&m_load_seconds, took);
    (void)snprintf(seconds, sizeof seconds, "%.1f", took);
    log_info("loaded", "stores", stores, "tuples", tuples, "seconds", seconds, NULL);
    return ST_OK;
}

static enum status read_rows(struct stores *s, struct pg *pg, struct sweep *sweep, bool follow, int64_t *last_id,
                             struct err *err)
{
    struct reading *r = calloc(1, sizeof *r);
    int64_t reached = *last_id, estimate = 0;
    enum status st = ST_OK;

    if (!r)
        return no_memory(err);
    *r = (struct reading){.s = s, .sweep = sweep, .began = clock_mono_us()};
    buf_init(&r->text, 1U << 30);
    const struct load_rows rows = {.store = take_store,
                                   .model = take_model,
                                   .assertions = take_assertions,
                                   .tuple = follow ? follow_tuple : load_tuple,
                                   .arg = r};
    if (follow) {
        st = load_since(pg, *last_id, &rows, &reached, IDLE_MS, err);
        if (st == ST_OK)
            st = apply(r, err);
    } else {
        st = load_estimate(pg, &estimate, deadline_in_ms(IDLE_MS), err);
        r->estimate = (uint64_t)estimate;
        if (st == ST_OK)
            st = load_all(pg, &rows, &reached, IDLE_MS, err);
        if (st == ST_OK)
            st = end_load(r, reached, err);
    }
    if (st == ST_OK)
        *last_id = reached;
    else if (r->applied > *last_id)
        *last_id = r->applied; /* what is applied once is not applied again */
    buf_release(&r->text);
    free(r);
    return st;
}

enum status rows_load(struct stores *s, struct pg *pg, struct sweep *sweep, int64_t *last_id, struct err *err)
{
    *last_id = 0;
    return read_rows(s, pg, sweep, false, last_id, err);
}

enum status rows_follow(struct stores *s, struct pg *pg, struct sweep *sweep, int64_t *last_id, struct err *err)
{
    return read_rows(s, pg, sweep, true, last_id, err);
}

void rows_clear(struct stores *s)
{
    while (s->n)
        table_remove(s, s->table[s->n - 1]);
    table_bury(s);
}
