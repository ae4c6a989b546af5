/* compare.c - is the store what the ledger says? Every page of the store is looked up in the ledger. */
#include <stdlib.h>

#include "common/cli/progress.h"
#include "relatactl/compare.h"

static const char lookup_sql[] =
    "SELECT coalesce(t.present, false), t.condition_name, t.condition_context FROM unnest($2::text[], $3::text[], "
    "$4::text[]) WITH ORDINALITY AS k (o, r, s, n) LEFT JOIN relata.tuple t ON t.store = $1 AND t.object = k.o AND "
    "t.relation = k.r AND t.subject = k.s ORDER BY k.n";

struct arrays {
    struct buf objects, relations, subjects;
};

static void judge(const struct store_tuple *held, const struct pg_result *r, int row, struct comparison *out)
{
    out->store++;
    if (!pg_bool(r, row, 0)) {
        out->extra++;
        return;
    }
    const char *name = held->condition_name ? held->condition_name : "";
    const char *context = pg_is_null(r, row, 2) ? NULL : pg_text(r, row, 2);
    if (strcmp(name, pg_text(r, row, 1)) == 0 && store_context_equal(held->condition_context, context))
        out->equal++;
    else
        out->other_condition++;
}

/* A question to the ledger, through the loss of the session. */
static enum status ask(struct ctl *ctl, const char *name, const char *sql, const struct pg_param *params, int n,
                       mono_us deadline, struct pg_result **r, struct err *err)
{
    enum status st = ST_RETRY;
    for (unsigned tries = 0; status_is_retryable(st) && tries < 8; tries++) {
        if (tries && stop_sleep_until(deadline_in_ms(backoff_ms(tries, 100, 3000))) == ST_STOPPED)
            return err_set(err, ST_STOPPED, "", "interrupted");
        st = pg_alive(ctl->pg) ? ST_OK : pg_reopen(ctl->pg, ctl_deadline(ctl), err);
        if (st == ST_OK)
            st = pg_query(ctl->pg, name, sql, params, n, deadline, r, err);
    }
    return st;
}

static enum status judge_page(struct ctl *ctl, const struct store_tuples *page, struct arrays *a,
                              struct comparison *out, struct err *err)
{
    struct pg_result *r = NULL;
    pg_array_begin(&a->objects);
    pg_array_begin(&a->relations);
    pg_array_begin(&a->subjects);
    for (size_t i = 0; i < page->len; i++) {
        pg_array_add(&a->objects, page->items[i].key.object);
        pg_array_add(&a->relations, page->items[i].key.relation);
        pg_array_add(&a->subjects, page->items[i].key.subject);
    }
    pg_array_end(&a->objects);
    pg_array_end(&a->relations);
    pg_array_end(&a->subjects);
    const struct pg_param params[] = {pg_p_text(ctl->settings.store.name), pg_p_buf(&a->objects),
                                      pg_p_buf(&a->relations), pg_p_buf(&a->subjects)};
    enum status st = ask(ctl, "compare_page", lookup_sql, params, 4, ctl_deadline(ctl), &r, err);
    for (int i = 0; st == ST_OK && i < pg_rows(r); i++)
        judge(&page->items[i], r, i, out);
    pg_result_free(r);
    return st;
}

static enum status count_ledger(struct ctl *ctl, int64_t *n, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(ctl->settings.store.name)};
    struct pg_result *r = NULL;
    enum status st = ask(ctl, NULL, "SELECT count(*) FROM relata.tuple WHERE store = $1 AND present", params, 1,
                         deadline_in_ms(CTL_COUNT_MS), &r, err);
    *n = st == ST_OK ? pg_int(r, 0, 0) : 0;
    pg_result_free(r);
    return st;
}

/* Reading is harmless to repeat. */
static enum status read_page(struct ctl *ctl, const char *token, struct store_tuples *page, char **next,
                             struct err *err)
{
    enum status st = ST_RETRY;
    for (unsigned tries = 0; status_is_retryable(st) && tries < 8; tries++) {
        if (tries && stop_sleep_until(deadline_in_ms(backoff_ms(tries, 100, 3000))) == ST_STOPPED)
            return err_set(err, ST_STOPPED, "", "interrupted");
        st = store_read_page(ctl->store_conn, token, page, next, ctl_store_deadline(ctl), err);
    }
    return st;
}

enum status compare_store(struct ctl *ctl, const struct pin *pin, struct comparison *out, struct err *err)
{
    struct progress progress;
    struct arrays a;
    char *token = strdup("");
    *out = (struct comparison){0};
    buf_init(&a.objects, 4 << 20);
    buf_init(&a.relations, 4 << 20);
    buf_init(&a.subjects, 4 << 20);
    enum status st =
        token ? store_conn_use(ctl->store_conn, pin->store_id, err) : err_set(err, ST_NOMEM, "", "no memory");
    if (st == ST_OK)
        st = count_ledger(ctl, &out->ledger, err);
    progress_start(&progress, "comparing", "tuples", out->ledger, 0);
    do {
        struct store_tuples page = {0};
        char *next = NULL;
        if (st == ST_OK)
            st = read_page(ctl, token, &page, &next, err);
        if (st == ST_OK && page.len)
            st = judge_page(ctl, &page, &a, out, err);
        store_tuples_free(&page);
        free(token);
        token = next;
        progress_set(&progress, out->store);
        if (st == ST_OK && stop_requested())
            st = err_set(err, ST_STOPPED, "", "interrupted");
    } while (st == ST_OK && token && *token);
    progress_end(&progress);
    free(token);
    buf_release(&a.objects);
    buf_release(&a.relations);
    buf_release(&a.subjects);
    out->missing = out->ledger - out->equal - out->other_condition;
    return st;
}

json_t *comparison_json(const struct comparison *c)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "ledger", (json_int_t)c->ledger, "store", (json_int_t)c->store,
                     "equal", (json_int_t)c->equal, "missing", (json_int_t)c->missing, "other_condition",
                     (json_int_t)c->other_condition, "extra", (json_int_t)c->extra);
}

void comparison_print(const struct comparison *c)
{
    (void)printf(
        "compared: %lld in the ledger, %lld in the store: %lld equal, %lld missing, %lld with another condition, "
        "%lld not in the ledger\n",
        (long long)c->ledger, (long long)c->store, (long long)c->equal, (long long)c->missing,
        (long long)c->other_condition, (long long)c->extra);
}
