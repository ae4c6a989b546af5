/*
 * job.h - where a long command stands (relata.job), so that it can go on after an interruption.
 *
 * One at a time for each kind and store, by an advisory lock of the session ctl->pg.
 */
#ifndef RELATA_CTL_JOB_H
#define RELATA_CTL_JOB_H

#include "relatactl/ctl.h"
#include "relatactl/identity.h"

struct job {
    const char *kind; /* "seed", "adopt" */
    char store_id[ID_MAX];
    json_t *position, *pending, *counts; /* never NULL after job_begin; json null = none */
    int64_t since;
    bool resumed; /* an unfinished one of the same store was found */
};

/* Take the lock. ST_CONFLICT if another process has it, and not only for the moment until the server notices its end;
 * ST_STOPPED if interrupted meanwhile. */
enum status job_lock(struct ctl *ctl, const char *kind, struct err *err) MUST_CHECK;
/* Find an unfinished job of this store, unless `anew`; else start one. */
enum status job_begin(struct ctl *ctl, struct job *job, const char *kind, const char *store_id, bool anew,
                      int64_t since, struct err *err) MUST_CHECK;
/* Is there one to go on with? Asked before anything is changed. */
enum status job_unfinished(struct ctl *ctl, const char *kind, const char *store_id, bool *yes,
                           struct err *err) MUST_CHECK;
/* Record position, pending and counts. */
enum status job_save(struct ctl *ctl, const struct job *job, bool finished, struct err *err) MUST_CHECK;
void job_release(struct job *job);

/* ctl->pg again after a loss, with the lock. */
enum status job_reconnect(struct ctl *ctl, const char *kind, struct err *err) MUST_CHECK;

#endif
