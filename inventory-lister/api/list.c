/* list.c - GET /v1/inventory and GET /v1/inventory/{collection}. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/admin/metrics.h"
#include "inventory-lister/api/internal.h"
#include "inventory-lister/pages/page.h"
#include "inventory-lister/pages/row_json.h"

static struct metric m_pages = METRIC_INIT(METRIC_COUNTER, "relata_lister_pages_total", "Pages answered.", NULL);
static struct metric m_early = METRIC_INIT(METRIC_COUNTER, "relata_lister_pages_incomplete_total",
                                           "Pages that ended early: budget, deadline or failed checks.", NULL);
static struct metric m_shown = METRIC_INIT(METRIC_COUNTER, "relata_lister_rows_shown_total", "Rows on pages.", NULL);
static struct metric m_scanned =
    METRIC_INIT(METRIC_COUNTER, "relata_lister_rows_scanned_total", "Rows decided for pages.", NULL);
static struct metric m_seconds =
    METRIC_INIT(METRIC_HISTOGRAM, "relata_lister_page_seconds", "Time to make a page.", NULL);
static struct metric m_sql =
    METRIC_INIT(METRIC_HISTOGRAM, "relata_lister_page_sql_seconds", "Time of a page's statements.", NULL);

void api_metrics_register(void)
{
    struct metric *const all[] = {&m_pages, &m_early, &m_shown, &m_scanned, &m_seconds, &m_sql, &m_min_token_waiting};
    metric_register_all(all, sizeof(all) / sizeof(all[0]));
}

/* ---- what there is ---- */

static const char *kind_name(enum column_kind kind)
{
    static const char *const names[] = {
        [COL_TEXT] = "text",    [COL_INT] = "integer", [COL_FLOAT] = "number", [COL_NUMERIC] = "number",
        [COL_BOOL] = "boolean", [COL_TIME] = "time",   [COL_DATE] = "date",    [COL_UUID] = "uuid",
        [COL_JSON] = "json",    [COL_OTHER] = "other"};
    return names[kind];
}

static json_t *filters_json(const struct column *col)
{
    json_t *list = json_array();

    if (!col->filterable)
        return list;
    json_array_append_new(list, json_string("eq"));
    json_array_append_new(list, json_string("in"));
    if (col->kind == COL_TEXT && !col->labels)
        json_array_append_new(list, json_string("prefix"));
    if (col->kind != COL_BOOL) {
        static const char *const ranges[] = {"lt", "lte", "gt", "gte"};
        for (size_t i = 0; i < 4; i++)
            json_array_append_new(list, json_string(ranges[i]));
    }
    if (col->nullable)
        json_array_append_new(list, json_string("null"));
    return list;
}

static json_t *order_json(const struct collection *c)
{
    struct buf text;
    json_t *json;

    buf_init(&text, 4096);
    /* The id at the end is always there. */
    for (size_t i = 0; i < c->order->len; i++) {
        const struct sort_key *k = &c->order->keys[i];
        if (i + 1 < c->order->len || c->order->len == 1)
            buf_addf(&text, "%s%s%s", text.len ? "," : "", k->descending ? "-" : "", c->columns[k->column].name);
    }
    json = json_string(buf_str(&text));
    buf_release(&text);
    return json;
}

static json_t *collection_json(const struct collection *c)
{
    json_t *columns = json_array(), *relations = json_array();

    for (size_t i = 0; i < c->nrelations; i++)
        json_array_append_new(relations, json_string(c->relations[i]));
    for (size_t i = 0; i < c->ncolumns; i++) {
        const struct column *col = &c->columns[i];
        if (col->shown || col->sortable || col->filterable)
            json_array_append_new(columns, json_pack("{s:s,s:s,s:b,s:b,s:o}", "name", col->name, "kind",
                                                     kind_name(col->kind), "shown", col->shown, "sortable",
                                                     col->sortable || (int)i == c->id, "filters", filters_json(col)));
    }
    return json_pack("{s:s,s:s,s:s,s:s,s:o,s:o,s:o}", "name", c->name, "type", c->type, "id", c->columns[c->id].name,
                     "relation", c->relation, "relations", relations, "order", order_json(c), "columns", columns);
}

void list_collections(struct worker *w, struct request *rq)
{
    static const struct {
        enum caller_right right;
        const char *name;
    } rights[] = {{RIGHT_LIST, "list"}, {RIGHT_NAME_SUBJECT, "name-subject"}, {RIGHT_DIAGNOSE, "diagnose"}};
    json_t *list, *has;

    if (!need_right(rq, RIGHT_LIST))
        return;
    list = json_array();
    has = json_array();
    for (size_t i = 0; i < sizeof(rights) / sizeof(rights[0]); i++)
        if (rq->caller->rights & rights[i].right)
            json_array_append_new(has, json_string(rights[i].name));
    for (size_t i = 0; i < w->api->collections->len; i++)
        json_array_append_new(list, collection_json(&w->api->collections->items[i]));
    answer_json(rq, 200,
                json_pack("{s:{s:s,s:s,s:o},s:o}", "caller", "name", rq->caller->name, "subject", rq->caller->subject,
                          "rights", has, "collections", list));
}

/* ---- one page ---- */

/* AIP-158: 0 is the default, more than the maximum is the maximum, negative is an error. */
static bool parse_size(struct request *rq, int64_t *out)
{
    const char *text = request_param(rq, "page_size");
    const char *digits = text && *text == '-' ? text + 1 : text;

    *out = PAGE_DEFAULT;
    if (!text || !*text)
        return true;
    if (!*digits || digits[strspn(digits, "0123456789")] || (*text == '-' && digits[strspn(digits, "0")])) {
        problem(rq, 400, "invalid_page_size", "page_size must be a whole number, not negative");
        return false;
    }
    digits += strspn(digits, "0");
    if (!*digits)
        return true;
    *out = strlen(digits) > 4 ? PAGE_MAX : strtol(digits, NULL, 10);
    if (*out > PAGE_MAX)
        *out = PAGE_MAX;
    return true;
}

static bool parse_filters(struct request *rq, const struct collection *c, struct filters *out)
{
    struct err err;

    for (size_t i = 0; i < rq->nparams; i++)
        if (strncmp(rq->params[i].name, "filter.", 7) == 0 &&
            filter_add(c, out, rq->params[i].name, rq->params[i].value, &err) != ST_OK) {
            problem(rq, 400, "invalid_filter", "%s", err.text);
            return false;
        }
    filters_sort(out);
    return true;
}

/* A text and its length: no two lists of texts look the same. */
static void add_part(struct buf *b, const char *s)
{
    buf_addf(b, "%zu:", s ? strlen(s) : 0);
    buf_adds(b, s ? s : "-");
}

/* All that a page token is bound to. */
static void question(struct buf *b, const struct asked *a, const struct order *o, const struct filters *f)
{
    const struct collection *c = a->collection;

    add_part(b, c->name);
    add_part(b, a->relation);
    add_part(b, a->query.subject);
    add_part(b, a->bound);
    add_part(b, a->min_token);
    for (size_t i = 0; i < o->len; i++) {
        add_part(b, c->columns[o->keys[i].column].name);
        add_part(b, o->keys[i].descending ? "desc" : "asc");
    }
    for (size_t i = 0; i < f->len; i++) {
        buf_addf(b, "|%d:%zu", (int)f->items[i].op, f->items[i].nvalues);
        add_part(b, c->columns[f->items[i].column].name);
        for (size_t k = 0; k < f->items[i].nvalues; k++)
            add_part(b, f->items[i].values[k]);
    }
}

static void add_encoded(struct buf *b, const char *s)
{
    for (; *s; s++)
        if ((*s >= '0' && *s <= '9') || (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || strchr("-._~", *s))
            buf_addc(b, *s);
        else
            buf_addf(b, "%%%02X", (unsigned char)*s);
}

/* The same request with another page_token; none if it would not fit a header. */
static void add_link(struct request *rq, const struct collection *c, const char *token)
{
    struct buf *b = &rq->link;

    buf_adds(b, "</v1/inventory/");
    add_encoded(b, c->name);
    buf_addc(b, '?');
    for (size_t i = 0; i < rq->nparams; i++) {
        if (strcmp(rq->params[i].name, "page_token") == 0)
            continue;
        add_encoded(b, rq->params[i].name);
        buf_addc(b, '=');
        add_encoded(b, rq->params[i].value);
        buf_addc(b, '&');
    }
    buf_addf(b, "page_token=%s>; rel=\"next\"", token);
    if (!buf_ok(b))
        buf_clear(b);
}

static void add_diagnostics(struct request *rq, const struct page *p, const char *as_of)
{
    buf_addf(
        &rq->answer,
        ",\"diagnostics\":{\"scanned\":%lld,\"checked\":%lld,\"cached\":%lld,\"plan\":\"keyset\",\"as_of\":\"%s\"}",
        (long long)p->scanned, (long long)p->checked, (long long)p->cached, as_of);
    server_timing(rq, p->sql_us, p->check_us);
}

static void answer_page(struct request *rq, const struct page *p, const char *token, const char *as_of)
{
    rq->status = 200;
    rq->content_type = "application/json";
    buf_adds(&rq->answer, "{\"items\":");
    buf_add(&rq->answer, p->items.data, p->items.len);
    buf_adds(&rq->answer, ",\"next_page_token\":");
    json_quote(&rq->answer, token, strlen(token));
    buf_addf(&rq->answer, ",\"complete\":%s", p->complete ? "true" : "false");
    if (rq->caller->rights & RIGHT_DIAGNOSE)
        add_diagnostics(rq, p, as_of);
    buf_addc(&rq->answer, '}');
}

struct listing {
    struct asked asked;
    struct order order;
    struct filters filters;
    struct position after;
    struct page page;
    struct buf question, token;
    int64_t size;
};

static bool listing_parse(struct worker *w, struct request *rq, const char *collection, struct listing *l)
{
    static const char *const also[] = {"page_size", "page_token", "order_by", NULL};
    const char *token = request_param(rq, "page_token"), *order = request_param(rq, "order_by");
    struct err err;

    if (!asked_init(w, rq, collection, also, true, &l->asked) || !parse_size(rq, &l->size) ||
        !parse_filters(rq, l->asked.collection, &l->filters))
        return false;
    if (order_parse(l->asked.collection, order ? order : "", &l->order, &err) != ST_OK) {
        problem(rq, 400, "invalid_order_by", "%s", err.text);
        return false;
    }
    question(&l->question, &l->asked, &l->order, &l->filters);
    if (!token || !*token)
        return true;
    if (token_open(w->api->keys, (struct bytes){buf_str(&l->question), l->question.len}, token, l->order.len, &l->after,
                   &err) == ST_OK)
        return true;
    problem(rq, 400, "invalid_page_token", "%s", err.text);
    return false;
}

static enum status listing_read(struct worker *w, struct listing *l, struct pg *pg, struct err *err)
{
    struct page_request ask = {.collection = l->asked.collection,
                               .relation = l->asked.relation,
                               .with_relations = l->asked.with,
                               .nwith = l->asked.nwith,
                               .order = &l->order,
                               .filters = &l->filters,
                               .bound = l->asked.bound,
                               .after = l->after.n > 0 ? &l->after : NULL,
                               .size = l->size,
                               .scan_budget = w->api->scan_budget,
                               .statement_timeout_ms = w->api->statement_timeout_ms,
                               .query = &l->asked.query};
    enum status st = page_read(pg, w->api->decider, &ask, &l->page, err);

    if (st != ST_OK || !l->page.more)
        return st;
    st = token_seal(w->api->keys, (struct bytes){buf_str(&l->question), l->question.len}, &l->page.at, &l->token, err);
    if (st == ST_TOO_BIG) /* of a row that may be hidden: a matter for the log alone */
        st = err->status = ST_FATAL;
    return st;
}

static void count_page(const struct page *p, mono_us begin)
{
    metric_add(&m_pages, 1);
    metric_add(&m_early, !p->complete);
    metric_add(&m_shown, p->shown);
    metric_add(&m_scanned, p->scanned);
    metric_observe_us(&m_seconds, clock_mono_us() - begin);
    metric_observe_us(&m_sql, p->sql_us);
}

void list_page(struct worker *w, struct request *rq, const char *collection)
{
    struct listing l = {.size = 0};
    mono_us begin = clock_mono_us();
    struct pg *pg;
    struct err err;
    char as_of[CLOCK_TEXT_MAX];

    buf_init(&l.question, 1 << 20);
    buf_init(&l.token, 16384);
    if (!listing_parse(w, rq, collection, &l) || !asked_wait(w, rq, &l.asked))
        goto cleanup;
    pg = worker_pg(w, rq, l.asked.query.deadline);
    if (!pg)
        goto cleanup;
    clock_text(clock_wall_us(), 3, as_of);
    if (listing_read(w, &l, pg, &err) != ST_OK) {
        if (err.status == ST_TOO_BIG)
            problem(rq, 413, "page_too_big", "%s", err.text);
        else
            problem_undecided(rq, &err);
        goto cleanup;
    }
    count_page(&l.page, begin);
    answer_page(rq, &l.page, buf_str(&l.token), as_of);
    if (l.page.more)
        add_link(rq, l.asked.collection, buf_str(&l.token));
cleanup:
    page_free(&l.page);
    position_free(&l.after);
    filters_free(&l.filters);
    buf_release(&l.question);
    buf_release(&l.token);
    asked_release(&l.asked);
}
