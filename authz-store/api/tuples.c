/* tuples.c - Write, Read, ReadChanges. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "authz-store/api/internal.h"

#define CONTEXT_MAX (32 << 10) /* OpenFGA's limit of a condition's context */

/* ---- Write ---- */

static void name_of(struct buf *out, const struct engine_tuple *t)
{
    buf_addf(out, "user: '%s', relation: '%s', object: '%s'", t->subject.s, t->relation.s, t->object.s);
}

static void invalid(struct call *c, const json_t *key, bool of_condition, const char *reason)
{
    struct buf text;
    buf_init(&text, 64 << 10);
    tuple_fault(&text, key, of_condition, reason);
    api_error(c, "validation_error", "%s", buf_str(&text));
    buf_release(&text);
}

static bool is_implicit(const struct engine_tuple *t)
{
    const char *mark = strrchr(t->subject.s, '#');
    return mark && strcmp(mark + 1, t->relation.s) == 0 && t->object.len == (size_t)(mark - t->subject.s) &&
           memcmp(t->object.s, t->subject.s, t->object.len) == 0;
}

static bool write_fits(struct call *c, const json_t *key, const struct engine_tuple *t)
{
    struct model_err err;
    char text[128];
    enum model_fault fault =
        model_check_tuple(c->model->model, t->object.s, t->relation.s, t->subject.s,
                          t->condition.len ? t->condition.s : NULL, t->context.len ? t->context.s : NULL, &err);
    if (fault != MODEL_FITS) {
        invalid(c, key, fault == MODEL_CONDITION, err.text);
        return false;
    }
    if (is_implicit(t)) {
        invalid(c, key, false, "cannot write a tuple that is implicit");
        return false;
    }
    if (t->context.len > CONTEXT_MAX) {
        snprintf(text, sizeof text, "condition context size limit exceeded: %zu bytes exceeds %d bytes", t->context.len,
                 CONTEXT_MAX);
        invalid(c, key, false, text);
        return false;
    }
    return true;
}

/* Deletions come first, as there. */
static bool take_changes(struct call *c, const json_t *deletes, const json_t *writes)
{
    size_t nd = json_array_size(deletes), nw = json_array_size(writes), i;
    const json_t *key;
    c->changes = calloc(nd + nw, sizeof *c->changes);
    c->job.nchanges = nd + nw;
    c->job.changes = c->changes;
    if (!c->changes) {
        api_answer(c, 500, NULL);
        return false;
    }
    json_array_foreach(writes, i, key)
    {
        struct engine_tuple *t = &c->changes[nd + i].tuple;
        if (!tuple_of(c, key, t)) {
            api_answer(c, 500, NULL);
            return false;
        }
        if (!write_fits(c, key, t))
            return false;
    }
    json_array_foreach(deletes, i, key)
    {
        c->changes[i].remove = true;
        if (!tuple_of(c, key, &c->changes[i].tuple)) {
            api_answer(c, 500, NULL);
            return false;
        }
        if (!model_user_formed(member_text(key, "user"))) {
            invalid(c, key, false, "the 'user' field is malformed");
            return false;
        }
    }
    return true;
}

static bool each_once(struct call *c)
{
    json_t *seen = json_object();
    struct buf name;
    bool once = true;
    buf_init(&name, 4096);
    for (size_t i = 0; i < c->job.nchanges && once; i++) {
        buf_clear(&name);
        name_of(&name, &c->changes[i].tuple);
        once = !json_object_get(seen, buf_str(&name));
        json_object_set_new(seen, buf_str(&name), json_true());
        if (!once)
            api_error(c, "cannot_allow_duplicate_tuples_in_one_request", "duplicate tuple in write: %s",
                      buf_str(&name));
    }
    buf_release(&name);
    json_decref(seen);
    if (once && c->job.nchanges > (size_t)c->api->cfg->write_max) {
        api_error(c, "exceeded_entity_limit", "The number of write operations exceeds the allowed limit of %lld",
                  (long long)c->api->cfg->write_max);
        return false;
    }
    return once;
}

static bool option(struct call *c, const json_t *of, const char *name, bool *ignore)
{
    const char *value = member_text(of, name);
    *ignore = strcmp(value, "ignore") == 0;
    if (*ignore || !*value || strcmp(value, "error") == 0)
        return true;
    api_error(c, "validation_error", "invalid %s option: %s", name, value);
    return false;
}

static void written(struct call *c)
{
    struct buf name;
    if (c->job.st == ST_OK) {
        api_answer(c, 200, json_object());
        return;
    }
    const struct engine_change *change = &c->changes[c->job.conflict];
    buf_init(&name, 4096);
    name_of(&name, &change->tuple);
    if (c->job.other_condition && c->job.ignore_duplicate)
        api_error(c, "Aborted",
                  "transactional write failed due to conflict: attempted to write a tuple which already exists with a "
                  "different condition: %s",
                  buf_str(&name));
    else
        api_error(c, "write_failed_due_to_invalid_input",
                  "cannot %s: %s: tuple to be written already existed or the tuple to be deleted did not exist",
                  change->remove ? "delete a tuple which does not exist" : "write a tuple which already exists",
                  buf_str(&name));
    buf_release(&name);
}

void handle_write(struct call *c)
{
    if (!call_body(c, &message_write) || !call_model(c))
        return;
    const json_t *writes = member(c->body, "writes"), *deletes = member(c->body, "deletes");
    const json_t *wkeys = member(writes, "tuple_keys"), *dkeys = member(deletes, "tuple_keys");
    if (json_array_size(wkeys) + json_array_size(dkeys) == 0)
        api_error(c, "invalid_write_input",
                  "Invalid input. Make sure you provide at least one write, or at least one delete");
    else if (take_changes(c, dkeys, wkeys) && each_once(c) &&
             option(c, writes, "on_duplicate", &c->job.ignore_duplicate) &&
             option(c, deletes, "on_missing", &c->job.ignore_missing))
        call_later(c, JOB_WRITE, written);
}

/* ---- Read ---- */

static void page_read(struct call *c)
{
    api_answer(c, 200,
               json_pack("{s:O, s:s}", "tuples", c->job.result, "continuation_token",
                         c->job.next_token ? c->job.next_token : ""));
}

static struct engine_text text_of(const json_t *json, const char *name)
{
    const char *s = member_text(json, name);
    return (struct engine_text){s, strlen(s)};
}

void handle_read(struct call *c)
{
    if (!call_body(c, &message_read))
        return;
    const json_t *key = member(c->body, "tuple_key"), *size = member(c->body, "page_size");
    const char *object = member_text(key, "object"), *colon = strchr(object, ':');
    if (key && (!colon || colon == object || (!colon[1] && !*member_text(key, "user")))) {
        api_error(c, "validation_error",
                  "the 'tuple_key' field was provided but the object type field is required and both the object id and "
                  "user cannot be empty");
        return;
    }
    if (!c->store) {
        api_answer(c, 200, json_pack("{s:[], s:s}", "tuples", "continuation_token", ""));
        return;
    }
    c->job.object = text_of(key, "object");
    c->job.relation = text_of(key, "relation");
    c->job.subject = text_of(key, "user");
    c->job.token = member_text(c->body, "continuation_token");
    c->job.page_size =
        json_is_string(size) ? (unsigned)strtoul(json_string_value(size), NULL, 10) : (unsigned)json_number_value(size);
    call_later(c, JOB_READ, page_read);
}

/* ---- ReadChanges ---- */

static void changes_read(struct call *c)
{
    api_answer(c, 200,
               json_pack("{s:O, s:s}", "changes", c->job.result, "continuation_token",
                         c->job.next_token ? c->job.next_token : ""));
}

/* RFC 3339; false: none. */
static bool parse_time(const char *text, int64_t *us)
{
    struct tm tm = {0};
    const char *at = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    double fraction = 0;
    long offset = 0;
    char *end;
    if (!at)
        return false;
    if (*at == '.') {
        fraction = strtod(at, &end);
        at = end;
    }
    if ((*at == '+' || *at == '-') && strlen(at) == 6 && at[3] == ':')
        offset = (strtol(at + 1, NULL, 10) * 3600 + strtol(at + 4, NULL, 10) * 60) * (*at == '-' ? -1 : 1);
    else if (strcmp(at, "Z") != 0 && strcmp(at, "z") != 0)
        return false;
    *us = ((int64_t)timegm(&tm) - offset) * 1000000 + (int64_t)(fraction * 1e6);
    return true;
}

static bool start_time(struct call *c)
{
    const char *text = http_query(c->http, "start_time");
    if (!text || !*text)
        return true;
    if (!parse_time(text, &c->job.start_us))
        api_error(c, "validation_error", "parsing field \"start_time\": invalid google.protobuf.Timestamp value \"%s\"",
                  text);
    else if (c->job.start_us >= clock_wall_us())
        api_error(c, "validation_error", "invalid %s.StartTime: value must be less than now", c->request);
    else
        return true;
    return false;
}

void handle_changes(struct call *c)
{
    const char *type = http_query(c->http, "type");
    c->request = "ReadChangesRequest";
    if (!pattern_matches(PATTERN_ID, c->store_id)) {
        api_error(c, "validation_error", "invalid %s.StoreId: %s", c->request, pattern_reason(PATTERN_ID));
        return;
    }
    if (type && *type && !pattern_matches(PATTERN_CHANGES_TYPE, type)) {
        api_error(c, "type_invalid_pattern", "invalid %s.Type: %s", c->request, pattern_reason(PATTERN_CHANGES_TYPE));
        return;
    }
    if (!query_page_size(c, &c->job.page_size) || !query_token(c, &c->job.token) || !start_time(c))
        return;
    c->store = stores_get(c->api->stores, c->store_id);
    if (!c->store) {
        api_answer(c, 200, json_pack("{s:[], s:s}", "changes", "continuation_token", c->job.token ? c->job.token : ""));
        return;
    }
    c->job.type = type && *type ? type : NULL;
    call_later(c, JOB_READ_CHANGES, changes_read);
}
