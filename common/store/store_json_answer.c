#include "common/store/store_json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/store/store_context.h"

static enum status unusable(struct err *err, const char *why)
{
    return err_set(err, ST_UNKNOWN, NULL, "the answer cannot be used: %s", why);
}

static enum status parse(struct bytes body, json_t **out, struct err *err)
{
    json_error_t why;

    *out = NULL;
    if (body.len == 0)
        return unusable(err, "it is empty");
    *out = json_loadb(body.data, body.len, STORE_JSON_DECODE, &why);
    if (!*out && json_error_code(&why) == json_error_out_of_memory)
        return err_set(err, ST_NOMEM, NULL, "no memory for the answer");
    if (!*out)
        return err_set(err, ST_UNKNOWN, NULL, "the answer cannot be used: at byte %d: %s", why.position, why.text);
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return unusable(err, "it is not a JSON object");
    }
    return ST_OK;
}

/* A string without NUL, or NULL. */
static const char *member(const json_t *parent, const char *name)
{
    const json_t *s = json_object_get(parent, name);

    if (!json_is_string(s) || strlen(json_string_value(s)) != json_string_length(s))
        return NULL;
    return json_string_value(s);
}

static enum status take(const char *s, char **out, struct err *err)
{
    *out = strdup(s);
    return *out ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory for the answer");
}

/* The context as text, kept in the tree in place of the object. NULL = no memory. */
static const char *context_text(json_t *condition, json_t *context)
{
    char *text_form;
    json_t *node;

    if (!store_context_canonical(context))
        return NULL;
    text_form = json_dumps(context, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text_form)
        return NULL;
    node = json_string_nocheck(text_form);
    free(text_form);
    if (json_object_set_new_nocheck(condition, "context", node) != 0)
        return NULL;
    return json_string_value(node);
}

static enum status read_condition(json_t *condition, struct store_tuple *out, struct err *err)
{
    json_t *context;

    if (!condition || json_is_null(condition))
        return ST_OK;
    out->condition_name = member(condition, "name");
    if (!out->condition_name)
        return unusable(err, "a condition has no name");
    context = json_object_get(condition, "context");
    if (!context || json_is_null(context))
        return ST_OK;
    if (!json_is_object(context))
        return unusable(err, "a condition's context is not an object");
    out->condition_context = context_text(condition, context);
    return out->condition_context ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory for the answer");
}

static enum status read_tuple(json_t *entry, struct store_tuple *out, struct err *err)
{
    json_t *key = json_object_get(entry, "key");

    out->key.object = member(key, "object");
    out->key.relation = member(key, "relation");
    out->key.subject = member(key, "user");
    if (!out->key.object || !out->key.relation || !out->key.subject)
        return unusable(err, "a tuple lacks user, relation or object, or holds a NUL");
    return read_condition(json_object_get(key, "condition"), out, err);
}

static enum status read_tuples(json_t *root, struct store_tuples *out, struct err *err)
{
    json_t *list = json_object_get(root, "tuples"), *entry;
    enum status st = ST_OK;
    size_t i;

    if (!json_is_array(list))
        return unusable(err, "there is no list of tuples");
    out->items = calloc(json_array_size(list) + 1, sizeof(*out->items));
    if (!out->items)
        return err_set(err, ST_NOMEM, NULL, "no memory for the answer");
    json_array_foreach(list, i, entry)
    {
        if (st == ST_OK)
            st = read_tuple(entry, &out->items[i], err);
    }
    out->len = json_array_size(list);
    return st;
}

enum status store_json_tuples(struct bytes body, struct store_tuples *out, char **next, struct err *err)
{
    json_t *root = NULL;
    const char *token;
    enum status st;

    *out = (struct store_tuples){0};
    if (next)
        *next = NULL;
    st = parse(body, &root, err);
    if (st != ST_OK)
        return st;
    out->arena = root; /* all strings live in the tree */
    st = read_tuples(root, out, err);
    if (st == ST_OK && next) {
        token = member(root, "continuation_token");
        st = token ? take(token, next, err) : unusable(err, "there is no continuation token");
    }
    if (st != ST_OK)
        store_tuples_free(out);
    return st;
}

void store_tuples_free(struct store_tuples *t)
{
    free(t->items);
    json_decref(t->arena);
    *t = (struct store_tuples){0};
}

enum status store_json_allowed(struct bytes body, bool *allowed, struct err *err)
{
    json_t *root = NULL, *answer;
    enum status st = parse(body, &root, err);

    *allowed = false;
    if (st != ST_OK)
        return st;
    answer = json_object_get(root, "allowed");
    if (json_is_boolean(answer))
        *allowed = json_is_true(answer);
    else
        st = unusable(err, "\"allowed\" is neither true nor false");
    json_decref(root);
    return st;
}

enum status store_json_member(struct bytes body, const char *name, char **out, struct err *err)
{
    json_t *root = NULL;
    const char *s;
    enum status st = parse(body, &root, err);

    *out = NULL;
    if (st != ST_OK)
        return st;
    s = member(root, name);
    st = s && *s ? take(s, out, err) : err_set(err, ST_UNKNOWN, NULL, "the answer cannot be used: no \"%s\"", name);
    json_decref(root);
    return st;
}

enum status store_json_first_model(struct bytes body, char **id, struct err *err)
{
    json_t *root = NULL, *list;
    const char *s;
    enum status st = parse(body, &root, err);

    *id = NULL;
    if (st != ST_OK)
        return st;
    list = json_object_get(root, "authorization_models");
    if (!json_is_array(list))
        st = unusable(err, "there is no list of models");
    else if (json_array_size(list) > 0) {
        s = member(json_array_get(list, 0), "id");
        st = s && *s ? take(s, id, err) : unusable(err, "a model has no id");
    }
    json_decref(root);
    return st;
}

static enum status read_models(const json_t *list, struct store_model_info *out, struct err *err)
{
    const json_t *model;
    size_t i;

    json_array_foreach(list, i, model)
    {
        const char *id = member(model, "id"), *schema = member(model, "schema_version");

        if (!id || strlen(id) >= sizeof(out->id) || !schema || strlen(schema) >= sizeof(out->schema))
            return unusable(err, "a model has no id or no schema version");
        memcpy(out[i].id, id, strlen(id) + 1);
        memcpy(out[i].schema, schema, strlen(schema) + 1);
        out[i].types = json_array_size(json_object_get(model, "type_definitions"));
    }
    return ST_OK;
}

enum status store_json_models(struct bytes body, struct store_model_info **out, size_t *n, char **next, struct err *err)
{
    json_t *root = NULL, *list;
    const char *token;
    enum status st = parse(body, &root, err);

    *out = NULL;
    *next = NULL;
    *n = 0;
    if (st != ST_OK)
        return st;
    list = json_object_get(root, "authorization_models");
    token = member(root, "continuation_token");
    if (!json_is_array(list) || !token)
        st = unusable(err, "there is no list of models, or no continuation token");
    if (st == ST_OK && !(*out = calloc(json_array_size(list) + 1, sizeof(**out))))
        st = err_set(err, ST_NOMEM, NULL, "no memory for the answer");
    if (st == ST_OK)
        st = read_models(list, *out, err);
    if (st == ST_OK)
        st = take(token, next, err);
    if (st == ST_OK)
        *n = json_array_size(list);
    else {
        free(*out);
        *out = NULL;
    }
    json_decref(root);
    return st;
}

enum status store_json_model_text(struct bytes body, char **json, struct err *err)
{
    json_t *root = NULL, *model;
    enum status st = parse(body, &root, err);

    *json = NULL;
    if (st != ST_OK)
        return st;
    model = json_object_get(root, "authorization_model");
    if (!json_is_object(model) || !member(model, "id"))
        st = unusable(err, "there is no model");
    else {
        *json = store_context_canonical(model) ? json_dumps(model, JSON_COMPACT) : NULL;
        if (!*json)
            st = err_set(err, ST_NOMEM, NULL, "no memory for the answer");
    }
    json_decref(root);
    return st;
}

enum status store_json_object(struct bytes body, struct err *err)
{
    json_t *root = NULL;
    enum status st = parse(body, &root, err);

    json_decref(root);
    return st;
}

/* Cut at a code point. */
static void copy_cut(char *to, size_t size, const char *from)
{
    size_t n = utf8_cut(from, strlen(from), size - 1);

    memcpy(to, from, n);
    to[n] = '\0';
}

bool store_json_fault(struct bytes body, struct store_fault *out)
{
    json_t *root = NULL;
    const char *code = NULL, *message;

    *out = (struct store_fault){0};
    if (parse(body, &root, NULL) == ST_OK) {
        code = member(root, "code");
        message = member(root, "message");
        if (code)
            copy_cut(out->code, sizeof(out->code), code);
        if (message)
            copy_cut(out->message, sizeof(out->message), message);
    }
    json_decref(root);
    return out->code[0] != '\0';
}

enum status store_json_token(struct bytes body, char **token, int64_t *expires_s, struct err *err)
{
    json_t *root = NULL;
    const json_t *expires;
    const char *s, *type;
    enum status st = parse(body, &root, err);

    *token = NULL;
    *expires_s = 0;
    if (st != ST_OK)
        return st;
    s = member(root, "access_token");
    type = member(root, "token_type");
    if (!s || !*s)
        st = unusable(err, "there is no access_token");
    else if (type && strcasecmp(type, "Bearer") != 0)
        st = unusable(err, "the token's type is not Bearer");
    else
        st = take(s, token, err);
    expires = json_object_get(root, "expires_in");
    if (json_is_number(expires) && json_number_value(expires) > 0 && json_number_value(expires) < 1e9)
        *expires_s = (int64_t)json_number_value(expires);
    json_decref(root);
    return st;
}

void store_json_token_refusal(struct bytes body, char *refusal, size_t size)
{
    json_t *root = NULL;
    const char *s = NULL;

    if (parse(body, &root, NULL) == ST_OK)
        s = member(root, "error");
    copy_cut(refusal, size, s ? s : "");
    json_decref(root);
}
