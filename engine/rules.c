/* rules.c - from a model to rules: names to numbers, rewrites to nodes, and which kinds of subjects can reach a pair.
 */
#include "engine/rules.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model_internal.h"

#define REACH_MAX ((size_t)16 << 20) /* bytes; beyond that every kind is taken to reach every pair */

static const char *text(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "";
}

static name_id word(struct engine *e, const char *s)
{
    return graph_name_intern(e, s, strlen(s));
}

/* ---- look-ups ---- */

static size_t slot_of(const struct rules *r, uint32_t names)
{
    size_t i = names * 2654435761u;
    while (r->slots[i & r->slot_mask].pair >= 0 && r->slots[i & r->slot_mask].names != names)
        i++;
    return i & r->slot_mask;
}

int rules_pair(const struct rules *r, name_id type, name_id relation)
{
    return r->slots[slot_of(r, (uint32_t)type << 16 | relation)].pair;
}

int rules_type(const struct rules *r, name_id type)
{
    for (int i = 0; i < r->ntypes; i++)
        if (r->types[i] == type)
            return i;
    return -1;
}

bool rules_reaches(const struct rules *r, int pair, int kind)
{
    return !r->reach || (r->reach[(size_t)pair * r->reach_words + (size_t)kind / 64] >> ((unsigned)kind % 64) & 1) != 0;
}

bool rules_allow(const struct rules *r, int pair, name_id type, name_id relation, bool wildcard,
                 struct engine_text condition)
{
    const struct rule_pair *p = &r->pairs[pair];
    for (int i = 0; i < p->ndirect; i++) {
        const struct restriction *d = &p->direct[i];
        if (d->type == type && d->relation == relation && d->wildcard == wildcard &&
            d->condition.len == condition.len &&
            (condition.len == 0 || memcmp(d->condition.s, condition.s, condition.len) == 0))
            return true;
    }
    return false;
}

/* ---- building ---- */

static void count(const json_t *rewrite, int *nodes)
{
    const char *kinds[] = {"union", "intersection"};
    const json_t *difference = json_object_get(rewrite, "difference"), *child;
    size_t i;
    ++*nodes;
    for (int k = 0; k < 2; k++)
        json_array_foreach(json_object_get(json_object_get(rewrite, kinds[k]), "child"), i, child) count(child, nodes);
    if (json_is_object(difference)) {
        count(json_object_get(difference, "base"), nodes);
        count(json_object_get(difference, "subtract"), nodes);
    }
}

struct build {
    struct rules *r;
    int pair; /* whose rewrite it is */
};

static int sibling(const struct build *b, const char *relation)
{
    return model_relation_find(b->r->model, b->r->model->pairs[b->pair].type, relation);
}

static int node(struct build *b, const json_t *rewrite);

static void children(struct build *b, int at, const json_t *const *kids, size_t n)
{
    struct rules *r = b->r;
    int first = r->nchildren;
    r->nchildren += (int)n;
    r->rules[at].first = first;
    r->rules[at].n = (int)n;
    for (size_t i = 0; i < n; i++) {
        int child = node(b, kids[i]);
        r->children[first + (int)i] = child;
    }
}

/* The model was parsed: its form is right. */
static int node(struct build *b, const json_t *rewrite)
{
    struct rules *r = b->r;
    int at = r->nrules++;
    struct rule *rule = &r->rules[at];
    const json_t *of;
    *rule = (struct rule){.op = RULE_THIS, .pair = -1};
    if (json_is_object(of = json_object_get(rewrite, "computedUserset"))) {
        rule->op = RULE_COMPUTED;
        rule->pair = sibling(b, text(of, "relation"));
    } else if (json_is_object(of = json_object_get(rewrite, "tupleToUserset"))) {
        rule->op = RULE_TTU;
        rule->pair = sibling(b, text(json_object_get(of, "tupleset"), "relation"));
        rule->name = word(r->engine, text(json_object_get(of, "computedUserset"), "relation"));
    } else if (json_is_object(of = json_object_get(rewrite, "difference"))) {
        const json_t *kids[] = {json_object_get(of, "base"), json_object_get(of, "subtract")};
        rule->op = RULE_DIFFERENCE;
        children(b, at, kids, 2);
    } else if (!json_object_get(rewrite, "this")) {
        bool is_union = json_is_object(of = json_object_get(rewrite, "union"));
        if (!is_union)
            of = json_object_get(rewrite, "intersection");
        const json_t *list = json_object_get(of, "child");
        const json_t **kids = calloc(json_array_size(list) + 1, sizeof *kids);
        rule->op = is_union ? RULE_UNION : RULE_INTERSECTION;
        for (size_t i = 0; kids && i < json_array_size(list); i++)
            kids[i] = json_array_get(list, i);
        if (kids)
            children(b, at, kids, json_array_size(list));
        else
            r->nrules = -1; /* told by rules_new */
        free(kids);
    }
    return at;
}

static void restrict_pair(struct rules *r, int pair, const json_t *direct)
{
    struct rule_pair *p = &r->pairs[pair];
    const json_t *entry;
    size_t i;
    p->direct = r->restrictions + r->nrestrictions;
    json_array_foreach(direct, i, entry)
    {
        const char *type = text(entry, "type"), *relation = text(entry, "relation"),
                   *condition = text(entry, "condition");
        struct restriction *d = &r->restrictions[r->nrestrictions++];
        *d = (struct restriction){.type = word(r->engine, type),
                                  .relation = *relation ? word(r->engine, relation) : 0,
                                  .wildcard = json_is_object(json_object_get(entry, "wildcard")),
                                  .pair = *relation ? model_pair(r->model, type, strlen(type), relation) : -1,
                                  .condition = {condition, strlen(condition)}};
    }
    p->ndirect = r->nrestrictions - (int)(p->direct - r->restrictions);
}

/* Room for all there will be, so that nothing moves. */
static bool room(struct rules *r, const json_t *types)
{
    int nodes = 0, direct = 0;
    const json_t *def, *rewrite;
    const char *key;
    size_t i;
    json_array_foreach(types, i, def)
    {
        json_object_foreach(json_object_get(def, "relations"), key, rewrite) count(rewrite, &nodes);
    }
    for (int p = 0; p < r->npairs; p++)
        direct += (int)json_array_size(r->model->pairs[p].direct);
    r->slot_mask = 16;
    while (r->slot_mask < (size_t)r->npairs * 2)
        r->slot_mask *= 2;
    r->pairs = calloc((size_t)r->npairs + 1, sizeof *r->pairs);
    r->rules = calloc((size_t)nodes + 1, sizeof *r->rules);
    r->children = calloc((size_t)nodes + 1, sizeof *r->children);
    r->restrictions = calloc((size_t)direct + 1, sizeof *r->restrictions);
    r->types = calloc((size_t)r->ntypes + 1, sizeof *r->types);
    r->slots = malloc(r->slot_mask * sizeof *r->slots);
    for (size_t s = 0; r->slots && s < r->slot_mask; s++)
        r->slots[s].pair = -1;
    r->slot_mask--;
    return r->pairs && r->rules && r->children && r->restrictions && r->types && r->slots;
}

static bool name_all(struct rules *r)
{
    for (int t = 0; t < r->ntypes; t++)
        if (!(r->types[t] = word(r->engine, r->model->types[t].name)))
            return false;
    for (int p = 0; p < r->npairs; p++) {
        struct rule_pair *pair = &r->pairs[p];
        pair->type = r->types[r->model->pairs[p].type];
        pair->relation = word(r->engine, r->model->pairs[p].relation);
        if (!pair->relation)
            return false;
        uint32_t names = (uint32_t)pair->type << 16 | pair->relation;
        r->slots[slot_of(r, names)] = (struct rule_slot){names, p};
    }
    return true;
}

static bool compile(struct rules *r, const json_t *types)
{
    const json_t *def, *rewrite;
    const char *relation;
    size_t i;
    json_array_foreach(types, i, def)
    {
        const char *type = text(def, "type");
        json_object_foreach(json_object_get(def, "relations"), relation, rewrite)
        {
            struct build b = {r, model_pair(r->model, type, strlen(type), relation)};
            r->pairs[b.pair].rule = node(&b, rewrite);
            if (r->nrules < 0)
                return false;
        }
    }
    for (int p = 0; p < r->npairs; p++)
        restrict_pair(r, p, r->model->pairs[p].direct);
    for (int k = 0; k < r->nrules; k++)
        if (r->rules[k].op == RULE_TTU && !r->rules[k].name)
            return false;
    for (int k = 0; k < r->nrestrictions; k++)
        if (!r->restrictions[k].type || (r->restrictions[k].pair >= 0 && !r->restrictions[k].relation))
            return false;
    return true;
}

/* ---- what rests on what ---- */

/* Calls for each pair that a rule looks up, and each type of objects that it takes as subjects (pair < 0). */
typedef void seen(void *arg, int pair, int type);

static void each(const struct rules *r, int p, int rule, seen *f, void *arg)
{
    const struct rule *n = &r->rules[rule];
    const struct rule_pair *direct = &r->pairs[n->op == RULE_TTU ? n->pair : p];
    switch (n->op) {
    case RULE_THIS:
        for (int i = 0; i < direct->ndirect; i++)
            f(arg, direct->direct[i].pair, rules_type(r, direct->direct[i].type));
        break;
    case RULE_COMPUTED:
        f(arg, n->pair, -1);
        break;
    case RULE_TTU:
        for (int i = 0; i < direct->ndirect; i++) {
            int to = rules_pair(r, direct->direct[i].type, n->name);
            if (to >= 0)
                f(arg, to, -1);
        }
        break;
    case RULE_UNION:
    case RULE_INTERSECTION:
    case RULE_DIFFERENCE:
        for (int i = 0; i < n->n; i++)
            each(r, p, r->children[n->first + i], f, arg);
        break;
    }
}

struct reaching {
    struct rules *r;
    uint64_t *bits;
    bool grew;
};

static void set_bit(struct reaching *g, int kind)
{
    uint64_t bit = (uint64_t)1 << ((unsigned)kind % 64);
    g->grew |= !(g->bits[kind / 64] & bit);
    g->bits[kind / 64] |= bit;
}

static void reach(void *arg, int pair, int type)
{
    struct reaching *g = arg;
    if (pair < 0) {
        set_bit(g, type);
        return;
    }
    const uint64_t *from = g->r->reach + (size_t)pair * g->r->reach_words;
    set_bit(g, rules_kind(g->r, -1, pair));
    for (size_t w = 0; w < g->r->reach_words; w++) {
        g->grew |= (from[w] & ~g->bits[w]) != 0;
        g->bits[w] |= from[w];
    }
}

static bool close_reach(struct rules *r)
{
    r->reach_words = ((size_t)r->ntypes + (size_t)r->npairs + 63) / 64;
    if ((size_t)r->npairs * r->reach_words * 8 > REACH_MAX)
        return true;
    r->reach = calloc((size_t)r->npairs * r->reach_words + 1, sizeof *r->reach);
    if (!r->reach)
        return false;
    for (bool grew = true, down = false; grew; down = !down) {
        grew = false;
        for (int i = 0; i < r->npairs; i++) {
            int p = down ? r->npairs - 1 - i : i;
            struct reaching g = {r, r->reach + (size_t)p * r->reach_words, false};
            set_bit(&g, rules_kind(r, -1, p));
            each(r, p, r->pairs[p].rule, reach, &g);
            grew |= g.grew;
        }
    }
    return true;
}

struct doubt {
    const struct rules *r;
    bool any;
};

static void doubtful(void *arg, int pair, int type)
{
    struct doubt *d = arg;
    (void)type;
    d->any |= pair >= 0 && !d->r->pairs[pair].positive;
}

static bool own_doubt(const struct rules *r, int p, int rule)
{
    const struct rule *n = &r->rules[rule];
    bool any = n->op == RULE_INTERSECTION || n->op == RULE_DIFFERENCE;
    const struct rule_pair *direct = &r->pairs[n->op == RULE_TTU ? n->pair : p];
    for (int i = 0; (n->op == RULE_THIS || n->op == RULE_TTU) && i < direct->ndirect; i++)
        any |= direct->direct[i].condition.len > 0;
    for (int i = 0; i < n->n; i++)
        any |= own_doubt(r, p, r->children[n->first + i]);
    return any;
}

static void mark(struct rules *r)
{
    for (int p = 0; p < r->npairs; p++) {
        struct rule_pair *pair = &r->pairs[p];
        pair->positive = !own_doubt(r, p, pair->rule);
        pair->flat = pair->positive && r->rules[pair->rule].op == RULE_THIS;
        for (int i = 0; i < pair->ndirect; i++)
            pair->flat &= pair->direct[i].pair < 0;
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (int p = 0; p < r->npairs; p++) {
            struct doubt d = {r, false};
            each(r, p, r->pairs[p].rule, doubtful, &d);
            changed |= r->pairs[p].positive && d.any;
            r->pairs[p].positive &= !d.any;
        }
    }
}

/* ---- who looks a pair up ---- */

struct usage {
    struct rules *r;
    int pair;
    int *next; /* of each pair, where its next use goes; NULL: only count */
};

static void use(struct usage *u, int of, enum rule_op op, name_id relation, bool sure)
{
    struct rules *r = u->r;
    if (u->next)
        r->uses[u->next[of]++] = (struct rule_use){op, u->pair, relation, sure};
    else
        r->pairs[of].nuses++;
}

/* What is subtracted adds nobody. */
static void usages(struct usage *u, int at, bool sure)
{
    struct rules *r = u->r;
    const struct rule *n = &r->rules[at];
    const struct rule_pair *p = &r->pairs[n->op == RULE_TTU ? n->pair : u->pair];
    switch (n->op) {
    case RULE_THIS:
        r->pairs[u->pair].own = true;
        r->pairs[u->pair].own_sure |= sure;
        for (int i = 0; i < p->ndirect; i++)
            if (p->direct[i].pair >= 0)
                use(u, p->direct[i].pair, RULE_THIS, p->relation, sure);
        break;
    case RULE_COMPUTED:
        use(u, n->pair, RULE_COMPUTED, 0, sure);
        break;
    case RULE_TTU:
        for (int i = 0; i < p->ndirect; i++) {
            int to = rules_pair(r, p->direct[i].type, n->name);
            if (to >= 0)
                use(u, to, RULE_TTU, p->relation, sure);
        }
        break;
    case RULE_UNION:
    case RULE_INTERSECTION:
    case RULE_DIFFERENCE:
        for (int i = 0; i < (n->op == RULE_DIFFERENCE ? 1 : n->n); i++)
            usages(u, r->children[n->first + i], sure && n->op == RULE_UNION);
        break;
    }
}

static bool index_uses(struct rules *r)
{
    int *next = calloc((size_t)r->npairs + 1, sizeof *next), n = 0;
    struct usage u = {.r = r};
    for (u.pair = 0; u.pair < r->npairs; u.pair++)
        usages(&u, r->pairs[u.pair].rule, true);
    for (int p = 0; p < r->npairs; p++) {
        r->pairs[p].first_use = n;
        if (next)
            next[p] = n;
        n += r->pairs[p].nuses;
    }
    r->uses = calloc((size_t)n + 1, sizeof *r->uses);
    u.next = next;
    for (u.pair = 0; next && r->uses && u.pair < r->npairs; u.pair++)
        usages(&u, r->pairs[u.pair].rule, true);
    free(next);
    return next && r->uses;
}

struct rules *rules_new(struct engine *e, const struct model *m)
{
    const json_t *types = json_object_get(m->source, "type_definitions");
    struct rules *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    *r = (struct rules){.engine = e, .model = m, .npairs = m->npairs, .ntypes = m->ntypes};
    if (!room(r, types) || !name_all(r) || !compile(r, types) || !close_reach(r) || !index_uses(r)) {
        rules_free(r);
        return NULL;
    }
    mark(r);
    return r;
}

void rules_free(struct rules *r)
{
    if (!r)
        return;
    free(r->pairs);
    free(r->rules);
    free(r->children);
    free(r->restrictions);
    free(r->types);
    free(r->slots);
    free(r->reach);
    free(r->uses);
    free(r);
}
