#include <string.h>

#include "common/store/store_error.h"
#include "common/store/store_internal.h"
#include "common/store/store_json.h"

/* ---- one call ---- */

/* Send once, with a token, and wait. An expired OIDC token is fetched anew once: a 401 was not handled. */
static enum status exchange(struct store_conn *c, const struct store_request *rq, mono_us deadline, struct err *err)
{
    struct store_request with = *rq;
    uint64_t generation;
    char *token;
    enum status st;

    for (int tries = 0;; tries++) {
        st = store_auth_token(c->store->auth, c->wire, deadline, &token, &generation, err);
        if (st != ST_OK)
            return st;
        with.bearer = token;
        st = store_wire_start(c->wire, &c->exchange, &with, err);
        store_auth_wipe(token);
        if (st == ST_OK)
            st = store_wire_wait(c->wire, &c->exchange, deadline, err);
        if (st != ST_OK || c->exchange.http_status != 401 || !store_auth_refused(c->store->auth, generation) ||
            tries > 0)
            return st;
    }
}

struct bytes store_call_answer(const struct store_conn *c)
{
    return (struct bytes){c->exchange.answer.data, c->exchange.answer.len};
}

enum status store_call(struct store_conn *c, enum store_method method, const char *traceparent, mono_us deadline,
                       struct err *err)
{
    mono_us until = deadline_min(deadline, deadline_in_ms(c->store->cfg->request_timeout_ms));
    struct store_request rq = {.path = buf_str(&c->path), .type = "application/json", .traceparent = traceparent};
    enum status st;

    if (!buf_ok(&c->path))
        return err_set(err, ST_FATAL, NULL, "the path of the request is too long");
    if (clock_mono_us() >= deadline)
        return err_set(err, ST_DEADLINE, NULL, "the deadline passed before the request was sent");
    rq.once = method == STORE_POST_ONCE;
    if (method != STORE_GET)
        rq.body = (struct bytes){buf_str(&c->request), c->request.len};
    st = exchange(c, &rq, until, err);
    if (st == ST_DEADLINE && clock_mono_us() < deadline) {
        /* Not the caller's deadline but store.request_timeout. */
        st = ST_RETRY;
        if (err)
            err->status = st;
    }
    if (st != ST_OK)
        return st;
    if (c->exchange.http_status < 200 || c->exchange.http_status > 299)
        return store_error_from_answer(c->exchange.http_status, store_call_answer(c),
                                       method != STORE_GET ? c->request.len : 0, c->exchange.retry_after_ms, err);
    return ST_OK;
}

void store_call_path(struct store_conn *c, const char *tail)
{
    buf_clear(&c->path);
    buf_addf(&c->path, "/stores/%s%s", c->id, tail);
}

enum status store_call_need_store(const struct store_conn *c, struct err *err)
{
    return c->id[0] ? ST_OK : err_set(err, ST_MISSING, NULL, "no store id is known; pin one");
}

enum status store_call_need_model(const char *model_id, struct err *err)
{
    if (store_id_valid(model_id))
        return ST_OK;
    return err_set(err, ST_CONFIG, NULL,
                   "\"%s\" is not a model id (26 of 0-9 and A-Z without I, L, O, U); pin the right one", model_id);
}

enum status store_call_told(const struct store_conn *c, const char *what, enum status st, struct err *err)
{
    /* Where it went, and to which store, only if that may be what is wrong. */
    bool setup = st == ST_MISSING || st == ST_DENIED || st == ST_CONFIG;

    if (setup && c->id[0])
        err_prefix(err, "%s, %s in store %s", c->store->peer.shown, what, c->id);
    else if (setup || st == ST_RETRY || st == ST_UNKNOWN)
        err_prefix(err, "%s, %s", c->store->peer.shown, what);
    else if (st != ST_OK)
        err_prefix(err, "%s", what);
    return st;
}

static struct bytes bytes_of(const char *s)
{
    return (struct bytes){s, strlen(s)};
}

static enum status check_key(const struct tuple_key *k, struct err *err)
{
    return tuple_check(bytes_of(k->object), bytes_of(k->relation), bytes_of(k->subject), err);
}

/* ---- Write ---- */

/* The caller's duty, checked: sorted, no key twice. The store would refuse the whole batch for it. */
static enum status check_batch(const struct store_tuple *writes, size_t nwrites, const struct tuple_key *deletes,
                               size_t ndeletes, struct err *err)
{
    size_t w = 0, d = 0;

    if (nwrites + ndeletes == 0 || nwrites + ndeletes > STORE_WRITE_MAX)
        return err_set(err, ST_FATAL, NULL, "%zu tuples given, not 1 to %d", nwrites + ndeletes, STORE_WRITE_MAX);
    for (size_t i = 1; i < nwrites; i++)
        if (tuple_key_cmp(&writes[i - 1].key, &writes[i].key) >= 0)
            return err_set(err, ST_FATAL, NULL, "the writes are not sorted, or one is there twice");
    for (size_t i = 1; i < ndeletes; i++)
        if (tuple_key_cmp(&deletes[i - 1], &deletes[i]) >= 0)
            return err_set(err, ST_FATAL, NULL, "the deletes are not sorted, or one is there twice");
    while (w < nwrites && d < ndeletes) {
        int order = tuple_key_cmp(&writes[w].key, &deletes[d]);

        if (order == 0)
            return err_set(err, ST_FATAL, NULL, "one tuple is both written and deleted");
        if (order < 0)
            w++;
        else
            d++;
    }
    return ST_OK;
}

/* The store takes some malformed deletes and ignores them as missing; the tuple that was meant would stay. */
static enum status check_deletes(const struct tuple_key *deletes, size_t n, struct err *err)
{
    enum status st = ST_OK;

    for (size_t i = 0; i < n && st == ST_OK; i++)
        st = check_key(&deletes[i], err);
    return st;
}

enum status store_write(struct store_conn *c, const char *model_id, const struct store_tuple *writes, size_t nwrites,
                        const struct tuple_key *deletes, size_t ndeletes, mono_us deadline, struct err *err)
{
    enum status st = store_call_need_store(c, err);

    if (st == ST_OK)
        st = store_call_need_model(model_id, err);
    if (st == ST_OK)
        st = check_batch(writes, nwrites, deletes, ndeletes, err);
    if (st == ST_OK)
        st = check_deletes(deletes, ndeletes, err);
    if (st == ST_OK)
        st = store_json_write(&c->request, model_id, writes, nwrites, deletes, ndeletes, err);
    store_call_path(c, "/write");
    if (st == ST_OK)
        st = store_call(c, STORE_POST_ONCE, NULL, deadline, err);
    if (st == ST_OK)
        st = store_json_object(store_call_answer(c), err);
    return store_call_told(c, "Write", st, err);
}

/* ---- Read ---- */

static bool same_key(const struct tuple_key *a, const struct tuple_key *b)
{
    return tuple_key_cmp(a, b) == 0;
}

enum status store_read_tuple(struct store_conn *c, const struct tuple_key *key, bool *found, struct store_tuples *out,
                             mono_us deadline, struct err *err)
{
    struct store_tuples got = {0};
    enum status st = store_call_need_store(c, err);

    *found = false;
    if (out)
        *out = (struct store_tuples){0};
    /* A subject that is only a type would find nothing, or other tuples. */
    if (st == ST_OK)
        st = check_key(key, err);
    if (st == ST_OK)
        st = store_json_read_tuple(&c->request, key, err);
    store_call_path(c, "/read");
    if (st == ST_OK)
        st = store_call(c, STORE_POST, NULL, deadline, err);
    if (st == ST_OK)
        st = store_json_tuples(store_call_answer(c), &got, NULL, err);
    if (st == ST_OK && (got.len > 1 || (got.len == 1 && !same_key(&got.items[0].key, key))))
        st = err_set(err, ST_UNKNOWN, NULL, "the answer cannot be used: it holds another tuple than was asked for");
    if (st == ST_OK) {
        *found = got.len == 1;
        if (*found && out) {
            *out = got;
            got = (struct store_tuples){0};
        }
    }
    store_tuples_free(&got);
    return store_call_told(c, "Read of a tuple", st, err);
}

enum status store_read_page(struct store_conn *c, const char *token, struct store_tuples *out, char **next,
                            mono_us deadline, struct err *err)
{
    return store_read_about(c, NULL, NULL, token, out, next, deadline, err);
}

enum status store_read_about(struct store_conn *c, const char *object, const char *subject, const char *token,
                             struct store_tuples *out, char **next, mono_us deadline, struct err *err)
{
    enum status st = store_call_need_store(c, err);

    *out = (struct store_tuples){0};
    *next = NULL;
    if (st == ST_OK)
        st = store_json_read_page(&c->request, object, subject, token, STORE_READ_PAGE, err);
    store_call_path(c, "/read");
    if (st == ST_OK)
        st = store_call(c, STORE_POST, NULL, deadline, err);
    if (st == ST_OK)
        st = store_json_tuples(store_call_answer(c), out, next, err);
    if (st == ST_OK && **next && strcmp(*next, token) == 0) {
        st =
            err_set(err, ST_FATAL, NULL, "the store gives the same continuation token again; reading on would not end");
        store_tuples_free(out);
        free(*next);
        *next = NULL;
    }
    return store_call_told(c, "Read of a page", st, err);
}

/* ---- Check ---- */

enum status store_check(struct store_conn *c, const char *model_id, const struct tuple_key *key, bool higher,
                        bool *allowed, mono_us deadline, struct err *err)
{
    enum status st = store_call_need_store(c, err);

    *allowed = false;
    if (st == ST_OK)
        st = store_call_need_model(model_id, err);
    if (st == ST_OK)
        st = store_json_check(&c->request, model_id, key, higher, err);
    store_call_path(c, "/check");
    if (st == ST_OK)
        st = store_call(c, STORE_POST, NULL, deadline, err);
    if (st == ST_OK)
        st = store_json_allowed(store_call_answer(c), allowed, err);
    return store_call_told(c, "Check", st, err);
}

/* ---- identity and model ---- */

enum status store_get(struct store_conn *c, char **name, mono_us deadline, struct err *err)
{
    enum status st = store_call_need_store(c, err);

    *name = NULL;
    store_call_path(c, "");
    if (st == ST_OK)
        st = store_call(c, STORE_GET, NULL, deadline, err);
    if (st == ST_OK)
        st = store_json_member(store_call_answer(c), "name", name, err);
    return store_call_told(c, "GetStore", st, err);
}

enum status store_create(struct store_conn *c, const char *name, char **store_id, mono_us deadline, struct err *err)
{
    enum status st = store_json_create(&c->request, name, err);

    *store_id = NULL;
    buf_clear(&c->path);
    buf_adds(&c->path, "/stores");
    if (st == ST_OK)
        st = store_call(c, STORE_POST, NULL, deadline, err);
    if (st == ST_OK)
        st = store_json_member(store_call_answer(c), "id", store_id, err);
    if (st != ST_OK)
        err_prefix(err, "%s, CreateStore", c->store->peer.shown);
    return st;
}

enum status store_latest_model(struct store_conn *c, char **model_id, mono_us deadline, struct err *err)
{
    enum status st = store_call_need_store(c, err);

    *model_id = NULL;
    store_call_path(c, "/authorization-models?page_size=1");
    if (st == ST_OK)
        st = store_call(c, STORE_GET, NULL, deadline, err);
    if (st == ST_OK)
        st = store_json_first_model(store_call_answer(c), model_id, err);
    if (st == ST_OK && !*model_id)
        st = err_set(err, ST_MISSING, "latest_authorization_model_not_found",
                     "the store has no authorization model, or does not exist");
    return store_call_told(c, "ReadAuthorizationModels", st, err);
}

enum status store_model(struct store_conn *c, const char *model_id, char **json, mono_us deadline, struct err *err)
{
    enum status st = store_call_need_store(c, err);

    *json = NULL;
    if (st == ST_OK)
        st = store_call_need_model(model_id, err);
    store_call_path(c, "/authorization-models/");
    buf_adds(&c->path, model_id);
    if (st == ST_OK)
        st = store_call(c, STORE_GET, NULL, deadline, err);
    if (st == ST_OK)
        st = store_json_model_text(store_call_answer(c), json, err);
    return store_call_told(c, "ReadAuthorizationModel", st, err);
}

enum status store_write_model(struct store_conn *c, const char *json, char **model_id, mono_us deadline,
                              struct err *err)
{
    enum status st = store_call_need_store(c, err);

    *model_id = NULL;
    if (st == ST_OK)
        st = store_json_model(&c->request, json, err);
    store_call_path(c, "/authorization-models");
    if (st == ST_OK)
        st = store_call(c, STORE_POST, NULL, deadline, err);
    if (st == ST_OK)
        st = store_json_member(store_call_answer(c), "authorization_model_id", model_id, err);
    return store_call_told(c, "WriteAuthorizationModel", st, err);
}
