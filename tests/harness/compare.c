/* compare.c - sets of tuples: sorted arrays, made from the ledger, the store or by a test. */
#include <stdlib.h>

#include "tests/harness/compare.h"
#include "tests/harness/internal.h"

#define SHOWN 20

struct entry {
    struct tuple_key *key; /* one heap block */
    char *condition;       /* NULL = none */
    char *context;
    bool gone; /* removed, or replaced by a later one */
    size_t serial;
};

struct tuple_set {
    struct entry *items;
    size_t len, cap;
    bool sorted;
};

struct tuple_set *tuple_set_new(void)
{
    struct tuple_set *s = calloc(1, sizeof(*s));

    if (s == NULL)
        fail_msg("no memory");
    return s;
}

static void entry_release(struct entry *e)
{
    free(e->key);
    free(e->condition);
    free(e->context);
}

void tuple_set_free(struct tuple_set *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < s->len; i++)
        entry_release(&s->items[i]);
    free(s->items);
    free(s);
}

static char *dup_or_null(const char *s)
{
    char *copy;

    if (s == NULL || s[0] == '\0')
        return NULL;
    copy = strdup(s);
    if (copy == NULL)
        fail_msg("no memory");
    return copy;
}

static void append(struct tuple_set *s, const struct tuple_key *key, const char *condition, const char *context,
                   bool gone)
{
    struct entry *e;

    if (s->len == s->cap) {
        s->cap = s->cap > 0 ? s->cap * 2 : 64;
        s->items = realloc(s->items, s->cap * sizeof(*s->items));
        if (s->items == NULL)
            fail_msg("no memory");
    }
    e = &s->items[s->len];
    *e = (struct entry){.key = tuple_key_dup(key),
                        .condition = dup_or_null(condition),
                        .context = dup_or_null(context),
                        .gone = gone,
                        .serial = s->len};
    if (e->key == NULL)
        fail_msg("no memory");
    s->len++;
    s->sorted = false;
}

void tuple_set_add(struct tuple_set *s, const char *object, const char *relation, const char *subject,
                   const char *condition_name, const char *context)
{
    append(s, &(struct tuple_key){object, relation, subject}, condition_name, context, false);
}

void tuple_set_remove(struct tuple_set *s, const char *object, const char *relation, const char *subject)
{
    append(s, &(struct tuple_key){object, relation, subject}, NULL, NULL, true);
}

static int entry_cmp(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = tuple_key_cmp(x->key, y->key);

    if (c != 0)
        return c;
    return x->serial < y->serial ? -1 : 1;
}

/* Sorted, one entry a key: what was said last about it. */
static void settle(struct tuple_set *s)
{
    struct entry *kept;
    size_t n = 0;

    if (s->sorted || s->len == 0)
        return;
    kept = calloc(s->len, sizeof(*kept));
    if (kept == NULL)
        fail_msg("no memory");
    qsort(s->items, s->len, sizeof(*s->items), entry_cmp);
    for (size_t i = 0; i < s->len; i++) {
        bool last = i + 1 == s->len || tuple_key_cmp(s->items[i].key, s->items[i + 1].key) != 0;
        if (last && !s->items[i].gone) {
            kept[n] = s->items[i];
            kept[n].serial = n;
            n++;
        } else {
            entry_release(&s->items[i]);
        }
    }
    free(s->items);
    s->items = kept;
    s->cap = s->len;
    s->len = n;
    s->sorted = true;
}

size_t tuple_set_len(struct tuple_set *s)
{
    settle(s);
    return s->len;
}

static int find_cmp(const void *key, const void *item)
{
    return tuple_key_cmp(key, ((const struct entry *)item)->key);
}

bool tuple_set_has(struct tuple_set *s, const char *object, const char *relation, const char *subject)
{
    struct tuple_key key = {object, relation, subject};

    settle(s);
    return s->len > 0 && bsearch(&key, s->items, s->len, sizeof(*s->items), find_cmp) != NULL;
}

/* ---- sources ---- */

static enum status add_row(void *arg, char *line, size_t len, struct err *err)
{
    char *f[5] = {0};
    int n = pg_copy_split(line, len, f, 5);

    if (n < 3 || f[0] == NULL || f[1] == NULL || f[2] == NULL)
        return err_set(err, ST_INVALID, "", "a row has %d columns, 3 to 5 are wanted", n);
    tuple_set_add(arg, f[0], f[1], f[2], n > 3 ? f[3] : NULL, n > 4 ? f[4] : NULL);
    return ST_OK;
}

struct tuple_set *tuple_set_query(struct harness *h, const char *sql)
{
    struct tuple_set *s = tuple_set_new();
    struct err err;

    if (!pg_alive(h->pg) && pg_reopen(h->pg, deadline_in_ms(harness_ms(10000)), &err) != ST_OK)
        fail_msg("%s", err.text);
    if (pg_copy_out(h->pg, harness_strf(h, "COPY (%s) TO STDOUT", sql), harness_ms(30000), add_row, s, &err) != ST_OK)
        fail_msg("%s: %s: %s", err.code, err.text, sql);
    return s;
}

struct tuple_set *tuple_set_ledger(struct harness *h)
{
    return tuple_set_query(h, harness_strf(h,
                                           "SELECT object, relation, subject, condition_name, condition_context "
                                           "FROM relata.tuple WHERE present AND store = '%s'",
                                           h->store_name));
}

/* One page into the set; the next page's token, malloc'd, "" at the end. */
static char *read_page(struct harness *h, const char *token, struct tuple_set *s)
{
    struct store_tuples page = {0};
    enum status st = ST_RETRY;
    char *next = NULL;
    struct err err = {0};

    /* The server may just have been restarted. */
    for (int i = 0; i < 5 && st != ST_OK; i++)
        st = store_read_page(h->store_conn, token, &page, &next, deadline_in_ms(harness_ms(10000)), &err);
    if (st != ST_OK || next == NULL)
        fail_msg("reading the store: %s %s", err.code, err.text);
    for (size_t i = 0; i < page.len; i++)
        tuple_set_add(s, page.items[i].key.object, page.items[i].key.relation, page.items[i].key.subject,
                      page.items[i].condition_name, page.items[i].condition_context);
    store_tuples_free(&page);
    return next;
}

struct tuple_set *tuple_set_store(struct harness *h)
{
    struct tuple_set *s = tuple_set_new();
    char *token = read_page(h, "", s);

    while (token[0] != '\0') {
        char *next = read_page(h, token, s);
        free(token);
        token = next;
    }
    free(token);
    return s;
}

/* ---- differences ---- */

static bool same_condition(const struct entry *a, const struct entry *b)
{
    if (a->condition == NULL || b->condition == NULL)
        return a->condition == b->condition;
    return strcmp(a->condition, b->condition) == 0 && store_context_equal(a->context, b->context);
}

static void describe(struct buf *out, const char *only, const char *where, const struct entry *e)
{
    buf_addf(out, "  %s%s: %s#%s@%s%s%s %s\n", only, where, e->key->object, e->key->relation, e->key->subject,
             e->condition != NULL ? " with " : "", e->condition != NULL ? e->condition : "",
             e->context != NULL ? e->context : "");
}

size_t tuple_set_diff(struct tuple_set *a, const char *a_name, struct tuple_set *b, const char *b_name, struct buf *out)
{
    size_t i = 0, j = 0, differ = 0;

    settle(a);
    settle(b);
    while (i < a->len || j < b->len) {
        int c = i == a->len ? 1 : j == b->len ? -1 : tuple_key_cmp(a->items[i].key, b->items[j].key);
        bool equal = c == 0 && same_condition(&a->items[i], &b->items[j]);
        if (!equal && differ++ < SHOWN) {
            if (c <= 0)
                describe(out, c == 0 ? "" : "only in ", a_name, &a->items[i]);
            if (c >= 0)
                describe(out, c == 0 ? "" : "only in ", b_name, &b->items[j]);
        }
        i += c <= 0;
        j += c >= 0;
    }
    return differ;
}

void assert_tuple_sets_equal(struct tuple_set *a, const char *a_name, struct tuple_set *b, const char *b_name)
{
    struct buf out;
    size_t differ;

    buf_init(&out, 64 << 10);
    differ = tuple_set_diff(a, a_name, b, b_name, &out);
    if (differ > 0) {
        print_error("%s", buf_str(&out));
        buf_release(&out);
        fail_msg("%zu tuples differ between %s (%zu) and %s (%zu)", differ, a_name, a->len, b_name, b->len);
    }
    buf_release(&out);
}

void assert_converged(struct harness *h, int timeout_ms)
{
    assert_converged_to(h, NULL, timeout_ms);
}

void assert_converged_to(struct harness *h, struct tuple_set *expected, int timeout_ms)
{
    struct tuple_set *ledger, *store;

    assert_sql_eventually(h,
                          "SELECT (SELECT count(*) FROM relata.outbox) || ' pending, ' || "
                          "(SELECT count(*) FROM relata.inflight) || ' in flight'",
                          "0 pending, 0 in flight", timeout_ms);
    ledger = tuple_set_ledger(h);
    store = tuple_set_store(h);
    if (expected != NULL)
        assert_tuple_sets_equal(expected, "expected", ledger, "ledger");
    assert_tuple_sets_equal(ledger, "ledger", store, "store");
    tuple_set_free(ledger);
    tuple_set_free(store);
}
