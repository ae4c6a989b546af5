/* models.c - authorization models, and assertions about them. */
#include <stdlib.h>
#include <string.h>

#include "authz-store/api/internal.h"

#define MODEL_MAX (256 << 10) /* OpenFGA's limit, which counts protobuf's bytes: fewer than JSON's */
#define JSON_MAX (1 << 20)
#define PAGE_MAX 100
#define TOKEN_SCOPE "models "

static bool store_known(struct call *c, const char *request)
{
    c->request = request;
    if (!pattern_matches(PATTERN_ID, c->store_id)) {
        api_error(c, "validation_error", "invalid %s.StoreId: %s", request, pattern_reason(PATTERN_ID));
        return false;
    }
    c->store = stores_get(c->api->stores, c->store_id);
    return true;
}

/* ---- models ---- */

/* As it is given back: every field, its id first. */
static json_t *shown(const struct served_model *m)
{
    json_t *json = json_copy((json_t *)(uintptr_t)m->json);
    json_object_set_new(json, "id", json_string(m->id));
    return json;
}

static void model_written(struct call *c)
{
    api_answer(c, 201, json_pack("{s:s}", "authorization_model_id", c->job.id));
    c->job.model = NULL;
}

void handle_write_model(struct call *c)
{
    struct model_err err;
    if (!call_body(c, &message_write_model))
        return;
    c->job.json = schema_complete(&message_model, c->body);
    char *text = c->job.json ? json_dumps(c->job.json, JSON_COMPACT) : NULL;
    if (!text)
        api_answer(c, 500, NULL);
    else if (strlen(text) > JSON_MAX)
        api_error(c, "exceeded_entity_limit", "model exceeds size limit: %zu bytes vs %d bytes", strlen(text),
                  MODEL_MAX);
    else if (!model_valid(text, strlen(text), &err) || !model_parse(&c->job.model, text, strlen(text), &err))
        api_error(c, err.code[0] ? err.code : "invalid_authorization_model", "%s", err.text);
    else if (!c->store)
        api_error(c, "store_id_not_found", "Store ID not found");
    else
        call_later(c, JOB_WRITE_MODEL, model_written);
    free(text);
}

void handle_read_model(struct call *c)
{
    if (!store_known(c, "ReadAuthorizationModelRequest"))
        return;
    if (!pattern_matches(PATTERN_ID, c->part_id)) {
        api_error(c, "validation_error", "invalid %s.Id: %s", c->request, pattern_reason(PATTERN_ID));
        return;
    }
    const struct served_model *m = c->store ? served_model(c->store, c->part_id) : NULL;
    if (m)
        api_answer(c, 200, json_pack("{s:o}", "authorization_model", shown(m)));
    else
        api_error(c, "authorization_model_not_found", "Authorization Model '%s' not found", c->part_id);
}

void handle_list_models(struct call *c)
{
    const struct served_model *page[PAGE_MAX];
    const char *token;
    char scope[96], *before = NULL, *next = NULL;
    unsigned size;
    if (!store_known(c, "ReadAuthorizationModelsRequest") || !query_page_size(c, &size) || !query_token(c, &token))
        return;
    snprintf(scope, sizeof scope, TOKEN_SCOPE "%s", c->store_id);
    if (token && *token && !(before = stores_unseal(c->api->stores, scope, token))) {
        api_error(c, "invalid_continuation_token", "Invalid continuation token");
        return;
    }
    size_t n = c->store ? served_models(c->store, before, page, size) : 0;
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, shown(page[i]));
    const struct served_model *beyond;
    if (n == size && served_models(c->store, page[n - 1]->id, &beyond, 1) == 1)
        next = stores_seal(c->api->stores, scope, page[n - 1]->id);
    api_answer(c, 200, json_pack("{s:o, s:s}", "authorization_models", list, "continuation_token", next ? next : ""));
    free(next);
    free(before);
}

/* ---- assertions ---- */

static bool assertions_model(struct call *c)
{
    c->model = c->store && pattern_matches(PATTERN_ID, c->part_id) ? served_model(c->store, c->part_id) : NULL;
    if (!pattern_matches(PATTERN_ID, c->part_id))
        api_error(c, "validation_error", "invalid %s.AuthorizationModelId: %s", c->request, pattern_reason(PATTERN_ID));
    else if (!c->model)
        api_error(c, "authorization_model_not_found", "Authorization Model '%s' not found", c->part_id);
    else
        memcpy(c->http->model_id, c->model->id, sizeof c->model->id);
    return c->model != NULL;
}

static void assertions_written(struct call *c)
{
    c->http->status = 204;
}

static bool assertion_fits(struct call *c, const json_t *assertion)
{
    const json_t *key = member(assertion, "tuple_key");
    struct model_err why;
    struct buf text;
    if (model_check_names(c->model->model, member_text(key, "object"), member_text(key, "relation"),
                          member_text(key, "user"), &why) != MODEL_FITS) {
        api_error(c, "validation_error", "%s", why.text);
        return false;
    }
    buf_init(&text, 4096);
    bool fits = call_contextual(c, member(assertion, "contextual_tuples"), &text);
    if (!fits)
        api_error(c, "validation_error", "%s", buf_str(&text));
    buf_release(&text);
    return fits;
}

void handle_write_assertions(struct call *c)
{
    const json_t *assertion;
    size_t i;
    if (!call_body(c, &message_write_assertions) || !assertions_model(c))
        return;
    json_array_foreach(member(c->body, "assertions"), i, assertion) if (!assertion_fits(c, assertion)) return;
    json_t *complete = schema_complete(&message_assertions, c->body);
    c->job.json = json_incref(json_object_get(complete, "assertions"));
    json_decref(complete);
    c->job.name = c->part_id;
    if (c->job.json)
        call_later(c, JOB_WRITE_ASSERTIONS, assertions_written);
    else
        api_answer(c, 500, NULL);
}

void handle_read_assertions(struct call *c)
{
    if (!store_known(c, "ReadAssertionsRequest") || !assertions_model(c))
        return;
    json_t *list = served_assertions(c->store, c->part_id);
    api_answer(c, 200,
               json_pack("{s:s, s:o}", "authorization_model_id", c->part_id, "assertions", list ? list : json_array()));
}
