/* models.c - the models of a store, and its assertions. */
#include <stdlib.h>

#include "authz-store/stores/internal.h"

static size_t place_of(const struct served_impl *store, const char *id)
{
    size_t low = 0, high = store->nmodels;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (strcmp(store->models[mid]->id, id) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

const struct served_model *served_model(struct served *store, const char *id)
{
    struct served_impl *impl = store->impl;
    const struct served_model *found = NULL;

    pthread_rwlock_rdlock(&impl->lock);
    if (!id || !*id) {
        if (impl->nmodels)
            found = impl->models[impl->nmodels - 1];
    } else {
        size_t at = place_of(impl, id);
        if (at < impl->nmodels && strcmp(impl->models[at]->id, id) == 0)
            found = impl->models[at];
    }
    pthread_rwlock_unlock(&impl->lock);
    return found;
}

size_t served_models(struct served *store, const char *before, const struct served_model **out, size_t n)
{
    struct served_impl *impl = store->impl;
    size_t found = 0;

    pthread_rwlock_rdlock(&impl->lock);
    for (size_t at = before ? place_of(impl, before) : impl->nmodels; at > 0 && found < n; at--)
        out[found++] = impl->models[at - 1];
    pthread_rwlock_unlock(&impl->lock);
    return found;
}

json_t *served_assertions(struct served *store, const char *model_id)
{
    struct served_impl *impl = store->impl;

    pthread_rwlock_rdlock(&impl->lock);
    json_t *json = json_incref(json_object_get(impl->assertions, model_id));
    pthread_rwlock_unlock(&impl->lock);
    return json;
}

/* Ids rise, so that the new one is the last; the list is grown before the lock is taken, since readers wait for it. */
static bool append(struct served_impl *store, struct served_model *model)
{
    struct served_model **old = NULL;

    if (store->nmodels == store->models_cap) {
        size_t cap = store->models_cap ? 2 * store->models_cap : 4;
        struct served_model **grown = calloc(cap, sizeof(struct served_model *));
        if (!grown)
            return false;
        if (store->nmodels)
            memcpy(grown, store->models, store->nmodels * sizeof(struct served_model *));
        pthread_rwlock_wrlock(&store->lock);
        old = store->models;
        store->models = grown;
        pthread_rwlock_unlock(&store->lock);
        store->models_cap = cap;
        free(old);
    }
    pthread_rwlock_wrlock(&store->lock);
    size_t at = place_of(store, model->id);
    memmove(store->models + at + 1, store->models + at, (store->nmodels - at) * sizeof(struct served_model *));
    store->models[at] = model;
    store->nmodels++;
    pthread_rwlock_unlock(&store->lock);
    return true;
}

enum status served_model_add(struct served_impl *store, const char *id, struct model *model, json_t *json,
                             struct err *err)
{
    struct served_model *m = calloc(1, sizeof *m);
    struct rules *rules = m ? rules_new(store->pub.engine, model) : NULL;

    if (rules) {
        (void)snprintf(m->id, sizeof m->id, "%s", id);
        m->model = model;
        m->rules = rules;
        m->json = json;
        if (append(store, m))
            return ST_OK;
    }
    rules_free(rules);
    free(m);
    return err_set(err, ST_NOMEM, NULL, "no memory for model %s of store %s", id, store->pub.id);
}

void served_models_free(struct served_impl *store)
{
    for (size_t i = 0; i < store->nmodels; i++) {
        struct served_model *m = store->models[i];
        rules_free((struct rules *)(uintptr_t)m->rules);
        model_free((struct model *)(uintptr_t)m->model);
        json_decref((json_t *)(uintptr_t)m->json);
        free(m);
    }
    free(store->models);
}

/* Readers get references, whose count is atomic; the object itself is under the lock. */
enum status served_assertions_set(struct served_impl *store, const char *model_id, json_t *json, struct err *err)
{
    pthread_rwlock_wrlock(&store->lock);
    bool ok = json_object_set(store->assertions, model_id, json) == 0;
    pthread_rwlock_unlock(&store->lock);
    return ok ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory for the assertions of store %s", store->pub.id);
}
