/*
 * model.h - an OpenFGA authorization model (schema 1.1 and 1.2, JSON), compiled to arrays, and what it says about
 * change.
 *
 * engine/ does no I/O, has no threads and no globals, and uses nothing of ours. A `struct model` is immutable once
 * parsed: any number of threads may read it. Memory is bounded by the input's size.
 *
 * A *pair* is one (type, relation) of the model, named by a small integer 0 .. model_pairs() - 1.
 */
#ifndef RELATA_ENGINE_MODEL_H
#define RELATA_ENGINE_MODEL_H

#include <stdbool.h>
#include <stddef.h>

struct model;

struct model_err {
    char text[512]; /* one line: what is wrong, at which type and relation; OpenFGA's own message where it has one */
    char code[64];  /* OpenFGA's name for it: "invalid_authorization_model", "validation_error", ...; "" = no memory */
};

/* Parse an AuthorizationModel object (as ReadAuthorizationModel gives it). False with the reason: no JSON, a part of a
 * wrong form, a relation or type that is not defined, over 4 MiB, nested deeper than 64. *out is freed by model_free.
 */
bool model_parse(struct model **out, const char *json, size_t len, struct model_err *err);
void model_free(struct model *m); /* accepts NULL */

/* Whether OpenFGA's WriteAuthorizationModel takes a model of this form: its rules beyond those of model_parse, in its
 * order, with its code and message. Conditions' expressions are not compiled. The form of the JSON is as OpenFGA gives
 * it back (ReadAuthorizationModel). */
bool model_valid(const char *json, size_t len, struct model_err *err);

int model_pairs(const struct model *m);
/* -1 if the model has no such pair. `type` need not be NUL-terminated. */
int model_pair(const struct model *m, const char *type, size_t type_len, const char *relation);
const char *model_pair_type(const struct model *m, int pair);
const char *model_pair_relation(const struct model *m, int pair);
bool model_has_type(const struct model *m, const char *type);

/* Whether a decision of this pair can rest on a condition: it may change by time or request context, without any tuple
 * changing. */
bool model_conditional(const struct model *m, int pair);

/*
 * Which decisions can change when a tuple (object, relation, subject) is written or deleted.
 *
 * `pairs` is the closure over computed usersets, tuple-to-usersets (by the tupleset's tuples and by the relation looked
 * up behind it) and usersets as subjects, through unions, intersections and exclusions alike; it holds the tuple's own
 * pair. It may be too large, never too small.
 * by_subject: only decisions about the changed subject itself can flip. Never so if the relation is a tupleset of some
 *   tuple-to-userset (a tuple about anne may flip her boss), or the subject is a wildcard or a userset.
 * by_object: only decisions about the changed object itself can flip: no other type or object inherits from it.
 */
struct model_effect {
    const int *pairs; /* belongs to the model */
    size_t n;
    bool by_subject;
    bool by_object;
};
/* A tuple whose pair the model does not have affects nothing (n = 0): the store ignores such tuples. */
struct model_effect model_effect(const struct model *m, const char *object, const char *relation, const char *subject);

/* Whether a tuple may be written under this model: its relation is assigned directly, and takes subjects of this form
 * with this condition ("" or NULL: none). OpenFGA's rule on Write; deletes are not held against the model. */
bool model_allows(const struct model *m, const char *object, const char *relation, const char *subject,
                  const char *condition);

/* Why a tuple or a question does not fit a model. err->text is OpenFGA's cause, err->code empty: which of its codes it
 * becomes is the API's business. */
enum model_fault {
    MODEL_FITS,
    MODEL_MALFORMED,   /* not of the form type:id, type:id#relation, type:*; a wildcard as object */
    MODEL_NO_TYPE,     /* "type 'x' not found" */
    MODEL_NO_RELATION, /* "relation 'x#y' not found" */
    MODEL_RESTRICTED,  /* the relation does not take such subjects */
    MODEL_CONDITION    /* missing, undefined, not of this restriction, or with a context that it does not take */
};
/* What a question or a deletion must fit: form, types, relations. */
enum model_fault model_check_names(const struct model *m, const char *object, const char *relation, const char *subject,
                                   struct model_err *err);
/* The same of object and relation alone. */
enum model_fault model_check_object(const struct model *m, const char *object, const char *relation,
                                    struct model_err *err);
/* Whether a text has the form of a user at all: an id, type:id, type:id#relation, a wildcard. */
bool model_user_formed(const char *user);
/* What a write or a contextual tuple must fit besides. condition NULL: none; context: JSON object, NULL: none. */
enum model_fault model_check_tuple(const struct model *m, const char *object, const char *relation, const char *subject,
                                   const char *condition, const char *context, struct model_err *err);

#endif
