/* sets.c - sorted sets of keys: few in the object itself, many in a B+ tree that is copied where it changes. */
#include <string.h>

#include "engine/graph_internal.h"

/* Nodes of one level, in order, on their way into the level above. */
struct piece {
    uint64_t low;
    const struct node *node;
    bool made; /* by this change */
};
struct pieces {
    struct piece *items;
    size_t n, cap;
};

static bool push(struct txn *t, struct pieces *p, uint64_t low, const struct node *node, bool made)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : INNER_MAX + 2;
        struct piece *items = graph_alloc(t->e, cap * sizeof *items);
        if (!items)
            return false;
        if (p->n)
            memcpy(items, p->items, p->n * sizeof *items);
        graph_release(t->e, p->items);
        *p = (struct pieces){items, p->n, cap};
    }
    p->items[p->n++] = (struct piece){low, node, made};
    return true;
}

static struct node *node_new(struct txn *t, unsigned level, size_t n)
{
    struct node *node = txn_alloc(t, sizeof *node + n * (level ? 2 : 1) * sizeof(uint64_t));
    if (node)
        *node = (struct node){.level = (uint16_t)level, .n = (uint16_t)n};
    return node;
}

static const struct node *child(const struct node *node, size_t i)
{
    return (const struct node *)(uintptr_t)node->words[2 * i + 1];
}

/* Keys as leaves of even size. */
static bool push_leaves(struct txn *t, struct pieces *out, const uint64_t *keys, size_t n)
{
    size_t leaves = (n + LEAF_MAX - 1) / LEAF_MAX;
    for (size_t i = 0; i < leaves; i++) {
        size_t from = n * i / leaves, to = n * (i + 1) / leaves;
        struct node *leaf = node_new(t, 0, to - from);
        if (!leaf || !push(t, out, keys[from], leaf, true))
            return false;
        memcpy(leaf->words, keys + from, (to - from) * sizeof *keys);
    }
    return true;
}

/* Pieces of one level as nodes of the level above. */
static bool push_inner(struct txn *t, struct pieces *out, const struct pieces *in)
{
    size_t nodes = (in->n + INNER_MAX - 1) / INNER_MAX;
    for (size_t i = 0; i < nodes; i++) {
        size_t from = in->n * i / nodes, to = in->n * (i + 1) / nodes;
        struct node *node = node_new(t, in->items[0].node->level + 1u, to - from);
        if (!node || !push(t, out, in->items[from].low, node, true))
            return false;
        for (size_t k = from; k < to; k++) {
            node->words[2 * (k - from)] = in->items[k].low;
            node->words[2 * (k - from) + 1] = (uintptr_t)in->items[k].node;
        }
    }
    return true;
}

/* Merges edits into keys. out has room for both. */
static size_t merge(const uint64_t *keys, size_t n, const struct edit *edits, size_t m, uint64_t *out)
{
    size_t i = 0, k = 0;
    for (size_t j = 0; j < m; j++) {
        while (i < n && keys[i] < edits[j].key)
            out[k++] = keys[i++];
        i += i < n && keys[i] == edits[j].key;
        if (edits[j].add)
            out[k++] = edits[j].key;
    }
    while (i < n)
        out[k++] = keys[i++];
    return k;
}

/* Neighbours that have become small go together, so that a tree that shrinks gets shallower. */
static bool join(struct txn *t, struct pieces *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct node *b = p->items[i].node, *a = n ? p->items[n - 1].node : NULL;
        unsigned max = b->level ? INNER_MAX : LEAF_MAX;
        if (!a || (!p->items[n - 1].made && !p->items[i].made) || (unsigned)a->n + b->n > max * 3 / 4) {
            p->items[n++] = p->items[i];
            continue;
        }
        size_t words = b->level ? 2 : 1;
        struct node *both = node_new(t, b->level, (size_t)a->n + b->n);
        if (!both || !txn_gone(t, a) || !txn_gone(t, b))
            return false;
        memcpy(both->words, a->words, a->n * words * sizeof(uint64_t));
        memcpy(both->words + a->n * words, b->words, b->n * words * sizeof(uint64_t));
        if (b->level)
            both->words[a->n * words] = p->items[i].low;
        p->items[n - 1] = (struct piece){p->items[n - 1].low, both, true};
    }
    p->n = n;
    return true;
}

static bool tree_edit(struct txn *t, const struct node *node, uint64_t low, const struct edit *edits, size_t m,
                      struct pieces *out, long *grown);

static bool leaf_edit(struct txn *t, const struct node *leaf, uint64_t low, const struct edit *edits, size_t m,
                      struct pieces *out, long *grown)
{
    uint64_t few[2 * LEAF_MAX], *keys = few;
    if (leaf->n + m > 2 * LEAF_MAX && !(keys = graph_alloc(t->e, (leaf->n + m) * sizeof *keys)))
        return false;
    size_t n = merge(leaf->words, leaf->n, edits, m, keys);
    bool ok, same = n == leaf->n && memcmp(keys, leaf->words, n * sizeof *keys) == 0;
    *grown += (long)n - leaf->n;
    if (same)
        ok = push(t, out, low, leaf, false);
    else
        ok = txn_gone(t, leaf) && push_leaves(t, out, keys, n);
    if (keys != few)
        graph_release(t->e, keys);
    return ok;
}

static bool inner_edit(struct txn *t, const struct node *node, const struct edit *edits, size_t m, struct pieces *out,
                       long *grown)
{
    struct pieces kids = {0};
    bool ok = txn_gone(t, node);
    for (size_t i = 0, j = 0; ok && i < node->n; i++) {
        size_t from = j;
        while (j < m && (i + 1 == node->n || edits[j].key < node->words[2 * (i + 1)]))
            j++;
        if (j > from)
            ok = tree_edit(t, child(node, i), node->words[2 * i], edits + from, j - from, &kids, grown);
        else
            ok = push(t, &kids, node->words[2 * i], child(node, i), false);
    }
    ok = ok && join(t, &kids) && (kids.n == 0 || push_inner(t, out, &kids));
    graph_release(t->e, kids.items);
    return ok;
}

/* Appends to `out`, nodes of node's level, what becomes of it. */
static bool tree_edit(struct txn *t, const struct node *node, uint64_t low, const struct edit *edits, size_t m,
                      struct pieces *out, long *grown)
{
    return node->level ? inner_edit(t, node, edits, m, out, grown) : leaf_edit(t, node, low, edits, m, out, grown);
}

/* One node above all pieces; NULL with p->n == 0 if there are none, else no memory. */
static const struct node *top_of(struct txn *t, struct pieces *p)
{
    while (p->n > 1) {
        struct pieces above = {0};
        bool ok = push_inner(t, &above, p);
        graph_release(t->e, p->items);
        *p = above;
        if (!ok)
            return NULL;
    }
    const struct node *top = p->n ? p->items[0].node : NULL;
    while (top && top->level && top->n == 1) {
        if (!txn_gone(t, top))
            return NULL;
        top = child(top, 0);
    }
    return top;
}

const struct node *set_build(struct txn *t, const uint64_t *keys, size_t n)
{
    struct pieces p = {0};
    const struct node *top = push_leaves(t, &p, keys, n) ? top_of(t, &p) : NULL;
    graph_release(t->e, p.items);
    return top;
}

/* All keys of a tree that is given up. */
static bool flatten(struct txn *t, const struct node *node, uint64_t *keys, size_t *n)
{
    if (!node->level) {
        memcpy(keys + *n, node->words, node->n * sizeof *keys);
        *n += node->n;
    }
    for (size_t i = 0; node->level && i < node->n; i++)
        if (!flatten(t, child(node, i), keys, n))
            return false;
    return txn_gone(t, node);
}

static bool edit_keys(struct txn *t, const uint64_t *keys, size_t n, const struct edit *edits, size_t m,
                      struct set *out, uint64_t **scratch)
{
    *scratch = graph_alloc(t->e, (n + m + 1) * sizeof **scratch);
    if (!*scratch)
        return false;
    size_t k = merge(keys, n, edits, m, *scratch);
    *out = (struct set){(uint32_t)k, *scratch, NULL};
    if (k <= INLINE_MAX)
        return true;
    out->keys = NULL;
    out->tree = set_build(t, *scratch, k);
    return out->tree != NULL;
}

bool set_apply(struct txn *t, const struct set *old, const struct edit *edits, size_t n, struct set *out,
               uint64_t **scratch)
{
    size_t removed = 0;
    *scratch = NULL;
    *out = *old;
    if (n == 0)
        return true;
    if (!old->tree)
        return edit_keys(t, old->keys, old->n, edits, n, out, scratch);
    for (size_t i = 0; i < n; i++)
        removed += !edits[i].add;
    if (old->n <= removed + INLINE_AGAIN) {
        size_t flat = 0;
        uint64_t *keys = graph_alloc(t->e, old->n * sizeof *keys);
        bool ok = keys && flatten(t, old->tree, keys, &flat) && edit_keys(t, keys, flat, edits, n, out, scratch);
        graph_release(t->e, keys);
        return ok;
    }
    struct pieces p = {0};
    long grown = 0;
    bool ok = tree_edit(t, old->tree, 0, edits, n, &p, &grown) && (out->tree = top_of(t, &p)) != NULL;
    out->n = (uint32_t)((long)old->n + grown);
    graph_release(t->e, p.items);
    return ok;
}

void tree_free(struct engine *e, const struct node *tree)
{
    for (size_t i = 0; tree && tree->level && i < tree->n; i++)
        tree_free(e, child(tree, i));
    graph_release(e, (void *)(uintptr_t)tree);
}
