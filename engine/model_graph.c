/*
 * model_graph.c - from direct dependencies to their transitive closure.
 *
 * The closures of all pairs together could be quadratic in the model's size. Those beyond CLOSURES_MAX are not
 * computed: such a pair is taken to affect every pair, which is too much and never too little.
 */
#include "engine/model_internal.h"

#include <stdlib.h>
#include <string.h>

#define CLOSURES_MAX (4 << 20) /* ints: 16 MiB */

struct walk {
    const struct model *m;
    size_t *first; /* edges of pair i: first[i] .. first[i + 1] - 1 */
    int *stack;    /* the closure itself, in order of discovery */
    int *mark;     /* the last walk that met the pair */
    int round;
};

static int edge_cmp(const void *a, const void *b)
{
    const struct model_edge *x = a, *y = b;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    if (x->to != y->to)
        return x->to < y->to ? -1 : 1;
    return (int)x->other - (int)y->other;
}

static void edges_sort(struct model *m)
{
    size_t n = 0;
    if (m->nedges == 0)
        return;
    qsort(m->edges, m->nedges, sizeof *m->edges, edge_cmp);
    for (size_t i = 0; i < m->nedges; i++)
        if (n == 0 || edge_cmp(&m->edges[n - 1], &m->edges[i]) != 0)
            m->edges[n++] = m->edges[i];
    m->nedges = n;
}

/* Collects the closure of `pair` in w->stack. Returns its size; *other tells whether it leaves the object. */
static int closure_of(struct walk *w, int pair, bool *other)
{
    int n = 0;
    *other = false;
    w->round++;
    w->mark[pair] = w->round;
    w->stack[n++] = pair;
    for (int at = 0; at < n; at++) {
        int from = w->stack[at];
        for (size_t e = w->first[from]; e < w->first[from + 1]; e++) {
            const struct model_edge *edge = &w->m->edges[e];
            *other |= edge->other;
            if (w->mark[edge->to] != w->round) {
                w->mark[edge->to] = w->round;
                w->stack[n++] = edge->to;
            }
        }
    }
    return n;
}

static int int_cmp(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return x < y ? -1 : x > y;
}

/* *offset: where in m->closures each pair's begins; -1 = all pairs. */
static bool close_all(struct model *m, struct walk *w, long *offset)
{
    size_t used = 0, cap = 0;
    for (int i = 0; i < m->npairs; i++) {
        struct model_pair *p = &m->pairs[i];
        bool other;
        offset[i] = -1;
        p->naffects = m->npairs;
        p->by_object = false;
        if (used >= CLOSURES_MAX)
            continue;
        int n = closure_of(w, i, &other);
        if (used + (size_t)n > cap) {
            cap = (used + (size_t)n) * 2;
            int *grown = realloc(m->closures, cap * sizeof *grown);
            if (!grown)
                return false;
            m->closures = grown;
        }
        memcpy(m->closures + used, w->stack, (size_t)n * sizeof *w->stack);
        qsort(m->closures + used, (size_t)n, sizeof *m->closures, int_cmp);
        offset[i] = (long)used;
        used += (size_t)n;
        p->naffects = n;
        p->by_object = !other;
    }
    return true;
}

static void spread_conditional(struct model *m)
{
    for (int i = 0; i < m->npairs; i++)
        for (int k = 0; m->pairs[i].own_condition && k < m->pairs[i].naffects; k++)
            m->pairs[m->pairs[i].affects[k]].conditional = true;
}

bool model_close(struct model *m)
{
    size_t n = (size_t)m->npairs;
    struct walk w = {.m = m};
    bool ok = false;
    edges_sort(m);
    long *offset = calloc(n + 1, sizeof *offset);
    w.first = calloc(n + 2, sizeof *w.first);
    w.stack = calloc(n + 1, sizeof *w.stack);
    w.mark = calloc(n + 1, sizeof *w.mark);
    m->all = calloc(n + 1, sizeof *m->all);
    if (!offset || !w.first || !w.stack || !w.mark || !m->all)
        goto cleanup;
    for (int i = 0; i < m->npairs; i++)
        m->all[i] = i;
    for (size_t e = 0; e < m->nedges; e++)
        w.first[m->edges[e].from + 1]++;
    for (size_t i = 0; i < n; i++)
        w.first[i + 1] += w.first[i];
    if (!close_all(m, &w, offset))
        goto cleanup;
    for (int i = 0; i < m->npairs; i++)
        m->pairs[i].affects = offset[i] < 0 ? m->all : m->closures + offset[i];
    spread_conditional(m);
    ok = true;
cleanup:
    free(offset);
    free(w.first);
    free(w.stack);
    free(w.mark);
    free(m->edges);
    m->edges = NULL;
    m->nedges = m->cap_edges = 0;
    return ok;
}
