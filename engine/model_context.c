/*
 * model_context.c - whether a condition's stored context fits the parameters that the model declares: OpenFGA's
 * conversions and messages (internal/condition/types, v1.22.1).
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/model_internal.h"

struct fault {
    char *text;
    size_t size;
};

static bool wrong(const struct fault *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(const struct fault *f, const char *fmt, ...)
{
    va_list ap;
    size_t n = strlen(f->text);
    va_start(ap, fmt);
    vsnprintf(f->text + n, f->size - n, fmt, ap);
    va_end(ap);
    return false;
}

/* As Go names it. */
static const char *type_name(const json_t *v)
{
    return json_is_string(v)    ? "string"
           : json_is_number(v)  ? "float64"
           : json_is_boolean(v) ? "bool"
           : json_is_array(v)   ? "[]interface {}"
           : json_is_object(v)  ? "map[string]interface {}"
                                : "%!s(<nil>)";
}

/* A number, or a string that holds one. */
static bool number_of(const struct fault *f, const json_t *v, const char *type, double *out)
{
    char *end;
    *out = json_number_value(v);
    if (json_is_number(v))
        return true;
    if (!json_is_string(v))
        return wrong(f, "expected type value '%s', but found '%s'", type, type_name(v));
    const char *s = json_string_value(v);
    *out = strtod(s, &end);
    if (!*s || *end || isspace((unsigned char)*s) || strpbrk(s, "xXnN"))
        return wrong(f, "expected a %s value, but found invalid string value '%s'", type, s);
    return true;
}

static bool is_whole(double x)
{
    return isfinite(x) && x == floor(x);
}

static bool fits_int(const struct fault *f, const json_t *v)
{
    double x;
    return number_of(f, v, "int64", &x) &&
           (is_whole(x) || wrong(f, "expected an int value, but found numeric value '%.10g'", x));
}

static bool fits_uint(const struct fault *f, const json_t *v)
{
    double x;
    if (!number_of(f, v, "uint64", &x))
        return false;
    if (!is_whole(x))
        return wrong(f, "expected a uint value, but found numeric value '%.10g'", x);
    return x >= 0 || wrong(f, "expected a uint value, but found int64 value '%.10g'", x);
}

/* Go's: "1h30m", "1.5s", "-2ms". */
static bool is_duration(const char *s)
{
    static const char *const units[] = {"ns", "us", "\xc2\xb5s", "\xce\xbcs", "ms", "s", "m", "h"};
    s += *s == '-' || *s == '+';
    if (strcmp(s, "0") == 0)
        return true;
    if (!*s)
        return false;
    while (*s) {
        size_t whole = strspn(s, "0123456789"), part = 0, unit = 0;
        s += whole;
        if (*s == '.') {
            part = strspn(s + 1, "0123456789");
            s += 1 + part;
        }
        for (size_t i = 0; i < sizeof units / sizeof *units && !unit; i++) {
            size_t n = strlen(units[i]);
            bool longer = strcmp(units[i], "m") == 0 && s[1] == 's';
            if (!longer && strncmp(s, units[i], n) == 0)
                unit = n;
        }
        if (whole + part == 0 || !unit)
            return false;
        s += unit;
    }
    return true;
}

static bool is_timestamp(const char *s)
{
    struct tm tm = {0};
    const char *at = strptime(s, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!at)
        return false;
    if (*at == '.')
        at += 1 + strspn(at + 1, "0123456789");
    return strcmp(at, "Z") == 0 || ((*at == '+' || *at == '-') && strlen(at) == 6 && at[3] == ':');
}

static bool is_address(const char *s)
{
    unsigned char address[16];
    return inet_pton(AF_INET, s, address) == 1 || inet_pton(AF_INET6, s, address) == 1;
}

/* Of a kind that is written as a string. */
static bool fits_text(const struct fault *f, const json_t *v, const char *kind)
{
    const char *s = json_string_value(v);
    if (strcmp(kind, "TYPE_NAME_DURATION") == 0) {
        if (!s)
            return wrong(f, "expected a duration string, but found: %s", type_name(v));
        return is_duration(s) || wrong(f, "expected a valid duration string, but found: '%s'", s);
    }
    if (strcmp(kind, "TYPE_NAME_TIMESTAMP") == 0) {
        if (!s)
            return wrong(f, "expected RFC 3339 formatted timestamp string, but found: %s", type_name(v));
        return is_timestamp(s) || wrong(f, "expected RFC 3339 formatted timestamp string, but found '%s'", s);
    }
    if (!s)
        return wrong(f, "expected an ipaddress string, but found: %s", type_name(v));
    return is_address(s) || wrong(f, "expected a well-formed IP address, but found: '%s'", s);
}

static bool fits(const struct fault *f, const json_t *type, const json_t *v);

static bool fits_items(const struct fault *f, const json_t *item_type, const json_t *v, bool map)
{
    const json_t *item;
    const char *key;
    size_t i;
    char inner[256] = "";
    const struct fault within = {inner, sizeof inner};
    if (map ? !json_is_object(v) : !json_is_array(v))
        return wrong(f, "%s, found: %s", map ? "map requires a map" : "list requires a list", type_name(v));
    json_array_foreach(v, i, item)
    {
        if (!fits(&within, item_type, item))
            return wrong(f, "found an invalid list item at index `%zu`: %s", i, inner);
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, item)
    {
        if (!fits(&within, item_type, item))
            return wrong(f, "found an invalid value for key '%s': %s", key, inner);
    }
    return true;
}

static bool fits(const struct fault *f, const json_t *type, const json_t *v)
{
    const char *kind = json_string_value(json_object_get(type, "type_name"));
    double x;
    if (!kind || strcmp(kind, "TYPE_NAME_ANY") == 0)
        return true;
    if (strcmp(kind, "TYPE_NAME_BOOL") == 0)
        return json_is_boolean(v) || wrong(f, "expected type value 'bool', but found '%s'", type_name(v));
    if (strcmp(kind, "TYPE_NAME_STRING") == 0)
        return json_is_string(v) || wrong(f, "expected type value 'string', but found '%s'", type_name(v));
    if (strcmp(kind, "TYPE_NAME_INT") == 0)
        return fits_int(f, v);
    if (strcmp(kind, "TYPE_NAME_UINT") == 0)
        return fits_uint(f, v);
    if (strcmp(kind, "TYPE_NAME_DOUBLE") == 0)
        return number_of(f, v, "float64", &x);
    if (strcmp(kind, "TYPE_NAME_MAP") == 0 || strcmp(kind, "TYPE_NAME_LIST") == 0)
        return fits_items(f, json_array_get(json_object_get(type, "generic_types"), 0), v,
                          strcmp(kind, "TYPE_NAME_MAP") == 0);
    return fits_text(f, v, kind);
}

bool model_context_fits(const char *name, const json_t *condition, const json_t *context, struct model_err *err)
{
    const json_t *parameters = json_object_get(condition, "parameters"), *type, *value;
    char inner[384] = "";
    const struct fault f = {inner, sizeof inner};
    const char *key;
    if (json_object_size(context) == 0)
        return true;
    if (json_object_size(parameters) == 0) {
        snprintf(err->text, sizeof err->text,
                 "parameter type error on condition '%s' - no parameters defined for the condition", name);
        return false;
    }
    json_object_foreach((json_t *)(uintptr_t)parameters, key, type)
    {
        value = json_object_get(context, key);
        if (value && !fits(&f, type, value)) {
            snprintf(err->text, sizeof err->text,
                     "parameter type error on condition '%s' - failed to convert context parameter '%s': %s", name, key,
                     inner);
            return false;
        }
    }
    json_object_foreach((json_t *)(uintptr_t)context, key, value)
    {
        if (!json_object_get(parameters, key)) {
            snprintf(err->text, sizeof err->text, "found invalid context parameter: %s", key);
            return false;
        }
    }
    return true;
}
