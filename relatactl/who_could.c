/* who_could.c - relatactl who-could: every subject that had a relation on an object at some time in the past. */
#include <stdlib.h>

#include "engine/expand.h"
#include "relatactl/commands.h"
#include "relatactl/history.h"
#include "relatactl/identity.h"

struct who_options {
    const char *at, *model;
    bool effective, why;
    int64_t max_tuples, max_depth;
};

/* One level of tuples, as it came; `ref` of a tuple is its number in the order of all levels. */
struct level {
    struct pg_result *rows;
    long first;
};

struct who {
    struct ctl *ctl;
    const struct who_options *o;
    const char *object, *relation;
    struct history_window window;
    char model_id[ID_MAX];
    bool in_force;
    struct model *model;
    struct expand *e;
    struct level *levels;
    size_t nlevels;
    long ntuples;
    json_t *uncertain; /* tuples of which is not known whether they were in effect */
};

/* ---- model and tuples ---- */

static enum status load_model(struct who *w, struct err *err)
{
    struct pin pin;
    struct model_err why;
    char *json = NULL;
    enum status st = pin_read(w->ctl, &pin, err);
    if (st != ST_OK)
        return st;
    (void)snprintf(w->model_id, sizeof w->model_id, "%s", w->o->model ? w->o->model : pin.model_id);
    w->in_force = strcmp(w->model_id, pin.model_id) == 0;
    if (!*w->model_id)
        return err_set(err, ST_MISSING, "", "no model is in force (--model ID, or relatactl model use ID)");
    st = ctl_store(w->ctl, pin.store_id, err);
    if (st == ST_OK)
        st = store_model(w->ctl->store_conn, w->model_id, &json, ctl_store_deadline(w->ctl), err);
    if (st == ST_OK && !model_parse(&w->model, json, strlen(json), &why))
        st = err_set(err, ST_INVALID, "", "model %s: %s", w->model_id, why.text);
    if (st == ST_OK && !expand_new(&w->e, w->model, json, strlen(json), w->object, w->relation, &why))
        st = err_set(err, ST_CONFIG, "", "%s (model %s)", why.text, w->model_id);
    free(json);
    return st;
}

/* The tuples of a level at the time in question. A row is the state of a tuple, of which the newest by then counts; one
 * that was there before history and not known to be in effect by then is not known at all. */
#define LEVEL_SQL(by_then)                                                                                             \
    "SELECT k.n - 1, s.object, s.relation, s.subject, s.condition_name, s.actor, " CTL_WHEN(                           \
        "s.changed_at") ", " CTL_WHEN("s.applied_at") ", s.baseline, s.known, s.condition_context FROM "               \
                                                      "unnest($2::text[], $3::text[]) WITH "                           \
                                                      "ORDINALITY AS k (o, r, n), LATERAL (SELECT DISTINCT ON "        \
                                                      "(h.subject) h.*, (" by_then ") IS TRUE AS known "               \
                                                      "FROM relata.history h WHERE h.object = k.o AND h.relation = "   \
                                                      "k.r AND h.store = $1 AND h.period = $4::int AND (" by_then      \
                                                      " OR h.baseline) ORDER BY h.subject, (" by_then                  \
                                                      ") IS TRUE DESC, h.version DESC) s "                             \
                                                      "WHERE s.present OR NOT s.known ORDER BY k.n, s.subject LIMIT "  \
                                                      "$6::bigint"
static const char committed_sql[] = LEVEL_SQL("h.baseline OR h.changed_at <= $5::timestamptz");
static const char effective_sql[] = LEVEL_SQL("h.applied_at <= $5::timestamptz");

static enum status query_level(struct who *w, const struct expand_ask *asks, size_t n, struct pg_result **rows,
                               struct err *err)
{
    struct buf objects, relations;
    char period[24], limit[24];
    buf_init(&objects, 64u << 20);
    buf_init(&relations, 64u << 20);
    pg_bin_begin(&objects, PG_ELEM_TEXT);
    pg_bin_begin(&relations, PG_ELEM_TEXT);
    for (size_t i = 0; i < n; i++) {
        pg_bin_add(&objects, asks[i].object);
        pg_bin_add(&relations, asks[i].relation);
    }
    pg_bin_end(&objects);
    pg_bin_end(&relations);
    const struct pg_param params[] = {pg_p_text(w->ctl->settings.store.name),
                                      pg_p_bin(&objects),
                                      pg_p_bin(&relations),
                                      pg_p_int(w->window.period, period),
                                      pg_p_text(w->window.at),
                                      pg_p_int(w->o->max_tuples - w->ntuples + 1, limit)};
    enum status st = pg_query(w->ctl->pg, NULL, w->o->effective ? effective_sql : committed_sql, params, 6,
                              ctl_deadline(w->ctl), rows, err);
    buf_release(&objects);
    buf_release(&relations);
    return st;
}

static enum status give_level(struct who *w, struct pg_result *rows, struct err *err)
{
    struct level *grown = realloc(w->levels, (w->nlevels + 1) * sizeof *grown);
    if (!grown) {
        pg_result_free(rows);
        return err_set(err, ST_NOMEM, "", "no memory");
    }
    w->levels = grown;
    w->levels[w->nlevels++] = (struct level){rows, w->ntuples};
    for (int i = 0; i < pg_rows(rows); i++, w->ntuples++) {
        if (!pg_bool(rows, i, 9)) {
            (void)json_array_append_new(
                w->uncertain, json_sprintf("%s#%s@%s", pg_text(rows, i, 1), pg_text(rows, i, 2), pg_text(rows, i, 3)));
            continue;
        }
        if (!expand_give(w->e, (size_t)pg_int(rows, i, 0), pg_text(rows, i, 3), pg_text(rows, i, 4), w->ntuples))
            return err_set(err, ST_NOMEM, "", "no memory");
    }
    if (w->ntuples > w->o->max_tuples)
        return err_set(err, ST_TOO_BIG, "", "more than %lld tuples have to do with it (--max-tuples)",
                       (long long)w->o->max_tuples);
    return expand_level(w->e) ? ST_OK : err_set(err, ST_NOMEM, "", "no memory");
}

/* One question a level, all in one snapshot. */
static enum status load_tuples(struct who *w, struct err *err)
{
    const struct expand_ask *asks = NULL;
    enum status st = pg_exec(w->ctl->pg, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", ctl_deadline(w->ctl), err);
    for (size_t n; st == ST_OK && (n = expand_wants(w->e, &asks)) > 0;) {
        struct pg_result *rows = NULL;
        if ((int64_t)w->nlevels == w->o->max_depth)
            return err_set(err, ST_TOO_BIG, "", "more than %lld objects lie in a chain (--max-depth)",
                           (long long)w->o->max_depth);
        st = query_level(w, asks, n, &rows, err);
        if (st == ST_OK)
            st = give_level(w, rows, err);
    }
    return st == ST_OK ? pg_exec(w->ctl->pg, "COMMIT", ctl_deadline(w->ctl), err) : st;
}

/* ---- the answer ---- */

static json_t *tuple_json(const struct who *w, long ref)
{
    size_t at = w->nlevels - 1;
    while (w->levels[at].first > ref)
        at--;
    const struct pg_result *r = w->levels[at].rows;
    int i = (int)(ref - w->levels[at].first);
    return json_pack("{s:o, s:s?, s:s, s:s?, s:b}", "tuple",
                     json_sprintf("%s#%s@%s", pg_text(r, i, 1), pg_text(r, i, 2), pg_text(r, i, 3)), "actor",
                     pg_is_null(r, i, 5) ? NULL : pg_text(r, i, 5), "changed_at", pg_text(r, i, 6), "applied_at",
                     pg_is_null(r, i, 7) ? NULL : pg_text(r, i, 7), "before", (int)pg_bool(r, i, 8));
}

static json_t *subject_json(struct who *w, size_t i)
{
    static const char *const words[] = {"no", "conditional", "yes"};
    enum expand_value value;
    const char *name = expand_subject(w->e, i, &value);
    json_t *one = json_pack("{s:s, s:s}", "subject", name, "could", words[value]);
    if (value == EXPAND_YES && w->o->why) {
        const long *refs;
        json_t *chain = json_array();
        for (size_t k = 0, n = expand_why(w->e, i, &refs); k < n; k++)
            (void)json_array_append_new(chain, tuple_json(w, refs[k]));
        (void)json_object_set_new(one, "why", chain);
    }
    if (value == EXPAND_CONDITIONAL) {
        const char *const *names;
        json_t *conditions = json_array();
        for (size_t k = 0, n = expand_conditions(w->e, i, &names); k < n; k++)
            (void)json_array_append_new(conditions, json_string(names[k]));
        (void)json_object_set_new(one, "conditions", conditions);
    }
    return one;
}

static json_t *answer_json(struct who *w)
{
    json_t *subjects = json_array();
    for (size_t i = 0; i < expand_subjects(w->e); i++)
        (void)json_array_append_new(subjects, subject_json(w, i));
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:b, s:o, s:O, s:I, s:I}", "object", w->object, "relation",
                     w->relation, "at", w->window.shown, "clock", w->o->effective ? "effective" : "committed", "store",
                     w->ctl->settings.store.name, "model_id", w->model_id, "model_in_force", (int)w->in_force,
                     "subjects", subjects, "uncertain", w->uncertain, "tuples", (json_int_t)w->ntuples, "not_allowed",
                     (json_int_t)expand_ignored(w->e));
}

static const char *text_at(const json_t *of, const char *name)
{
    const char *s = json_string_value(json_object_get(of, name));
    return s ? s : "";
}

static void print_subject(const json_t *one)
{
    size_t i;
    json_t *part;
    const char *name = text_at(one, "subject"), *could = text_at(one, "could");
    size_t len = strlen(name);
    bool all = len > 2 && strcmp(name + len - 2, ":*") == 0;
    (void)printf("%s", name);
    if (strcmp(could, "conditional") == 0) {
        (void)printf("  depends on condition");
        json_array_foreach(json_object_get(one, "conditions"), i, part)(void)
            printf("%s %s", i ? "," : "", json_string_value(part));
    } else if (strcmp(could, "no") == 0) {
        (void)printf("  could not: an exception");
    }
    (void)printf("%s\n", all ? "  everybody of that type, but for the exceptions" : "");
    json_array_foreach(json_object_get(one, "why"), i, part)(void)
        printf("    %s  %s %s%s%s%s%s\n", text_at(part, "tuple"),
               json_is_true(json_object_get(part, "before")) ? "before history, last changed" : "granted",
               text_at(part, "changed_at"), *text_at(part, "actor") ? " by " : "", text_at(part, "actor"),
               *text_at(part, "applied_at") ? ", in effect " : ", not in effect yet", text_at(part, "applied_at"));
}

static void print_text(const json_t *doc)
{
    size_t i;
    json_t *one;
    (void)printf(
        "%s#%s at %s (%s), by model %s%s\n", text_at(doc, "object"), text_at(doc, "relation"), text_at(doc, "at"),
        strcmp(text_at(doc, "clock"), "effective") == 0 ? "what was in effect in the store" : "what was committed",
        text_at(doc, "model_id"), json_is_true(json_object_get(doc, "model_in_force")) ? ", in force now" : "");
    if (json_array_size(json_object_get(doc, "subjects")) == 0)
        (void)printf("nobody\n");
    json_array_foreach(json_object_get(doc, "subjects"), i, one) print_subject(one);
    json_array_foreach(json_object_get(doc, "uncertain"), i, one)(void)
        printf("not known whether in effect then: %s\n", json_string_value(one));
    if (json_integer_value(json_object_get(doc, "not_allowed")) > 0)
        (void)printf("%lld tuples that this model does not allow count for nothing\n",
                     (long long)json_integer_value(json_object_get(doc, "not_allowed")));
}

static enum status who_could(struct who *w, struct err *err)
{
    struct model_err why;
    enum status st = ctl_pg(w->ctl, err);
    if (st == ST_OK)
        st = history_window(w->ctl, w->o->at, &w->window, err);
    if (st == ST_OK)
        st = load_model(w, err);
    if (st == ST_OK)
        st = load_tuples(w, err);
    if (st == ST_OK && !expand_solve(w->e, &why))
        st = err_set(err, ST_INVALID, "", "%s", why.text);
    if (st != ST_OK)
        return st;
    json_t *doc = answer_json(w);
    if (w->ctl->json)
        ctl_print_json(json_incref(doc));
    else
        print_text(doc);
    json_decref(doc);
    return ST_OK;
}

static enum exit_code who_could_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    (void)nargs;
    struct who w = {.ctl = ctl, .o = opts, .object = args[0], .relation = args[1], .uncertain = json_array()};
    struct err err = {.status = ST_OK};
    enum status st = who_could(&w, &err);
    for (size_t i = 0; i < w.nlevels; i++)
        pg_result_free(w.levels[i].rows);
    free(w.levels);
    expand_free(w.e);
    model_free(w.model);
    json_decref(w.uncertain);
    return st == ST_OK ? EXIT_DONE : ctl_fail(ctl, &err);
}

static const struct option_spec who_could_specs[] = {
    {"at", OPTION_TEXT, offsetof(struct who_options, at), "TIME",
     "the time in question; UTC unless it says otherwise (now)", 0, 0, 0},
    {"effective", OPTION_FLAG, offsetof(struct who_options, effective), NULL,
     "by what was in effect in the store, not by what was committed", 0, 0, 0},
    {"why", OPTION_FLAG, offsetof(struct who_options, why), NULL,
     "show the tuples that gave it, who granted them and when", 0, 0, 0},
    {"model", OPTION_TEXT, offsetof(struct who_options, model), "ID", "by this model, not by the one in force now", 0,
     0, 0},
    {"max-tuples", OPTION_INT, offsetof(struct who_options, max_tuples), "N", "give up beyond so many", 1000000, 1,
     100000000},
    {"max-depth", OPTION_INT, offsetof(struct who_options, max_depth), "N", "give up beyond so many objects in a chain",
     100, 1, 10000},
    {0},
};

const struct command command_who_could = {
    .name = "who-could",
    .args = "OBJECT RELATION",
    .summary = "Every subject that had a relation on an object at a time in the past",
    .details =
        "By the tuples recorded in history, which must have been on at that time (else the exit code is 3), and a "
        "model:\n"
        "the store keeps every model for ever, --model names one. A change counts from its commit, or with "
        "--effective\n"
        "from when the writer had it acknowledged by the store. \"type:*\" stands for everybody of that type; subjects "
        "who\n"
        "are excepted from it are listed. What depends on a condition is listed apart: nobody can say afterwards.\n"
        "Example: relatactl who-could doc:readme viewer --at 2026-11-30T18:21:09Z --why",
    .options = who_could_specs,
    .min_args = 2,
    .max_args = 2,
    .run = who_could_run,
};
