#include "tests/model/rebac.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"

#define NODES 256
#define TUPLESETS 2 /* relations p0 and p1 */
#define RESTRICT 4

static const char *const TYPES[REBAC_TYPES] = {"user", "group", "folder", "doc"};
static const char *const RELATIONS[REBAC_RELATIONS] = {"p0", "p1", "r0", "r1", "r2", "r3", "r4"};
static const int OBJECTS[REBAC_TYPES] = {3, 2, 2, 2};

enum kind { THIS, COMPUTED, TTU, UNION, INTERSECTION, DIFFERENCE };

struct node {
    enum kind kind;
    int relation, tupleset;
    const struct node *a, *b;
};

struct restriction {
    int type, relation; /* -1 = none */
    bool wildcard;
};

struct pair {
    bool exists;
    struct restriction types[RESTRICT];
    int ntypes;
    const struct node *rewrite;
};

struct subject {
    char name[32];
    int type, object, relation; /* object -1 = wildcard; relation -1 = no userset */
};

struct tuple {
    int type, relation, object, subject;
    bool present;
};

struct rebac {
    uint64_t *rng;
    struct pair pairs[REBAC_TYPES][REBAC_RELATIONS];
    struct node nodes[NODES];
    int nnodes;
    struct subject subjects[REBAC_SUBJECTS];
    int nsubjects;
    struct tuple tuples[REBAC_TUPLES];
    int ntuples;
    struct buf json;
};

uint64_t rebac_random(uint64_t *rng, uint64_t n)
{
    *rng ^= *rng >> 12;
    *rng ^= *rng << 25;
    *rng ^= *rng >> 27;
    return ((*rng * 2685821657736338717ULL) >> 11) % n;
}

static bool chance(struct rebac *r, unsigned percent)
{
    return rebac_random(r->rng, 100) < percent;
}

static int pick(struct rebac *r, int n)
{
    return (int)rebac_random(r->rng, (uint64_t)n);
}

static int stratum(int relation)
{
    return relation < TUPLESETS ? 0 : (relation - TUPLESETS) / 2;
}

/* ---- a random model ---- */
static struct node *node_new(struct rebac *r, enum kind kind)
{
    if (r->nnodes == NODES)
        abort();
    struct node *n = &r->nodes[r->nnodes++];
    n->kind = kind;
    return n;
}

/* A random relation that the type has, of a stratum up to `max`; -1 if the dice say so. */
static int some_relation(struct rebac *r, int type, int max)
{
    int relation = pick(r, REBAC_RELATIONS);
    return r->pairs[type][relation].exists && stratum(relation) <= max ? relation : -1;
}

static bool has_behind(const struct rebac *r, const struct pair *tupleset, int relation)
{
    for (int i = 0; i < tupleset->ntypes; i++)
        if (r->pairs[tupleset->types[i].type][relation].exists)
            return true;
    return false;
}

/* Whether the directly related types may stand where strata up to `max` may. */
static bool this_fits(const struct pair *p, int max)
{
    for (int i = 0; i < p->ntypes; i++)
        if (p->types[i].relation >= 0 && stratum(p->types[i].relation) > max)
            return false;
    return true;
}

static const struct node *random_leaf(struct rebac *r, int type, int relation, int max)
{
    for (int tries = 0; tries < 30; tries++) {
        int choice = pick(r, 3), other = some_relation(r, type, max), behind = pick(r, REBAC_RELATIONS),
            tupleset = pick(r, TUPLESETS);
        struct node *n;
        if (choice == 0 && this_fits(&r->pairs[type][relation], max))
            return node_new(r, THIS);
        if (choice == 1 && other >= 0 && other != relation) {
            n = node_new(r, COMPUTED);
            n->relation = other;
            return n;
        }
        if (choice == 2 && r->pairs[type][tupleset].exists && stratum(behind) <= max &&
            has_behind(r, &r->pairs[type][tupleset], behind)) {
            n = node_new(r, TTU);
            n->relation = behind;
            n->tupleset = tupleset;
            return n;
        }
    }
    return NULL;
}

static const struct node *random_rewrite(struct rebac *r, int type, int relation, int max, int depth)
{
    if (depth == 0 || chance(r, 35))
        return random_leaf(r, type, relation, max);
    int dice = pick(r, 10);
    enum kind kind = dice < 5 ? UNION : dice < 8 ? INTERSECTION : DIFFERENCE;
    const struct node *a = random_rewrite(r, type, relation, max, depth - 1),
                      *b = random_rewrite(r, type, relation, kind == DIFFERENCE ? max - 1 : max, depth - 1);
    if (!a || !b)
        return a ? a : NULL;
    struct node *n = node_new(r, kind);
    n->a = a;
    n->b = b;
    return n;
}

static void restrict_to(struct pair *p, struct restriction t)
{
    for (int i = 0; i < p->ntypes; i++)
        if (p->types[i].type == t.type && p->types[i].relation == t.relation && p->types[i].wildcard == t.wildcard)
            return;
    if (p->ntypes < RESTRICT)
        p->types[p->ntypes++] = t;
}

static void random_types(struct rebac *r, struct pair *p, int relation)
{
    if (relation < TUPLESETS) {
        for (int i = 0; i < 2; i++)
            restrict_to(p, (struct restriction){1 + pick(r, REBAC_TYPES - 1), -1, false});
        return;
    }
    restrict_to(p, (struct restriction){chance(r, 85) ? 0 : pick(r, REBAC_TYPES), -1, false});
    for (int i = 0; i < 3; i++) {
        int type = chance(r, 50) ? 0 : pick(r, REBAC_TYPES), other = some_relation(r, type, stratum(relation));
        if (chance(r, 25))
            restrict_to(p, (struct restriction){type, -1, true});
        else if (other >= TUPLESETS)
            restrict_to(p, (struct restriction){type, other, false});
    }
}

static bool uses_this(const struct node *n)
{
    return n && (n->kind == THIS || (n->kind >= UNION && (uses_this(n->a) || uses_this(n->b))));
}

static void random_model(struct rebac *r)
{
    for (int t = 1; t < REBAC_TYPES; t++)
        for (int k = 0; k < REBAC_RELATIONS; k++)
            r->pairs[t][k].exists = chance(r, k < TUPLESETS ? 60 : 75);
    for (int t = 1; t < REBAC_TYPES; t++)
        for (int k = 0; k < REBAC_RELATIONS; k++)
            if (r->pairs[t][k].exists)
                random_types(r, &r->pairs[t][k], k);
    for (int t = 1; t < REBAC_TYPES; t++)
        for (int k = 0; k < REBAC_RELATIONS; k++) {
            struct pair *p = &r->pairs[t][k];
            if (!p->exists)
                continue;
            p->rewrite = k < TUPLESETS ? NULL : random_rewrite(r, t, k, stratum(k), 3);
            if (!p->rewrite)
                p->rewrite = node_new(r, THIS);
            if (!uses_this(p->rewrite))
                p->ntypes = 0;
        }
}

/* ---- the universe ---- */
static void add_subject(struct rebac *r, int type, int object, int relation)
{
    if (r->nsubjects == REBAC_SUBJECTS)
        abort();
    struct subject *s = &r->subjects[r->nsubjects++];
    *s = (struct subject){.type = type, .object = object, .relation = relation};
    if (object < 0)
        snprintf(s->name, sizeof s->name, "%s:*", TYPES[type]);
    else if (relation < 0)
        snprintf(s->name, sizeof s->name, "%s:%d", TYPES[type], object);
    else
        snprintf(s->name, sizeof s->name, "%s:%d#%s", TYPES[type], object, RELATIONS[relation]);
}

static void add_tuples(struct rebac *r, int type, int relation, int subject)
{
    const struct pair *p = &r->pairs[type][relation];
    const struct subject *s = &r->subjects[subject];
    bool fits = false;
    for (int i = 0; i < p->ntypes; i++)
        fits |= p->types[i].type == s->type && p->types[i].relation == s->relation &&
                p->types[i].wildcard == (s->object < 0);
    for (int o = 0; fits && o < OBJECTS[type]; o++) {
        if (s->type == type && s->object == o && s->relation == relation)
            continue; /* a userset in itself is refused by stores */
        if (r->ntuples == REBAC_TUPLES)
            abort();
        r->tuples[r->ntuples++] = (struct tuple){type, relation, o, subject, false};
    }
}

static void universe(struct rebac *r)
{
    for (int t = 0; t < REBAC_TYPES; t++)
        for (int o = -1; o < OBJECTS[t]; o++) {
            add_subject(r, t, o, -1);
            for (int k = TUPLESETS; o >= 0 && k < REBAC_RELATIONS; k++)
                if (r->pairs[t][k].exists)
                    add_subject(r, t, o, k);
        }
    for (int t = 0; t < REBAC_TYPES; t++)
        for (int k = 0; k < REBAC_RELATIONS; k++)
            for (int s = 0; r->pairs[t][k].exists && s < r->nsubjects; s++)
                add_tuples(r, t, k, s);
}

struct rebac *rebac_new(uint64_t *rng)
{
    struct rebac *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    r->rng = rng;
    buf_init(&r->json, 1 << 20);
    random_model(r);
    universe(r);
    return r;
}

void rebac_free(struct rebac *r)
{
    if (!r)
        return;
    buf_release(&r->json);
    free(r);
}

/* ---- as JSON ---- */
static void json_node(struct buf *b, const struct node *n)
{
    switch (n->kind) {
    case THIS:
        buf_adds(b, "{\"this\":{}}");
        break;
    case COMPUTED:
        buf_addf(b, "{\"computedUserset\":{\"relation\":\"%s\"}}", RELATIONS[n->relation]);
        break;
    case TTU:
        buf_addf(b,
                 "{\"tupleToUserset\":{\"tupleset\":{\"relation\":\"%s\"},\"computedUserset\":{\"relation\":\"%s\"}}}",
                 RELATIONS[n->tupleset], RELATIONS[n->relation]);
        break;
    case UNION:
    case INTERSECTION:
        buf_addf(b, "{\"%s\":{\"child\":[", n->kind == UNION ? "union" : "intersection");
        json_node(b, n->a);
        buf_addc(b, ',');
        json_node(b, n->b);
        buf_adds(b, "]}}");
        break;
    case DIFFERENCE:
        buf_adds(b, "{\"difference\":{\"base\":");
        json_node(b, n->a);
        buf_adds(b, ",\"subtract\":");
        json_node(b, n->b);
        buf_adds(b, "}}");
        break;
    }
}

static void json_types(struct buf *b, const struct pair *p)
{
    for (int i = 0; i < p->ntypes; i++) {
        buf_addf(b, "%s{\"type\":\"%s\"", i ? "," : "", TYPES[p->types[i].type]);
        if (p->types[i].wildcard)
            buf_adds(b, ",\"wildcard\":{}");
        else if (p->types[i].relation >= 0)
            buf_addf(b, ",\"relation\":\"%s\"", RELATIONS[p->types[i].relation]);
        buf_addc(b, '}');
    }
}

const char *rebac_json(struct rebac *r)
{
    struct buf *b = &r->json;
    buf_clear(b);
    buf_adds(b, "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"}");
    for (int t = 1; t < REBAC_TYPES; t++) {
        const char *comma = "";
        buf_addf(b, ",{\"type\":\"%s\",\"relations\":{", TYPES[t]);
        for (int k = 0; k < REBAC_RELATIONS; k++) {
            if (!r->pairs[t][k].exists)
                continue;
            buf_addf(b, "%s\"%s\":", comma, RELATIONS[k]);
            json_node(b, r->pairs[t][k].rewrite);
            comma = ",";
        }
        buf_adds(b, "},\"metadata\":{\"relations\":{");
        comma = "";
        for (int k = 0; k < REBAC_RELATIONS; k++) {
            if (!r->pairs[t][k].exists)
                continue;
            buf_addf(b, "%s\"%s\":{\"directly_related_user_types\":[", comma, RELATIONS[k]);
            json_types(b, &r->pairs[t][k]);
            buf_adds(b, "]}");
            comma = ",";
        }
        buf_adds(b, "}}}");
    }
    buf_adds(b, "]}");
    return buf_str(b);
}

/* ---- what is true ---- */
static uint64_t bit(int subject)
{
    return (uint64_t)1 << subject;
}

static uint64_t direct(const struct rebac *r, const struct rebac_truth *v, int type, int relation, int object)
{
    uint64_t set = 0;
    for (int i = 0; i < r->ntuples; i++) {
        const struct tuple *t = &r->tuples[i];
        const struct subject *s = &r->subjects[t->subject];
        if (!t->present || t->type != type || t->relation != relation || t->object != object)
            continue;
        set |= bit(t->subject);
        if (s->relation >= 0)
            set |= v->allowed[s->type][s->relation][s->object];
        for (int k = 0; s->object < 0 && k < r->nsubjects; k++)
            if (r->subjects[k].type == s->type && r->subjects[k].relation < 0)
                set |= bit(k);
    }
    return set;
}

static uint64_t behind(const struct rebac *r, const struct rebac_truth *v, const struct node *n, int type, int object)
{
    uint64_t set = 0;
    for (int i = 0; i < r->ntuples; i++) {
        const struct tuple *t = &r->tuples[i];
        const struct subject *s = &r->subjects[t->subject];
        if (t->present && t->type == type && t->relation == n->tupleset && t->object == object &&
            r->pairs[s->type][n->relation].exists)
            set |= v->allowed[s->type][n->relation][s->object];
    }
    return set;
}

static uint64_t evaluate(const struct rebac *r, const struct rebac_truth *v, const struct node *n, int type,
                         int relation, int object)
{
    switch (n->kind) {
    case THIS:
        return direct(r, v, type, relation, object);
    case COMPUTED:
        return v->allowed[type][n->relation][object];
    case TTU:
        return behind(r, v, n, type, object);
    case UNION:
        return evaluate(r, v, n->a, type, relation, object) | evaluate(r, v, n->b, type, relation, object);
    case INTERSECTION:
        return evaluate(r, v, n->a, type, relation, object) & evaluate(r, v, n->b, type, relation, object);
    case DIFFERENCE:
        return evaluate(r, v, n->a, type, relation, object) & ~evaluate(r, v, n->b, type, relation, object);
    }
    return 0;
}

/* One round over a stratum; false if nothing changed. */
static bool improve(const struct rebac *r, struct rebac_truth *v, int of)
{
    bool changed = false;
    for (int t = 1; t < REBAC_TYPES; t++)
        for (int k = 0; k < REBAC_RELATIONS; k++)
            for (int o = 0; r->pairs[t][k].exists && stratum(k) == of && o < OBJECTS[t]; o++) {
                uint64_t set = v->allowed[t][k][o] | evaluate(r, v, r->pairs[t][k].rewrite, t, k, o);
                for (int s = 0; s < r->nsubjects; s++) /* a userset is in itself */
                    if (r->subjects[s].type == t && r->subjects[s].object == o && r->subjects[s].relation == k)
                        set |= bit(s);
                changed |= set != v->allowed[t][k][o];
                v->allowed[t][k][o] = set;
            }
    return changed;
}

void rebac_evaluate(const struct rebac *r, struct rebac_truth *out)
{
    memset(out, 0, sizeof *out);
    for (int of = 0; of <= stratum(REBAC_RELATIONS - 1); of++)
        while (improve(r, out, of))
            ;
}

/* ---- names ---- */
int rebac_tuples(const struct rebac *r)
{
    return r->ntuples;
}

struct rebac_tuple rebac_tuple(const struct rebac *r, int tuple)
{
    const struct tuple *t = &r->tuples[tuple];
    return (struct rebac_tuple){rebac_object(t->type, t->object), RELATIONS[t->relation], r->subjects[t->subject].name,
                                t->present};
}

void rebac_set(struct rebac *r, int tuple, bool present)
{
    r->tuples[tuple].present = present;
}

bool rebac_has(const struct rebac *r, int type, int relation)
{
    return r->pairs[type][relation].exists;
}

const char *rebac_type(int type)
{
    return TYPES[type];
}

const char *rebac_relation(int relation)
{
    return RELATIONS[relation];
}

int rebac_objects(int type)
{
    return OBJECTS[type];
}

const char *rebac_object(int type, int object)
{
    static const char *const names[REBAC_TYPES][REBAC_OBJECTS] = {
        {"user:0", "user:1", "user:2"}, {"group:0", "group:1"}, {"folder:0", "folder:1"}, {"doc:0", "doc:1"}};
    return names[type][object];
}

int rebac_subjects(const struct rebac *r)
{
    return r->nsubjects;
}

const char *rebac_subject(const struct rebac *r, int subject)
{
    return r->subjects[subject].name;
}
