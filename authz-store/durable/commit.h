/*
 * commit.h - one transaction of the writer: all or nothing, if the epoch is still its own.
 *
 * Each call is one statement outside a transaction: one way to the server and back, commit included. ST_CONFLICT:
 * another epoch has begun, nothing was changed. ST_UNKNOWN: it may have been committed; leader_ended_at() tells once
 * the epoch has ended, which a new leader_take() sees to.
 */
#ifndef RELATA_AUTHZ_DURABLE_COMMIT_H
#define RELATA_AUTHZ_DURABLE_COMMIT_H

#include "common/pg/pg.h"
#include "engine/engine.h"

/* What becomes of the tuple's row: nothing if a later change of the batch says so. */
enum commit_kind { COMMIT_WRITE, COMMIT_WRITE_ROW, COMMIT_REMOVE, COMMIT_REMOVE_ROW };

/* Changes of tuples as columns; a zeroed one is to be set up first. Not thread-safe. */
struct commit_batch {
    struct buf id, store, object, relation, subject, condition, context, kind;
    size_t n;
    int64_t last_id;
};
void commit_batch_init(struct commit_batch *b);
void commit_batch_release(struct commit_batch *b);
void commit_batch_begin(struct commit_batch *b);
void commit_batch_add(struct commit_batch *b, int64_t id, const char *store, const struct engine_tuple *tuple,
                      enum commit_kind kind);
enum status commit_batch_send(struct pg *pg, int64_t epoch, struct commit_batch *b, mono_us deadline,
                              struct err *err) MUST_CHECK;

/* `id` is the change's, above all before; times are made of it. */
enum status commit_store(struct pg *pg, int64_t epoch, int64_t id, const char *store, const char *name,
                         mono_us deadline, struct err *err) MUST_CHECK;
enum status commit_delete(struct pg *pg, int64_t epoch, int64_t id, const char *store, mono_us deadline,
                          struct err *err) MUST_CHECK;
enum status commit_model(struct pg *pg, int64_t epoch, int64_t id, const char *store, const char *model,
                         const char *json, mono_us deadline, struct err *err) MUST_CHECK;
enum status commit_assertions(struct pg *pg, int64_t epoch, int64_t id, const char *store, const char *model,
                              const char *json, mono_us deadline, struct err *err) MUST_CHECK;

/* Settings of the writer's session, after each connect. */
enum status commit_session(struct pg *pg, mono_us deadline, struct err *err) MUST_CHECK;
/* Takes away a bounded part of what a deleted store has left. *done: nothing is left. */
enum status commit_sweep(struct pg *pg, const char *store, bool *done, mono_us deadline, struct err *err) MUST_CHECK;

#endif
