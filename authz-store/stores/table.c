/* table.c - the stores by id: pinned by readers, changed by the keeper. */
#include <stdlib.h>

#include "authz-store/stores/internal.h"

/* ---- a thread's number: its place among the readers of every store ---- */

static pthread_mutex_t numbers_lock = PTHREAD_MUTEX_INITIALIZER;
static bool number_used[READERS_MAX];
static pthread_key_t number_key;
static pthread_once_t number_once = PTHREAD_ONCE_INIT;
static _Thread_local int number = -1;

/* The next thread of that number goes on with its readers. */
static void number_release(void *arg)
{
    pthread_mutex_lock(&numbers_lock);
    number_used[(bool *)arg - number_used] = false;
    pthread_mutex_unlock(&numbers_lock);
}

static void number_setup(void)
{
    if (pthread_key_create(&number_key, number_release) != 0)
        abort();
}

static int thread_number(void)
{
    if (number >= 0)
        return number;
    (void)pthread_once(&number_once, number_setup);
    pthread_mutex_lock(&numbers_lock);
    for (int i = 0; i < READERS_MAX && number < 0; i++)
        if (!number_used[i]) {
            number_used[i] = true;
            number = i;
        }
    pthread_mutex_unlock(&numbers_lock);
    if (number >= 0)
        (void)pthread_setspecific(number_key, &number_used[number]);
    return number;
}

struct engine_reader *served_reader(struct served *store)
{
    struct served_impl *impl = store->impl;
    int n = thread_number();

    if (n < 0)
        return NULL;
    if (!impl->readers[n])
        impl->readers[n] = engine_reader_new(store->engine);
    return impl->readers[n];
}

/* ---- a store ---- */

struct served_impl *served_impl_new(struct stores *s, const char *id, const char *name, int64_t created_us,
                                    int64_t updated_us)
{
    struct served_impl *store = calloc(1, sizeof *store);

    if (!store)
        return NULL;
    (void)snprintf(store->pub.id, sizeof store->pub.id, "%s", id);
    store->pub.impl = store;
    store->pub.name = strdup(name);
    store->pub.created_us = created_us;
    store->pub.updated_us = updated_us;
    store->pub.engine = engine_new();
    store->stores = s;
    store->assertions = json_object();
    pthread_rwlock_init(&store->lock, NULL);
    if (store->pub.engine)
        store->find = engine_reader_new(store->pub.engine);
    if (store->pub.name && store->find && store->assertions)
        return store;
    served_impl_free(store);
    return NULL;
}

void served_impl_free(struct served_impl *store)
{
    if (!store)
        return;
    for (int i = 0; i < READERS_MAX; i++)
        engine_reader_free(store->readers[i]);
    engine_reader_free(store->find);
    served_models_free(store);
    engine_free(store->pub.engine);
    json_decref(store->assertions);
    pthread_rwlock_destroy(&store->lock);
    free(store->pub.name);
    free(store);
}

/* ---- the table ---- */

/* The first whose id is not below. */
static size_t place_of(const struct stores *s, const char *id)
{
    size_t low = 0, high = s->n;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (strcmp(s->table[mid]->pub.id, id) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct served_impl *table_find(struct stores *s, const char *id)
{
    size_t at = place_of(s, id);

    return at < s->n && strcmp(s->table[at]->pub.id, id) == 0 ? s->table[at] : NULL;
}

struct served *stores_get(struct stores *s, const char *id)
{
    pthread_rwlock_rdlock(&s->lock);
    struct served_impl *store = table_find(s, id);
    if (store)
        atomic_fetch_add_explicit(&store->pins, 1, memory_order_relaxed);
    pthread_rwlock_unlock(&s->lock);
    return store ? &store->pub : NULL;
}

void stores_put(struct served *store)
{
    if (store)
        atomic_fetch_sub_explicit(&((struct served_impl *)store->impl)->pins, 1, memory_order_release);
}

size_t stores_list(struct stores *s, const char *after, const char *name, struct served **out, size_t n)
{
    size_t found = 0;

    pthread_rwlock_rdlock(&s->lock);
    size_t at = after ? place_of(s, after) : 0;
    if (after && at < s->n && strcmp(s->table[at]->pub.id, after) == 0)
        at++;
    for (; at < s->n && found < n; at++) {
        if (name && strcmp(s->table[at]->pub.name, name) != 0)
            continue;
        atomic_fetch_add_explicit(&s->table[at]->pins, 1, memory_order_relaxed);
        out[found++] = &s->table[at]->pub;
    }
    pthread_rwlock_unlock(&s->lock);
    return found;
}

bool table_add(struct stores *s, struct served_impl *store)
{
    bool ok = true;

    pthread_rwlock_wrlock(&s->lock);
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 16;
        struct served_impl **table = realloc(s->table, cap * sizeof(struct served_impl *));
        ok = table != NULL;
        if (ok) {
            s->table = table;
            s->cap = cap;
        }
    }
    if (ok) {
        size_t at = place_of(s, store->pub.id);
        memmove(s->table + at + 1, s->table + at, (s->n - at) * sizeof(struct served_impl *));
        s->table[at] = store;
        s->n++;
    }
    pthread_rwlock_unlock(&s->lock);
    return ok;
}

void table_remove(struct stores *s, struct served_impl *store)
{
    pthread_rwlock_wrlock(&s->lock);
    size_t at = place_of(s, store->pub.id);
    memmove(s->table + at, s->table + at + 1, (s->n - at - 1) * sizeof(struct served_impl *));
    s->n--;
    pthread_rwlock_unlock(&s->lock);
    store->dead = s->dead;
    s->dead = store;
}

void table_bury(struct stores *s)
{
    for (struct served_impl **at = &s->dead; *at;) {
        struct served_impl *store = *at;
        if (atomic_load_explicit(&store->pins, memory_order_acquire) != 0) {
            at = &store->dead;
            continue;
        }
        *at = store->dead;
        served_impl_free(store);
    }
}
