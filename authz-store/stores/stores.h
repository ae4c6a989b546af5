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
 * Postgres lost: a change whose commit was not answered is asked for again until Postgres tells what became of it, and
 * is ST_UNKNOWN only if that takes longer than stores.unknown_after; later ones are ST_RETRY; and decisions are refused
 * too once this process can no longer know that it is the active one (durable/leader.h).
 *
 * Revisions of the engines are the ids of changes: they rise with each commit, over all stores and restarts.
 */
#ifndef RELATA_AUTHZ_STORES_STORES_H
#define RELATA_AUTHZ_STORES_STORES_H

#include <jansson.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/config/config.h"
#include "engine/engine.h"

#define STORE_ID_LEN 26 /* ULID: of a store, a model */

struct admin;
struct stores;

/* ---- the whole ---- */
struct cfg_stores {
    char *pg_dsn;
    int64_t statement_timeout_ms;
    char *name;
    int64_t lease_ms, queue, readers, unknown_after_ms;
};
/* clang-format off */
#define CFG_STORES_KEYS(T, m)                                                                                           \
    {"stores", "name", CFG_STRING, offsetof(T, m.name), "", 0, 0, NULL, NULL,                                           \
     "this process in relata_store.leader; empty = the host's name and the process id"},                                \
    {"stores", "lease", CFG_DURATION, offsetof(T, m.lease_ms), "3s", 100, 600000, NULL, NULL,                           \
     "how long another process waits for a sign of life of the active one before it takes over; the active one stops "  \
     "answering after nine tenths of it"},                                                                              \
    {"stores", "queue", CFG_INT, offsetof(T, m.queue), "1024", 1, 1000000, NULL, "requests",                            \
     "changes, and as many reads of pages, that may wait; more are refused at once"},                                   \
    {"stores", "readers", CFG_INT, offsetof(T, m.readers), "4", 1, 64, NULL, "threads",                                 \
     "Read and ReadChanges that are worked on at once; each has a Postgres connection"},                                \
    {"stores", "unknown_after", CFG_DURATION, offsetof(T, m.unknown_after_ms), "10s", 0, 600000, NULL, NULL,            \
     "a change whose commit was not answered is reported as of unknown outcome after so long, if Postgres cannot be asked"}
/* clang-format on */

/* Registers the metrics of this room; before threads start. */
void stores_metrics(void);
/* Starts to load, on a thread of this room; stores_ready() tells when that is done. Conditions "stores" and "leader" of
 * `admin` (NULL = none) are kept. `cfg` must live as long. ST_NOMEM. */
enum status stores_start(struct stores **out, const struct cfg_stores *cfg, struct admin *admin,
                         struct err *err) MUST_CHECK;
/* Ends: no job is taken any more, those that are queued are done until `deadline` (then ST_RETRY), the lease is given
 * back. No store may be pinned any more but by jobs. Accepts NULL. */
void stores_stop(struct stores *s, mono_us deadline);
/* Whether loading or writing failed for good (the log says why): the process should end with EXIT_FAILED. */
bool stores_failed(const struct stores *s);

/* ---- a store, pinned by whoever looks at it (struct store is common/store's) ---- */
struct served {
    char id[STORE_ID_LEN + 1];
    char *name;
    int64_t created_us, updated_us; /* Unix time */
    struct engine *engine;
    void *impl;
};
/* NULL: no such store (deleted ones too). Lock-free for the caller or nearly so; put back on the same thread. */
struct served *stores_get(struct stores *s, const char *id);
void stores_put(struct served *store); /* accepts NULL */
/* A reader of this store's engine for the calling thread, kept from call to call; NULL: no memory. */
struct engine_reader *served_reader(struct served *store);

/* ---- models: immutable ---- */
struct served_model {
    char id[STORE_ID_LEN + 1];
    const struct model *model;
    const struct rules *rules;
    const json_t *json; /* as it was written, with its id */
};
/* id NULL or "": the latest. NULL: none such. Valid as long as the store is pinned. */
const struct served_model *served_model(struct served *store, const char *id);

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
    struct served *store; /* pinned by the job's owner; NULL for JOB_CREATE_STORE */
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
    /* ST_CONFLICT: a tuple is there, or is not: `conflict` says which; ST_INVALID with err.code "token": the
     * continuation token is none of ours or of another list; ST_NOT_FOUND: the store was deleted */
    enum status st;
    struct err err;
    size_t conflict;      /* index in changes */
    bool other_condition; /* it is there with another condition */
    char id[STORE_ID_LEN + 1];
    int64_t created_us, updated_us;
    json_t *result;   /* an array, as OpenFGA's API has it; the owner's */
    char *next_token; /* the owner's (free); "" = the end */
    /* called once, on a thread of this room or within stores_submit(); the job is the owner's again */
    void (*done)(struct job *job);
    void *arg;
    struct job *next; /* private */
};
void stores_submit(struct stores *s, struct job *job);

/* Answered from memory, by id; `after` NULL = first. Number of stores given; each pinned. name NULL = all. */
size_t stores_list(struct stores *s, const char *after, const char *name, struct served **out, size_t n);
size_t served_models(struct served *store, const char *before, const struct served_model **out,
                     size_t n);                                        /* newest first */
json_t *served_assertions(struct served *store, const char *model_id); /* a new reference; NULL = none */

/* Tokens of pages: `text` sealed for `scope` ("read 01H..", constant for one kind of list); opened only whole and
 * unchanged, by any process on the same schema. malloc'd; NULL: no memory; unseal: not one of ours. */
char *stores_seal(struct stores *s, const char *scope, const char *text);
char *stores_unseal(struct stores *s, const char *scope, const char *token);

/* ST_OK: this process is the active one and may answer. Else why not (loading with progress, standing by, Postgres
 * lost). Any thread. */
enum status stores_ready(struct stores *s, struct err *err);

#endif
