/*
 * internal.h - private to api/: one call on its way through routes.c (where it goes), then decide.c, lists.c, tuples.c,
 * models.c or stores.c (what it asks for), to answer.c.
 */
#ifndef RELATA_AUTHZ_API_INTERNAL_H
#define RELATA_AUTHZ_API_INTERNAL_H

#include "authz-store/api/api.h"
#include "authz-store/api/schema.h"
#include "common/admin/metrics.h"

struct call {
    struct api *api;
    struct http_call *http;
    const char *request;  /* OpenFGA's name of the request message, for errors */
    json_t *body;         /* parsed; owned */
    bool formed;          /* it is a message of the request, whatever it says */
    struct served *store; /* pinned; NULL = no such store */
    const struct served_model *model;
    char store_id[64], part_id[64]; /* from the path; too long ones are cut, and of a wrong form anyway */
    struct engine_tuple *contextual;
    char **texts; /* what contextual and changes point into beside the body */
    size_t ncontextual, ntexts;
    struct engine_change *changes;
    mono_us deadline;
    bool stopped; /* by the deadline */
    struct job job;
    void (*finish)(struct call *c); /* when the job is done */
};

/* ---- answers (answer.c) ---- */
/* 400 with OpenFGA's code, or the status that belongs to it. */
void api_error(struct call *c, const char *code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Consumes json. NULL: no memory. */
void api_answer(struct call *c, int status, json_t *json);
/* Of a failed job or of stores_ready(): ST_DEADLINE, ST_THROTTLED, ... */
void api_failed(struct call *c, enum status st, const struct err *err);
/* Of a status other than ENGINE_OK; `what` as engine_reason() has it. */
void api_undecided(struct call *c, enum engine_status st, const char *what);
/* Text of that, and its code. */
const char *undecided_code(enum engine_status st);
void undecided_text(struct buf *out, enum engine_status st, const char *what);

/* ---- what calls have in common (common.c) ---- */
/* Parses and checks the body, pins the store; false: answered. */
bool call_body(struct call *c, const struct message *m);
/* The model that the body names, or the latest; false: answered. */
bool call_model(struct call *c);
/* Contextual tuples of a JSON array, checked against the model. False: answered, or `why` has the fault if it is not
 * NULL. Those of a call before are forgotten. */
bool call_contextual(struct call *c, const json_t *keys, struct buf *why);
struct engine_limits call_limits(struct call *c, size_t results);
/* "Invalid tuple '...'. Reason: ..."; of_condition: its name is told, too. */
void tuple_fault(struct buf *out, const json_t *key, bool of_condition, const char *reason);
/* A change's texts from a tuple key. False: no memory. */
bool tuple_of(struct call *c, const json_t *key, struct engine_tuple *out);
/* Submits c->job; `finish` is called on another thread when it is done, and answers. */
void call_later(struct call *c, enum job_kind kind, void (*finish)(struct call *c));
void call_free(struct call *c);
/* The page size of a query or body; false: answered. */
bool query_page_size(struct call *c, unsigned *out);
bool query_token(struct call *c, const char **out);

/* ---- handlers ---- */
void handle_check(struct call *c);
void handle_batch_check(struct call *c);
void handle_list_objects(struct call *c);
void handle_streamed_list_objects(struct call *c);
void handle_list_users(struct call *c);
void handle_expand(struct call *c);
void handle_write(struct call *c);
void handle_read(struct call *c);
void handle_changes(struct call *c);
void handle_write_model(struct call *c);
void handle_read_model(struct call *c);
void handle_list_models(struct call *c);
void handle_write_assertions(struct call *c);
void handle_read_assertions(struct call *c);
void handle_create_store(struct call *c);
void handle_list_stores(struct call *c);
void handle_get_store(struct call *c);
void handle_delete_store(struct call *c);

#endif
