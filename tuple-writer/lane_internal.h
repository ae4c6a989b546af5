/*
 * lane_internal.h - one lane, shared by lane.c (its thread) and lanes.c (all of them).
 */
#ifndef RELATA_WRITER_LANE_INTERNAL_H
#define RELATA_WRITER_LANE_INTERNAL_H

#include <pthread.h>

#include "tuple-writer/converge.h"
#include "tuple-writer/hints.h"
#include "tuple-writer/lane.h"

/* Keys that were applied, but that a request given up may still change: converged again when due, only then
 * acknowledged. The entries point back; their intent stays until then. */
struct late {
    struct late *next;
    mono_us due;
    int64_t intent;
    size_t n;
    struct entry *entries[STORE_WRITE_MAX];
};

struct lane {
    struct lanes *all;
    unsigned index;
    pthread_t thread;
    bool started;

    /* all->work */
    pthread_cond_t wake;
    bool idle;             /* waits for work that any lane may do */
    bool flying;           /* on its way to the store's answer */
    mono_us began;         /* with its last batch */
    struct batch *parcels; /* to be tried (again), in this order, before anything else */
    mono_us retry_at;      /* parcels wait until then */
    mono_us failing_since; /* no batch has got ahead since then; 0 = the last one did */
    bool dropped; /* source = outbox: hints were dropped while it got nowhere; their rows are to be read again */
    bool ended;

    struct worker worker; /* the thread's */
};

struct lanes {
    struct writer *w;
    unsigned n;
    struct lane *lane;
    _Atomic int batch_limit;
    _Atomic bool stopping;
    _Atomic size_t held[2]; /* others, revocations */
    _Atomic int busy;

    pthread_mutex_t work; /* what is to be done: below, and of each lane what it says */
    struct hint_table hints;
    struct late *lates;  /* any lane may take one: the lane that set it up may be getting nowhere by then */
    struct lane *looker; /* the one idle lane that wakes up by itself when something may begin; NULL = none */
    mono_us look_at;     /* when it does */
    unsigned flying;     /* lanes that are */
    mono_us last_began;
    int64_t flight_us; /* from beginning a batch to the store's answer, smoothed */

    int fd;
    _Atomic bool reread;
    _Atomic bool want_room;
    _Atomic size_t room_level;
    pthread_mutex_t mu; /* below */
    pthread_cond_t ended;
    struct offset_ref *done;
    struct tuple_key *last_applied;
    int64_t last_version;
    mono_us last_at;
};

/* The thread of one lane. */
void *lane_run(void *lane);
/* With the mutex `work` held: */
/* Put an entry (in no late batch, or in a shorter one) into this late batch, which may stand in the list already. */
void lanes_add_late(struct lanes *l, struct late *late, struct entry *e);
void lanes_push_late(struct lanes *l, struct late *late);
/* source = outbox: drop hints that wait behind a lane that gets nowhere beyond a lane's share of the window. */
void lane_shed(struct lane *l);
/* There may be something to do: wake a lane if so. */
void lanes_call(struct lanes *l);
/* Note a key for relata.probe; cheap, at most one in a while is kept. */
void lanes_note_applied(struct lanes *l, const struct tuple_key *key, int64_t version);

#endif
