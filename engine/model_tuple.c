/*
 * model_tuple.c - whether names and tuples fit a model: OpenFGA's rules, order and messages (internal/validation,
 * pkg/tuple, v1.22.1).
 */
#include <jansson.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "engine/model_internal.h"

static enum model_fault fault(struct model_err *err, enum model_fault f, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static enum model_fault fault(struct model_err *err, enum model_fault f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    err->code[0] = '\0';
    return f;
}

/* ---- form ---- */

/* Unicode's control characters, in UTF-8: two bytes for U+0080 to U+009F. */
static bool control_at(const char *s)
{
    unsigned char c = (unsigned char)s[0], d = c ? (unsigned char)s[1] : 0;
    return c < 0x20 || c == 0x7f || (c == 0xc2 && d >= 0x80 && d <= 0x9f);
}

static bool has_control(const char *s)
{
    for (; *s; s++)
        if (control_at(s))
            return true;
    return false;
}

/* type:id, without a second colon. */
static bool is_object(const char *s)
{
    const char *colon = strchr(s, ':');
    return !has_control(s) && !strpbrk(s, "# ") && colon && colon != s && colon[1] && !strchr(colon + 1, ':');
}

/* type:id#relation; the id is no wildcard and without a star. */
static bool is_userset(const char *s)
{
    const char *colon = strchr(s, ':'), *hash = strchr(s, '#');
    return !has_control(s) && !strchr(s, ' ') && colon && colon != s && hash && hash > colon + 1 && hash[1] &&
           !strpbrk(hash + 1, "#") && !strchr(colon + 1, ':') && !memchr(colon, '*', strlen(colon));
}

static bool is_relation(const char *s)
{
    return *s && !has_control(s) && !strpbrk(s, "#:@ ");
}

static bool is_user_id(const char *s)
{
    return *s && !has_control(s) && !strpbrk(s, "#: ");
}

static bool is_wildcard(const char *s)
{
    const char *colon = strchr(s, ':');
    return strcmp(s, "*") == 0 || (colon && colon != s && strcmp(colon, ":*") == 0);
}

/* ---- names ---- */

static size_t type_len(const char *s)
{
    return strcspn(s, ":");
}

static enum model_fault no_type(struct model_err *err, const char *of)
{
    return fault(err, MODEL_NO_TYPE, "type '%.*s' not found", (int)type_len(of), of);
}

bool model_user_formed(const char *user)
{
    return strcmp(user, "*") == 0 || is_user_id(user) || is_object(user) || is_userset(user);
}

static enum model_fault check_subject(const struct model *m, const char *s, struct model_err *err)
{
    bool object = is_object(s), userset = is_userset(s);
    if (!model_user_formed(s))
        return fault(err, MODEL_MALFORMED, "the 'user' field is malformed");
    if (!object && !userset)
        return fault(err, MODEL_MALFORMED,
                     "the 'user' field must be an object (e.g. document:1) or an 'object#relation' or a typed wildcard "
                     "(e.g. group:*)");
    if (model_type_find(m, s, type_len(s)) < 0)
        return no_type(err, s);
    const char *hash = userset ? strrchr(s, '#') : NULL;
    if (hash && model_pair(m, s, type_len(s), hash + 1) < 0)
        return fault(err, MODEL_NO_RELATION, "relation '%.*s#%s' not found", (int)type_len(s), s, hash + 1);
    return MODEL_FITS;
}

enum model_fault model_check_names(const struct model *m, const char *object, const char *relation, const char *subject,
                                   struct model_err *err)
{
    enum model_fault f = check_subject(m, subject, err);
    return f != MODEL_FITS ? f : model_check_object(m, object, relation, err);
}

enum model_fault model_check_object(const struct model *m, const char *object, const char *relation,
                                    struct model_err *err)
{
    if (!is_object(object))
        return fault(err, MODEL_MALFORMED, "invalid 'object' field format");
    if (is_wildcard(object))
        return fault(err, MODEL_MALFORMED, "the 'object' field cannot reference a typed wildcard");
    if (model_type_find(m, object, type_len(object)) < 0)
        return no_type(err, object);
    if (!is_relation(relation))
        return fault(err, MODEL_MALFORMED, "the 'relation' field is malformed");
    if (model_pair(m, object, type_len(object), relation) < 0)
        return fault(err, MODEL_NO_RELATION, "relation '%.*s#%s' not found", (int)type_len(object), object, relation);
    return MODEL_FITS;
}

/* ---- restrictions ---- */

static const char *text(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "";
}

static bool type_is(const json_t *entry, const char *subject)
{
    const char *type = text(entry, "type");
    return strlen(type) == type_len(subject) && strncmp(type, subject, strlen(type)) == 0;
}

/* Whether the entry is for subjects of this form: an object, a wildcard, or a userset with this relation. */
static bool form_is(const json_t *entry, const char *subject)
{
    const char *relation = text(entry, "relation"), *hash = strrchr(subject, '#');
    bool wildcard = json_is_object(json_object_get(entry, "wildcard"));
    if (hash)
        return strcmp(relation, hash + 1) == 0;
    return !*relation && wildcard == is_wildcard(subject);
}

static enum model_fault check_restrictions(const struct model *m, int pair, const char *subject, struct model_err *err)
{
    const json_t *entry;
    const char *type = model_pair_type(m, pair), *relation = model_pair_relation(m, pair);
    size_t i;
    if (m->pairs[pair].tupleset && is_wildcard(subject))
        return fault(err, MODEL_RESTRICTED, "unexpected wildcard relationship with tupleset relation '%s#%s'", type,
                     relation);
    if (m->pairs[pair].tupleset && !is_object(subject))
        return fault(err, MODEL_RESTRICTED, "unexpected user '%s' with tupleset relation '%s#%s'", subject, type,
                     relation);
    json_array_foreach(m->pairs[pair].direct, i,
                       entry) if (type_is(entry, subject) && form_is(entry, subject)) return MODEL_FITS;
    if (strrchr(subject, '#'))
        return fault(err, MODEL_RESTRICTED, "'%.*s%s' is not an allowed type restriction for '%s#%s'",
                     (int)type_len(subject), subject, strrchr(subject, '#'), type, relation);
    if (is_wildcard(subject))
        return fault(err, MODEL_RESTRICTED, "the typed wildcard '%s' is not an allowed type restriction for '%s#%s'",
                     subject, type, relation);
    return fault(err, MODEL_RESTRICTED, "type '%.*s' is not an allowed type restriction for '%s#%s'",
                 (int)type_len(subject), subject, type, relation);
}

/* ---- conditions ---- */

/* As Go's %q prints it. */
static void quote(char *to, size_t size, const char *s)
{
    static const char named[] = "\a\b\f\n\r\t\v\"\\", letters[] = "abfnrtv\"\\";
    size_t n = 0;
    for (; *s && n + 8 < size; s++) {
        const char *name = strchr(named, *s);
        if (name)
            n += (size_t)snprintf(to + n, size - n, "\\%c", letters[name - named]);
        else if (control_at(s) && s[1] && (unsigned char)*s == 0xc2)
            n += (size_t)snprintf(to + n, size - n, "\\u%04x", (unsigned char)*++s);
        else if (control_at(s))
            n += (size_t)snprintf(to + n, size - n, "\\x%02x", (unsigned char)*s);
        else
            to[n++] = *s;
    }
    to[n] = '\0';
}

static bool forbidden_text(const char *s, const char *kind, char *what, size_t size)
{
    char quoted[300];
    if (!has_control(s))
        return false;
    quote(quoted, sizeof quoted, s);
    snprintf(what, size, "context %s \"%s\" contains forbidden characters", kind, quoted);
    return true;
}

static bool forbidden(const json_t *value, char *what, size_t size)
{
    const json_t *item;
    const char *key;
    size_t i;
    if (json_is_string(value))
        return forbidden_text(json_string_value(value), "value", what, size);
    json_array_foreach(value, i, item) if (forbidden(item, what, size)) return true;
    json_object_foreach((json_t *)(uintptr_t)value, key,
                        item) if (forbidden_text(key, "key", what, size) || forbidden(item, what, size)) return true;
    return false;
}

static enum model_fault check_context(const char *name, const json_t *condition, const char *context,
                                      struct model_err *err)
{
    json_t *given = context ? json_loads(context, 0, NULL) : NULL;
    enum model_fault f = MODEL_FITS;
    if (context && !json_is_object(given))
        f = fault(err, MODEL_CONDITION, "the context is no JSON object");
    else if (forbidden(given, err->text, sizeof err->text) || !model_context_fits(name, condition, given, err))
        f = MODEL_CONDITION;
    json_decref(given);
    return f;
}

static enum model_fault check_condition(const struct model *m, int pair, const char *subject, const char *condition,
                                        const char *context, struct model_err *err)
{
    const json_t *known = condition ? json_object_get(json_object_get(m->source, "conditions"), condition) : NULL;
    const json_t *entry;
    size_t i;
    if (condition && has_control(condition))
        return fault(err, MODEL_CONDITION, "condition name contains forbidden characters");
    if (condition && !known && strcmp(condition, "$expression") != 0)
        return fault(err, MODEL_CONDITION, "undefined condition");
    json_array_foreach(m->pairs[pair].direct, i,
                       entry) if (type_is(entry, subject) && form_is(entry, subject) &&
                                  strcmp(text(entry, "condition"), condition ? condition : "") == 0) return condition
        ? check_context(condition, known, context, err)
        : MODEL_FITS;
    return fault(err, MODEL_CONDITION, condition ? "invalid condition for type restriction" : "condition is missing");
}

enum model_fault model_check_tuple(const struct model *m, const char *object, const char *relation, const char *subject,
                                   const char *condition, const char *context, struct model_err *err)
{
    enum model_fault f = model_check_names(m, object, relation, subject, err);
    if (f != MODEL_FITS)
        return f;
    int pair = model_pair(m, object, type_len(object), relation);
    f = check_restrictions(m, pair, subject, err);
    return f != MODEL_FITS ? f : check_condition(m, pair, subject, condition, context, err);
}
