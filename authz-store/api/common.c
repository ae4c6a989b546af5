/* common.c - what calls have in common: body, store, model, contextual tuples, jobs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "authz-store/api/internal.h"
#include "engine/model.h"

#define WHY_MAX (64 << 10)
#define PAGE_DEFAULT 50

static bool parse(struct call *c)
{
    json_error_t why;
    struct bytes body = c->http->body;
    if (body.len == 0)
        return true;
    c->body = json_loadb(body.data, body.len, JSON_REJECT_DUPLICATES, &why);
    if (c->body)
        return true;
    if (json_error_code(&why) == json_error_premature_end_of_input)
        api_error(c, "validation_error", "malformed JSON");
    else
        api_error(c, "validation_error", "malformed JSON at line %d, column %d: %s", why.line, why.column, why.text);
    return false;
}

bool call_body(struct call *c, const struct message *m)
{
    struct buf why;
    if (!parse(c))
        return false;
    buf_init(&why, WHY_MAX);
    c->request = m->label;
    c->formed = schema_types(m, c->body, &why);
    bool right = c->formed && schema_rules(m, c->body, &why);
    if (c->formed && c->store_id[0] && !pattern_matches(PATTERN_ID, c->store_id)) {
        right = false;
        buf_clear(&why);
        buf_addf(&why, "invalid %s.StoreId: %s", m->label, pattern_reason(PATTERN_ID));
    }
    if (!right)
        api_error(c, schema_code(buf_str(&why)), "%s", buf_str(&why));
    buf_release(&why);
    if (right && c->store_id[0])
        c->store = stores_get(c->api->stores, c->store_id);
    return right;
}

bool call_model(struct call *c)
{
    const char *id = member_text(c->body, "authorization_model_id");
    c->model = c->store ? served_model(c->store, id) : NULL;
    if (c->model)
        memcpy(c->http->model_id, c->model->id, sizeof c->model->id);
    else if (*id)
        api_error(c, "authorization_model_not_found", "Authorization Model '%s' not found", id);
    else
        api_error(c, "latest_authorization_model_not_found", "No authorization models found for store '%s'",
                  c->store_id);
    return c->model != NULL;
}

/* ---- tuples ---- */

static struct engine_text text_of(const json_t *json, const char *name)
{
    const json_t *v = json_object_get(json, name);
    return json_is_string(v) ? (struct engine_text){json_string_value(v), json_string_length(v)}
                             : (struct engine_text){"", 0};
}

/* Keeps a text that the call owns. NULL: no memory. */
static const char *keep(struct call *c, char *text)
{
    char **texts = text ? realloc(c->texts, (c->ntexts + 1) * sizeof *texts) : NULL;
    if (!texts) {
        free(text);
        return NULL;
    }
    c->texts = texts;
    return texts[c->ntexts++] = text;
}

bool tuple_of(struct call *c, const json_t *key, struct engine_tuple *out)
{
    const json_t *condition = member(key, "condition"), *context = member(condition, "context");
    *out = (struct engine_tuple){
        .object = text_of(key, "object"), .relation = text_of(key, "relation"), .subject = text_of(key, "user")};
    if (condition)
        out->condition = text_of(condition, "name");
    if (!context)
        return true;
    const char *text = keep(c, json_dumps(context, JSON_COMPACT));
    if (text)
        out->context = (struct engine_text){text, strlen(text)};
    return text != NULL;
}

void tuple_fault(struct buf *out, const json_t *key, bool of_condition, const char *reason)
{
    const json_t *condition = of_condition ? member(key, "condition") : NULL;
    buf_addf(out, "Invalid tuple '%s#%s@%s", member_text(key, "object"), member_text(key, "relation"),
             member_text(key, "user"));
    if (condition)
        buf_addf(out, " (condition %s)", member_text(condition, "name"));
    buf_addf(out, "'. Reason: %s", reason);
}

bool call_contextual(struct call *c, const json_t *keys, struct buf *why)
{
    const json_t *key;
    size_t n = json_array_size(keys), i;
    struct buf text;
    free(c->contextual);
    c->ncontextual = 0;
    c->contextual = n ? calloc(n, sizeof *c->contextual) : NULL;
    if (n && !c->contextual) {
        api_answer(c, 500, NULL);
        return false;
    }
    json_array_foreach(keys, i, key)
    {
        struct model_err err;
        struct engine_tuple *t = &c->contextual[i];
        if (!tuple_of(c, key, t)) {
            api_answer(c, 500, NULL);
            return false;
        }
        enum model_fault fault =
            model_check_tuple(c->model->model, t->object.s, t->relation.s, t->subject.s,
                              t->condition.len ? t->condition.s : NULL, t->context.len ? t->context.s : NULL, &err);
        if (fault == MODEL_FITS)
            continue;
        buf_init(&text, WHY_MAX);
        tuple_fault(&text, key, fault == MODEL_CONDITION, err.text);
        if (why)
            buf_adds(why, buf_str(&text));
        else
            api_error(c, "invalid_tuple", "%s", buf_str(&text));
        buf_release(&text);
        return false;
    }
    c->ncontextual = n;
    return true;
}

static bool late(void *arg)
{
    struct call *c = arg;
    c->stopped |= clock_mono_us() > c->deadline;
    return c->stopped;
}

struct engine_limits call_limits(struct call *c, size_t results)
{
    c->deadline = deadline_in_ms(c->api->cfg->list_deadline_ms);
    return (struct engine_limits){.depth = (unsigned)c->api->cfg->depth,
                                  .stop = late,
                                  .arg = c,
                                  .results = results,
                                  .contextual = c->contextual,
                                  .ncontextual = c->ncontextual};
}

/* ---- jobs ---- */

static void on_done(struct job *job)
{
    struct call *c = job->arg;
    struct http_call *h = c->http;
    if (job->st != ST_OK && job->st != ST_CONFLICT)
        api_failed(c, job->st, &job->err);
    else
        c->finish(c);
    call_free(c);
    http_resume(h);
}

void call_later(struct call *c, enum job_kind kind, void (*finish)(struct call *c))
{
    c->finish = finish;
    c->job.kind = kind;
    c->job.store = c->store;
    c->job.deadline = deadline_in_ms(c->api->cfg->request_timeout_ms);
    c->job.done = on_done;
    c->job.arg = c;
    c->http->app = NULL; /* on_done ends it */
    http_suspend(c->http);
    stores_submit(c->api->stores, &c->job);
}

void call_free(struct call *c)
{
    for (size_t i = 0; i < c->ntexts; i++)
        free(c->texts[i]);
    free(c->texts);
    free(c->contextual);
    free(c->changes);
    model_free(c->job.model);
    if (c->job.json)
        json_decref(c->job.json);
    json_decref(c->job.result);
    free(c->job.next_token);
    json_decref(c->body);
    stores_put(c->store);
    free(c);
}

/* ---- pages ---- */

bool query_page_size(struct call *c, unsigned *out)
{
    const char *text = http_query(c->http, "page_size");
    char *end = NULL;
    long n = text ? strtol(text, &end, 10) : PAGE_DEFAULT;
    *out = (unsigned)n;
    if (text && (*end || end == text))
        api_error(c, "validation_error",
                  "parsing field \"page_size\": strconv.ParseInt: parsing \"%s\": invalid syntax", text);
    else if (n < 1 || n > 100)
        api_error(c, "page_size_invalid", "invalid %s.PageSize: value must be inside range [1, 100]", c->request);
    else
        return true;
    return false;
}

bool query_token(struct call *c, const char **out)
{
    *out = http_query(c->http, "continuation_token");
    if (*out && strlen(*out) > 5120)
        api_error(c, "validation_error", "invalid %s.ContinuationToken: value length must be at most 5120 bytes",
                  c->request);
    else if (*out && !pattern_matches(PATTERN_TOKEN, *out))
        api_error(c, "validation_error", "invalid %s.ContinuationToken: %s", c->request, pattern_reason(PATTERN_TOKEN));
    else
        return true;
    return false;
}
