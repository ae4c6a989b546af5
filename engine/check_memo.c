/* check_memo.c - nodes and what is known of them: a table that is emptied by counting rounds; the subject. */
#include <stdlib.h>
#include <string.h>

#include "engine/check_internal.h"

#define DEPTH_DEFAULT 25
#define MEMO_FIRST 1024

size_t memo_slot(const struct check *c, uint64_t key)
{
    size_t i = (key ^ key >> 29) * 0x9E3779B97F4A7C15u >> 20;
    while (c->memo[i & c->memo_mask].round == c->round && c->memo[i & c->memo_mask].key != key)
        i++;
    return i & c->memo_mask;
}

static bool memo_grow(struct check *c)
{
    struct memo *old = c->memo;
    size_t slots = old ? 2 * (c->memo_mask + 1) : MEMO_FIRST, n = old ? c->memo_mask + 1 : 0;
    struct memo *memo = calloc(slots, sizeof *memo);
    uint32_t *moved = malloc((n + 1) * sizeof *moved);
    if (!memo || !moved) {
        free(memo);
        free(moved);
        c->failed = ENGINE_NOMEM;
        return false;
    }
    c->memo = memo;
    c->memo_mask = slots - 1;
    for (size_t i = 0; i < n; i++)
        if (old[i].round == c->round) {
            moved[i] = (uint32_t)memo_slot(c, old[i].key);
            memo[moved[i]] = old[i];
        }
    for (size_t i = 0; i < c->nstack; i++)
        c->stack[i] = moved[c->stack[i]];
    free(moved);
    free(old);
    return true;
}

uint32_t memo_at(struct check *c, uint64_t key)
{
    if ((c->nmemo + 1) * 2 > c->memo_mask && !memo_grow(c))
        return UINT32_MAX;
    size_t i = memo_slot(c, key);
    if (c->memo[i].round != c->round) {
        c->memo[i] = (struct memo){.key = key, .round = c->round, .state = ABSENT};
        c->nmemo++;
    }
    return (uint32_t)i;
}

bool memo_push(struct check *c, uint32_t at)
{
    if (c->nstack == c->stack_cap) {
        size_t cap = c->stack_cap ? 2 * c->stack_cap : 256;
        uint32_t *stack = realloc(c->stack, cap * sizeof *stack);
        if (!stack) {
            c->failed = ENGINE_NOMEM;
            return false;
        }
        c->stack = stack;
        c->stack_cap = cap;
    }
    c->memo[at].index = (int32_t)c->nstack;
    c->stack[c->nstack++] = at;
    return true;
}

void memo_forget(struct check *c)
{
    c->nmemo = c->nstack = 0;
    c->forgotten = 0;
    if (++c->round == 0) {
        memset(c->memo, 0, (c->memo_mask + 1) * sizeof *c->memo);
        memset(c->mine, 0, sizeof c->mine);
        c->round = 1;
    }
}

static void check_free(void *p)
{
    struct check *c = p;
    if (c) {
        free(c->memo);
        free(c->stack);
    }
    free(c);
}

struct check *check_open(struct engine_reader *r, const struct rules *rules, struct tuples *tuples,
                         const struct engine_limits *limits)
{
    struct check *c = r->scratch;
    if (!c) {
        c = calloc(1, sizeof *c);
        if (!c || !memo_grow(c)) {
            free(c);
            return NULL;
        }
        r->scratch = c;
        r->scratch_free = check_free;
    }
    c->reader = r;
    c->rules = rules;
    c->tuples = tuples;
    c->limits = limits;
    c->depth_max = limits && limits->depth ? limits->depth : DEPTH_DEFAULT;
    c->failed = ENGINE_OK;
    c->condition = (struct engine_text){"", 0};
    return c;
}

bool check_subject(struct check *c, struct engine_text subject)
{
    struct parts p = parts_of(subject);
    const struct engine *e = c->tuples->engine;
    c->text = subject;
    c->type = graph_name_find(e, p.type.s, p.type.len);
    c->relation = p.relation.len ? graph_name_find(e, p.relation.s, p.relation.len) : 0;
    c->pair = p.relation.len ? rules_pair(c->rules, c->type, c->relation) : -1;
    int type = rules_type(c->rules, c->type);
    if (type < 0 || (p.relation.len && c->pair < 0))
        return false;
    c->kind = rules_kind(c->rules, type, c->pair);
    c->subject = tuples_object(c->tuples, c->type, p.id.s, p.id.len);
    if (p.relation.len && !c->subject)
        c->subject = UNNAMED;
    c->wildcard = p.relation.len ? 0 : tuples_object(c->tuples, c->type, "*", 1);
    memo_forget(c);
    return true;
}

struct engine_text check_condition(const struct check *c)
{
    return c->condition;
}
