#include "authz-store/api/schema.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

#define EMBEDDED "| caused by:"

const json_t *member(const json_t *json, const char *name)
{
    const json_t *v = json_object_get(json, name);
    return json_is_null(v) ? NULL : v;
}

const char *member_text(const json_t *json, const char *name)
{
    const char *s = json_string_value(json_object_get(json, name));
    return s ? s : "";
}

/* ---- patterns ---- */

#define NO_SPACE "\t\n\f\r "
#define MISMATCH(regex) "value does not match regex pattern \"" regex "\""

/* Any characters but some, so many of them. */
static const struct {
    const char *reason, *excluded;
    size_t min, max;
} patterns[] = {
    [PATTERN_OBJECT] = {MISMATCH("^[^\\\\s]{2,256}$"), NO_SPACE, 2, 256},
    [PATTERN_USER] = {MISMATCH("^[^\\\\s]{2,512}$"), NO_SPACE, 2, 512},
    [PATTERN_TYPE] = {MISMATCH("^[^:#@\\\\s]{1,254}$"), ":#@" NO_SPACE, 1, 254},
    [PATTERN_RELATION] = {MISMATCH("^[^:#@\\\\s]{1,50}$"), ":#@" NO_SPACE, 1, 50},
    [PATTERN_CHANGES_TYPE] = {MISMATCH("^[^:#\\\\s]{1,254}$"), ":#" NO_SPACE, 1, 254},
    [PATTERN_ID] = {MISMATCH("^[ABCDEFGHJKMNPQRSTVWXYZ0-9]{26}$"), NULL, 26, 26},
    [PATTERN_CORRELATION] = {MISMATCH("^[\\\\w\\\\d-]{1,36}$"), NULL, 1, 36},
    [PATTERN_STORE_NAME] = {MISMATCH("^[a-zA-Z0-9\\\\s\\\\.\\\\-\\\\/^_&@]{3,64}$"), NULL, 3, 64},
    [PATTERN_READ_USER] = {MISMATCH("^[^\\\\s]{1,511}:[^\\\\s]{1,511}$"), NULL, 3, 1023},
    [PATTERN_TOKEN] = {MISMATCH("^$|^[A-Za-z0-9-_]+={0,2}$"), NULL, 0, SIZE_MAX},
    [PATTERN_OBJECT_ID] = {MISMATCH("[^#:\\\\s]+$"), NULL, 1, SIZE_MAX},
    [PATTERN_SCHEMA] = {"value must be in list [1.0 1.1 1.2]", NULL, 3, 3},
    [PATTERN_FILE] = {MISMATCH("^[a-zA-Z0-9_\\\\-\\\\/]{1,100}\\\\.fga$"), NULL, 5, 104},
};

#define DIGITS "0123456789"
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

static size_t characters(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static bool only(const char *s, const char *set)
{
    return s[strspn(s, set)] == '\0';
}

static bool is_token(const char *s)
{
    size_t n = strspn(s, LETTERS DIGITS "-_"), padding = strspn(s + n, "=");
    return *s == '\0' || (n > 0 && padding <= 2 && s[n + padding] == '\0');
}

static bool is_file(const char *s)
{
    size_t n = strspn(s, LETTERS DIGITS "_-/");
    return n >= 1 && n <= 100 && strcmp(s + n, ".fga") == 0;
}

/* Some colon has 1 to 511 characters on either side. */
static bool is_read_user(const char *s)
{
    size_t n = characters(s), before = 0;
    if (strpbrk(s, NO_SPACE))
        return false;
    for (; *s; s++) {
        if (*s == ':' && before >= 1 && before <= 511 && n - before - 1 >= 1 && n - before - 1 <= 511)
            return true;
        before += ((unsigned char)*s & 0xc0) != 0x80;
    }
    return false;
}

bool pattern_matches(enum pattern p, const char *s)
{
    size_t n;
    switch (p) {
    case PATTERN_NONE:
        return true;
    case PATTERN_OBJECT:
    case PATTERN_USER:
    case PATTERN_TYPE:
    case PATTERN_RELATION:
    case PATTERN_CHANGES_TYPE:
        n = characters(s);
        return n >= patterns[p].min && n <= patterns[p].max && !strpbrk(s, patterns[p].excluded);
    case PATTERN_ID:
        return strlen(s) == 26 && only(s, "ABCDEFGHJKMNPQRSTVWXYZ" DIGITS);
    case PATTERN_CORRELATION:
        n = strlen(s);
        return n >= 1 && n <= 36 && only(s, LETTERS DIGITS "_-");
    case PATTERN_STORE_NAME:
        n = strlen(s);
        return n >= 3 && n <= 64 && only(s, LETTERS DIGITS NO_SPACE ".-/^_&@");
    case PATTERN_READ_USER:
        return is_read_user(s);
    case PATTERN_TOKEN:
        return is_token(s);
    case PATTERN_OBJECT_ID: /* its end is one */
        n = strlen(s);
        return n > 0 && !strchr("#:" NO_SPACE, s[n - 1]);
    case PATTERN_SCHEMA:
        return strcmp(s, "1.0") == 0 || strcmp(s, "1.1") == 0 || strcmp(s, "1.2") == 0;
    case PATTERN_FILE:
        return is_file(s);
    }
    return false;
}

const char *pattern_reason(enum pattern p)
{
    return patterns[p].reason;
}

/* ---- types ---- */

static bool wrong(struct buf *why, const char *kind, const struct field *f, const json_t *v)
{
    struct buf text;
    buf_init(&text, 4096);
    if (!json_add(&text, v, JSON_ENCODE_ANY | JSON_COMPACT))
        buf_adds(&text, "...");
    const char *token = json_is_object(v) ? "{" : json_is_array(v) ? "[" : buf_str(&text);
    buf_clear(why);
    if (*kind)
        buf_addf(why, "invalid value for %s field %s: %s", kind, f->name, token);
    else
        buf_addf(why, "syntax error (line 1:1): unexpected token %s", token);
    buf_release(&text);
    return false;
}

static bool types_right(const struct message *m, const json_t *json, struct buf *why);

static bool item_right(const struct field *f, const json_t *item, struct buf *why)
{
    return json_is_object(item) ? types_right(f->of, item, why) : wrong(why, "", f, item);
}

static bool items_right(const struct field *f, const json_t *v, struct buf *why)
{
    const json_t *item;
    const char *key;
    size_t i;
    if (f->kind == FIELD_LIST ? !json_is_array(v) : !json_is_object(v))
        return wrong(why, "", f, v);
    if (f->kind == FIELD_LIST) {
        json_array_foreach(v, i, item)
        {
            if (!item_right(f, item, why))
                return false;
        }
    } else {
        json_object_foreach((json_t *)(uintptr_t)v, key, item)
        {
            if (!item_right(f, item, why))
                return false;
        }
    }
    return true;
}

static bool is_int32(const json_t *v)
{
    char *end;
    long long n = json_integer_value(v);
    if (json_is_real(v)) {
        n = (long long)json_real_value(v);
        return (double)n == json_real_value(v) && n == (int32_t)n;
    }
    if (json_is_string(v)) {
        n = strtoll(json_string_value(v), &end, 10);
        if (*end || end == json_string_value(v))
            return false;
    } else if (!json_is_integer(v)) {
        return false;
    }
    return n == (int32_t)n;
}

static bool type_right(const struct field *f, const json_t *v, struct buf *why)
{
    switch (f->kind) {
    case FIELD_STRING:
        return json_is_string(v) || wrong(why, "string", f, v);
    case FIELD_BOOL:
        return json_is_boolean(v) || wrong(why, "bool", f, v);
    case FIELD_INT: /* a message of its own, with one field */
        return is_int32(v) || wrong(why, "int32", &(const struct field){.name = "value"}, v);
    case FIELD_ENUM:
        return json_is_string(v) || is_int32(v) || wrong(why, "enum", f, v);
    case FIELD_TIME:
        return json_is_string(v) || wrong(why, "", f, v);
    case FIELD_STRUCT:
        return json_is_object(v) || wrong(why, "", f, v);
    case FIELD_MESSAGE:
        return json_is_object(v) ? types_right(f->of, v, why) : wrong(why, "", f, v);
    case FIELD_LIST:
    case FIELD_MAP:
        return items_right(f, v, why);
    }
    return true;
}

static const struct field *field_of(const struct message *m, const char *name)
{
    for (const struct field *f = m->fields; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

/* In the order in which they came, for the first fault is told. */
static bool types_right(const struct message *m, const json_t *json, struct buf *why)
{
    const json_t *v;
    const char *name;
    json_object_foreach((json_t *)(uintptr_t)json, name, v)
    {
        const struct field *f = json_is_null(v) ? NULL : field_of(m, name);
        if (f && !type_right(f, v, why))
            return false;
    }
    return true;
}

/* ---- rules ---- */

/* One fault more; `inner` NULL or the faults of what is inside. */
static void fault(struct buf *why, const struct message *m, const char *label, const char *reason,
                  const struct buf *inner)
{
    buf_addf(why, "%sinvalid %s.%s: %s", why->len ? "; " : "", m->label, label, reason);
    if (inner)
        buf_addf(why, " " EMBEDDED " %s", buf_str(inner));
}

static void rules(const struct message *m, const json_t *json, struct buf *why);

static void embedded(const struct message *m, const char *label, const struct message *of, const json_t *v,
                     struct buf *why)
{
    struct buf inner;
    buf_init(&inner, why->max);
    rules(of, v, &inner);
    if (inner.len)
        fault(why, m, label, "embedded message failed validation", &inner);
    buf_release(&inner);
}

static void string_rules(const struct message *m, const struct field *f, const char *s, struct buf *why)
{
    char reason[96];
    size_t n = strlen(s);
    if (f->bytes_min && (n < (size_t)f->bytes_min || n > (size_t)f->bytes_max)) {
        snprintf(reason, sizeof reason, "value length must be between %d and %d bytes, inclusive", f->bytes_min,
                 f->bytes_max);
        fault(why, m, f->label, reason, NULL);
    } else if (f->bytes_max && n > (size_t)f->bytes_max) {
        snprintf(reason, sizeof reason, "value length must be at most %d bytes", f->bytes_max);
        fault(why, m, f->label, reason, NULL);
    }
    if (!(f->may_be_empty && n == 0) && !pattern_matches(f->pattern, s))
        fault(why, m, f->label, patterns[f->pattern].reason, NULL);
}

static void items_rules(const struct message *m, const struct field *f, const json_t *v, struct buf *why)
{
    const char *what = f->kind == FIELD_MAP ? "pair" : "item", *key;
    int n = (int)(f->kind == FIELD_MAP ? json_object_size(v) : json_array_size(v));
    char text[160];
    const json_t *item;
    size_t i;
    if (f->items_min && f->items_min == f->items_max && n != f->items_min) {
        snprintf(text, sizeof text, "value must contain exactly %d %s(s)", f->items_min, what);
        fault(why, m, f->label, text, NULL);
    } else if (f->items_min && n < f->items_min) {
        snprintf(text, sizeof text, "value must contain at least %d %s(s)", f->items_min, what);
        fault(why, m, f->label, text, NULL);
    } else if (f->items_max && n > f->items_max) {
        snprintf(text, sizeof text, "value must contain no more than %d %s(s)", f->items_max, what);
        fault(why, m, f->label, text, NULL);
    }
    if (f->kind == FIELD_LIST) {
        json_array_foreach(v, i, item)
        {
            snprintf(text, sizeof text, "%s[%zu]", f->label, i);
            embedded(m, text, f->of, item, why);
        }
        return;
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, item)
    {
        snprintf(text, sizeof text, "%s[%.100s]", f->label, key);
        if (!pattern_matches(f->pattern, key))
            fault(why, m, text, patterns[f->pattern].reason, NULL);
        embedded(m, text, f->of, item, why);
    }
}

static long long int_of(const json_t *v)
{
    return json_is_string(v) ? strtoll(json_string_value(v), NULL, 10)
                             : (json_is_real(v) ? (long long)json_real_value(v) : json_integer_value(v));
}

/* ConsistencyPreference, where no names are given. */
static bool enum_has(const struct field *f, long long n)
{
    long long i = 0;
    if (!f->names)
        return n == 0 || n == 100 || n == 200;
    while (f->names[i] && i < n)
        i++;
    return n >= 0 && f->names[i];
}

static void rule(const struct message *m, const struct field *f, const json_t *v, struct buf *why)
{
    char text[96];
    switch (f->kind) {
    case FIELD_STRING:
        if (v || !f->one_of)
            string_rules(m, f, v ? json_string_value(v) : "", why);
        break;
    case FIELD_INT:
        if (v && (int_of(v) < f->items_min || (f->items_max && int_of(v) > f->items_max))) {
            snprintf(text, sizeof text, "value must be inside range [%d, %d]", f->items_min, f->items_max);
            fault(why, m, f->label, text, NULL);
        }
        break;
    case FIELD_ENUM:
        if (v && !json_is_string(v) && !enum_has(f, int_of(v)))
            fault(why, m, f->label, "value must be one of the defined enum values", NULL);
        break;
    case FIELD_MESSAGE:
        if (!v && f->required)
            fault(why, m, f->label, "value is required", NULL);
        if (v)
            embedded(m, f->label, f->of, v, why);
        break;
    case FIELD_LIST:
    case FIELD_MAP:
        items_rules(m, f, v, why);
        break;
    case FIELD_BOOL:
    case FIELD_TIME:
    case FIELD_STRUCT:
        break;
    }
}

static void rules(const struct message *m, const json_t *json, struct buf *why)
{
    for (const struct field *f = m->fields; f->name; f++)
        rule(m, f, member(json, f->name), why);
}

bool schema_types(const struct message *m, const json_t *json, struct buf *why)
{
    buf_clear(why);
    if (json && !json_is_object(json)) {
        buf_addf(why, "syntax error (line 1:1): unexpected token %s", json_is_array(json) ? "[" : "");
        return false;
    }
    return types_right(m, json, why);
}

bool schema_rules(const struct message *m, const json_t *json, struct buf *why)
{
    buf_clear(why);
    rules(m, json, why);
    if (why->len == 0)
        return true;
    /* What clients see is the innermost alone. */
    char *text = why->data, *last = NULL;
    for (char *at = text; (at = strstr(at, EMBEDDED)) != NULL; at += strlen(EMBEDDED))
        last = at + strlen(EMBEDDED);
    if (last) {
        char *copy = strdup(last + strspn(last, " "));
        buf_clear(why);
        buf_adds(why, copy ? copy : "");
        free(copy);
    }
    return false;
}

/* ---- codes ---- */

const char *schema_code(const char *why)
{
    static const struct {
        const char *label, *reason, *code;
    } codes[] = {
        {"Assertions", "value must contain no more than", "assertions_too_many_items"},
        {"Base", "value is required", "difference_base_missing_value"},
        {"Object", "value length must be at most", "object_too_long"},
        {"PageSize", "value must be inside range", "page_size_invalid"},
        {"Relation", "value length must be at most", "relation_too_long"},
        {"Subtract", "value is required", "subtract_base_missing_value"},
        {"TupleKey", "value is required", "tuple_key_value_not_specified"},
        {"Type", "value does not match regex pattern", "type_invalid_pattern"},
        {"TypeDefinitions", "value must contain at least", "type_definitions_too_few_items"},
        {"Relations[", "value does not match regex pattern", "relations_invalid_pattern"},
    };
    const char *colon = strstr(why, ": "), *dot = strchr(why, '.');
    if (!colon || !dot || dot > colon || memchr(dot + 1, '.', (size_t)(colon - dot - 1)))
        return "validation_error";
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        size_t n = strlen(codes[i].label);
        bool same = strncmp(dot + 1, codes[i].label, n) == 0 &&
                    (codes[i].label[n - 1] == '[' || (size_t)(colon - dot - 1) == n);
        if (same && strncmp(colon + 2, codes[i].reason, strlen(codes[i].reason)) == 0)
            return codes[i].code;
    }
    return "validation_error";
}

/* ---- giving back ---- */

static json_t *complete_field(const struct field *f, const json_t *v)
{
    const json_t *item;
    const char *key;
    json_t *out;
    size_t i;
    switch (f->kind) {
    case FIELD_STRING:
        return v ? json_copy((json_t *)(uintptr_t)v) : json_string("");
    case FIELD_BOOL:
        return v ? json_copy((json_t *)(uintptr_t)v) : json_false();
    case FIELD_ENUM:
        if (json_is_string(v) || !f->names)
            return v ? json_copy((json_t *)(uintptr_t)v) : json_string("UNSPECIFIED");
        return json_string(f->names[v ? int_of(v) : 0]);
    case FIELD_MESSAGE:
        return v ? schema_complete(f->of, v) : json_null();
    case FIELD_LIST:
        out = json_array();
        json_array_foreach(v, i, item) json_array_append_new(out, schema_complete(f->of, item));
        return out;
    case FIELD_MAP:
        out = json_object();
        json_object_foreach((json_t *)(uintptr_t)v, key, item)
            json_object_set_new(out, key, schema_complete(f->of, item));
        return out;
    case FIELD_INT:
    case FIELD_TIME:
    case FIELD_STRUCT:
        break;
    }
    return v ? json_deep_copy(v) : json_null();
}

json_t *schema_complete(const struct message *m, const json_t *json)
{
    json_t *out = json_object();
    for (const struct field *f = m->fields; f->name && out; f++) {
        const json_t *v = member(json, f->name);
        if ((v || !f->one_of) && json_object_set_new(out, f->name, complete_field(f, v)) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}
