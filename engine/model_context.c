/*
 * model_context.c - whether a condition's context fits the parameters that the model declares: OpenFGA's conversions
 * and messages (internal/condition/types, v1.22.1). What a value is converted to is not kept.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model_internal.h"

#define PREFIX "TYPE_NAME_"

struct why {
    char *text;
    size_t size, n; /* n: how much of it stands */
};

static void say(struct why *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(struct why *w, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(w->text + w->n, w->size - w->n, fmt, ap);
    va_end(ap);
    w->n = n < 0 ? w->n : w->n + (size_t)n < w->size ? w->n + (size_t)n : w->size - 1;
}

static const char *text(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "";
}

static const json_t *generics(const json_t *type)
{
    return json_object_get(type, "generic_types");
}

/* Without the prefix; "" if it has none. */
static const char *name_of(const json_t *type)
{
    const char *name = text(type, "type_name");
    return strncmp(name, PREFIX, strlen(PREFIX)) == 0 ? name + strlen(PREFIX) : "";
}

/* ---- types ---- */

static bool type_valid(const json_t *type, struct why *w)
{
    static const char *const names[] = {"ANY",      "BOOL",      "STRING", "INT",  "UINT",     "DOUBLE",
                                        "DURATION", "TIMESTAMP", "MAP",    "LIST", "IPADDRESS"};
    const char *name = name_of(type);
    size_t given = json_array_size(generics(type)), wanted = 0;
    bool known = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        known |= strcmp(name, names[i]) == 0;
    if (!known) {
        say(w, "unknown condition parameter type `%s`", *name ? text(type, "type_name") : PREFIX "UNSPECIFIED");
        return false;
    }
    if (strcmp(name, "MAP") == 0 || strcmp(name, "LIST") == 0)
        wanted = 1;
    if (given != wanted) {
        say(w, "condition parameter type `" PREFIX "%s` requires %zu generic types; found %zu", name, wanted, given);
        return false;
    }
    return wanted == 0 || type_valid(json_array_get(generics(type), 0), w);
}

bool model_parameters_valid(const json_t *condition, char *why, size_t size)
{
    const char *name;
    const json_t *type;
    json_object_foreach(json_object_get(condition, "parameters"), name, type)
    {
        struct why w = {why, size, 0};
        say(&w, "failed to decode parameter type for parameter '%s': ", name);
        if (!type_valid(type, &w))
            return false;
    }
    return true;
}

/* ---- values as Go has and prints them ---- */

static const char *type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "map[string]interface {}";
    case JSON_ARRAY:
        return "[]interface {}";
    case JSON_STRING:
        return "string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "float64";
    case JSON_TRUE:
    case JSON_FALSE:
        return "bool";
    case JSON_NULL:
        break;
    }
    return "<nil>";
}

/* By %s, of what may be no type. */
static const char *type_text(const json_t *v)
{
    return json_is_null(v) ? "%!s(<nil>)" : type_of(v);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void print(struct why *w, const json_t *v);

static void print_map(struct why *w, const json_t *v)
{
    const char **keys = malloc((json_object_size(v) + 1) * sizeof *keys), *key;
    json_t *value;
    size_t n = 0;
    json_object_foreach((json_t *)(uintptr_t)v, key, value) if (keys) keys[n++] = key;
    if (keys)
        qsort(keys, n, sizeof *keys, by_text);
    say(w, "map[");
    for (size_t i = 0; i < n; i++) {
        say(w, "%s%s:", i ? " " : "", keys[i]);
        print(w, json_object_get(v, keys[i]));
    }
    say(w, "]");
    free(keys);
}

static void print_number(struct why *w, double d)
{
    char digits[40];
    int precision = 1;
    do
        snprintf(digits, sizeof digits, "%.*e", precision - 1, d);
    while (strtod(digits, NULL) != d && ++precision < 18);
    long exponent = strtol(strchr(digits, 'e') + 1, NULL, 10);
    if (exponent < -4 || exponent >= 6)
        say(w, "%s", digits);
    else
        say(w, "%.*f", precision - 1 > exponent ? (int)(precision - 1 - exponent) : 0, d);
}

static void print(struct why *w, const json_t *v)
{
    size_t i;
    const json_t *item;
    if (json_is_string(v))
        say(w, "%s", json_string_value(v));
    else if (json_is_number(v))
        print_number(w, json_number_value(v));
    else if (json_is_object(v))
        print_map(w, v);
    else if (json_is_array(v)) {
        say(w, "[");
        json_array_foreach(v, i, item)
        {
            say(w, "%s", i ? " " : "");
            print(w, item);
        }
        say(w, "]");
    } else
        say(w, "%s", json_is_true(v) ? "true" : json_is_false(v) ? "false" : "<nil>");
}

/* ---- numbers ---- */

static size_t digits(const char **s)
{
    size_t n = strspn(*s, "0123456789");
    *s += n;
    return n;
}

/* Decimal, as Go's big.ParseFloat to 64 bits, which is what a long double holds. */
static bool parse_number(const char *s, long double *out)
{
    const char *at = s + (*s == '+' || *s == '-');
    *out = strtold(s, NULL);
    if (strcmp(at, "Inf") == 0 || strcmp(at, "inf") == 0)
        return true;
    size_t n = digits(&at);
    if (*at == '.') {
        at++;
        n += digits(&at);
    }
    if (n > 0 && (*at == 'e' || *at == 'E')) {
        at += at[1] == '+' || at[1] == '-' ? 2 : 1;
        if (digits(&at) == 0)
            return false;
    }
    return n > 0 && !*at;
}

static bool fits_number(const json_t *v, const char *type, struct why *w)
{
    bool real = strcmp(type, "DOUBLE") == 0, natural = strcmp(type, "UINT") == 0;
    const char *go = real ? "float64" : natural ? "uint64" : "int64", *whole = natural ? "a uint" : "an int";
    long double n = json_number_value(v);
    if (json_is_number(v) && real)
        return true;
    if (!json_is_number(v) && !json_is_string(v))
        say(w, "expected type value '%s', but found '%s'", go, type_text(v));
    else if (json_is_string(v) && !parse_number(json_string_value(v), &n))
        say(w, "expected a %s value, but found invalid string value '%s'", go, json_string_value(v));
    else if (real && n != (long double)(double)n)
        say(w, "number cannot be represented as a float64: %.10Lg", n);
    else if (!real && isinf(n))
        say(w, "expected %s value, but found numeric value '%cInf'", whole, n < 0 ? '-' : '+');
    else if (!real && n != floorl(n))
        say(w, "expected %s value, but found numeric value '%.10Lg'", whole, n);
    else if (natural && n < 0)
        say(w, "expected a uint value, but found int64 value '%.10Lg'", n);
    else
        return true;
    return false;
}

/* ---- times and addresses ---- */

/* Go's time.ParseDuration: [-+] and numbers with units, or 0. At most 2^63 ns. */
static bool is_duration(const char *s)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"ns", 1e-9}, {"us", 1e-6}, {"\xc2\xb5s", 1e-6}, {"\xce\xbcs", 1e-6},
                 {"ms", 1e-3}, {"s", 1},     {"m", 60},           {"h", 3600}};
    double sum = 0;
    s += *s == '+' || *s == '-';
    if (strcmp(s, "0") == 0)
        return true;
    for (bool any = false;; any = true) {
        const char *from = s;
        size_t n = digits(&s), unit = 0;
        if (*s == '.') {
            s++;
            n += digits(&s);
        }
        if (n == 0)
            return any && !*from && sum < 9223372036.854775807;
        size_t len = strcspn(s, ".0123456789");
        while (unit < sizeof units / sizeof *units &&
               (strlen(units[unit].name) != len || memcmp(units[unit].name, s, len) != 0))
            unit++;
        if (unit == sizeof units / sizeof *units)
            return false;
        sum += strtod(from, NULL) * units[unit].seconds;
        s += len;
    }
}

static bool two_digits(const char **s, int low, int high, int *out)
{
    if (!isdigit((unsigned char)(*s)[0]) || !isdigit((unsigned char)(*s)[1]))
        return false;
    *out = ((*s)[0] - '0') * 10 + (*s)[1] - '0';
    *s += 2;
    return *out >= low && *out <= high;
}

static bool skip(const char **s, char c)
{
    return **s == c && ++*s;
}

static int days_in(int year, int month)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return days[month - 1] + (month == 2 && leap);
}

/* RFC 3339, as Go reads it: a comma may stand for the point. */
static bool is_timestamp(const char *s)
{
    int century, year, month, day, hour, minute, second;
    if (!two_digits(&s, 0, 99, &century) || !two_digits(&s, 0, 99, &year) || !skip(&s, '-') ||
        !two_digits(&s, 1, 12, &month) || !skip(&s, '-') ||
        !two_digits(&s, 1, days_in(century * 100 + year, month), &day) || !skip(&s, 'T') ||
        !two_digits(&s, 0, 23, &hour) || !skip(&s, ':') || !two_digits(&s, 0, 59, &minute) || !skip(&s, ':') ||
        !two_digits(&s, 0, 59, &second))
        return false;
    if ((*s == '.' || *s == ',') && isdigit((unsigned char)s[1])) {
        s++;
        digits(&s);
    }
    if (strcmp(s, "Z") == 0)
        return true;
    return (skip(&s, '+') || skip(&s, '-')) && two_digits(&s, 0, 24, &hour) && skip(&s, ':') &&
           two_digits(&s, 0, 60, &minute) && !*s;
}

static bool is_address(const char *s)
{
    unsigned char address[16];
    const char *zone = strchr(s, '%');
    char plain[64];
    size_t len = zone ? (size_t)(zone - s) : strlen(s);
    if (len >= sizeof plain || (zone && (!zone[1] || !memchr(s, ':', len))))
        return false;
    memcpy(plain, s, len);
    plain[len] = '\0';
    return inet_pton(memchr(s, ':', len) ? AF_INET6 : AF_INET, plain, address) == 1;
}

/* ---- values ---- */

static bool fits(const json_t *v, const json_t *type, struct why *w);

static bool fits_list(const json_t *v, const json_t *item_type, struct why *w)
{
    const json_t *item;
    size_t i;
    if (!json_is_array(v))
        say(w, "list requires a list, found: %s", type_of(v));
    json_array_foreach(v, i, item)
    {
        size_t before = w->n;
        say(w, "found an invalid list item at index `%zu`: ", i);
        if (!fits(item, item_type, w))
            return false;
        w->n = before;
    }
    return json_is_array(v);
}

static bool fits_map(const json_t *v, const json_t *item_type, struct why *w)
{
    const char *key;
    json_t *item;
    if (!json_is_object(v))
        say(w, "map requires a map, found: %s", type_of(v));
    json_object_foreach((json_t *)(uintptr_t)v, key, item)
    {
        size_t before = w->n;
        say(w, "found an invalid value for key '%s': ", key);
        if (!fits(item, item_type, w))
            return false;
        w->n = before;
    }
    return json_is_object(v);
}

/* A string of a form. */
static bool fits_form(const json_t *v, bool (*form)(const char *s), const char *what, const char *wanted, struct why *w)
{
    if (!json_is_string(v)) {
        say(w, "expected %s, but found: %s '", what, type_of(v));
        print(w, v);
        say(w, "'");
    } else if (!form(json_string_value(v)))
        say(w, "expected %s '%s'", wanted, json_string_value(v));
    else
        return true;
    return false;
}

static bool fits(const json_t *v, const json_t *type, struct why *w)
{
    const char *name = name_of(type);
    const json_t *item = json_array_get(generics(type), 0);
    bool is_bool = strcmp(name, "BOOL") == 0;
    if (is_bool || strcmp(name, "STRING") == 0) {
        if (is_bool ? json_is_boolean(v) : json_is_string(v))
            return true;
        say(w, "expected type value '%s', but found '%s'", is_bool ? "bool" : "string", type_text(v));
        return false;
    }
    if (strcmp(name, "INT") == 0 || strcmp(name, "UINT") == 0 || strcmp(name, "DOUBLE") == 0)
        return fits_number(v, name, w);
    if (strcmp(name, "DURATION") == 0)
        return fits_form(v, is_duration, "a duration string", "a valid duration string, but found:", w);
    if (strcmp(name, "TIMESTAMP") == 0)
        return fits_form(v, is_timestamp, "RFC 3339 formatted timestamp string",
                         "RFC 3339 formatted timestamp string, but found", w);
    if (strcmp(name, "IPADDRESS") == 0)
        return fits_form(v, is_address, "an ipaddress string", "a well-formed IP address, but found:", w);
    if (strcmp(name, "LIST") == 0)
        return fits_list(v, item, w);
    return strcmp(name, "MAP") != 0 || fits_map(v, item, w);
}

bool model_context_fits(const char *name, const json_t *condition, const json_t *context, struct model_err *err)
{
    const json_t *parameters = json_object_get(condition, "parameters"), *type, *value;
    const char *key;
    struct why w = {err->text, sizeof err->text, 0};
    if (json_object_size(context) > 0 && json_object_size(parameters) == 0) {
        say(&w, "parameter type error on condition '%s' - no parameters defined for the condition", name);
        return false;
    }
    json_object_foreach((json_t *)(uintptr_t)parameters, key, type)
    {
        w.n = 0;
        say(&w, "parameter type error on condition '%s' - failed to convert context parameter '%s': ", name, key);
        if ((value = json_object_get(context, key)) != NULL && !fits(value, type, &w))
            return false;
    }
    json_object_foreach((json_t *)(uintptr_t)context, key, value)
    {
        w.n = 0;
        if (json_object_get(parameters, key))
            continue;
        say(&w, "found invalid context parameter: %s", key);
        return false;
    }
    return true;
}
