/* value.c - whether a text is a value of a column's kind: stricter than Postgres, so that it never refuses one. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"
#include "inventory-lister/collections/internal.h"

#define NUMBER_MAX_BYTES 200
#define EXPONENT_MAX 1000 /* numeric reaches further, but nobody's prices do */

bool kind_is_ordered(enum column_kind k)
{
    return k != COL_JSON && k != COL_OTHER;
}

const char *kind_name(const struct column *col)
{
    switch (col->kind) {
    case COL_TEXT:
        return col->labels ? "one of the type's labels" : "text";
    case COL_INT:
        return "an integer";
    case COL_FLOAT:
    case COL_NUMERIC:
        return "a number";
    case COL_BOOL:
        return "true or false";
    case COL_TIME:
        return strstr(col->type, "without") ? "a time like 2026-01-31T23:59:59.999999, without offset or with Z"
                                            : "a time like 2026-01-31T23:59:59.999999Z (RFC 3339)";
    case COL_DATE:
        return "a date like 2026-01-31";
    case COL_UUID:
        return "a UUID";
    case COL_JSON:
    case COL_OTHER:
        break;
    }
    return "a value of a type that cannot be compared";
}

static bool text_ok(const struct column *col, const char *s)
{
    size_t len = strlen(s);

    if (len > FILTER_VALUE_MAX)
        return false;
    for (size_t i = 0; col->labels && i < col->nlabels; i++) {
        if (strcmp(col->labels[i], s) == 0)
            return true;
    }
    return !col->labels && utf8_valid(s, len);
}

static size_t digits(const char *s)
{
    size_t n = 0;

    while (isdigit((unsigned char)s[n]))
        n++;
    return n;
}

static bool int_ok(const struct column *col, const char *s)
{
    bool small = strcmp(col->type, "smallint") == 0, wide = strcmp(col->type, "bigint") == 0;
    long long max = small ? INT16_MAX : wide ? INT64_MAX : INT32_MAX, v;
    size_t n = digits(s + (*s == '-'));

    if (n == 0 || s[n + (*s == '-')] != '\0')
        return false;
    errno = 0;
    v = strtoll(s, NULL, 10);
    return errno == 0 && v <= max && v >= -max - 1;
}

/* As in JSON: -1.5e10 */
static bool number_ok(const char *s)
{
    size_t n;

    if (strlen(s) > NUMBER_MAX_BYTES)
        return false;
    s += *s == '-';
    n = digits(s);
    if (n == 0)
        return false;
    s += n;
    if (*s == '.') {
        n = digits(s + 1);
        if (n == 0)
            return false;
        s += 1 + n;
    }
    if (*s == 'e' || *s == 'E') {
        s += 1 + (s[1] == '-' || s[1] == '+');
        n = digits(s);
        if (n == 0 || n > 4 || strtol(s, NULL, 10) > EXPONENT_MAX)
            return false;
        s += n;
    }
    return *s == '\0';
}

/* Postgres refuses what overflows, and what is not zero and becomes it. */
static bool float_ok(const struct column *col, const char *s)
{
    double v;

    if (!number_ok(s))
        return false;
    errno = 0;
    v = strcmp(col->type, "real") == 0 ? (double)strtof(s, NULL) : strtod(s, NULL);
    return errno == 0 || (v != 0 && v - v == 0);
}

/* `n` digits from lo to hi, then `end` (0 = anything). */
static bool take(const char **s, size_t n, int lo, int hi, char end, int *out)
{
    int v = 0;

    for (size_t i = 0; i < n; i++) {
        if (!isdigit((unsigned char)(*s)[i]))
            return false;
        v = v * 10 + ((*s)[i] - '0');
    }
    *s += n;
    if (v < lo || v > hi || (end && **s != end))
        return false;
    *s += end != 0;
    *out = v;
    return true;
}

static bool take_date(const char **s)
{
    static const int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int y, m, d, leap;

    if (!take(s, 4, 1, 9999, '-', &y) || !take(s, 2, 1, 12, '-', &m) || !take(s, 2, 1, 31, 0, &d))
        return false;
    leap = y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
    return d <= lengths[m - 1] + (m == 2 && leap);
}

static bool time_ok(const struct column *col, const char *s)
{
    bool zoned = strstr(col->type, "without") == NULL;
    int v, hours, minutes;

    if (!take_date(&s) || (*s != 'T' && *s != 't'))
        return false;
    s++;
    if (!take(&s, 2, 0, 23, ':', &v) || !take(&s, 2, 0, 59, ':', &v) || !take(&s, 2, 0, 59, 0, &v))
        return false;
    if (*s == '.') {
        size_t n = digits(s + 1);

        if (n == 0 || n > 6) /* a seventh digit would be rounded */
            return false;
        s += 1 + n;
    }
    if (*s == 'Z' || *s == 'z')
        return s[1] == '\0';
    if (!zoned)
        return *s == '\0';
    if (*s != '+' && *s != '-')
        return false;
    s++;
    /* Postgres takes offsets of less than 16 hours. */
    return take(&s, 2, 0, 15, ':', &hours) && take(&s, 2, 0, 59, 0, &minutes) && *s == '\0';
}

static bool uuid_ok(const char *s)
{
    for (int i = 0; i < 36; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;

        if (dash ? s[i] != '-' : !isxdigit((unsigned char)s[i]))
            return false;
    }
    return s[36] == '\0';
}

static bool value_ok(const struct column *col, const char *s)
{
    switch (col->kind) {
    case COL_TEXT:
        return text_ok(col, s);
    case COL_INT:
        return int_ok(col, s);
    case COL_FLOAT:
        return float_ok(col, s);
    case COL_NUMERIC:
        return number_ok(s);
    case COL_BOOL:
        return strcmp(s, "true") == 0 || strcmp(s, "false") == 0;
    case COL_TIME:
        return time_ok(col, s);
    case COL_DATE:
        return take_date(&s) && *s == '\0';
    case COL_UUID:
        return uuid_ok(s);
    case COL_JSON:
    case COL_OTHER:
        break;
    }
    return false;
}

enum status column_value_check(const struct column *col, const char *text, struct err *err)
{
    if (value_ok(col, text))
        return ST_OK;
    if (col->kind == COL_TEXT && !col->labels)
        return err_set(err, ST_INVALID, NULL, "a value of \"%s\" must be UTF-8 of at most %d bytes", col->name,
                       FILTER_VALUE_MAX);
    return err_set(err, ST_INVALID, NULL, "\"%s\" takes %s%s", col->name, kind_name(col),
                   col->kind == COL_INT ? " in the range of its type" : "");
}
