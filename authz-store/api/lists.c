/* lists.c - ListObjects, StreamedListObjects, ListUsers, Expand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "authz-store/api/internal.h"
#include "common/base/json.h"

static struct engine_text text_of(const json_t *json, const char *name)
{
    const char *s = member_text(json, name);
    return (struct engine_text){s, strlen(s)};
}

/* Whether type and relation are the model's; else answered. */
static bool pair_fits(struct call *c, const char *type, const char *relation)
{
    const struct model *m = c->model->model;
    if (!model_has_type(m, type))
        api_error(c, "type_not_found", "type '%s' not found", type);
    else if (relation[0] && model_pair(m, type, strlen(type), relation) < 0)
        api_error(c, "relation_not_found", "relation '%s#%s' not found", type, relation);
    else
        return true;
    return false;
}

/* The reader has begun, and a list that its deadline ended is as good as it gets. */
static bool ended_well(struct call *c, enum engine_status st, struct engine_reader *r)
{
    if (st == ENGINE_OK || (st == ENGINE_STOPPED && c->stopped))
        return true;
    api_undecided(c, st, engine_reason(r));
    return false;
}

/* ---- objects ---- */

static bool list_fits(struct call *c)
{
    struct model_err why;
    const char *type = member_text(c->body, "type"), *relation = member_text(c->body, "relation");
    if (!call_contextual(c, member(member(c->body, "contextual_tuples"), "tuple_keys"), NULL) ||
        !pair_fits(c, type, relation))
        return false;
    /* The subject is held against the model as the user of a tuple; the object's id is any. */
    char object[512];
    snprintf(object, sizeof object, "%s:x", type);
    if (model_check_names(c->model->model, object, relation, member_text(c->body, "user"), &why) == MODEL_FITS)
        return true;
    api_error(c, "validation_error", "invalid 'user' value: %s", why.text);
    return false;
}

struct listing {
    struct buf *out;
    const char *begin, *end; /* around each name */
    size_t n;
};

static bool take_object(void *arg, struct engine_text name)
{
    struct listing *l = arg;
    buf_adds(l->out, l->begin + (l->n++ == 0 && *l->begin == ','));
    json_add_text(l->out, name.s, name.len);
    buf_adds(l->out, l->end);
    return buf_ok(l->out);
}

/* False: answered. */
static bool list_objects(struct call *c, size_t max, struct listing *l)
{
    struct engine_reader *r = served_reader(c->store);
    struct engine_limits limits = call_limits(c, max);
    if (!r) {
        api_answer(c, 500, NULL);
        return false;
    }
    c->http->status = 200;
    engine_begin(r);
    enum engine_status st = engine_list_objects(r, c->model->rules, &limits, text_of(c->body, "user"),
                                                text_of(c->body, "relation"), text_of(c->body, "type"), take_object, l);
    engine_end(r);
    return ended_well(c, st, r);
}

void handle_list_objects(struct call *c)
{
    struct buf *out = &c->http->answer;
    if (!call_body(c, &message_list_objects) || !call_model(c) || !list_fits(c))
        return;
    buf_adds(out, "{\"objects\":[");
    if (list_objects(c, (size_t)c->api->cfg->objects_max, &(struct listing){out, ",", "", 0}))
        buf_adds(out, "]}");
}

/* Its errors, once it has begun to answer, are of another form: as a gateway of streams gives them. */
static void stream_error(struct call *c)
{
    json_t *error = json_loadb(c->http->answer.data, c->http->answer.len, 0, NULL);
    api_answer(c, c->http->status,
               json_pack("{s:{s:i, s:s, s:[]}}", "error", "code", c->http->status == 500 ? 13 : 3, "message",
                         member_text(error, "message"), "details"));
    json_decref(error);
}

void handle_streamed_list_objects(struct call *c)
{
    bool well = call_body(c, &message_streamed_list_objects) && call_model(c) && list_fits(c) &&
                list_objects(c, 0, &(struct listing){&c->http->answer, "{\"result\":{\"object\":", "}}\n", 0});
    if (!well && c->formed)
        stream_error(c);
}

/* ---- users ---- */

static bool take_user(void *arg, struct engine_text name)
{
    struct listing *l = arg;
    const char *colon = memchr(name.s, ':', name.len), *id = colon ? colon + 1 : name.s;
    size_t type_len = colon ? (size_t)(colon - name.s) : 0, rest = name.len - (size_t)(id - name.s);
    const char *mark = memchr(id, '#', rest);
    bool wildcard = !mark && rest == 1 && *id == '*';
    buf_addf(l->out, "%s{\"%s\":{\"type\":", l->n++ ? "," : "", mark ? "userset" : wildcard ? "wildcard" : "object");
    json_add_text(l->out, name.s, type_len);
    if (!wildcard) {
        buf_adds(l->out, ",\"id\":");
        json_add_text(l->out, id, mark ? (size_t)(mark - id) : rest);
    }
    if (mark) {
        buf_adds(l->out, ",\"relation\":");
        json_add_text(l->out, mark + 1, rest - (size_t)(mark - id) - 1);
    }
    buf_adds(l->out, "}}");
    return buf_ok(l->out);
}

void handle_list_users(struct call *c)
{
    if (!call_body(c, &message_list_users) || !call_model(c) ||
        !call_contextual(c, member(c->body, "contextual_tuples"), NULL))
        return;
    const json_t *object = member(c->body, "object"), *filter = json_array_get(member(c->body, "user_filters"), 0);
    if (!pair_fits(c, member_text(filter, "type"), member_text(filter, "relation")) ||
        !pair_fits(c, member_text(object, "type"), member_text(c->body, "relation")))
        return;
    struct engine_reader *r = served_reader(c->store);
    struct engine_limits limits = call_limits(c, (size_t)c->api->cfg->users_max);
    struct listing list = {&c->http->answer, "", "", 0};
    struct buf name;
    buf_init(&name, 64 << 10);
    buf_addf(&name, "%s:%s", member_text(object, "type"), member_text(object, "id"));
    if (!r || !buf_ok(&name)) {
        api_answer(c, 500, NULL);
    } else {
        c->http->status = 200;
        buf_adds(list.out, "{\"users\":[");
        engine_begin(r);
        enum engine_status st = engine_list_users(
            r, c->model->rules, &limits, (struct engine_text){name.data, name.len}, text_of(c->body, "relation"),
            text_of(filter, "type"), text_of(filter, "relation"), take_user, &list);
        engine_end(r);
        if (ended_well(c, st, r))
            buf_adds(list.out, "]}");
    }
    buf_release(&name);
}

/* ---- expand ---- */

static json_t *tree_of(const struct engine_node *n)
{
    json_t *list = json_array();
    switch (n->kind) {
    case ENGINE_NODE_USERS:
        for (size_t i = 0; i < n->nnames; i++)
            json_array_append_new(list, json_string(n->names[i]));
        return json_pack("{s:s, s:{s:{s:o}}}", "name", n->name, "leaf", "users", "users", list);
    case ENGINE_NODE_COMPUTED:
        json_decref(list);
        return json_pack("{s:s, s:{s:{s:s}}}", "name", n->name, "leaf", "computed", "userset", n->names[0]);
    case ENGINE_NODE_TTU:
        for (size_t i = 0; i < n->nnames; i++)
            json_array_append_new(list, json_pack("{s:s}", "userset", n->names[i]));
        return json_pack("{s:s, s:{s:{s:s, s:o}}}", "name", n->name, "leaf", "tupleToUserset", "tupleset", n->tupleset,
                         "computed", list);
    case ENGINE_NODE_DIFFERENCE:
        json_decref(list);
        return json_pack("{s:s, s:{s:o, s:o}}", "name", n->name, "difference", "base", tree_of(n->nodes[0]), "subtract",
                         tree_of(n->nodes[1]));
    case ENGINE_NODE_UNION:
    case ENGINE_NODE_INTERSECTION:
        break;
    }
    for (size_t i = 0; i < n->nnodes; i++)
        json_array_append_new(list, tree_of(n->nodes[i]));
    return json_pack("{s:s, s:{s:o}}", "name", n->name, n->kind == ENGINE_NODE_UNION ? "union" : "intersection",
                     "nodes", list);
}

void handle_expand(struct call *c)
{
    struct model_err why;
    struct engine_node *root = NULL;
    if (!call_body(c, &message_expand) || !call_model(c))
        return;
    const json_t *key = member(c->body, "tuple_key");
    const char *object = member_text(key, "object"), *relation = member_text(key, "relation");
    if (!*object || !*relation) {
        api_error(c, "invalid_expand_input", "Invalid input. Make sure you provide an object and a relation");
        return;
    }
    if (!call_contextual(c, member(member(c->body, "contextual_tuples"), "tuple_keys"), NULL))
        return;
    if (model_check_object(c->model->model, object, relation, &why) != MODEL_FITS) {
        api_error(c, "validation_error", "%s", why.text);
        return;
    }
    struct engine_reader *r = served_reader(c->store);
    struct engine_limits limits = call_limits(c, 0);
    enum engine_status st = ENGINE_NOMEM;
    if (r) {
        engine_begin(r);
        st = engine_expand(r, c->model->rules, &limits, text_of(key, "object"), text_of(key, "relation"), &root);
        engine_end(r);
    }
    if (st == ENGINE_OK)
        api_answer(c, 200, json_pack("{s:{s:o}}", "tree", "root", tree_of(root)));
    else
        api_undecided(c, st, r ? engine_reason(r) : "");
    engine_node_free(root);
}
