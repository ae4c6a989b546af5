/* keyset.c - see keyset.h. In the text, t is the table and u the union of branches. */
#include <pthread.h>
#include <string.h>
#include <xxhash.h>

#include "common/base/utf8.h"
#include "inventory-lister/pages/keyset.h"

#define SQL_MAX (1 << 20)
#define ARRAY_MAX (IN_LIST_MAX * (2 * FILTER_VALUE_MAX + 8))

/* What a statement is made from. */
struct maker {
    struct statement *s;
    const struct collection *c;
    const struct order *o;
    const struct position *after;
    int64_t limit;
    int keys[POSITION_MAX]; /* numbers of the parameters with the values of `after` */
    struct buf where;       /* the conditions of every branch */
};

static int param(struct statement *s, struct pg_param p)
{
    s->params[s->nparams++] = p;
    return s->nparams;
}

static struct pg_param text_param(const char *text)
{
    return (struct pg_param){.data = text};
}

static bool has_zone(const struct column *col)
{
    return col->kind == COL_TIME && strcmp(col->type, "timestamp with time zone") == 0;
}

/* ---- names of prepared statements ---- */

static struct {
    pthread_mutex_t lock;
    XXH128_hash_t seen[4 * KEYSET_NAMES]; /* texts that came once, by hash */
    XXH128_hash_t texts[KEYSET_NAMES];
    char names[KEYSET_NAMES][24];
    size_t len;
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Under the lock. */
static const char *name_of(XXH128_hash_t hash)
{
    XXH128_hash_t *slot = &known.seen[hash.low64 % (4 * KEYSET_NAMES)];

    for (size_t i = 0; i < known.len; i++) {
        if (XXH128_isEqual(known.texts[i], hash))
            return known.names[i];
    }
    if (!XXH128_isEqual(*slot, hash)) {
        *slot = hash;
        return NULL;
    }
    if (known.len == KEYSET_NAMES)
        return NULL;
    known.texts[known.len] = hash;
    snprintf(known.names[known.len], sizeof known.names[0], "l%08x%014llx", (unsigned)(hash.high64 >> 32),
             (unsigned long long)(hash.low64 >> 8));
    return known.names[known.len++];
}

static enum status finish(struct statement *s, struct err *err)
{
    bool ok = buf_ok(&s->sql);

    for (int i = 0; i < FILTER_MAX; i++)
        ok = ok && buf_ok(&s->scratch[i]);
    if (!ok)
        return err_set(err, ST_NOMEM, NULL, "no memory for the statement of a page");
    pthread_mutex_lock(&known.lock);
    s->name = name_of(XXH3_128bits(s->sql.data, s->sql.len));
    pthread_mutex_unlock(&known.lock);
    return ST_OK;
}

/* ---- conditions ---- */

static void condition(struct buf *b)
{
    buf_adds(b, b->len ? " AND " : " WHERE ");
}

/*
 * The first text that begins with no such prefix but is greater: its last character raised by one. In code points'
 * order, which is that of bytes. False if there is none: nothing but U+10FFFF.
 */
static bool prefix_end(const char *prefix, struct buf *out)
{
    size_t len = strlen(prefix), at = 0, keep = 0;
    uint32_t cp = 0, last = 0;

    while (at < len) {
        size_t n = utf8_next(prefix + at, len - at, &cp);

        if (n == 0)
            return false;
        if (cp != 0x10FFFF) {
            keep = at;
            last = cp;
        }
        at += n;
    }
    if (last == 0)
        return false;
    last = last == 0xD7FF ? 0xE000 : last + 1;
    buf_add(out, prefix, keep);
    if (last < 0x80) {
        buf_addc(out, (char)last);
    } else if (last < 0x800) {
        buf_addc(out, (char)(0xC0 | last >> 6));
        buf_addc(out, (char)(0x80 | (last & 0x3F)));
    } else if (last < 0x10000) {
        buf_addc(out, (char)(0xE0 | last >> 12));
        buf_addc(out, (char)(0x80 | (last >> 6 & 0x3F)));
        buf_addc(out, (char)(0x80 | (last & 0x3F)));
    } else {
        buf_addc(out, (char)(0xF0 | last >> 18));
        buf_addc(out, (char)(0x80 | (last >> 12 & 0x3F)));
        buf_addc(out, (char)(0x80 | (last >> 6 & 0x3F)));
        buf_addc(out, (char)(0x80 | (last & 0x3F)));
    }
    return true;
}

/* By bytes: LIKE and starts_with() depend on the collation, and refuse some. */
static void add_prefix(struct maker *m, const struct column *col, const char *prefix, struct buf *scratch)
{
    const char *cast = strcmp(col->type, "bpchar") == 0 ? "::text" : "";

    buf_addf(&m->where, "t.%s%s COLLATE \"C\" >= $%d::text", col->quoted, cast,
             param(m->s, (struct pg_param){.data = prefix}));
    if (prefix_end(prefix, scratch))
        buf_addf(&m->where, " AND t.%s%s COLLATE \"C\" < $%d::text", col->quoted, cast, param(m->s, pg_p_buf(scratch)));
}

static void add_in(struct maker *m, const struct column *col, const struct filter *f, struct buf *scratch)
{
    pg_array_begin(scratch);
    for (size_t i = 0; i < f->nvalues; i++)
        pg_array_add(scratch, f->values[i]);
    pg_array_end(scratch);
    buf_addf(&m->where, "t.%s = ANY ($%d::%s[])", col->quoted, param(m->s, pg_p_buf(scratch)), col->type);
}

static void add_filter(struct maker *m, const struct filter *f, struct buf *scratch)
{
    static const char *const operators[] = {[F_EQ] = "=", [F_LT] = "<", [F_LTE] = "<=", [F_GT] = ">", [F_GTE] = ">="};
    const struct column *col = &m->c->columns[f->column];

    condition(&m->where);
    switch (f->op) {
    case F_NULL:
        buf_addf(&m->where, "t.%s IS %sNULL", col->quoted, strcmp(f->values[0], "true") == 0 ? "" : "NOT ");
        return;
    case F_PREFIX:
        add_prefix(m, col, f->values[0], scratch);
        return;
    case F_IN:
        add_in(m, col, f, scratch);
        return;
    case F_EQ:
    case F_LT:
    case F_LTE:
    case F_GT:
    case F_GTE:
        break;
    }
    buf_addf(&m->where, "t.%s %s $%d::%s", col->quoted, operators[f->op], param(m->s, text_param(f->values[0])),
             col->type);
}

/* What the declaration asks of every row; without `where`, if it need not be in lists. */
static enum status add_declared(struct maker *m, bool listed, const char *bound, struct err *err)
{
    const struct collection *c = m->c;
    enum status st;

    for (size_t i = 0; listed && i < c->nbound_null; i++) {
        condition(&m->where);
        buf_addf(&m->where, "t.%s IS NULL", c->columns[c->bound_null[i]].quoted);
    }
    if (c->columns[c->id].nullable) {
        condition(&m->where);
        buf_addf(&m->where, "t.%s IS NOT NULL", c->columns[c->id].quoted);
    }
    if (c->bound < 0)
        return ST_OK;
    if (!bound)
        return err_set(err, ST_DENIED, NULL, "\"%s\" lists only rows of the caller's claim \"%s\", which is missing",
                       c->name, c->claim);
    st = column_value_check(&c->columns[c->bound], bound, err);
    if (st != ST_OK)
        return err_prefix(err, "claim \"%s\"", c->claim);
    condition(&m->where);
    buf_addf(&m->where, "t.%s = $%d::%s", c->columns[c->bound].quoted, param(m->s, text_param(bound)),
             c->columns[c->bound].type);
    return ST_OK;
}

/* ---- the position ---- */

static const struct column *key_column(const struct maker *m, size_t i)
{
    return &m->c->columns[m->o->keys[i].column];
}

static bool key_nullable(const struct maker *m, size_t i)
{
    return m->o->keys[i].column != m->c->id && key_column(m, i)->nullable;
}

static enum status check_position(const struct maker *m, struct err *err)
{
    if (m->after->n != m->o->len)
        return err_set(err, ST_INVALID, NULL, "the position is of another order");
    for (size_t i = 0; i < m->o->len; i++) {
        const struct column *col = key_column(m, i);
        const char *v = m->after->values[i];
        bool strict = col->kind == COL_INT || col->kind == COL_UUID || col->kind == COL_BOOL || col->labels;
        enum status st;

        if (!v && !key_nullable(m, i))
            return err_set(err, ST_INVALID, NULL, "the position has no value for \"%s\"", col->name);
        if (v && strict && (st = column_value_check(col, v, err)) != ST_OK)
            return st;
    }
    return ST_OK;
}

static void add_key_value(const struct maker *m, size_t i, struct buf *b)
{
    if (has_zone(key_column(m, i)))
        buf_addf(b, "($%d::timestamp without time zone AT TIME ZONE 'UTC')", m->keys[i]);
    else
        buf_addf(b, "$%d::%s", m->keys[i], key_column(m, i)->type);
}

/* Every key before `i` equals the position's. */
static void add_equal_before(const struct maker *m, size_t i, struct buf *b)
{
    for (size_t k = 0; k < i; k++) {
        condition(b);
        if (m->after->values[k]) {
            buf_addf(b, "t.%s = ", key_column(m, k)->quoted);
            add_key_value(m, k, b);
        } else {
            buf_addf(b, "t.%s IS NULL", key_column(m, k)->quoted);
        }
    }
}

/* Whether all keys from `i` on are NOT NULL and go one way. */
static bool is_uniform_from(const struct maker *m, size_t i)
{
    for (size_t k = i; k < m->o->len; k++) {
        if (key_nullable(m, k) || m->o->keys[k].descending != m->o->keys[i].descending)
            return false;
    }
    return true;
}

static void add_row_comparison(const struct maker *m, size_t from, struct buf *b)
{
    condition(b);
    buf_addc(b, '(');
    for (size_t k = from; k < m->o->len; k++)
        buf_addf(b, "%st.%s", k > from ? ", " : "", key_column(m, k)->quoted);
    buf_addf(b, ") %c (", m->o->keys[from].descending ? '<' : '>');
    for (size_t k = from; k < m->o->len; k++) {
        buf_adds(b, k > from ? ", " : "");
        add_key_value(m, k, b);
    }
    buf_addc(b, ')');
}

/* ---- the select list and the order ---- */

static void add_key_text(const struct maker *m, size_t i, const char *expression, struct buf *b)
{
    if (has_zone(key_column(m, i)))
        buf_addf(b, ", (%s AT TIME ZONE 'UTC')::text", expression);
    else
        buf_addf(b, ", %s::text", expression);
}

/* The function takes longer than all the rest of a page, and nothing in numbers and UUIDs is to be encoded. */
static void add_object_id(const struct maker *m, const char *expression, struct buf *b)
{
    if (m->c->columns[m->c->id].kind == COL_TEXT)
        buf_addf(b, "relata.encode_id(%s::text)", expression);
    else
        buf_addf(b, "%s::text", expression);
}

static void add_shown(const struct maker *m, struct buf *b)
{
    char id[600];

    for (size_t i = 0; i < m->c->ncolumns; i++) {
        if (m->c->columns[i].shown)
            buf_addf(b, "t.%s, ", m->c->columns[i].quoted);
    }
    snprintf(id, sizeof id, "t.%s", m->c->columns[m->c->id].quoted);
    add_object_id(m, id, b);
}

static void add_order(const struct maker *m, struct buf *b)
{
    buf_adds(b, " ORDER BY ");
    for (size_t i = 0; i < m->o->len; i++)
        buf_addf(b, "%st.%s%s", i ? ", " : "", key_column(m, i)->quoted, m->o->keys[i].descending ? " DESC" : "");
    buf_addf(b, " LIMIT %lld", (long long)m->limit);
}

/* One range: the whole statement. */
static void add_single(const struct maker *m, const struct buf *where)
{
    struct buf *b = &m->s->sql;
    char column[600];

    buf_adds(b, "SELECT ");
    add_shown(m, b);
    for (size_t i = 0; i < m->o->len; i++) {
        snprintf(column, sizeof column, "t.%s", key_column(m, i)->quoted);
        add_key_text(m, i, column, b);
    }
    buf_addf(b, " FROM %s t", m->c->table);
    buf_add(b, where->data, where->len);
    add_order(m, b);
}

/* ---- branches ---- */

struct branches {
    const struct maker *m;
    struct buf where; /* of the one at hand */
    int n;
};

/* Columns with names of our own: those of the table may be the same twice, as shown and as key. */
static void branch_end(struct branches *br)
{
    const struct maker *m = br->m;
    struct buf *b = &m->s->sql;

    buf_adds(b, br->n++ ? " UNION ALL (SELECT " : "(SELECT ");
    for (size_t i = 0; i < m->c->ncolumns; i++) {
        if (m->c->columns[i].shown)
            buf_addf(b, "t.%s AS c%zu, ", m->c->columns[i].quoted, i);
    }
    for (size_t i = 0; i < m->o->len; i++)
        buf_addf(b, "%st.%s AS k%zu", i ? ", " : "", key_column(m, i)->quoted, i);
    buf_addf(b, " FROM %s t", m->c->table);
    buf_add(b, br->where.data, br->where.len);
    if (!buf_ok(&br->where))
        b->failed = true;
    add_order(m, b);
    buf_addc(b, ')');
}

static struct buf *branch_begin(struct branches *br, size_t i)
{
    buf_clear(&br->where);
    buf_add(&br->where, br->m->where.data, br->m->where.len);
    add_equal_before(br->m, i, &br->where);
    return &br->where;
}

/* Rows that are equal before key `i` and beyond in it: NULLs are last ascending, first descending. */
static void add_beyond(struct branches *br, size_t i)
{
    const struct maker *m = br->m;
    const char *name = key_column(m, i)->quoted;
    bool down = m->o->keys[i].descending;
    struct buf *b;

    if (m->after->values[i]) {
        b = branch_begin(br, i);
        condition(b);
        buf_addf(b, "t.%s %c ", name, down ? '<' : '>');
        add_key_value(m, i, b);
        branch_end(br);
    }
    if (key_nullable(m, i) && down != (m->after->values[i] != NULL)) {
        b = branch_begin(br, i);
        condition(b);
        buf_addf(b, "t.%s IS %sNULL", name, down ? "NOT " : "");
        branch_end(br);
    }
}

static void add_union(struct maker *m)
{
    struct branches br = {.m = m, .where = {.max = SQL_MAX}};
    struct buf *b = &m->s->sql;
    char column[24];
    size_t i = 0, last = m->o->len - 1;

    buf_adds(b, "SELECT ");
    for (size_t n = 0; n < m->c->ncolumns; n++) {
        if (m->c->columns[n].shown)
            buf_addf(b, "u.c%zu, ", n);
    }
    snprintf(column, sizeof column, "u.k%zu", last);
    add_object_id(m, column, b);
    for (size_t n = 0; n <= last; n++) {
        snprintf(column, sizeof column, "u.k%zu", n);
        add_key_text(m, n, column, b);
    }
    buf_adds(b, " FROM (");
    for (; !is_uniform_from(m, i); i++)
        add_beyond(&br, i);
    add_row_comparison(m, i, branch_begin(&br, i));
    branch_end(&br);
    buf_adds(b, ") u ORDER BY ");
    for (size_t n = 0; n <= last; n++)
        buf_addf(b, "%su.k%zu%s", n ? ", " : "", n, m->o->keys[n].descending ? " DESC" : "");
    buf_addf(b, " LIMIT %lld", (long long)m->limit);
    buf_release(&br.where);
}

/* ---- whole statements ---- */

static void maker_init(struct maker *m, struct statement *s, const struct collection *c)
{
    memset(s, 0, sizeof *s);
    *m = (struct maker){.s = s, .c = c, .where = {.max = SQL_MAX}};
    buf_init(&s->sql, SQL_MAX);
    for (int i = 0; i < FILTER_MAX; i++)
        buf_init(&s->scratch[i], ARRAY_MAX);
}

static enum status end(struct maker *m, enum status st, struct err *err)
{
    if (!buf_ok(&m->where))
        m->s->sql.failed = true;
    buf_release(&m->where);
    return st == ST_OK ? finish(m->s, err) : st;
}

enum status keyset_build(struct statement *out, const struct collection *c, const struct order *o,
                         const struct filters *f, const char *bound, const struct position *after, int64_t limit,
                         struct err *err)
{
    struct maker m;
    enum status st;

    maker_init(&m, out, c);
    if (limit < 1)
        return end(&m, err_set(err, ST_FATAL, NULL, "a page of %lld rows was asked for", (long long)limit), err);
    m.o = o;
    m.after = after;
    m.limit = limit;
    st = add_declared(&m, true, bound, err);
    for (size_t i = 0; i < f->len && st == ST_OK; i++)
        add_filter(&m, &f->items[i], &out->scratch[i]);
    if (st == ST_OK && after)
        st = check_position(&m, err);
    if (st != ST_OK)
        return end(&m, st, err);
    if (!after) {
        add_single(&m, &m.where);
        return end(&m, ST_OK, err);
    }
    for (size_t i = 0; i < o->len; i++) {
        if (after->values[i]) /* NULL is asked for by IS NULL */
            m.keys[i] = param(out, text_param(after->values[i]));
    }
    if (is_uniform_from(&m, 0)) {
        add_row_comparison(&m, 0, &m.where);
        add_single(&m, &m.where);
    } else {
        add_union(&m);
    }
    return end(&m, ST_OK, err);
}

static enum status build_one(struct statement *out, const struct collection *c, bool listed, const char *bound,
                             const char *id, struct err *err)
{
    const struct column *col = &c->columns[c->id];
    struct maker m;
    enum status st;

    maker_init(&m, out, c);
    st = add_declared(&m, listed, bound, err);
    if (st == ST_OK && column_value_check(col, id, NULL) != ST_OK)
        st = err_set(err, ST_NOT_FOUND, NULL, "no row has this id");
    if (st != ST_OK)
        return end(&m, st, err);
    condition(&m.where);
    buf_addf(&m.where, "t.%s = $%d::%s", col->quoted, param(out, text_param(id)), col->type);
    buf_adds(&out->sql, "SELECT ");
    add_shown(&m, &out->sql);
    buf_addf(&out->sql, " FROM %s t%s LIMIT 1", c->table, buf_str(&m.where));
    return end(&m, ST_OK, err);
}

enum status keyset_build_one(struct statement *out, const struct collection *c, const char *bound, const char *id,
                             struct err *err)
{
    return build_one(out, c, true, bound, id, err);
}

enum status keyset_build_unlisted(struct statement *out, const struct collection *c, const char *bound, const char *id,
                                  struct err *err)
{
    return build_one(out, c, false, bound, id, err);
}

void statement_free(struct statement *s)
{
    buf_release(&s->sql);
    for (int i = 0; i < FILTER_MAX; i++)
        buf_release(&s->scratch[i]);
    s->name = NULL;
    s->nparams = 0;
}
