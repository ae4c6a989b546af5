/*
 * group.h - what one transaction of the writer holds: changes of several jobs, decided one after the other.
 *
 * A job is decided against the engines and what the jobs before it in the group change; it is taken whole or not at
 * all, and its outcome is told only when the group's is known, since it rests on it. The keeper's alone.
 */
#ifndef RELATA_AUTHZ_STORES_GROUP_H
#define RELATA_AUTHZ_STORES_GROUP_H

#include "authz-store/durable/commit.h"
#include "authz-store/stores/internal.h"

struct group;

struct group *group_new(void);    /* NULL: no memory */
void group_free(struct group *g); /* accepts NULL */
void group_begin(struct group *g);
/* Decides a JOB_WRITE: job->st and the rest of its answer are what it gets if the group is committed. ST_NOMEM: not
 * taken, the group as it was; the job is still the caller's. */
enum status group_add(struct group *g, struct job *job, struct err *err) MUST_CHECK;
size_t group_changes(const struct group *g);
/* Fills the batch; the first change gets `first_id`, the next ones the ids after it. */
void group_fill(struct group *g, int64_t first_id, struct commit_batch *batch);
/* Makes the committed changes visible, by store. ST_NOMEM: some may be. */
enum status group_apply(struct group *g, uint64_t revision, struct err *err) MUST_CHECK;
/* The jobs' outcomes, as decided if `st` is ST_OK, else `st` for each. */
void group_end(struct group *g, enum status st, const char *why);
size_t group_jobs(const struct group *g);
/* The jobs, by `next`: the caller's again, without an answer. */
struct job *group_detach(struct group *g);

#endif
