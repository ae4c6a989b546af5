#include "common/store/store_json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/store/store_context.h"

/* ---- requests ---- */

/* Builds a tree; the first failure sticks. */
struct encoder {
    enum status st;
    struct err *err;
    /* The last object and relation: sorted batches repeat them, and nodes can be shared. */
    const char *object, *relation;
    json_t *object_node, *relation_node;
};

static void encoder_release(struct encoder *e)
{
    json_decref(e->object_node);
    json_decref(e->relation_node);
}

static void fail(struct encoder *e, enum status st, const char *why)
{
    if (e->st == ST_OK)
        e->st = err_set(e->err, st, NULL, "%s", why);
}

static json_t *object(struct encoder *e)
{
    json_t *n = json_object();

    if (!n)
        fail(e, ST_NOMEM, "no memory for a request");
    return n;
}

/* UTF-8 is checked by the dump, once. */
static json_t *text(struct encoder *e, const char *s)
{
    json_t *n = json_string_nocheck(s);

    if (!n)
        fail(e, ST_NOMEM, "no memory for a request");
    return n;
}

/* Takes `value`. */
static void put(struct encoder *e, json_t *parent, const char *key, json_t *value)
{
    if (json_object_set_new_nocheck(parent, key, value) != 0)
        fail(e, ST_NOMEM, "no memory for a request");
}

static json_t *shared(struct encoder *e, const char *s, const char **last, json_t **node)
{
    if (!*node || strcmp(s, *last) != 0) {
        json_decref(*node);
        *node = text(e, s);
        *last = s;
    }
    return json_incref(*node);
}

static json_t *key_node(struct encoder *e, const struct tuple_key *k)
{
    json_t *n = object(e);

    put(e, n, "user", text(e, k->subject));
    put(e, n, "relation", shared(e, k->relation, &e->relation, &e->relation_node));
    put(e, n, "object", shared(e, k->object, &e->object, &e->object_node));
    return n;
}

static json_t *tuple_node(struct encoder *e, const struct store_tuple *t)
{
    json_t *n = key_node(e, &t->key);
    json_t *condition, *context;
    enum status st;

    if (!t->condition_name || !*t->condition_name)
        return n;
    condition = object(e);
    put(e, condition, "name", text(e, t->condition_name));
    st = store_context_parse(t->condition_context, &context, e->st == ST_OK ? e->err : NULL);
    if (st == ST_OK)
        put(e, condition, "context", context);
    else if (e->st == ST_OK)
        e->st = st;
    put(e, n, "condition", condition);
    return n;
}

static bool valid_utf8(const json_t *node)
{
    const char *p = json_string_value(node);
    size_t left = json_string_length(node), n;
    uint32_t cp;

    for (; left > 0; p += n, left -= n) {
        n = utf8_next(p, left, &cp);
        if (n == 0)
            return false;
    }
    return true;
}

/* Why a tree cannot be dumped: a string in it, or else memory. */
static bool all_valid_utf8(json_t *node)
{
    const char *key;
    json_t *child;
    size_t i;

    if (json_is_string(node))
        return valid_utf8(node);
    if (json_is_array(node)) {
        json_array_foreach(node, i, child) if (!all_valid_utf8(child)) return false;
    } else if (json_is_object(node)) {
        json_object_foreach(node, key, child) if (!all_valid_utf8(child)) return false;
    }
    return true;
}

/* Dump into the buffer's own memory; json_dumpb tells how much it needs. */
static enum status dump(struct encoder *e, json_t *root, struct buf *out)
{
    size_t need;

    for (int tries = 0; e->st == ST_OK && tries < 2; tries++) {
        need = json_dumpb(root, out->data, out->cap > 0 ? out->cap - 1 : 0, JSON_COMPACT);
        if (need == 0 && !all_valid_utf8(root))
            fail(e, ST_INVALID, "a string is not valid UTF-8");
        else if (need == 0)
            fail(e, ST_NOMEM, "no memory for a request");
        else if (need < out->cap) {
            out->len = need;
            out->data[need] = '\0';
            return ST_OK;
        } else if (need >= out->max)
            fail(e, ST_TOO_BIG, "the request is too large");
        else if (!buf_reserve(out, need + 1))
            fail(e, ST_NOMEM, "no memory for a request");
    }
    return e->st;
}

static void list_put(struct encoder *e, json_t *list, json_t *value)
{
    if (json_array_append_new(list, value) != 0)
        fail(e, ST_NOMEM, "no memory for a request");
}

static json_t *list_in(struct encoder *e, json_t *root, const char *name, const char *option)
{
    json_t *part = object(e), *list = json_array();

    put(e, part, "tuple_keys", list);
    put(e, part, option, text(e, "ignore"));
    put(e, root, name, part);
    return list;
}

enum status store_json_write(struct buf *out, const char *model_id, const struct store_tuple *writes, size_t nwrites,
                             const struct tuple_key *deletes, size_t ndeletes, struct err *err)
{
    struct encoder e = {.err = err};
    json_t *root = object(&e), *list;
    enum status st;

    buf_clear(out);
    if (nwrites > 0) {
        list = list_in(&e, root, "writes", "on_duplicate");
        for (size_t i = 0; i < nwrites && e.st == ST_OK; i++)
            list_put(&e, list, tuple_node(&e, &writes[i]));
    }
    if (ndeletes > 0) {
        list = list_in(&e, root, "deletes", "on_missing");
        for (size_t i = 0; i < ndeletes && e.st == ST_OK; i++)
            list_put(&e, list, key_node(&e, &deletes[i]));
    }
    put(&e, root, "authorization_model_id", text(&e, model_id));
    st = dump(&e, root, out);
    json_decref(root);
    encoder_release(&e);
    return st;
}

enum status store_json_read_tuple(struct buf *out, const struct tuple_key *key, struct err *err)
{
    struct encoder e = {.err = err};
    json_t *root = object(&e);
    enum status st;

    buf_clear(out);
    put(&e, root, "tuple_key", key_node(&e, key));
    put(&e, root, "consistency", text(&e, "HIGHER_CONSISTENCY"));
    st = dump(&e, root, out);
    json_decref(root);
    encoder_release(&e);
    return st;
}

enum status store_json_read_page(struct buf *out, const char *token, int page_size, struct err *err)
{
    struct encoder e = {.err = err};
    json_t *root = object(&e);
    enum status st;

    buf_clear(out);
    /* No tuple_key at all: an empty one is refused. */
    put(&e, root, "page_size", json_integer(page_size));
    if (*token)
        put(&e, root, "continuation_token", text(&e, token));
    put(&e, root, "consistency", text(&e, "HIGHER_CONSISTENCY"));
    st = dump(&e, root, out);
    json_decref(root);
    return st;
}

enum status store_json_check(struct buf *out, const char *model_id, const struct tuple_key *key, bool higher,
                             struct err *err)
{
    struct encoder e = {.err = err};
    json_t *root = object(&e);
    enum status st;

    buf_clear(out);
    put(&e, root, "tuple_key", key_node(&e, key));
    put(&e, root, "authorization_model_id", text(&e, model_id));
    if (higher)
        put(&e, root, "consistency", text(&e, "HIGHER_CONSISTENCY"));
    st = dump(&e, root, out);
    json_decref(root);
    encoder_release(&e);
    return st;
}

enum status store_json_create(struct buf *out, const char *name, struct err *err)
{
    struct encoder e = {.err = err};
    json_t *root = object(&e);
    enum status st;

    buf_clear(out);
    put(&e, root, "name", text(&e, name));
    st = dump(&e, root, out);
    json_decref(root);
    return st;
}

enum status store_json_model(struct buf *out, const char *json, struct err *err)
{
    struct encoder e = {.err = err};
    json_error_t why;
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &why);
    enum status st;

    buf_clear(out);
    if (!root)
        return err_set(err, ST_INVALID, NULL, "the authorization model is not JSON: line %d: %s", why.line, why.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(err, ST_INVALID, NULL, "the authorization model is not a JSON object");
    }
    (void)json_object_del(root, "id");
    st = dump(&e, root, out);
    json_decref(root);
    return st;
}

/* ---- answers ---- */

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
