/* plan.c - repairs as a file, for somebody to read and approve. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/file.h"
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

static bool write_lines(FILE *f, const struct compare_job *job, int64_t run, const struct findings *found,
                        const struct repairs *counts)
{
    char when[32];
    time_t now = time(NULL);
    struct tm tm;
    bool fine;

    (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    fine = put_line(f, json_pack("{s:i, s:s, s:s, s:s, s:s, s:I, s:I, s:I}", "plan", FORMAT, "store",
                                 job->cfg->store.name, "store_id", job->store_id, "model_id", job->model_id, "made_at",
                                 when, "run", (json_int_t)run, "repairs", (json_int_t)counts->wanted, "deletions",
                                 (json_int_t)counts->deletions));
    for (size_t i = 0; fine && i < found->len; i++) {
        const struct finding *x = &found->items[i];

        fine = put_line(f, json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:I}", "object", x->key->object, "relation",
                                     x->key->relation, "subject", x->key->subject, "cause", cause_name(x->cause),
                                     "action", action_name(x->action), "expected_known", x->judged_expected, "version",
                                     (json_int_t)x->version));
    }
    return fine && fflush(f) == 0 && fsync(fileno(f)) == 0;
}

enum status plan_write(const char *path, const struct compare_job *job, int64_t run, const struct findings *f,
                       const struct repairs *counts, struct err *err)
{
    struct buf temporary;
    FILE *file;
    bool fine;

    buf_init(&temporary, 1 << 16);
    buf_addf(&temporary, "%s.new", path);
    file = fopen(buf_str(&temporary), "w");
    fine = file && write_lines(file, job, run, f, counts);
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
    for (int i = ACTION_TOUCH; i <= ACTION_DELETE; i++) {
        if (strcmp(action_name((enum action)i), name) == 0)
            return i;
    }
    return -1;
}

static bool take_header(const json_t *line, struct plan *out, json_int_t *repairs)
{
    const char *store, *store_id, *model_id, *made_at;
    json_int_t run, deletions;
    int format;

    if (json_unpack((json_t *)(uintptr_t)line, "{s:i, s:s, s:s, s:s, s:s, s:I, s:I, s:I !}", "plan", &format, "store",
                    &store, "store_id", &store_id, "model_id", &model_id, "made_at", &made_at, "run", &run, "repairs",
                    repairs, "deletions", &deletions) != 0 ||
        format != FORMAT || strlen(store_id) >= sizeof out->store_id || strlen(model_id) >= sizeof out->model_id)
        return false;
    (void)snprintf(out->store_id, sizeof out->store_id, "%s", store_id);
    (void)snprintf(out->model_id, sizeof out->model_id, "%s", model_id);
    return true;
}

static bool take_repair(const json_t *line, struct planned *out)
{
    const char *object, *relation, *subject, *cause, *action;
    json_int_t version;
    struct tuple_key key;
    int expected, c, a;

    if (json_unpack((json_t *)(uintptr_t)line, "{s:s, s:s, s:s, s:s, s:s, s:b, s:I !}", "object", &object, "relation",
                    &relation, "subject", &subject, "cause", &cause, "action", &action, "expected_known", &expected,
                    "version", &version) != 0)
        return false;
    c = cause_of(cause);
    a = action_of(action);
    if (c < 0 || a < 0 ||
        tuple_check((struct bytes){object, strlen(object)}, (struct bytes){relation, strlen(relation)},
                    (struct bytes){subject, strlen(subject)}, NULL) != ST_OK)
        return false;
    key = (struct tuple_key){object, relation, subject};
    *out = (struct planned){tuple_key_dup(&key), (enum cause)c, (enum action)a, expected, version};
    return out->key;
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
        free(p->items[i].key);
    free(p->items);
    *p = (struct plan){0};
}

/* ---- holding ---- */

static int by_key(const void *a, const void *b)
{
    const struct finding *x = *(const struct finding *const *)a, *y = *(const struct finding *const *)b;

    return tuple_key_cmp(x->key, y->key);
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
        st = err_set(err, ST_INVALID, REPAIR_REFUSED, "%s is no longer %s: nothing is repaired", buf_str(&text),
                     cause_name(p->cause));
    else if ((*hit)->cause != p->cause || (*hit)->action != p->action || (*hit)->version != p->version)
        st = err_set(err, ST_INVALID, REPAIR_REFUSED, "%s has changed since the plan was made: nothing is repaired",
                     buf_str(&text));
    buf_release(&text);
    return st;
}

enum status plan_holds(const struct plan *p, const struct compare_job *job, const struct findings *f, struct err *err)
{
    const struct finding **sorted;
    enum status st = ST_OK;

    if (strcmp(p->store_id, job->store_id) != 0 || strcmp(p->model_id, job->model_id) != 0)
        return err_set(err, ST_INVALID, REPAIR_REFUSED,
                       "the plan is for store %s with model %s, and %s with %s is in force: nothing is repaired",
                       p->store_id, p->model_id, job->store_id, job->model_id);
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
