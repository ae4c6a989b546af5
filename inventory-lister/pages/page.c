#include "inventory-lister/pages/page.h"

#include <stdlib.h>
#include <string.h>

#include "common/pg/snapshot.h"
#include "inventory-lister/pages/keyset.h"
#include "inventory-lister/pages/row_json.h"

#define FETCH_MIN 51
#define FETCH_MAX 1001
/* Rows read ahead while nothing is known of how many are visible, and the first fetch above which none are. */
#define AHEAD_MAX 201
#define ITEMS_MAX (15u << 20) /* of JSON */

/* Rows of one statement, and what is decided about them. */
struct fetch {
    struct pg_result *rows;
    int n;
    bool last; /* the list ends with it */
    char *text;
    struct decide_item *items;
    struct decide_group *group;
};

/* A row that the page shows, kept apart while its flags are asked for. */
struct shown {
    size_t end; /* of its JSON in `rows` */
    char *object;
    struct position at;
};

/* The flags of the rows that came with one fetch. */
struct flags {
    struct decide_item *items; /* nflags a row */
    struct decide_group *group;
    size_t first, n; /* rows */
    struct flags *next;
};

struct reader {
    struct pg *pg;
    struct decider *d;
    const struct page_request *rq;
    struct page *out;
    int first_value;         /* column of the id; the order's values follow */
    const char **flag_names; /* of with_relations, those that have to be asked for */
    size_t nflags;
    struct position read_to;  /* last row read */
    struct position consumed; /* last row shown, or known to be hidden and fit to end a page */
    bool end;                 /* the list has been read to its end */
    int64_t read, visible, seen;
    struct buf rows;
    struct shown *shown;
    struct flags *flags, **flags_tail;
    struct err why; /* what ended the page early; status ST_OK = nothing but the budget */
};

/* ---- reading ---- */

/* Few different limits, so that few statements are prepared. */
static int64_t step(int64_t limit)
{
    static const int64_t steps[] = {2, 6, 11, 21, 26, 51, 101, 151, 201, 301, 501, 701, FETCH_MAX};

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
        if (limit <= steps[i])
            return steps[i];
    return FETCH_MAX;
}

/* How many rows to read so that the page is likely to be full after them. */
static int64_t next_limit(const struct reader *r)
{
    int64_t need = r->rq->size + 1 - r->visible, limit;

    if (r->seen == 0)
        limit = need < AHEAD_MAX ? need : AHEAD_MAX;
    else if (r->visible == 0)
        limit = 2 * r->seen;
    else
        limit = need * r->seen / r->visible + need / 8 + 1;
    return step(limit < FETCH_MIN ? FETCH_MIN : limit);
}

static bool position_copy(struct position *to, const struct pg_result *rows, int row, int first, size_t n)
{
    bool ok = true;

    position_free(to);
    to->n = n;
    for (size_t i = 0; i < n; i++) {
        to->values[i] = NULL;
        if (!pg_is_null(rows, row, first + (int)i)) {
            to->values[i] = strdup(pg_text(rows, row, first + (int)i));
            ok = ok && to->values[i];
        }
    }
    return ok;
}

static bool position_of(const struct reader *r, struct position *to, const struct fetch *f, int row)
{
    return position_copy(to, f->rows, row, r->first_value + 1, r->rq->order->len);
}

static void fetch_release(struct fetch *f)
{
    if (f->group)
        decide_finish(f->group, NULL);
    pg_result_free(f->rows);
    free(f->text);
    free(f->items);
    *f = (struct fetch){0};
}

static enum status run_statement(struct reader *r, const struct statement *s, struct fetch *f, struct err *err)
{
    int64_t timeout = r->rq->statement_timeout_ms;
    mono_us deadline = deadline_min(r->rq->query->deadline, timeout > 0 ? deadline_in_ms(timeout) : DEADLINE_NONE);
    enum status st =
        pg_snapshot_query(r->pg, s->name, buf_str(&s->sql), s->params, s->nparams, deadline, &f->rows, err);

    /* The session may have died since the last request; within a page it takes the snapshot with it. */
    if (st == ST_RETRY && r->read == 0) {
        pg_snapshot_end(r->pg);
        st = pg_alive(r->pg) ? ST_OK : pg_reopen(r->pg, deadline, err);
        if (st == ST_OK)
            st = pg_snapshot_query(r->pg, s->name, buf_str(&s->sql), s->params, s->nparams, deadline, &f->rows, err);
    }
    return st;
}

static enum status read_rows(struct reader *r, int64_t limit, struct fetch *f, struct err *err)
{
    const struct page_request *rq = r->rq;
    const struct position *after = r->read > 0 ? &r->read_to : rq->after;
    struct statement s = {0};
    mono_us begin = clock_mono_us();
    int64_t left = rq->scan_budget - r->read;
    enum status st = keyset_build(&s, rq->collection, rq->order, rq->filters, rq->bound, after, limit, err);

    if (st == ST_OK)
        st = run_statement(r, &s, f, err);
    statement_free(&s);
    r->out->sql_us += clock_mono_us() - begin;
    if (st != ST_OK)
        return st;
    f->n = pg_rows(f->rows);
    f->last = f->n < limit;
    if (f->n > left) {
        f->n = (int)left;
        f->last = false;
    }
    r->end = f->last;
    r->read += f->n;
    if (f->n > 0 && !position_of(r, &r->read_to, f, f->n - 1))
        st = err_set(err, ST_NOMEM, NULL, "no memory for a page");
    return st;
}

/* ---- deciding ---- */

static enum status begin_checks(struct reader *r, struct fetch *f, struct err *err)
{
    const char *type = r->rq->collection->type;
    size_t type_len = strlen(type), need = 1, at = 0;

    for (int i = 0; i < f->n; i++)
        need += type_len + 2 + pg_len(f->rows, i, r->first_value);
    f->text = malloc(need);
    f->items = calloc((size_t)f->n + 1, sizeof(f->items[0]));
    if (!f->text || !f->items)
        return err_set(err, ST_NOMEM, NULL, "no memory for a page");
    for (int i = 0; i < f->n; i++) {
        size_t id_len = pg_len(f->rows, i, r->first_value);
        f->items[i] = (struct decide_item){.object = f->text + at, .relation = r->rq->relation};
        memcpy(f->text + at, type, type_len);
        f->text[at + type_len] = ':';
        memcpy(f->text + at + type_len + 1, pg_text(f->rows, i, r->first_value), id_len + 1);
        at += type_len + id_len + 2;
    }
    return f->n == 0 ? ST_OK : decide_start(r->d, r->rq->query, f->items, (size_t)f->n, &f->group, err);
}

static void end_checks(struct reader *r, struct fetch *f, struct err *why)
{
    mono_us begin = clock_mono_us();

    *why = (struct err){.status = ST_OK};
    if (f->group)
        decide_finish(f->group, why);
    f->group = NULL;
    r->out->check_us += clock_mono_us() - begin;
}

static void count_item(struct reader *r, const struct decide_item *it)
{
    r->out->checked += it->by == BY_STORE;
    r->out->cached += it->by == BY_CACHE;
}

/* ---- what is shown ---- */

static bool show(struct reader *r, const struct fetch *f, int row)
{
    struct shown *s = &r->shown[r->out->shown];

    row_json(&r->rows, r->rq->collection, f->rows, row);
    s->end = r->rows.len;
    if (r->nflags > 0) {
        s->object = strdup(f->items[row].object);
        if (!s->object || !position_of(r, &s->at, f, row))
            return false;
    }
    r->out->shown++;
    return buf_ok(&r->rows);
}

/* Ask for the flags of the rows from `first` on. */
static enum status begin_flags(struct reader *r, size_t first, struct err *err)
{
    size_t n = (size_t)r->out->shown - first;
    struct flags *fl;

    if (r->nflags == 0 || n == 0)
        return ST_OK;
    fl = calloc(1, sizeof(*fl));
    if (fl)
        fl->items = calloc(n * r->nflags, sizeof(fl->items[0]));
    if (!fl || !fl->items) {
        free(fl);
        return err_set(err, ST_NOMEM, NULL, "no memory for a page");
    }
    fl->first = first;
    fl->n = n;
    for (size_t i = 0; i < n * r->nflags; i++)
        fl->items[i] = (struct decide_item){.object = r->shown[first + i / r->nflags].object,
                                            .relation = r->flag_names[i % r->nflags]};
    *r->flags_tail = fl;
    r->flags_tail = &fl->next;
    return decide_start(r->d, r->rq->query, fl->items, n * r->nflags, &fl->group, err);
}

/* Whether a page can end with this row. One that is hidden and cannot must not show itself by it. */
static bool fits_token(const struct reader *r, const struct fetch *f, int row)
{
    size_t len = 0;

    for (size_t i = 1; i <= r->rq->order->len; i++)
        len += pg_len(f->rows, row, r->first_value + (int)i);
    return len <= TOKEN_VALUES_MAX;
}

enum verdict { GO_ON, FULL, EARLY, BROKEN };

/* Take the rows of a fetch in their order. */
static enum verdict consume(struct reader *r, const struct fetch *f)
{
    int last = -1;
    enum verdict v = GO_ON;

    for (int i = 0; i < f->n && v == GO_ON; i++) {
        const struct decide_item *it = &f->items[i];
        count_item(r, it);
        if (it->decision == DECISION_FAILED) {
            v = EARLY;
        } else if (it->decision == DECISION_ALLOW && r->out->shown == r->rq->size) {
            r->visible++;
            v = FULL;
        } else {
            bool allowed = it->decision == DECISION_ALLOW;
            if (allowed && ++r->visible && !show(r, f, i))
                v = BROKEN;
            if (allowed || fits_token(r, f, i))
                last = i;
            r->seen++;
        }
    }
    if (last >= 0 && !position_of(r, &r->consumed, f, last))
        v = BROKEN;
    return v;
}

/* ---- the loop ---- */

static bool want_ahead(const struct reader *r, const struct fetch *f)
{
    int64_t expected;

    if (f->last || r->read >= r->rq->scan_budget || !f->group || decide_done(f->group))
        return false;
    if (r->seen == 0)
        return f->n < AHEAD_MAX;
    expected = r->visible * f->n / r->seen;
    return r->visible + expected < r->rq->size + 1;
}

/*
 * One fetch after the other: while the checks of one run, the next is read. ST_OK: the page is as full as it gets, and
 * *early says whether for the wrong reasons (r->why).
 */
static enum status read_all(struct reader *r, bool *early, struct err *err)
{
    struct fetch now = {0}, ahead = {0};
    enum verdict v = GO_ON;
    enum status st = read_rows(r, step(r->rq->size + 1), &now, &r->why);

    *early = false;
    while (st == ST_OK && v == GO_ON) {
        struct err read_err = {.status = ST_OK};
        size_t before = (size_t)r->out->shown;
        enum status read = ST_OK;

        st = begin_checks(r, &now, &r->why);
        if (st != ST_OK)
            break;
        if (want_ahead(r, &now))
            read = read_rows(r, next_limit(r), &ahead, &read_err);
        end_checks(r, &now, &r->why);
        v = consume(r, &now);
        if (v != BROKEN)
            st = begin_flags(r, before, &r->why);
        if (v != GO_ON || st != ST_OK || now.last)
            break;
        fetch_release(&now);
        if (read != ST_OK) {
            r->why = read_err;
            st = read;
        } else if (ahead.rows) {
            now = ahead;
            ahead = (struct fetch){0};
        } else if (r->read >= r->rq->scan_budget) {
            v = EARLY;
        } else {
            st = read_rows(r, next_limit(r), &now, &r->why);
        }
    }
    fetch_release(&now);
    fetch_release(&ahead);
    if (v == BROKEN)
        return err_set(err, ST_TOO_BIG, "page_too_big", "the rows of the page are too large; ask for a smaller page");
    if (st != ST_OK && r->read == 0) {
        if (err)
            *err = r->why;
        return st;
    }
    *early = st != ST_OK || v == EARLY;
    r->out->more = *early || v == FULL;
    return ST_OK;
}

/* ---- putting the page together ---- */

static void add_flags(struct reader *r, const struct decide_item *items)
{
    const struct page_request *rq = r->rq;
    size_t asked = 0;

    buf_adds(&r->out->items, ",\"relations\":{");
    for (size_t i = 0; i < rq->nwith; i++) {
        bool allowed = true; /* the row's own relation: it would not be here otherwise */
        if (strcmp(rq->with_relations[i], rq->relation) != 0)
            allowed = items[asked++].decision == DECISION_ALLOW;
        if (i > 0)
            buf_addc(&r->out->items, ',');
        json_quote(&r->out->items, rq->with_relations[i], strlen(rq->with_relations[i]));
        buf_adds(&r->out->items, allowed ? ":true" : ":false");
    }
    buf_addc(&r->out->items, '}');
}

static bool flags_known(const struct reader *r, const struct decide_item *items)
{
    for (size_t i = 0; i < r->nflags; i++)
        if (items[i].decision == DECISION_FAILED)
            return false;
    return true;
}

static void add_row(struct reader *r, size_t i, const struct decide_item *flags)
{
    size_t from = i > 0 ? r->shown[i - 1].end : 0;

    if (i > 0)
        buf_addc(&r->out->items, ',');
    buf_add(&r->out->items, buf_str(&r->rows) + from, r->shown[i].end - from);
    if (r->rq->nwith > 0)
        add_flags(r, flags);
    buf_addc(&r->out->items, '}');
}

/* The rows up to the first whose flags are not known: the page ends before it. Returns how many there are. */
static size_t add_rows(struct reader *r)
{
    size_t i = 0, n = (size_t)r->out->shown;

    if (r->nflags == 0) {
        for (; i < n; i++)
            add_row(r, i, NULL);
        return n;
    }
    for (struct flags *fl = r->flags; fl && fl->first == i; fl = fl->next) {
        struct err why = {.status = ST_OK};
        if (fl->group)
            decide_finish(fl->group, &why);
        fl->group = NULL;
        for (size_t k = 0; k < fl->n * r->nflags; k++)
            count_item(r, &fl->items[k]);
        for (; i < fl->first + fl->n; i++) {
            const struct decide_item *items = &fl->items[(i - fl->first) * r->nflags];
            if (!flags_known(r, items)) {
                if (r->why.status == ST_OK)
                    r->why = why;
                return i;
            }
            add_row(r, i, items);
        }
    }
    return i;
}

static enum status nothing_to_show_for(const struct reader *r, struct err *err)
{
    if (r->why.status == ST_OK)
        return err_set(err, ST_UNKNOWN, NULL, "no row could be decided");
    if (err)
        *err = r->why;
    return r->why.status;
}

static void position_move(struct position *to, struct position *from)
{
    position_free(to);
    *to = *from;
    *from = (struct position){0};
}

static enum status finish(struct reader *r, bool early, struct err *err)
{
    size_t added;

    buf_addc(&r->out->items, '[');
    added = add_rows(r);
    buf_addc(&r->out->items, ']');
    if (!buf_ok(&r->out->items))
        return err_set(err, ST_TOO_BIG, "page_too_big", "the rows of the page are too large; ask for a smaller page");
    if (added < (size_t)r->out->shown) {
        if (added == 0)
            return nothing_to_show_for(r, err);
        r->out->shown = (int64_t)added;
        position_move(&r->consumed, &r->shown[added - 1].at);
        early = r->out->more = true;
    }
    /* Not one step forward: an empty page that says "go on from here" would only be asked for again. */
    if (early && r->consumed.n == 0)
        return nothing_to_show_for(r, err);
    r->out->complete = !early || r->out->shown == r->rq->size;
    r->out->scanned = r->seen;
    if (r->out->more)
        position_move(&r->out->at, &r->consumed);
    return ST_OK;
}

static enum status reader_init(struct reader *r, struct err *err)
{
    const struct page_request *rq = r->rq;

    r->first_value = row_json_columns(rq->collection);
    r->flags_tail = &r->flags;
    buf_init(&r->rows, ITEMS_MAX);
    buf_init(&r->out->items, ITEMS_MAX + (1u << 20));
    r->shown = calloc((size_t)rq->size, sizeof(r->shown[0]));
    r->flag_names = calloc(rq->nwith + 1, sizeof(r->flag_names[0]));
    if (!r->shown || !r->flag_names)
        return err_set(err, ST_NOMEM, NULL, "no memory for a page");
    for (size_t i = 0; i < rq->nwith; i++)
        if (strcmp(rq->with_relations[i], rq->relation) != 0)
            r->flag_names[r->nflags++] = rq->with_relations[i];
    return ST_OK;
}

static void reader_release(struct reader *r)
{
    while (r->flags) {
        struct flags *fl = r->flags;
        r->flags = fl->next;
        if (fl->group)
            decide_finish(fl->group, NULL);
        free(fl->items);
        free(fl);
    }
    for (int64_t i = 0; r->shown && i < r->rq->size; i++) {
        free(r->shown[i].object);
        position_free(&r->shown[i].at);
    }
    free(r->shown);
    free(r->flag_names);
    buf_release(&r->rows);
    position_free(&r->read_to);
    position_free(&r->consumed);
}

enum status page_read(struct pg *pg, struct decider *d, const struct page_request *rq, struct page *out,
                      struct err *err)
{
    struct reader r = {.pg = pg, .d = d, .rq = rq, .out = out};
    bool early = false;
    enum status st;

    *out = (struct page){0};
    st = reader_init(&r, err);
    if (st == ST_OK)
        st = read_all(&r, &early, err);
    pg_snapshot_end(pg);
    if (st == ST_OK)
        st = finish(&r, early, err);
    reader_release(&r);
    if (st != ST_OK)
        page_free(out);
    return st;
}

void page_free(struct page *p)
{
    buf_release(&p->items);
    position_free(&p->at);
    *p = (struct page){0};
}
