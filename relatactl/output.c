/* output.c - results for people and for programs. */
#include <ctype.h>
#include <stdlib.h>

#include "relatactl/ctl.h"

#define COLUMNS_MAX 12
#define CELL_SHOWN_MAX 120

const char *const exit_codes_text =
    "Exit codes:\n"
    "  0  done\n"
    "  1  failed: a check that was asked for does not hold, there is no such thing, its content was refused, "
    "interrupted\n"
    "  2  bad option, argument, setting or file\n"
    "  3  refused, because the set-up is not what it must be or going on could lose something: schema not migrated or\n"
    "     newer, no such database, login or right refused, store not pinned, gone, wiped or another, no such model,\n"
    "     store not empty, already running, a time that history does not know\n"
    "  4  Postgres, the store or NATS could not be reached in time\n"
    "  5  done, but for tuples that were refused: seed parked them, adopt left them alone\n";

enum exit_code exit_of(const struct err *err)
{
    if (strcmp(err->code, CTL_REFUSED) == 0)
        return EXIT_UNSAFE;
    switch (err->status) {
    case ST_OK:
        return EXIT_DONE;
    case ST_CONFIG:
        return EXIT_USAGE;
    case ST_DENIED:
    case ST_MISSING:
        return EXIT_UNSAFE;
    case ST_RETRY:
    case ST_THROTTLED:
    case ST_UNKNOWN:
    case ST_DEADLINE:
        return EXIT_UNREADY;
    case ST_CONFLICT:
    case ST_INVALID:
    case ST_TOO_BIG:
    case ST_NOT_FOUND:
    case ST_STOPPED:
    case ST_NOMEM:
    case ST_FATAL:
        return EXIT_FAILED;
    }
    return EXIT_FAILED;
}

/* The hint that most often helps. */
static const char *remedy(const struct err *err)
{
    if (strcmp(err->code, "42P01") == 0 || strcmp(err->code, "3F000") == 0 || strcmp(err->code, "42883") == 0 ||
        strcmp(err->code, "42703") == 0)
        return " (is this database migrated? relatactl migrate)";
    return "";
}

/* A code that the text begins with, such as the part of a tuple that is wrong, tells a person nothing more. */
static bool code_tells(const struct err *err)
{
    return *err->code && strncmp(err->text, err->code, strlen(err->code)) != 0;
}

enum exit_code ctl_fail(const struct ctl *ctl, const struct err *err)
{
    const char *word = ctl->command ? ctl->command->name : "";
    bool code = code_tells(err);
    (void)fflush(stdout);
    (void)fprintf(stderr, "relatactl%s%s: %s%s%s%s%s\n", *word ? " " : "", word, err->text, code ? " [" : "",
                  code ? err->code : "", code ? "]" : "", remedy(err));
    if (ctl->json)
        ctl_print_json(json_pack("{s:{s:s, s:s, s:s}}", "error", "status", status_name(err->status), "code", err->code,
                                 "text", err->text));
    return exit_of(err);
}

void ctl_print_json(json_t *value)
{
    if (!value || json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) != 0)
        (void)fprintf(stderr, "relatactl: cannot print the result as JSON\n");
    else
        (void)fputc('\n', stdout);
    json_decref(value);
}

/* ---- tables ---- */

struct table {
    size_t ncols, nrows, cap;
    char **cells; /* headings first */
};

static char *cell_dup(const char *text)
{
    if (!text)
        text = "-";
    char *copy = strndup(text, 4096);
    for (char *p = copy; p && *p; p++) {
        if (iscntrl((unsigned char)*p))
            *p = '?';
    }
    return copy;
}

struct table *table_new(size_t ncols, const char *const *headings)
{
    struct table *t = calloc(1, sizeof *t);
    if (!t || ncols > COLUMNS_MAX) {
        free(t);
        return NULL;
    }
    t->ncols = ncols;
    table_add(t, headings);
    return t;
}

void table_add(struct table *t, const char *const *cells)
{
    if (!t)
        return;
    if (t->nrows == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 16;
        char **grown = realloc(t->cells, cap * t->ncols * sizeof *grown);
        if (!grown)
            return;
        t->cells = grown;
        t->cap = cap;
    }
    for (size_t i = 0; i < t->ncols; i++)
        t->cells[t->nrows * t->ncols + i] = cell_dup(cells[i]);
    t->nrows++;
}

/* Columns are counted in code points. */
static size_t shown_width(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static void table_free(struct table *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->nrows * t->ncols; i++)
        free(t->cells[i]);
    free(t->cells);
    free(t);
}

void table_print(struct table *t)
{
    size_t width[COLUMNS_MAX] = {0};
    if (!t)
        return;
    for (size_t i = 0; i < t->nrows * t->ncols; i++) {
        size_t w = t->cells[i] ? shown_width(t->cells[i]) : 0;
        if (w > width[i % t->ncols])
            width[i % t->ncols] = w < CELL_SHOWN_MAX ? w : CELL_SHOWN_MAX;
    }
    for (size_t row = 0; row < t->nrows; row++) {
        for (size_t col = 0; col < t->ncols; col++) {
            const char *text = t->cells[row * t->ncols + col] ? t->cells[row * t->ncols + col] : "";
            size_t w = shown_width(text);
            int pad = col + 1 < t->ncols && w < width[col] ? (int)(width[col] - w) : 0;
            (void)printf("%s%*s%s", text, pad, "", col + 1 < t->ncols ? "  " : "\n");
        }
    }
    table_free(t);
}

/* ---- JSON of a query's rows ---- */

static json_t *json_of_cell(const struct pg_result *r, int row, int col, char kind)
{
    if (pg_is_null(r, row, col))
        return json_null();
    const char *text = pg_text(r, row, col);
    json_t *v = NULL;
    if (kind == 'i')
        v = json_integer(pg_int(r, row, col));
    else if (kind == 'f')
        v = json_real(pg_double(r, row, col));
    else if (kind == 'b')
        v = json_boolean(pg_bool(r, row, col));
    else if (kind == 'j')
        v = json_loadb(text, pg_len(r, row, col), JSON_DECODE_ANY, NULL);
    else
        v = json_string(text);
    return v ? v : json_string(text);
}

json_t *json_of_rows(const struct pg_result *r, const char *const *names, const char *kinds)
{
    json_t *list = json_array();
    for (int row = 0; row < pg_rows(r); row++) {
        json_t *object = json_object();
        for (int col = 0; kinds[col]; col++)
            (void)json_object_set_new(object, names[col], json_of_cell(r, row, col, kinds[col]));
        (void)json_array_append_new(list, object);
    }
    return list;
}
