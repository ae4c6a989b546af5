#include "common/store/store_json.h"

#include <jansson.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/store/store_context.h"

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

/* Why a tree cannot be dumped: a string in it, or else memory. */
static bool all_valid_utf8(json_t *node)
{
    const char *key;
    json_t *child;
    size_t i;

    if (json_is_string(node))
        return utf8_valid(json_string_value(node), json_string_length(node));
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

enum status store_json_read_page(struct buf *out, const char *about_object, const char *about_subject,
                                 const char *token, int page_size, struct err *err)
{
    struct encoder e = {.err = err};
    json_t *root = object(&e), *key;
    enum status st;

    buf_clear(out);
    /* No tuple_key at all for all tuples: an empty one is refused. */
    if (about_object) {
        key = object(&e);
        put(&e, key, "object", text(&e, about_object));
        if (about_subject)
            put(&e, key, "user", text(&e, about_subject));
        put(&e, root, "tuple_key", key);
    }
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
