/* plan.c - repairs as a file, for somebody to read and approve. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/file.h"
#include "drift-checker/judge/inventory.h"
#include "drift-checker/repair/repair.h"

#define FORMAT 1
#define FILE_MAX (64 << 20)

/* ---- writing ---- */

static bool put_line(FILE *f, json_t *line)
{
    bool fine = line && json_dumpf(line, f, JSON_COMPACT | JSON_PRESERVE_ORDER) == 0 && fputc('\n', f) != EOF;

    json_decref(line);
    return fine;
}

static json_t *source_names(const struct sources *sources)
{
    json_t *names = json_array();

    for (size_t i = 0; i < sources->len; i++)
        (void)json_array_append_new(names, json_string(sources->items[i].name));
    return names;
}

/* null: the tuple is absent. */
static json_t *holding_json(const struct holding *h)
{
    return h->present ? json_pack("{s:s?, s:s?}", "condition", h->condition, "context", h->context) : json_null();
}

static bool write_lines(FILE *f, const struct compare_job *job, const struct sources *sources, int64_t run,
                        const struct findings *found, const struct repairs *counts)
{
    char when[32];
    time_t now = time(NULL);
    struct tm tm;
    bool fine;

    (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    fine = put_line(f, json_pack("{s:i, s:s, s:s, s:s, s:o, s:s, s:I, s:I, s:I}", "plan", FORMAT, "store",
                                 job->cfg->store.name, "store_id", job->store_id, "model_id", job->model_id, "sources",
                                 source_names(sources), "made_at", when, "run", (json_int_t)run, "repairs",
                                 (json_int_t)counts->wanted, "deletions", (json_int_t)counts->deletions));
    for (size_t i = 0; fine && i < found->len; i++) {
        const struct finding *x = &found->items[i];

        if (x->action == ACTION_NONE)
            continue;
        fine = put_line(f, json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:I, s:o, s:o, s:o}", "object", x->key->object,
                                     "relation", x->key->relation, "subject", x->key->subject, "cause",
                                     cause_name(x->cause), "action", action_name(x->action), "expected_known",
                                     x->judged_expected, "version", (json_int_t)x->version, "expected",
                                     holding_json(&x->expected), "ledger", holding_json(&x->ledger), "observed",
                                     holding_json(&x->observed)));
    }
    return fine && fflush(f) == 0 && fsync(fileno(f)) == 0;
}

enum status plan_write(const char *path, const struct compare_job *job, const struct sources *sources, int64_t run,
                       const struct findings *f, const struct repairs *counts, struct err *err)
{
    struct buf temporary;
    FILE *file;
    bool fine;

    if (f->more)
        return err_set(err, ST_INVALID, REPAIR_REFUSED,
                       "there are more differences than audit.max_findings (%lld): no plan is made",
                       (long long)job->cfg->max_findings);
    buf_init(&temporary, 1 << 16);
    buf_addf(&temporary, "%s.new", path);
    file = fopen(buf_str(&temporary), "w");
    fine = file && write_lines(file, job, sources, run, f, counts);
    if (file && fclose(file) != 0)
        fine = false;
    fine = fine && rename(buf_str(&temporary), path) == 0;
    if (!fine) {
        (void)err_set(err, ST_CONFIG, NULL, "the plan cannot be written to %s: %s", path, strerror(errno));
        (void)unlink(buf_str(&temporary));
    }
    buf_release(&temporary);
    return fine ? ST_OK : ST_CONFIG;
}

/* ---- reading ---- */

static int action_of(const char *name)
{
    for (int i = ACTION_TOUCH; i < ACTION_NONE; i++) {
        if (strcmp(action_name((enum action)i), name) == 0)
            return i;
    }
    return -1;
}

/* Names one after the other: what is taken is counted, so that plan_free() frees it. */
static bool take_sources(const json_t *names, struct plan *out)
{
    size_t n = json_array_size(names);

    if (!json_is_array(names) || out->sources)
        return false;
    out->sources = calloc(n + 1, sizeof *out->sources);
    for (; out->sources && out->nsources < n; out->nsources++) {
        const char *name = json_string_value(json_array_get(names, out->nsources));

        out->sources[out->nsources] = name ? strdup(name) : NULL;
        if (!out->sources[out->nsources])
            return false;
    }
    return out->sources;
}

static bool take_header(const json_t *line, struct plan *out, json_int_t *repairs)
{
    const char *store, *store_id, *model_id, *made_at;
    json_int_t run, deletions;
    json_t *sources;
    int format;

    if (json_unpack((json_t *)(uintptr_t)line, "{s:i, s:s, s:s, s:s, s:o, s:s, s:I, s:I, s:I !}", "plan", &format,
                    "store", &store, "store_id", &store_id, "model_id", &model_id, "sources", &sources, "made_at",
                    &made_at, "run", &run, "repairs", repairs, "deletions", &deletions) != 0 ||
        format != FORMAT || strlen(store_id) >= sizeof out->store_id || strlen(model_id) >= sizeof out->model_id)
        return false;
    (void)snprintf(out->store_id, sizeof out->store_id, "%s", store_id);
    (void)snprintf(out->model_id, sizeof out->model_id, "%s", model_id);
    out->store = strdup(store);
    return out->store && take_sources(sources, out);
}

/* A string, or null. */
static bool take_text(const json_t *v, char **out)
{
    if (json_is_null(v))
        return true;
    *out = json_is_string(v) ? strdup(json_string_value(v)) : NULL;
    return *out;
}

static bool take_holding(const json_t *v, struct holding *out)
{
    json_t *condition, *context;

    if (json_is_null(v))
        return true;
    if (json_unpack((json_t *)(uintptr_t)v, "{s:o, s:o !}", "condition", &condition, "context", &context) != 0)
        return false;
    out->present = true;
    return take_text(condition, &out->condition) && take_text(context, &out->context);
}

static void planned_free(struct planned *p)
{
    free(p->key);
    holding_free(&p->expected);
    holding_free(&p->ledger);
    holding_free(&p->observed);
}

static bool take_repair(const json_t *line, struct planned *out)
{
    const char *object, *relation, *subject, *cause, *action;
    json_t *expected, *ledger, *observed;
    json_int_t version;
    struct tuple_key key;
    int known, c, a;

    if (json_unpack((json_t *)(uintptr_t)line, "{s:s, s:s, s:s, s:s, s:s, s:b, s:I, s:o, s:o, s:o !}", "object",
                    &object, "relation", &relation, "subject", &subject, "cause", &cause, "action", &action,
                    "expected_known", &known, "version", &version, "expected", &expected, "ledger", &ledger, "observed",
                    &observed) != 0)
        return false;
    c = cause_of(cause);
    a = action_of(action);
    if (c < 0 || a < 0 ||
        tuple_check((struct bytes){object, strlen(object)}, (struct bytes){relation, strlen(relation)},
                    (struct bytes){subject, strlen(subject)}, NULL) != ST_OK)
        return false;
    key = (struct tuple_key){object, relation, subject};
    *out = (struct planned){.key = tuple_key_dup(&key),
                            .cause = (enum cause)c,
                            .action = (enum action)a,
                            .judged_expected = known,
                            .version = version};
    if (out->key && take_holding(expected, &out->expected) && take_holding(ledger, &out->ledger) &&
        take_holding(observed, &out->observed))
        return true;
    planned_free(out);
    return false;
}

static enum status take_line(struct plan *out, struct bytes text, int number, json_int_t *repairs, struct err *err)
{
    json_t *line = json_loadb(text.data, text.len, JSON_REJECT_DUPLICATES, NULL);
    bool fine = line;

    if (fine && number == 1) {
        fine = take_header(line, out, repairs);
    } else if (fine) {
        struct planned *grown = realloc(out->items, (out->len + 1) * sizeof *grown);

        if (grown)
            out->items = grown;
        fine = grown && take_repair(line, &out->items[out->len]);
        out->len += fine;
    }
    json_decref(line);
    return fine ? ST_OK : err_set(err, ST_CONFIG, NULL, "line %d is not one of a plan", number);
}

enum status plan_parse(struct bytes text, struct plan *out, struct err *err)
{
    json_int_t repairs = -1;
    enum status st = ST_OK;
    int number = 0;

    *out = (struct plan){0};
    while (text.len && st == ST_OK) {
        const char *end = memchr(text.data, '\n', text.len);
        size_t len = end ? (size_t)(end - text.data) : text.len;

        st = take_line(out, (struct bytes){text.data, len}, ++number, &repairs, err);
        len += end != NULL;
        text.data += len;
        text.len -= len;
    }
    if (st == ST_OK && repairs != (json_int_t)out->len)
        st = err_set(err, ST_CONFIG, NULL, "it has %zu repairs and should have %lld: it is cut off or changed",
                     out->len, (long long)repairs);
    if (st != ST_OK)
        plan_free(out);
    return st;
}

enum status plan_read(const char *path, struct plan *out, struct err *err)
{
    struct buf text;
    enum status st;

    buf_init(&text, FILE_MAX + 1);
    st = file_read(path, FILE_MAX, &text, NULL, err);
    if (st == ST_OK) {
        st = plan_parse((struct bytes){buf_str(&text), text.len}, out, err);
        if (st != ST_OK)
            (void)err_prefix(err, "the plan %s", path);
    }
    buf_release(&text);
    return st;
}

void plan_free(struct plan *p)
{
    for (size_t i = 0; i < p->len; i++)
        planned_free(&p->items[i]);
    free(p->items);
    for (size_t i = 0; i < p->nsources; i++)
        free(p->sources[i]);
    free(p->sources);
    free(p->store);
    *p = (struct plan){0};
}

/* ---- holding ---- */

static int by_key(const void *a, const void *b)
{
    const struct finding *x = *(const struct finding *const *)a, *y = *(const struct finding *const *)b;

    return tuple_key_cmp(x->key, y->key);
}

static bool is_planned(const struct planned *p, const struct finding *f)
{
    return f->cause == p->cause && f->action == p->action && f->version == p->version &&
           f->judged_expected == p->judged_expected && holding_equal(&f->expected, &p->expected) &&
           holding_equal(&f->ledger, &p->ledger) && holding_equal(&f->observed, &p->observed);
}

static enum status same(const struct planned *p, const struct finding *const *sorted, size_t n, struct err *err)
{
    const struct finding key = {.key = p->key};
    const struct finding *wanted = &key;
    const struct finding *const *hit = n ? bsearch(&wanted, sorted, n, sizeof *sorted, by_key) : NULL;
    enum status st = ST_OK;
    struct buf text;

    buf_init(&text, 4096);
    tuple_key_format(p->key, &text);
    if (!hit)
        st = err_set(err, ST_INVALID, REPAIR_REFUSED,
                     "%s is no longer %s, or a change of it is on its way: nothing is repaired", buf_str(&text),
                     cause_name(p->cause));
    else if (!is_planned(p, *hit))
        st = err_set(err, ST_INVALID, REPAIR_REFUSED, "%s has changed since the plan was made: nothing is repaired",
                     buf_str(&text));
    buf_release(&text);
    return st;
}

/* Without a source that the plan was made with, what it stands for would look like orphans. */
static bool same_sources(const struct plan *p, const struct sources *sources)
{
    bool all = p->nsources == sources->len;

    for (size_t i = 0; all && i < p->nsources; i++)
        all = strcmp(p->sources[i], sources->items[i].name) == 0;
    return all;
}

enum status plan_holds(const struct plan *p, const struct compare_job *job, const struct sources *sources,
                       const struct findings *f, struct err *err)
{
    const struct finding **sorted;
    enum status st = ST_OK;

    if (strcmp(p->store, job->cfg->store.name) != 0)
        return err_set(err, ST_INVALID, REPAIR_REFUSED,
                       "the plan is for store \"%s\", and this is an audit of \"%s\": nothing is repaired", p->store,
                       job->cfg->store.name);
    if (strcmp(p->store_id, job->store_id) != 0 || strcmp(p->model_id, job->model_id) != 0)
        return err_set(err, ST_INVALID, REPAIR_REFUSED,
                       "the plan is for store %s with model %s, and %s with %s is in force: nothing is repaired",
                       p->store_id, p->model_id, job->store_id, job->model_id);
    if (!same_sources(p, sources))
        return err_set(err, ST_INVALID, REPAIR_REFUSED,
                       "the plan was made with other sources of expected tuples: nothing is repaired");
    sorted = calloc(f->len + 1, sizeof *sorted);
    if (!sorted)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    for (size_t i = 0; i < f->len; i++)
        sorted[i] = &f->items[i];
    if (f->len)
        qsort(sorted, f->len, sizeof *sorted, by_key);
    for (size_t i = 0; i < p->len && st == ST_OK; i++)
        st = same(&p->items[i], sorted, f->len, err);
    free(sorted);
    return st;
}
