#include "tuple-writer/observe.h"

#include <stdlib.h>
#include <string.h>

static bool same_condition(const char *name_a, const char *context_a, const char *name_b, const char *context_b)
{
    if (strcmp(name_a ? name_a : "", name_b ? name_b : "") != 0)
        return false;
    return !name_a || !*name_a || store_context_equal(context_a, context_b);
}

static char *copy_or_null(const char *s)
{
    return s ? strdup(s) : NULL;
}

void observe_late(struct store_conn *conn, struct batch *b, int64_t request_timeout_ms)
{
    for (size_t i = 0; i < b->n; i++) {
        struct item *it = &b->items[i];
        struct store_tuples found = {0};
        if (!it->late_until)
            continue;
        enum status st =
            store_read_tuple(conn, it->key, &it->observed_present, &found, deadline_in_ms(request_timeout_ms), NULL);
        if (st != ST_OK)
            return;
        it->observed = true;
        if (it->observed_present && found.len == 1) {
            it->observed_name = copy_or_null(found.items[0].condition_name);
            it->observed_context = copy_or_null(found.items[0].condition_context);
        }
        store_tuples_free(&found);
    }
}

static bool item_differs(const struct item *it)
{
    /* As this process wrote it last, or (taken over from another) as somebody has acknowledged it. */
    bool explained = it->applied_version ? it->applied_version != it->version : it->pending;
    if (!it->observed || explained)
        return false;
    if (it->observed_present != it->present)
        return true;
    return it->present &&
           !same_condition(it->observed_name, it->observed_context, it->condition_name, it->condition_context);
}

size_t observe_judge(struct batch *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++) {
        struct item *it = &b->items[i];
        it->differs = item_differs(it);
        n += it->differs;
        free(it->observed_name);
        free(it->observed_context);
        it->observed_name = it->observed_context = NULL;
        it->observed = false;
    }
    return n;
}

int observe_conflicts(struct store_conn *conn, struct batch *b, int64_t request_timeout_ms, struct err *err)
{
    int n = 0;
    for (size_t i = 0; i < b->n; i++) {
        struct item *it = &b->items[i];
        struct store_tuples found = {0};
        bool is_there = false;
        if (it->state != ITEM_SENT || !it->present)
            continue;
        if (store_read_tuple(conn, it->key, &is_there, &found, deadline_in_ms(request_timeout_ms), err) != ST_OK)
            return -1;
        if (is_there && found.len == 1 &&
            !same_condition(found.items[0].condition_name, found.items[0].condition_context, it->condition_name,
                            it->condition_context)) {
            it->replace = true;
            n++;
        }
        store_tuples_free(&found);
    }
    return n;
}

void observe_refused(struct store_conn *conn, const struct item *it, int64_t request_timeout_ms, struct err *why)
{
    struct store_tuples found = {0};
    bool is_there = false;
    const char *what = NULL, *name = "";
    enum status st = store_read_tuple(conn, it->key, &is_there, &found, deadline_in_ms(request_timeout_ms), NULL);
    if (found.len == 1 && found.items[0].condition_name)
        name = found.items[0].condition_name;
    if (st != ST_OK && st != ST_INVALID) /* a key that cannot be asked for is not there */
        what = "what the store holds of this tuple could not be read";
    else if (is_there && !it->present)
        what = "the store still holds the tuple";
    else if (is_there &&
             !same_condition(name, found.items[0].condition_context, it->condition_name, it->condition_context))
        what = *name ? "the store still holds the tuple, with the former condition "
                     : "the store still holds the tuple, without a condition";
    size_t len = strlen(why->text);
    if (what)
        snprintf(why->text + len, sizeof why->text - len, "; %s%s", what, it->present ? name : "");
    store_tuples_free(&found);
}
