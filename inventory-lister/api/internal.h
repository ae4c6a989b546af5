/* internal.h - what the files of api/ share. */
#ifndef RELATA_LISTER_API_INTERNAL_H
#define RELATA_LISTER_API_INTERNAL_H

#include "common/admin/metrics.h"
#include "common/base/json.h"
#include "common/pg/pg.h"
#include "inventory-lister/api/api.h"
#include "inventory-lister/callers/callers.h"

#define PAGE_DEFAULT 50
#define PAGE_MAX 1000
#define WITH_MAX 16

/* One thread's own. */
struct worker {
    const struct api *api;
    struct pg *pg; /* opened when first needed */
};

/* The worker's session, connected (again) if need be. NULL: answered. */
struct pg *worker_pg(struct worker *w, struct request *rq, mono_us deadline);

/* Who asks about whom, of what. */
struct asked {
    const struct collection *collection;
    const char *bound; /* the claim's value, or NULL */
    const char *relation;
    const char *with[WITH_MAX];
    size_t nwith;
    char *with_text;
    const char *min_token; /* "" = none */
    struct decide_query query;
};
/* From the caller and the query's parameters, of which `also` (ended by NULL) and, if `filters`, "filter.*" are the
 * only ones besides relation, with_relations, subject and min_token. False: answered. Release in any case. */
bool asked_init(struct worker *w, struct request *rq, const char *collection, const char *const *also, bool filters,
                struct asked *out);
void asked_release(struct asked *a);
/* Wait for the min_token. False: answered. */
bool asked_wait(struct worker *w, struct request *rq, struct asked *a);

/* The subject to decide for: the caller's own, or `named` (NULL = not named) if the caller may. NULL: answered. */
const char *subject_for(struct request *rq, const char *named);
/* The same without an answer: what is wrong as an HTTP status, 0 if nothing. */
int subject_refusal(const struct caller *c, const char *subject, const char **code, const char **why);
bool need_right(struct request *rq, enum caller_right right);
/* A query for the subject, with the request's deadline less what the answer takes. */
struct decide_query query_for(const struct request *rq, const char *subject);

/* What a decision or a read could not be made for: 503 or 504, nothing if the client is gone. */
void problem_undecided(struct request *rq, const struct err *err);
/* Takes `json`. */
void answer_json(struct request *rq, int status, json_t *json);
/* The body as an object. NULL: answered. The caller releases it. */
json_t *body_object(struct request *rq);
/* Whether each of these members that the object has is a string (names ended by NULL). False: answered. */
bool members_are_strings(struct request *rq, const json_t *object, const char *const *names);
/* A string member without NUL; NULL if it is absent or of another kind. */
const char *member(const json_t *object, const char *name);
/* Whether the model in force has the relation for the object's type; *known is false if there is no model. */
bool model_has(const struct api *api, const char *object, const char *relation, bool *known);
void server_timing(struct request *rq, int64_t sql_us, int64_t check_us);

extern struct metric m_min_token_waiting;

void list_collections(struct worker *w, struct request *rq);
void list_page(struct worker *w, struct request *rq, const char *collection);
void get_row(struct worker *w, struct request *rq, const char *collection, const char *id);
void explain(struct worker *w, struct request *rq);
void authzen_configuration(struct worker *w, struct request *rq);
void authzen_evaluation(struct worker *w, struct request *rq);
void authzen_evaluations(struct worker *w, struct request *rq);

extern const char openapi_json[];
extern const char openapi_json_end[];

#endif
