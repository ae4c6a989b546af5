/* invalid.c - tuples that the model in force does not allow, by the few forms that tuples have. */
#include <string.h>

#include "drift-checker/compare/internal.h"

/* "user", "team#member" or "user:*". */
#define FORM                                                                                                           \
    "split_part(subject, ':', 1) || CASE WHEN strpos(subject, '#') > 0 THEN '#' || split_part(subject, '#', 2) "       \
    "WHEN right(subject, 2) = ':*' THEN ':*' ELSE '' END"

struct forms {
    struct sides *s;
    struct pairs *pairs;
    struct comparison *out;
    found_fn *found;
    void *arg;
};

/* A tuple of this form, for the model to judge. */
static bool form_allowed(const struct model *m, const char *type, const char *relation, const char *form,
                         const char *condition)
{
    struct buf object, subject;
    const char *hash = strchr(form, '#');
    bool yes;

    buf_init(&object, 4096);
    buf_init(&subject, 4096);
    buf_addf(&object, "%s:x", type);
    if (hash)
        buf_addf(&subject, "%.*s:x%s", (int)(hash - form), form, hash);
    else
        buf_addf(&subject, "%s%s", form, strchr(form, ':') ? "" : ":x");
    yes = model_allows(m, buf_str(&object), relation, buf_str(&subject), condition);
    buf_release(&object);
    buf_release(&subject);
    return yes;
}

/* Every tuple of a form that is not allowed. */
static enum status emit(struct forms *f, enum side side, const struct pg_result *forms, int row, struct err *err)
{
    struct pg_result *r = NULL;
    struct buf sql;
    enum status st;

    buf_init(&sql, 1 << 20);
    buf_addf(&sql, "SELECT object, relation, subject FROM (");
    side_rows_sql(f->s, side, NULL, &sql);
    buf_adds(&sql, ") q WHERE split_part(object, ':', 1) = ");
    add_literal(&sql, pg_text(forms, row, 0));
    buf_adds(&sql, " AND relation = ");
    add_literal(&sql, pg_text(forms, row, 1));
    buf_adds(&sql, " AND " FORM " = ");
    add_literal(&sql, pg_text(forms, row, 2));
    buf_adds(&sql, " AND coalesce(condition_name, '') = ");
    add_literal(&sql, pg_text(forms, row, 3));
    buf_addf(&sql, " LIMIT %lld", (long long)f->s->job->cfg->max_findings + 1);
    st = side_ask(f->s, f->s->pg[side], buf_str(&sql), &r, err);
    for (int i = 0; st == ST_OK && i < pg_rows(r); i++) {
        struct candidate c = {.key = {pg_text(r, i, 0), pg_text(r, i, 1), pg_text(r, i, 2)}, .invalid = true};

        st = f->found(f->arg, &c, err);
    }
    pg_result_free(r);
    buf_release(&sql);
    return st;
}

static enum status check_side(struct forms *f, enum side side, struct err *err)
{
    const struct compare_job *job = f->s->job;
    struct pg_result *r = NULL;
    struct buf sql;
    enum status st;

    buf_init(&sql, 1 << 20);
    buf_adds(&sql,
             "SELECT split_part(object, ':', 1), relation, " FORM ", coalesce(condition_name, ''), count(*) FROM (");
    side_rows_sql(f->s, side, NULL, &sql);
    buf_adds(&sql, ") q GROUP BY 1, 2, 3, 4");
    st = side_ask(f->s, f->s->pg[side], buf_str(&sql), &r, err);
    for (int i = 0; st == ST_OK && i < pg_rows(r); i++) {
        struct pair *pair = pairs_get(f->pairs, pg_text(r, i, 0), pg_len(r, i, 0), pg_text(r, i, 1));

        if (!pair)
            st = err_set(err, ST_NOMEM, NULL, "no memory");
        else if (pair_judged(pair) &&
                 !form_allowed(job->model, pg_text(r, i, 0), pg_text(r, i, 1), pg_text(r, i, 2), pg_text(r, i, 3)))
            st = emit(f, side, r, i, err);
    }
    pg_result_free(r);
    buf_release(&sql);
    return st;
}

enum status invalid_find(struct sides *s, struct pairs *pairs, struct comparison *out, found_fn *found, void *arg,
                         struct err *err)
{
    struct forms f = {s, pairs, out, found, arg};
    enum status st = check_side(&f, SIDE_LEDGER, err);

    return st == ST_OK ? check_side(&f, SIDE_OBSERVED, err) : st;
}
