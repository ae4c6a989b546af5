/*
 * twin.h - an authz-store and the run's real OpenFGA side by side: the same request goes to both, and the answers are
 * compared field by field.
 *
 * Paths and bodies name the twins' own store and model as {store} and {model}. What must differ is made equal before
 * comparing: ids, times, page tokens (present or not), the order of lists that have none, and where in a text a JSON
 * error is. Functions fail the test when a server does not answer at all. Main thread only.
 */
#ifndef RELATA_TESTS_TWIN_H
#define RELATA_TESTS_TWIN_H

#include <jansson.h>

#include "tests/harness/harness.h"
#include "tests/harness/proc.h"

enum twin_side { TWIN_OPENFGA, TWIN_RELATA };

struct twin {
    struct harness *h;
    struct proc *authz;
    const char *url[2], *store_id[2], *model_id[2];
    void *curl;
    struct twin_answer {
        long status;
        json_t *json; /* NULL: no JSON; of several lines: an array of them */
    } answer[2];
};

/* On h->dsn, which gets schema relata_store (HARNESS_EMPTY_DB), and h->store_url (HARNESS_STORE). Further settings of
 * authz-store as proc_start() takes them. */
void twin_open(struct twin *t, struct harness *h, ...) __attribute__((sentinel));
void twin_close(struct twin *t);
/* A fresh store on both. */
void twin_store(struct twin *t);
/* One side alone; the answer is in t->answer[side]. body NULL: none. */
void twin_ask_one(struct twin *t, enum twin_side side, const char *method, const char *path, const char *body);
/* Both; whether the answers are equal. */
bool twin_ask(struct twin *t, const char *method, const char *path, const char *body);
/* Whether the answers that are there are equal. */
bool twin_equal(struct twin *t);
/* Writes the model to both and makes it {model}; false if both refuse it. Fails if one does. */
bool twin_model(struct twin *t, const char *json);
/* The two answers, for a person. */
const char *twin_show(struct twin *t);

#endif
