/*
 * stores.h - the stores that this process serves: their tuples (an engine each), models and assertions in memory, and
 * every change of them through Postgres first.
 *
 * Reads of decisions are the caller's, by the engine of a store. Everything that changes something or that only
 * Postgres knows (Read, ReadChanges) is a *job*: it is queued, done on a thread of this room, and its `done` is called
 * on that thread when the outcome is known. Changes of all stores go through one writer thread, which commits what has
 * gathered as one transaction (group commit), then applies it to the engines, then calls `done` of each: an answer that
 * says "written" is durable and visible. A batch that is refused (a tuple that is there, ...) is refused alone.
 *
 * Jobs are bounded (stores.queue); beyond that a job ends at once with ST_THROTTLED. A job whose deadline passes before
 * it is begun ends with ST_DEADLINE and was not done; once begun it is waited for, since its outcome must be known.
 * Postgres lost: begun changes whose commit was not answered are ST_UNKNOWN (first asked of Postgres again, by xid),
 * later ones ST_RETRY, and decisions are refused too once this process can no longer know that it is the active one
 * (see leader.h).
 */
#ifndef RELATA_AUTHZ_STORES_STORES_H
#define RELATA_AUTHZ_STORES_STORES_H

#include <jansson.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "engine/engine.h"

#define STORE_ID_LEN 26 /* ULID: of a store, a model */

struct stores;

/* ---- a store, pinned by whoever looks at it ---- */
struct store {
    char id[STORE_ID_LEN + 1];
    char *name;
    int64_t created_us, updated_us; /* Unix time */
    struct engine *engine;
    void *impl;
};
/* NULL: no such store (deleted ones too). Lock-free for the caller or nearly so; put back on the same thread. */
struct store *stores_get(struct stores *s, const char *id);
void stores_put(struct store *store); /* accepts NULL */
/* A reader of this store's engine for the calling thread, kept from call to call; NULL: no memory. */
struct engine_reader *store_reader(struct store *store);

/* ---- models: immutable ---- */
struct store_model {
    char id[STORE_ID_LEN + 1];
    const struct model *model;
    const struct rules *rules;
    const json_t *json; /* as it was written, with its id */
};
/* id NULL or "": the latest. NULL: none such. Valid as long as the store is pinned. */
const struct store_model *store_model(struct store *store, const char *id);

/* ---- jobs ---- */
enum job_kind {
    JOB_CREATE_STORE, /* in: name; out: id, times */
    JOB_DELETE_STORE,
    JOB_WRITE,       /* in: changes, on_duplicate/on_missing */
    JOB_WRITE_MODEL, /* in: json, checked and parsed; out: id */
    JOB_WRITE_ASSERTIONS,
    JOB_READ,        /* in: filter, page; out: json, token */
    JOB_READ_CHANGES /* in: type, start, page; out: json, token */
};

struct job {
    enum job_kind kind;
    struct store *store; /* pinned by the job's owner; NULL for JOB_CREATE_STORE */
    mono_us deadline;
    /* in; all of it belongs to the owner and must live until done */
    const char *name; /* of a store; model id of assertions */
    struct engine_change *changes;
    size_t nchanges;
    bool ignore_duplicate, ignore_missing;
    json_t *json;                                 /* model; assertions */
    struct model *model;                          /* JOB_WRITE_MODEL: taken over if it succeeds */
    struct engine_text object, relation, subject; /* JOB_READ; object may be "type:" only; len 0 = any */
    const char *type;                             /* JOB_READ_CHANGES; NULL = all */
    int64_t start_us;                             /* JOB_READ_CHANGES; 0 = from the first */
    const char *token;                            /* continuation; NULL or "" = first page */
    unsigned page_size;
    /* out */
    enum status st; /* ST_CONFLICT: a tuple is there, or is not: `conflict` says which */
    struct err err;
    size_t conflict;      /* index in changes */
    bool other_condition; /* it is there with another condition */
    char id[STORE_ID_LEN + 1];
    int64_t created_us, updated_us;
    json_t *result;   /* an array, as OpenFGA's API has it; the owner's */
    char *next_token; /* the owner's (free); "" = the end */
    /* called once, on a thread of this room; the job is the owner's again */
    void (*done)(struct job *job);
    void *arg;
    struct job *next; /* private */
};
void stores_submit(struct stores *s, struct job *job);

/* Answered from memory, by id; `after` NULL = first. Number of stores given; each pinned. name NULL = all. */
size_t stores_list(struct stores *s, const char *after, const char *name, struct store **out, size_t n);
size_t store_models(struct store *store, const char *before, const struct store_model **out,
                    size_t n);                                       /* newest first */
json_t *store_assertions(struct store *store, const char *model_id); /* a new reference; NULL = none */

/* ST_OK: this process is the active one and may answer. Else why not (loading with progress, standing by, Postgres
 * lost). Any thread. */
enum status stores_ready(struct stores *s, struct err *err);

#endif
