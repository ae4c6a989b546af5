/* keeper.h - private to the keeper's files: what its thread has. */
#ifndef RELATA_AUTHZ_STORES_KEEPER_H
#define RELATA_AUTHZ_STORES_KEEPER_H

#include <stdlib.h>

#include "authz-store/durable/commit.h"
#include "authz-store/durable/leader.h"
#include "authz-store/stores/group.h"
#include "authz-store/stores/internal.h"
#include "authz-store/stores/rows.h"

struct keeper {
    struct stores *s;
    struct pg *pg;
    bool loaded;
    int64_t epoch;   /* the last one of its own; -1 = none yet */
    int64_t last_id; /* the state in memory */
    int64_t next_id; /* of the next change, at least */
    mono_us sent;    /* before the last sign of life was sent */
    struct sweep sweep;

    struct group *group;
    struct commit_batch batch;
    /* What is being committed: the group's jobs or a single one. Unsettled: the answer to it was lost. */
    struct job *single;
    int64_t sent_id, sent_epoch;
    bool unsettled;
    mono_us unknown_at;
    int64_t base; /* the last id that was committed in sent_epoch; known when leading begins */

    unsigned attempt;
    char complaint[1024];
};

/* keeper.c: what was sent and not answered ends, as `last_id` tells: that of the epoch in which it was sent. */
void keeper_settle(struct keeper *k, int64_t last_id);
/* lead.c: from when this process has become the active one, with all changes in memory, until it is to end (ST_OK),
 * another one has taken over (ST_OK) or something failed. */
enum status lead(struct keeper *k, struct err *err) MUST_CHECK;

#endif
