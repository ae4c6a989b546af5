/* decide.c - Check and BatchCheck. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "authz-store/api/internal.h"

static struct engine_text text_of(const json_t *json, const char *name)
{
    const char *s = member_text(json, name);
    return (struct engine_text){s, strlen(s)};
}

/* Whether the key may be asked about; else the text of the error. */
static bool key_fits(const struct call *c, const json_t *key, struct model_err *why)
{
    return model_check_names(c->model->model, member_text(key, "object"), member_text(key, "relation"),
                             member_text(key, "user"), why) == MODEL_FITS;
}

static struct engine_check check_of(const json_t *key)
{
    return (struct engine_check){
        .subject = text_of(key, "user"), .relation = text_of(key, "relation"), .object = text_of(key, "object")};
}

void handle_check(struct call *c)
{
    struct model_err why;
    if (!call_body(c, &message_check) || !call_model(c))
        return;
    const json_t *key = member(c->body, "tuple_key");
    if (!key_fits(c, key, &why)) {
        api_error(c, "validation_error", "invalid relation: %s", why.text);
        return;
    }
    if (!call_contextual(c, member(member(c->body, "contextual_tuples"), "tuple_keys"), NULL))
        return;
    struct engine_reader *r = served_reader(c->store);
    struct engine_check q = check_of(key);
    struct engine_limits limits = call_limits(c, 0);
    if (!r) {
        api_answer(c, 500, NULL);
        return;
    }
    engine_begin(r);
    engine_checks(r, c->model->rules, &limits, &q, 1);
    engine_end(r);
    if (q.status != ENGINE_OK) {
        api_undecided(c, q.status, engine_reason(r));
        return;
    }
    c->http->status = 200;
    buf_adds(&c->http->answer,
             q.allowed ? "{\"allowed\":true,\"resolution\":\"\"}" : "{\"allowed\":false,\"resolution\":\"\"}");
}

/* ---- many ---- */

struct batch {
    struct call *c;
    const json_t *items;
    size_t n;
    struct engine_check *checks; /* those that are asked together */
    size_t *places;              /* of which item each is */
    size_t nchecks;
    json_t *result;
};

static void put_error(struct batch *b, const json_t *item, const char *code, const char *text)
{
    const char *kind = strcmp(code, "internal_error") == 0 || strcmp(code, "deadline_exceeded") == 0 ? "internal_error"
                                                                                                     : "input_error";
    json_object_set_new(b->result, member_text(item, "correlation_id"),
                        json_pack("{s:{s:s, s:s}}", "error", kind, code, "message", text));
}

/* Asks what has gathered. */
static void ask(struct batch *b)
{
    struct engine_reader *r = served_reader(b->c->store);
    struct engine_limits limits = call_limits(b->c, 0);
    struct buf text;
    if (r && b->nchecks) {
        engine_begin(r);
        engine_checks(r, b->c->model->rules, &limits, b->checks, b->nchecks);
        engine_end(r);
    }
    buf_init(&text, 4096);
    for (size_t i = 0; i < b->nchecks; i++) {
        const json_t *item = json_array_get(b->items, b->places[i]);
        const struct engine_check *q = &b->checks[i];
        if (r && q->status == ENGINE_OK) {
            json_object_set_new(b->result, member_text(item, "correlation_id"),
                                json_pack("{s:b}", "allowed", q->allowed));
            continue;
        }
        buf_clear(&text);
        /* The reason is that of the last one asked, which names another condition at worst. */
        undecided_text(&text, r ? q->status : ENGINE_NOMEM, r ? engine_reason(r) : "");
        put_error(b, item, undecided_code(r ? q->status : ENGINE_NOMEM), buf_str(&text));
    }
    buf_release(&text);
    b->nchecks = 0;
}

static void add(struct batch *b, size_t place, bool with_contextual)
{
    const json_t *item = json_array_get(b->items, place), *key = member(item, "tuple_key");
    struct model_err why;
    struct buf text;
    if (!key_fits(b->c, key, &why)) {
        if (!with_contextual) {
            buf_init(&text, 1024);
            buf_addf(&text, "invalid relation: %s", why.text);
            put_error(b, item, "validation_error", buf_str(&text));
            buf_release(&text);
        }
        return;
    }
    const json_t *keys = member(member(item, "contextual_tuples"), "tuple_keys");
    if ((json_array_size(keys) > 0) != with_contextual)
        return;
    buf_init(&text, 4096);
    buf_adds(&text, "invalid tuple: ");
    if (with_contextual && !call_contextual(b->c, keys, &text)) {
        put_error(b, item, "invalid_tuple", buf_str(&text));
    } else {
        b->checks[b->nchecks] = check_of(key);
        b->places[b->nchecks++] = place;
        if (with_contextual)
            ask(b);
    }
    buf_release(&text);
}

static bool ids_differ(struct batch *b)
{
    json_t *seen = json_object();
    const json_t *item;
    size_t i;
    bool differ = true;
    json_array_foreach(b->items, i, item)
    {
        const char *id = member_text(item, "correlation_id");
        if (json_object_get(seen, id)) {
            api_error(b->c, "validation_error", "received duplicate correlation id: %s", id);
            differ = false;
            break;
        }
        json_object_set_new(seen, id, json_true());
    }
    json_decref(seen);
    return differ;
}

void handle_batch_check(struct call *c)
{
    if (!call_body(c, &message_batch_check) || !call_model(c))
        return;
    struct batch b = {.c = c, .items = member(c->body, "checks")};
    b.n = json_array_size(b.items);
    if (b.n > (size_t)c->api->cfg->batch_max) {
        api_error(c, "validation_error", "batchCheck received %zu checks, the maximum allowed is %lld", b.n,
                  (long long)c->api->cfg->batch_max);
        return;
    }
    if (!ids_differ(&b))
        return;
    b.checks = calloc(b.n, sizeof *b.checks);
    b.places = calloc(b.n, sizeof *b.places);
    b.result = json_object();
    if (b.checks && b.places && b.result) {
        for (size_t i = 0; i < b.n; i++)
            add(&b, i, false);
        ask(&b);
        for (size_t i = 0; i < b.n; i++)
            add(&b, i, true);
        api_answer(c, 200, json_pack("{s:O}", "result", b.result));
    } else {
        api_answer(c, 500, NULL);
    }
    json_decref(b.result);
    free(b.checks);
    free(b.places);
}
