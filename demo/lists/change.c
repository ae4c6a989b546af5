#include "demo/lists/change.h"

#include <stdlib.h>

#include "common/base/stop.h"

#define PAGE_ROWS 50
#define FOLLOW_MS 10000

static enum status shows(struct lister *l, const struct change *c, mono_us deadline, bool *shown, struct err *err)
{
    struct question q = {.relation = c->relation,
                         .subject = c->subject,
                         .order = "-created_at",
                         .conditions = {{"filter.owner_team_id", c->team}},
                         .nconditions = 1};
    struct page page = {0};
    enum status st = lister_page(l, &q, PAGE_ROWS, "", deadline, &page, err);
    size_t i;
    json_t *row;

    *shown = false;
    json_array_foreach(page.items, i, row) *shown = *shown || json_integer_value(json_object_get(row, "id")) == c->row;
    page_release(&page);
    return st;
}

/* Asks until the list shows the row, or does not. */
static enum status await(struct lister *l, const struct change *c, bool wanted, mono_us deadline, int64_t *polls,
                         struct err *err)
{
    mono_us end = deadline_min(deadline, deadline_in_ms(FOLLOW_MS));
    bool shown = !wanted;
    enum status st = ST_OK;

    while (st == ST_OK && shown != wanted) {
        if (stop_requested())
            return err_set(err, ST_STOPPED, "", "stopped by a signal");
        if (clock_mono_us() >= end)
            return err_set(err, ST_DEADLINE, "", "%s: the list of %s still %s instance %lld", c->what, c->subject,
                           wanted ? "lacks" : "shows", (long long)c->row);
        st = shows(l, c, deadline, &shown, err);
        (*polls)++;
    }
    return st;
}

static enum status once(struct lister *l, struct pg *service, const struct change *c, bool grant, mono_us deadline,
                        int64_t *took, int64_t *polls, struct err *err)
{
    enum status st = await(l, c, !grant, deadline, polls, err);

    /* A second time: all of it from the cache. */
    if (st == ST_OK)
        st = await(l, c, !grant, deadline, polls, err);
    if (st == ST_OK)
        st = pg_exec(service, grant ? c->grant : c->revoke, deadline, err);
    mono_us committed = clock_mono_us();
    if (st == ST_OK)
        st = await(l, c, grant, deadline, polls, err);
    *took = clock_mono_us() - committed;
    return st;
}

static int ascending(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

enum status change_measure(struct lister *l, struct pg *service, const struct change *c, size_t rounds,
                           mono_us deadline, struct changed *out, struct err *err)
{
    enum status st = ST_OK;

    *out = (struct changed){0};
    while (st == ST_OK && out->rounds < rounds && out->rounds < ROUNDS_MAX) {
        st = once(l, service, c, false, deadline, &out->gone[out->rounds], &out->polls, err);
        if (st == ST_OK)
            st = once(l, service, c, true, deadline, &out->back[out->rounds], &out->polls, err);
        out->rounds += st == ST_OK;
    }
    qsort(out->gone, out->rounds, sizeof *out->gone, ascending);
    qsort(out->back, out->rounds, sizeof *out->back, ascending);
    return st;
}
