/* check.c - whether a subject has a relation on an object. The method is in check.h. */
#include <string.h>

#include "engine/check_internal.h"

/* Rewrites inside each other, so that chains of computed relations cannot use up a thread's stack (about 4 MiB).
 * OpenFGA has no such bound; models that people write do not come near. */
#define NESTED_MAX 8000
#define ASK_STOP_EVERY 256
#define NEVER INT32_MAX
/* An object's usersets are looked up one by one up to so many; beyond, from the side that has fewer. */
#define FEW 8
/* So many nodes are found anew, where a cycle in the tuples makes their value depend on the way to them. */
#define FORGET_MAX 2000

/* What was found: how far down it was looked, and what it assumes. */
struct found {
    enum check_value value;
    unsigned height;
    int32_t low;
    bool cycle; /* a node was met again on the way to it */
};

static const struct found no = {CHECK_NO, 0, NEVER, false}, yes = {CHECK_YES, 0, NEVER, false},
                          deep = {CHECK_DEEP, 0, NEVER, false};

/* ---- combining ---- */

static void both(struct found *into, struct found more)
{
    if (more.height > into->height)
        into->height = more.height;
    if (more.low < into->low)
        into->low = more.low;
    into->cycle |= more.cycle;
}

/* More of a union; true: it is decided. */
static bool unite(struct found *sum, struct found more)
{
    if (more.value == CHECK_YES) {
        *sum = more;
        return true;
    }
    both(sum, more);
    if (more.value > sum->value)
        sum->value = more.value;
    return false;
}

/* More of an intersection; true: it is decided. */
static bool intersect(struct found *sum, struct found more)
{
    both(sum, more);
    if (more.value < sum->value)
        sum->value = more.value;
    return more.value <= CHECK_CYCLE;
}

/* ---- direct tuples ---- */

static struct found ask(struct check *c, object_id object, int pair, unsigned depth);

/* Whether this tuple is there and counts. */
static enum check_value tuple_counts(struct check *c, object_id object, int pair, uint64_t key, name_id type,
                                     bool wildcard)
{
    struct engine_text condition = {"", 0};
    enum tuple_is is = tuples_find(c->tuples, object, key, &condition);
    if (is == TUPLE_ABSENT || !rules_allow(c->rules, pair, type, key_second(key), wildcard, condition))
        return CHECK_NO;
    if (is == TUPLE_CONDITIONAL)
        c->condition = condition;
    return is == TUPLE_PLAIN ? CHECK_YES : CHECK_IF;
}

/* By way of a tuple, with its condition. */
static struct found dispatch(struct check *c, object_id object, int pair, unsigned depth, struct engine_text condition)
{
    struct found f = ask(c, object, pair, depth + 1);
    f.height++;
    if (condition.len == 0)
        return f;
    if (f.value == CHECK_YES)
        f.value = CHECK_IF;
    if (f.value == CHECK_CYCLE)
        f.value = CHECK_CYCLE_IF;
    if (f.value == CHECK_IF || f.value == CHECK_CYCLE_IF)
        c->condition = condition;
    return f;
}

/* The usersets type#relation of a flat relation: the subject is in those that its own tuples name. */
static bool shares_userset(struct check *c, object_id object, const struct rule_pair *p, const struct restriction *d)
{
    object_id who[] = {c->subject, c->wildcard};
    uint64_t low = graph_key(p->relation, d->relation, 0);
    for (int k = 0; k < 2; k++) {
        struct tuple_walk w;
        struct engine_text condition;
        if (!who[k] || (k == 1 && who[1] == who[0]))
            continue;
        tuples_walk(&w, c->tuples, BACKWARD, who[k], graph_key(0, d->relation, 0),
                    graph_key(0, d->relation, UINT32_MAX));
        while (tuples_next(&w))
            if (tuples_find(c->tuples, object, low | key_object(w.key), &condition) == TUPLE_PLAIN &&
                tuples_type(c->tuples, key_object(w.key)) == d->type &&
                tuple_counts(c, key_object(w.key), d->pair, graph_key(d->relation, 0, who[k]), c->type,
                             who[k] == c->wildcard) == CHECK_YES)
                return true;
    }
    return false;
}

static size_t subject_count(const struct check *c, name_id relation, size_t max)
{
    uint64_t low = graph_key(0, relation, 0), high = graph_key(0, relation, UINT32_MAX);
    size_t n = c->subject ? tuples_count(c->tuples, BACKWARD, c->subject, low, high, max) : 0;
    return n + (c->wildcard ? tuples_count(c->tuples, BACKWARD, c->wildcard, low, high, max) : 0);
}

static const struct mine *mine_of(struct check *c, const struct restriction *d)
{
    struct mine *m = &c->mine[d->pair % MINES];
    object_id who[] = {c->subject, c->wildcard};
    if (m->pair == d->pair && m->round == c->round)
        return m;
    m->pair = d->pair;
    m->round = c->round;
    m->many = false;
    m->n = 0;
    for (int k = 0; k < 2 && !m->many; k++) {
        struct tuple_walk w;
        if (!who[k] || (k == 1 && who[1] == who[0]))
            continue;
        tuples_walk(&w, c->tuples, BACKWARD, who[k], graph_key(0, d->relation, 0),
                    graph_key(0, d->relation, UINT32_MAX));
        while (tuples_next(&w) && !m->many)
            if (tuples_type(c->tuples, key_object(w.key)) == d->type &&
                tuple_counts(c, key_object(w.key), d->pair, graph_key(d->relation, 0, who[k]), c->type,
                             who[k] == c->wildcard) == CHECK_YES) {
                m->many = m->n == MINE_MAX;
                if (!m->many)
                    m->of[m->n++] = key_object(w.key);
            }
    }
    return m;
}

/* Whether a userset of the relation (keys from low) is one of mine. */
static bool shares_mine(struct check *c, object_id object, uint64_t low, const struct mine *m)
{
    struct tuple_walk w;
    struct engine_text condition;
    if (m->n > 2) {
        tuples_walk(&w, c->tuples, FORWARD, object, low, low | UINT32_MAX);
        if (tuples_peek(&w) < m->n) {
            while (tuples_next(&w))
                for (size_t i = 0; i < m->n; i++)
                    if (key_object(w.key) == m->of[i] && w.condition.len == 0)
                        return true;
            return false;
        }
    }
    for (size_t i = 0; i < m->n; i++)
        if (tuples_find(c->tuples, object, low | m->of[i], &condition) == TUPLE_PLAIN)
            return true;
    return false;
}

static struct found usersets(struct check *c, object_id object, const struct rule_pair *p, const struct restriction *d,
                             unsigned depth)
{
    struct found sum = no;
    struct tuple_walk w;
    uint64_t low = graph_key(p->relation, d->relation, 0), high = graph_key(p->relation, d->relation, UINT32_MAX);
    bool plain = d->condition.len == 0;
    if (!rules_reaches(c->rules, d->pair, c->kind))
        return sum;
    bool flat = plain && c->pair < 0 && c->rules->pairs[d->pair].flat && depth + 1 < c->depth_max;
    const struct mine *mine = flat ? mine_of(c, d) : NULL;
    if (mine && !mine->many)
        return (struct found){shares_mine(c, object, low, mine) ? CHECK_YES : CHECK_NO, 1, NEVER, false};
    tuples_walk(&w, c->tuples, FORWARD, object, low, high);
    if (flat) {
        size_t many = tuples_peek(&w);
        sum.height = 1;
        if (many > FEW && subject_count(c, d->relation, many) < many)
            return shares_userset(c, object, p, d) ? (struct found){CHECK_YES, 1, NEVER, false} : sum;
    }
    while (c->failed == ENGINE_OK && tuples_next(&w)) {
        if (tuples_type(c->tuples, key_object(w.key)) != d->type || (w.condition.len == 0) != plain ||
            (!plain &&
             (w.condition.len != d->condition.len || memcmp(w.condition.s, d->condition.s, d->condition.len) != 0)))
            continue;
        if (unite(&sum, dispatch(c, key_object(w.key), d->pair, depth, w.condition)))
            break;
    }
    return sum;
}

static struct found direct(struct check *c, object_id object, int pair, unsigned depth)
{
    const struct rule_pair *p = &c->rules->pairs[pair];
    struct found sum = no;
    if (c->subject)
        sum.value = tuple_counts(c, object, pair, graph_key(p->relation, c->relation, c->subject), c->type,
                                 c->subject == c->wildcard);
    if (sum.value != CHECK_YES && c->wildcard && c->wildcard != c->subject)
        unite(&sum, (struct found){tuple_counts(c, object, pair, graph_key(p->relation, 0, c->wildcard), c->type, true),
                                   0, NEVER, false});
    for (int i = 0; sum.value != CHECK_YES && i < p->ndirect; i++)
        if (p->direct[i].pair >= 0 && unite(&sum, usersets(c, object, p, &p->direct[i], depth)))
            break;
    return sum;
}

/* ---- rewrites ---- */

static struct found parents(struct check *c, object_id object, const struct rule *rule, unsigned depth)
{
    const struct rules *r = c->rules;
    name_id tupleset = r->pairs[rule->pair].relation;
    struct found sum = no;
    struct tuple_walk w;
    tuples_walk(&w, c->tuples, FORWARD, object, graph_key(tupleset, 0, 0), graph_key(tupleset, 0, UINT32_MAX));
    while (c->failed == ENGINE_OK && tuples_next(&w)) {
        object_id parent = key_object(w.key);
        name_id type = tuples_type(c->tuples, parent);
        int to = rules_pair(r, type, rule->name);
        if (to < 0 || tuples_is_wildcard(c->tuples, parent) || !rules_allow(r, rule->pair, type, 0, false, w.condition))
            continue;
        if (unite(&sum, dispatch(c, parent, to, depth, w.condition)))
            break;
    }
    return sum;
}

static struct found rewrite(struct check *c, object_id object, int pair, int at, unsigned depth);

static struct found combine(struct check *c, object_id object, int pair, int at, unsigned depth)
{
    const struct rules *r = c->rules;
    const struct rule *rule = &r->rules[at];
    struct found sum = no, f;
    switch (rule->op) {
    case RULE_THIS:
        return direct(c, object, pair, depth);
    case RULE_COMPUTED:
        return ask(c, object, rule->pair, depth);
    case RULE_TTU:
        return parents(c, object, rule, depth);
    case RULE_UNION:
    case RULE_INTERSECTION:
        /* First what looks no further: it may decide at once. */
        sum = rule->op == RULE_UNION ? no : yes;
        for (int pass = 0; pass < 2; pass++)
            for (int i = 0; i < rule->n && c->failed == ENGINE_OK; i++) {
                int child = r->children[rule->first + i];
                if ((r->rules[child].op == RULE_THIS) != (pass == 0))
                    continue;
                f = rewrite(c, object, pair, child, depth);
                if (rule->op == RULE_UNION ? unite(&sum, f) : intersect(&sum, f))
                    return sum;
            }
        return sum;
    case RULE_DIFFERENCE:
        sum = rewrite(c, object, pair, r->children[rule->first], depth);
        if (sum.value <= CHECK_CYCLE)
            return sum;
        f = rewrite(c, object, pair, r->children[rule->first + 1], depth);
        both(&sum, f);
        if (f.value == CHECK_YES)
            sum.value = CHECK_NO;
        else if (f.value == CHECK_CYCLE)
            sum.value = CHECK_CYCLE;
        else if (sum.value == CHECK_YES && f.value != CHECK_NO)
            sum.value = f.value == CHECK_CYCLE_IF ? CHECK_IF : f.value;
        return sum;
    }
    return no;
}

static struct found rewrite(struct check *c, object_id object, int pair, int at, unsigned depth)
{
    if (c->nested >= NESTED_MAX)
        return deep;
    c->nested++;
    struct found f = combine(c, object, pair, at, depth);
    c->nested--;
    return f;
}

/* ---- nodes ---- */

/* A node's value is in: what those above it on the stack assumed about it was right if it is no. */
static void settle(struct check *c, size_t index, bool as_assumed)
{
    while (c->nstack > index) {
        struct memo *m = &c->memo[c->stack[--c->nstack]];
        if (m->state == ASSUMED)
            m->state = as_assumed || m->value == CHECK_YES ? KNOWN : ABSENT;
    }
}

/* What is remembered holds at this depth too. */
static bool holds_at(const struct check *c, const struct memo *m, unsigned depth)
{
    if (m->value == CHECK_DEEP)
        return depth >= m->depth;
    return depth <= m->depth || depth + m->height < c->depth_max;
}

static struct found decide(struct check *c, uint32_t at, object_id object, int pair, unsigned depth)
{
    uint64_t key = c->memo[at].key;
    size_t index = c->nstack;
    if (!memo_push(c, at))
        return no;
    c->memo[at].state = ASKING;
    struct found f = rewrite(c, object, pair, c->rules->pairs[pair].rule, depth);
    struct memo *m = &c->memo[memo_slot(c, key)]; /* it may have moved */
    m->depth = (uint16_t)depth;
    m->height = (uint16_t)f.height;
    m->value = (uint8_t)f.value;
    m->cycle = f.cycle;
    if (f.cycle && c->by_way) {
        m->state = ABSENT;
        settle(c, index, false);
        c->by_way = ++c->forgotten < FORGET_MAX;
        if (f.low >= (int32_t)index)
            f.low = NEVER;
    } else if (f.value == CHECK_YES || f.low >= (int32_t)index) {
        m->state = KNOWN;
        settle(c, index, f.value <= CHECK_CYCLE);
        f.low = NEVER;
    } else {
        if (f.value > CHECK_CYCLE)
            settle(c, index + 1, false);
        m->state = ASSUMED;
        m->low = f.low;
    }
    return f;
}

static struct found ask(struct check *c, object_id object, int pair, unsigned depth)
{
    if (depth >= c->depth_max)
        return deep;
    if (c->subject == object && c->relation == c->rules->pairs[pair].relation && c->pair == pair)
        return yes;
    if (!rules_reaches(c->rules, pair, c->kind))
        return no;
    if (++c->asked % ASK_STOP_EVERY == 0 && c->limits && c->limits->stop && c->limits->stop(c->limits->arg))
        c->failed = ENGINE_STOPPED;
    uint32_t at = c->failed == ENGINE_OK ? memo_at(c, (uint64_t)object << 32 | (uint32_t)pair) : UINT32_MAX;
    if (at == UINT32_MAX)
        return no;
    struct memo *m = &c->memo[at];
    if (m->state == ASKING)
        return (struct found){CHECK_CYCLE, 0, m->index, true};
    if (m->state != ABSENT && !(m->cycle && c->by_way) && holds_at(c, m, depth))
        return (struct found){(enum check_value)m->value, m->height, m->state == ASSUMED ? m->low : NEVER, m->cycle};
    return decide(c, at, object, pair, depth);
}

/* Whether it is the object of the subject's userset. */
static bool is_subject(const struct check *c, struct engine_text object)
{
    struct parts p = parts_of(c->text);
    size_t len = (size_t)(p.id.s + p.id.len - c->text.s);
    return len == object.len && memcmp(c->text.s, object.s, len) == 0;
}

enum engine_status check_object(struct check *c, object_id object, struct engine_text text, int pair, bool *answer)
{
    *answer = false;
    if (!object)
        object = c->subject == UNNAMED && is_subject(c, text) ? UNNAMED : OTHER_UNNAMED;
    c->by_way = !c->rules->pairs[pair].positive && c->forgotten < FORGET_MAX;
    struct found f = ask(c, object, pair, 0);
    if (c->failed != ENGINE_OK) {
        c->nstack = 0;
        memo_forget(c);
        return c->failed;
    }
    *answer = f.value == CHECK_YES;
    return f.value == CHECK_IF ? ENGINE_CONDITIONAL : f.value == CHECK_DEEP ? ENGINE_TOO_DEEP : ENGINE_OK;
}
