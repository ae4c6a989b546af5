#include "demo/lists/walk.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"

/* Pages of very different sizes, one after the other: where one ends must not matter. */
static const int64_t sizes[] = {1, 7, 50, 3, 200, 1000, 20};

/* Each row as one text, as the lister's JSON has it. */
#define TRUTH_SQL                                                                                                      \
    "SELECT concat_ws(' ', i.id, i.name, i.owner_team_id, i.catalog_item_id,"                                          \
    " replace(to_json(i.created_at) #>> '{}', '+00:00', 'Z'))"                                                         \
    " FROM inventory.resource_instances i"                                                                             \
    " WHERE i.id IN (SELECT inventory.visible($1, $2))"                                                                \
    " AND ($3::text = '' OR i.created_at >= $3::timestamptz)"
static const char newest_sql[] = TRUTH_SQL " ORDER BY i.created_at DESC, i.id DESC";
static const char named_sql[] = TRUTH_SQL " AND i.name >= $4 ORDER BY i.name, i.id";

static enum status read_truth(struct pg *pg, const struct walk *w, mono_us deadline, struct pg_result **out,
                              struct err *err)
{
    /* The inventory's own words for the model's permissions. */
    const char *role = strcmp(w->relation, "can_edit") == 0      ? "editor"
                       : strcmp(w->relation, "can_operate") == 0 ? "operator"
                                                                 : "viewer";
    struct pg_param params[] = {pg_p_text(w->user), pg_p_text(role), pg_p_text(w->since), pg_p_text(w->from)};

    return pg_query(pg, NULL, w->from ? named_sql : newest_sql, params, w->from ? 4 : 3, deadline, out, err);
}

static const char *text_of(const json_t *row, const char *column)
{
    const char *s = json_string_value(json_object_get(row, column));
    return s ? s : "?";
}

static long long number_of(const json_t *row, const char *column)
{
    return json_integer_value(json_object_get(row, column));
}

static void check_row(const json_t *row, const struct pg_result *truth, struct walked *out)
{
    char line[300];
    const char *wanted = out->rows < (size_t)pg_rows(truth) ? pg_text(truth, (int)out->rows, 0) : "the end";

    snprintf(line, sizeof line, "%lld %s %s %lld %s", number_of(row, "id"), text_of(row, "name"),
             text_of(row, "owner_team_id"), number_of(row, "catalog_item_id"), text_of(row, "created_at"));
    if (out->equal && strcmp(line, wanted) != 0) {
        out->equal = false;
        snprintf(out->difference, sizeof out->difference, "row %zu of the list is \"%.150s\", by SQL \"%.150s\"",
                 out->rows + 1, line, wanted);
    }
    out->rows++;
}

static struct question question_of(const struct walk *w, const char *subject)
{
    struct question q = {.relation = w->relation, .subject = subject, .order = w->from ? "name" : "-created_at"};

    if (w->since[0]) {
        q.conditions[q.nconditions].name = "filter.created_at.gte";
        q.conditions[q.nconditions++].value = w->since;
    }
    if (w->from) {
        q.conditions[q.nconditions].name = "filter.name.gte";
        q.conditions[q.nconditions++].value = w->from;
    }
    return q;
}

static enum status walk_pages(struct lister *l, const struct question *q, const struct pg_result *truth,
                              mono_us deadline, struct walked *out, struct err *err)
{
    char *token = strdup("");
    enum status st = token ? ST_OK : err_set(err, ST_NOMEM, "", "no memory for a page token");

    while (st == ST_OK) {
        struct page page = {0};
        size_t i;
        json_t *row;
        st = lister_page(l, q, sizes[out->pages % (sizeof sizes / sizeof *sizes)], token, deadline, &page, err);
        if (st != ST_OK)
            break;
        json_array_foreach(page.items, i, row) check_row(row, truth, out);
        out->pages++;
        out->incomplete += !page.complete;
        free(token);
        token = page.next;
        page.next = NULL;
        page_release(&page);
        if (!token[0])
            break;
    }
    free(token);
    return st;
}

enum status walk_compare(struct lister *l, struct pg *truth, const struct walk *w, mono_us deadline, struct walked *out,
                         struct err *err)
{
    struct pg_result *rows = NULL;
    char subject[300];

    *out = (struct walked){.equal = true};
    snprintf(subject, sizeof subject, "user:%s", w->user);
    struct question q = question_of(w, subject);
    enum status st = read_truth(truth, w, deadline, &rows, err);
    mono_us begun = clock_mono_us();
    if (st == ST_OK)
        st = walk_pages(l, &q, rows, deadline, out, err);
    out->seconds = (double)(clock_mono_us() - begun) / 1e6;
    if (st == ST_OK && out->equal && out->rows < (size_t)pg_rows(rows)) {
        out->equal = false;
        snprintf(out->difference, sizeof out->difference, "the list ends after %zu rows, by SQL %.150s follows",
                 out->rows, pg_text(rows, (int)out->rows, 0));
    }
    pg_result_free(rows);
    return st;
}
