/* pairs.c - (type, relation), and what is to be judged of it. */
#include <stdlib.h>
#include <string.h>

#include "drift-checker/compare/internal.h"

#define TABLE 1024

struct pairs {
    pthread_mutex_t lock;
    struct pair *table[TABLE];
    const struct compare_job *job;
    const struct sources *sources;
    bool all_owned;
};

static size_t slot_of(const char *type, size_t type_len, const char *relation)
{
    size_t h = 5381;

    for (size_t i = 0; i < type_len; i++)
        h = h * 33 + (unsigned char)type[i];
    for (h = h * 33 + '#'; *relation; relation++)
        h = h * 33 + (unsigned char)*relation;
    return h % TABLE;
}

/* Whether "type#relation, type#relation" has it. */
static bool listed(const char *list, const char *type, const char *relation)
{
    size_t tl = strlen(type), rl = strlen(relation);

    while (*list) {
        size_t len;

        list += strspn(list, ", ");
        len = strcspn(list, ", ");
        if (len == tl + 1 + rl && strncmp(list, type, tl) == 0 && list[tl] == '#' &&
            strncmp(list + tl + 1, relation, rl) == 0)
            return true;
        list += len;
    }
    return false;
}

static bool view_of_type(const struct sources *s, const char *type)
{
    for (size_t i = 0; i < s->len; i++) {
        if (s->items[i].type && strcmp(s->items[i].type, type) == 0)
            return true;
    }
    return false;
}

struct pair *pairs_get(struct pairs *p, const char *type, size_t type_len, const char *relation)
{
    size_t slot = slot_of(type, type_len, relation);
    struct pair *pair;

    pthread_mutex_lock(&p->lock);
    for (pair = p->table[slot]; pair; pair = pair->next) {
        if (strncmp(pair->type, type, type_len) == 0 && !pair->type[type_len] && strcmp(pair->relation, relation) == 0)
            break;
    }
    if (!pair && (pair = calloc(1, sizeof *pair))) {
        pair->type = strndup(type, type_len);
        pair->relation = strdup(relation);
        if (!pair->type || !pair->relation) {
            free(pair->type);
            free(pair->relation);
            free(pair);
            pair = NULL;
        } else {
            pair->owned = p->all_owned;
            pair->skipped = listed(p->job->cfg->skip, pair->type, relation);
            pair->expected = view_of_type(p->sources, pair->type);
            pair->next = p->table[slot];
            p->table[slot] = pair;
        }
    }
    pthread_mutex_unlock(&p->lock);
    return pair;
}

bool pairs_all_judged(const struct pairs *p)
{
    return p->all_owned && !*p->job->cfg->skip;
}

struct pair *pairs_first(struct pairs *p, size_t *at)
{
    for (*at = 0; *at < TABLE; ++*at) {
        if (p->table[*at])
            return p->table[*at];
    }
    return NULL;
}

struct pair *pairs_next(struct pairs *p, size_t *at, struct pair *last)
{
    if (last->next)
        return last->next;
    for (++*at; *at < TABLE; ++*at) {
        if (p->table[*at])
            return p->table[*at];
    }
    return NULL;
}

static enum status read_pairs(struct pairs *p, const char *sql, bool owned, struct err *err)
{
    const struct compare_job *job = p->job;
    const struct pg_param params[] = {pg_p_text(job->cfg->store.name)};
    struct pg_result *r = NULL;
    enum status st = pg_query(job->pg, NULL, sql, params, 1, deadline_in_ms(job->cfg->statement_timeout_ms), &r, err);

    p->all_owned = p->all_owned || (st == ST_OK && owned && pg_rows(r) == 0);
    for (int i = 0; st == ST_OK && i < pg_rows(r); i++) {
        struct pair *pair = pairs_get(p, pg_text(r, i, 0), pg_len(r, i, 0), pg_text(r, i, 1));

        if (!pair)
            st = err_set(err, ST_NOMEM, NULL, "no memory");
        else if (owned)
            pair->owned = true;
        else
            pair->expected = true;
    }
    pg_result_free(r);
    return st;
}

static enum status remember_pairs(struct pairs *p, const char *const *known, struct err *err)
{
    for (; known && *known; known++) {
        const char *hash = strchr(*known, '#');
        struct pair *pair = hash ? pairs_get(p, *known, (size_t)(hash - *known), hash + 1) : NULL;

        if (hash && !pair)
            return err_set(err, ST_NOMEM, NULL, "no memory");
        if (pair)
            pair->expected = true;
    }
    return ST_OK;
}

enum status pairs_new(struct pairs **out, const struct compare_job *job, const struct sources *sources, struct err *err)
{
    struct pairs *p = calloc(1, sizeof *p);
    enum status st;

    *out = p;
    if (!p)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    pthread_mutex_init(&p->lock, NULL);
    p->job = job;
    p->sources = sources;
    st = read_pairs(p, "SELECT object_type, relation FROM relata.owned WHERE store = $1", true, err);
    if (st == ST_OK && job->cfg->tracked)
        st = read_pairs(p,
                        "SELECT DISTINCT r.object_type, r.relation FROM relata.tracked t JOIN relata.tracked_rule r ON "
                        "r.track = t.id WHERE t.store = $1 AND r.object_type IS NOT NULL AND r.relation IS NOT NULL",
                        false, err);
    return st == ST_OK ? remember_pairs(p, job->known_pairs, err) : st;
}

void pairs_free(struct pairs *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < TABLE; i++) {
        while (p->table[i]) {
            struct pair *next = p->table[i]->next;

            free(p->table[i]->type);
            free(p->table[i]->relation);
            free(p->table[i]);
            p->table[i] = next;
        }
    }
    pthread_mutex_destroy(&p->lock);
    free(p);
}
