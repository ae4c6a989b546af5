#include "tests/harness/metrics_lint.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"

struct lint {
    char name[200]; /* the block's metric */
    char type[20];
    bool typed;
    struct buf names; /* "\nname\n" of every block so far */
    struct buf seen;  /* "\nname{labels} " of every sample of this block */
    double last_bucket;
    bool inf;
};

static char fault[600];

static bool complain(const char *why, const char *line)
{
    snprintf(fault, sizeof fault, "%s: %.300s", why, line);
    return false;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

static bool good_name(const char *name)
{
    static const char *const bad_units[] = {"_ms",      "_milliseconds", "_us",       "_microseconds", "_ns",
                                            "_minutes", "_hours",        "_days",     "_percent",      "_kb",
                                            "_kib",     "_mb",           "_kilobytes"};
    char copy[200];

    if (strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(name) || !islower((unsigned char)name[0]))
        return false;
    snprintf(copy, sizeof copy, "%s", name);
    if (ends_with(copy, "_total"))
        copy[strlen(copy) - 6] = '\0';
    for (size_t i = 0; i < sizeof bad_units / sizeof bad_units[0]; i++) {
        if (ends_with(copy, bad_units[i]))
            return false;
    }
    return !ends_with(copy, "_count") && !ends_with(copy, "_sum") && !ends_with(copy, "_bucket");
}

static bool remember(struct buf *list, const char *text)
{
    buf_adds(list, text);
    buf_addc(list, '\n');
    return buf_ok(list);
}

static bool known(const struct buf *list, const char *text)
{
    char wanted[700];

    snprintf(wanted, sizeof wanted, "\n%s\n", text);
    return strstr(buf_str(list), wanted) != NULL;
}

static bool help_line(struct lint *l, const char *line)
{
    int n = 0;

    if (sscanf(line, "# HELP %199s %n", l->name, &n) != 1 || n == 0 || line[n] == '\0')
        return complain("HELP without a text", line);
    if (line[strlen(line) - 1] != '.')
        return complain("the help text is no sentence", line);
    if (!good_name(l->name))
        return complain("bad name or unit", line);
    if (known(&l->names, l->name))
        return complain("a second block of the name", line);
    l->typed = false;
    buf_clear(&l->seen);
    buf_addc(&l->seen, '\n');
    return remember(&l->names, l->name);
}

static bool type_line(struct lint *l, const char *line)
{
    char name[200];
    bool total;

    if (sscanf(line, "# TYPE %199s %19s", name, l->type) != 2 || strcmp(name, l->name) != 0 || l->typed)
        return complain("TYPE does not follow its HELP", line);
    total = ends_with(name, "_total");
    if (strcmp(l->type, "counter") == 0 ? !total : total)
        return complain("only and all counters end in _total", line);
    if (strcmp(l->type, "counter") != 0 && strcmp(l->type, "gauge") != 0 && strcmp(l->type, "histogram") != 0)
        return complain("unknown type", line);
    l->typed = true;
    l->last_bucket = 0;
    l->inf = false;
    return true;
}

/* name="value",...} ; the end, or NULL. */
static const char *skip_labels(const char *p)
{
    for (;;) {
        size_t n = strspn(p, "abcdefghijklmnopqrstuvwxyz_");

        if (n == 0 || p[n] != '=' || p[n + 1] != '"')
            return NULL;
        p += n + 2;
        while (*p && *p != '"')
            p += *p == '\\' && p[1] ? 2 : 1;
        if (*p != '"')
            return NULL;
        p++;
        if (*p == '}')
            return p + 1;
        if (*p++ != ',')
            return NULL;
    }
}

static bool histogram_sample(struct lint *l, const char *line, const char *suffix, double value)
{
    if (strcmp(suffix, "_bucket") == 0) {
        if (value < l->last_bucket)
            return complain("buckets are not cumulative", line);
        l->last_bucket = value;
        l->inf = l->inf || strstr(line, "le=\"+Inf\"");
        return strstr(line, "le=\"") != NULL || complain("a bucket without le", line);
    }
    if (strcmp(suffix, "_sum") == 0)
        return l->inf || complain("no +Inf bucket", line);
    if (strcmp(suffix, "_count") != 0)
        return complain("no sample of this histogram", line);
    if (memcmp(&value, &l->last_bucket, sizeof value) != 0)
        return complain("the count is not the +Inf bucket", line);
    l->last_bucket = 0;
    l->inf = false;
    return true;
}

static bool sample_line(struct lint *l, const char *line)
{
    size_t n = strcspn(line, "{ ");
    const char *p = line + n;
    char key[600], suffix[30] = "", *end = NULL;
    double value;

    if (!l->typed || strncmp(line, l->name, strlen(l->name)) != 0 || n < strlen(l->name))
        return complain("a sample outside its block", line);
    if (*p == '{' && !(p = skip_labels(p + 1)))
        return complain("bad labels", line);
    if (*p != ' ')
        return complain("no value", line);
    value = strtod(p + 1, &end);
    if (end == p + 1 || *end)
        return complain("the value is no number", line);
    snprintf(key, sizeof key, "%.*s", (int)(p - line), line);
    if (known(&l->seen, key))
        return complain("a sample twice", line);
    snprintf(suffix, sizeof suffix, "%.*s", (int)(n - strlen(l->name)), line + strlen(l->name));
    if (strcmp(l->type, "histogram") == 0)
        return remember(&l->seen, key) && histogram_sample(l, line, suffix, value);
    if (suffix[0])
        return complain("a sample outside its block", line);
    if (strcmp(l->type, "counter") == 0 && !(value >= 0))
        return complain("a negative counter", line);
    return remember(&l->seen, key);
}

const char *metrics_lint(const char *page)
{
    struct lint l = {0};
    bool good = true;

    buf_init(&l.names, 1 << 20);
    buf_init(&l.seen, 1 << 20);
    buf_addc(&l.names, '\n');
    while (good && *page) {
        size_t n = strcspn(page, "\n");
        char *line = strndup(page, n);

        if (!line || page[n] != '\n')
            good = complain("the last line has no end", page);
        else if (strncmp(line, "# HELP ", 7) == 0)
            good = help_line(&l, line);
        else if (strncmp(line, "# TYPE ", 7) == 0)
            good = type_line(&l, line);
        else
            good = sample_line(&l, line);
        free(line);
        page += n + 1;
    }
    buf_release(&l.names);
    buf_release(&l.seen);
    return good ? NULL : fault;
}
