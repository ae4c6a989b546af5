/* stores.c - the stores themselves. */
#include <stdlib.h>
#include <string.h>

#include "authz-store/api/internal.h"

#define PAGE_MAX 100
#define TOKEN_SCOPE "stores"

static json_t *shown(const char *id, const char *name, int64_t created_us, int64_t updated_us, bool deleted_too)
{
    char created[CLOCK_TEXT_MAX], updated[CLOCK_TEXT_MAX];
    clock_text(created_us, 6, created);
    clock_text(updated_us, 6, updated);
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:s}", "id", id, "name", name, "created_at", created, "updated_at", updated);
    if (deleted_too)
        json_object_set_new(json, "deleted_at", json_null());
    return json;
}

static bool id_formed(struct call *c, const char *request)
{
    c->request = request;
    if (pattern_matches(PATTERN_ID, c->store_id))
        return true;
    api_error(c, "validation_error", "invalid %s.StoreId: %s", request, pattern_reason(PATTERN_ID));
    return false;
}

static void created(struct call *c)
{
    api_answer(c, 201, shown(c->job.id, c->job.name, c->job.created_us, c->job.updated_us, false));
}

void handle_create_store(struct call *c)
{
    if (!call_body(c, &message_create_store))
        return;
    c->job.name = member_text(c->body, "name");
    call_later(c, JOB_CREATE_STORE, created);
}

void handle_list_stores(struct call *c)
{
    struct served *page[PAGE_MAX + 1];
    const char *token, *name = http_query(c->http, "name");
    char *after = NULL, *next = NULL;
    unsigned size;
    c->request = "ListStoresRequest";
    if (!query_page_size(c, &size) || !query_token(c, &token))
        return;
    if (name && *name && !pattern_matches(PATTERN_STORE_NAME, name)) {
        api_error(c, "validation_error", "invalid %s.Name: %s", c->request, pattern_reason(PATTERN_STORE_NAME));
        return;
    }
    if (token && *token && !(after = stores_unseal(c->api->stores, TOKEN_SCOPE, token))) {
        api_error(c, "invalid_continuation_token", "Invalid continuation token");
        return;
    }
    size_t n = stores_list(c->api->stores, after, name && *name ? name : NULL, page, size + 1);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        if (i < size)
            json_array_append_new(list,
                                  shown(page[i]->id, page[i]->name, page[i]->created_us, page[i]->updated_us, true));
        if (i + 1 == size && n > size)
            next = stores_seal(c->api->stores, TOKEN_SCOPE, page[i]->id);
        stores_put(page[i]);
    }
    api_answer(c, 200, json_pack("{s:o, s:s}", "stores", list, "continuation_token", next ? next : ""));
    free(next);
    free(after);
}

void handle_get_store(struct call *c)
{
    if (!id_formed(c, "GetStoreRequest"))
        return;
    c->store = stores_get(c->api->stores, c->store_id);
    if (c->store)
        api_answer(c, 200, shown(c->store->id, c->store->name, c->store->created_us, c->store->updated_us, true));
    else
        api_error(c, "store_id_not_found", "Store ID not found");
}

static void deleted(struct call *c)
{
    c->http->status = 204;
}

void handle_delete_store(struct call *c)
{
    if (!id_formed(c, "DeleteStoreRequest"))
        return;
    c->store = stores_get(c->api->stores, c->store_id);
    if (c->store)
        call_later(c, JOB_DELETE_STORE, deleted);
    else
        c->http->status = 204;
}
