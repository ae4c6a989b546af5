#include "common/store/batch_check.h"

#include <string.h>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/store/batch_check_json.h"
#include "common/store/store_context.h"
#include "common/store/store_error.h"
#include "common/store/store_internal.h"

/* ---- request ---- */

static enum status no_memory(struct err *err)
{
    return err_set(err, ST_NOMEM, NULL, "no memory for a request");
}

/* The texts were checked as parts of tuples: they are valid UTF-8. */
static json_t *item_node(const struct store_batch *b, size_t i)
{
    char id[24];

    (void)snprintf(id, sizeof(id), "%zu", i);
    return json_pack("{s:{s:s, s:s, s:s}, s:s}", "tuple_key", "user", b->subject, "relation", b->items[i].relation,
                     "object", b->items[i].object, "correlation_id", id);
}

enum status store_json_batch(struct buf *out, const struct store_batch *b, struct err *err)
{
    json_t *list = json_array();
    json_t *root = json_pack("{s:s, s:o}", "authorization_model_id", b->model_id, "checks", list);
    enum status st = ST_OK;

    buf_clear(out);
    if (!root)
        return no_memory(err);
    for (size_t i = 0; i < b->n && st == ST_OK; i++)
        if (b->items[i].status == ST_OK && json_array_append_new(list, item_node(b, i)) != 0)
            st = no_memory(err);
    if (st == ST_OK && b->higher && json_object_set_new(root, "consistency", json_string("HIGHER_CONSISTENCY")) != 0)
        st = no_memory(err);
    if (st == ST_OK && !json_add(out, root, JSON_COMPACT))
        st = out->len >= out->max / 2 ? err_set(err, ST_TOO_BIG, NULL, "the request is too large") : no_memory(err);
    json_decref(root);
    return st;
}

/* ---- answer ---- */

static enum status unusable(struct err *err, const char *why)
{
    return err_set(err, ST_UNKNOWN, NULL, "the answer cannot be used: %s", why);
}

static void copy_code(struct store_check_item *it, const char *code)
{
    size_t n = utf8_cut(code, strlen(code), sizeof(it->code) - 1);

    memcpy(it->code, code, n);
    it->code[n] = '\0';
}

/* {"error": {"input_error": CODE | "internal_error": CODE, "message": ..}} */
static void read_item_error(const json_t *error, struct store_check_item *it)
{
    const char *input = json_string_value(json_object_get(error, "input_error"));
    const char *internal = json_string_value(json_object_get(error, "internal_error"));

    it->status = ST_UNKNOWN;
    if (input || internal) {
        copy_code(it, input ? input : internal);
        it->status = store_error_class(input ? 400 : 500, it->code);
    }
}

/* Anything but one plain answer is an error: a result that lacks both, or has both, decides nothing. */
static void read_item(const json_t *result, struct store_check_item *it)
{
    const json_t *allowed = json_object_get(result, "allowed"), *error = json_object_get(result, "error");

    it->status = ST_UNKNOWN;
    if (error && !json_is_null(error))
        read_item_error(error, it);
    else if (json_is_boolean(allowed)) {
        it->status = ST_OK;
        it->allowed = json_is_true(allowed);
    }
}

/* The index that an id names, or SIZE_MAX. Only the very text that was sent will do. */
static size_t id_index(const char *id, size_t n)
{
    size_t i = 0, len = strlen(id);

    if (len == 0 || len > 4 || (len > 1 && id[0] == '0') || strspn(id, "0123456789") != len)
        return SIZE_MAX;
    for (; *id; id++)
        i = i * 10 + (size_t)(*id - '0');
    return i < n ? i : SIZE_MAX;
}

enum status store_json_batch_answer(struct bytes body, struct store_batch *b, struct err *err)
{
    json_error_t why;
    json_t *root, *result, *value;
    bool sent[STORE_CHECK_MAX] = {false};
    const char *id;

    b->strange = 0;
    if (body.len == 0)
        return unusable(err, "it is empty");
    root = json_loadb(body.data, body.len, STORE_JSON_DECODE, &why);
    if (!root && json_error_code(&why) == json_error_out_of_memory)
        return err_set(err, ST_NOMEM, NULL, "no memory for the answer");
    if (!root)
        return err_set(err, ST_UNKNOWN, NULL, "the answer cannot be used: at byte %d: %s", why.position, why.text);
    result = json_object_get(root, "result");
    if (!json_is_object(result)) {
        json_decref(root);
        return unusable(err, "there is no \"result\"");
    }
    /* Whatever has no result keeps this. */
    for (size_t i = 0; i < b->n; i++) {
        sent[i] = b->items[i].status == ST_OK;
        if (sent[i])
            b->items[i].status = ST_UNKNOWN;
    }
    json_object_foreach(result, id, value)
    {
        size_t i = id_index(id, b->n);

        if (i != SIZE_MAX && sent[i])
            read_item(value, &b->items[i]);
        else
            b->strange++;
    }
    json_decref(root);
    return ST_OK;
}

/* ---- the call ---- */

static struct bytes bytes_of(const char *s)
{
    return (struct bytes){s, strlen(s)};
}

/* How many items are fit to be sent. */
static size_t check_items(struct store_batch *b)
{
    size_t fit = 0;

    for (size_t i = 0; i < b->n; i++) {
        struct store_check_item *it = &b->items[i];
        it->allowed = false;
        it->code[0] = '\0';
        it->status = tuple_check(bytes_of(it->object), bytes_of(it->relation), bytes_of(b->subject), NULL);
        fit += it->status == ST_OK;
    }
    return fit;
}

static void fail_items(struct store_batch *b, enum status st, const struct err *err)
{
    for (size_t i = 0; i < b->n; i++) {
        b->items[i].status = st;
        b->items[i].allowed = false;
        if (err)
            copy_code(&b->items[i], err->code);
    }
}

enum status store_batch_check(struct store_conn *c, struct store_batch *b, mono_us deadline, struct err *err)
{
    enum status st = store_call_need_store(c, err);

    b->strange = 0;
    if (st == ST_OK)
        st = store_call_need_model(b->model_id, err);
    if (st == ST_OK && b->n > STORE_CHECK_MAX)
        st = err_set(err, ST_FATAL, NULL, "%zu checks given, not at most %d", b->n, STORE_CHECK_MAX);
    if (st == ST_OK && check_items(b) == 0)
        return ST_OK;
    if (st == ST_OK)
        st = store_json_batch(&c->request, b, err);
    store_call_path(c, "/batch-check");
    if (st == ST_OK)
        st = store_call(c, STORE_POST, b->traceparent, deadline, err);
    if (st == ST_OK)
        st = store_json_batch_answer(store_call_answer(c), b, err);
    if (st != ST_OK)
        fail_items(b, st, err);
    return store_call_told(c, "BatchCheck", st, err);
}
