/*
 * resend.h - finding pending rows that no lag explains, and sending them again.
 *
 * A row stays in the outbox until a writer has applied it. If the writers of its store have read the topic to its end
 * and the row still pends, its message is gone: the topic was wiped or made anew, retention passed it by, offsets were
 * reset. The proof takes three steps, for each store that has a row older than resend_after:
 *   1. note a snapshot and the relay's target position (NOTED);
 *   2. when the relay has produced everything up to there, acknowledged: note the topic's end offsets (SENT);
 *   3. when the writers' group has committed all of these: rows that the snapshot sees, that are that old and still
 *      pend were read or are not in the topic, and are not on their way (DUE).
 * Then they are sent again, in pages, and the store is left alone for another resend_after.
 *
 * struct watch belongs to the chores thread, struct resender to the relay's.
 */
#ifndef RELATA_RELAY_RESEND_H
#define RELATA_RELAY_RESEND_H

#include "outbox-relay/db.h"
#include "outbox-relay/sender.h"
#include "outbox-relay/settings.h"

enum watch_stage { WATCH_QUIET, WATCH_NOTED, WATCH_SENT, WATCH_DUE };

struct watch {
    char *store;
    enum watch_stage stage;
    char *snapshot;
    uint64_t target_lsn; /* mode wal */
    mono_us noted_at;    /* mode poll */
    struct kafka_lag *ends;
    int nends;
    mono_us quiet_until;
};

/* What the relay has produced and Kafka has acknowledged. */
struct progress {
    uint64_t confirmed_lsn; /* mode wal */
    mono_us covered;        /* mode poll: everything committed before */
};

void watch_release(struct watch *w);
/* One step for a store whose oldest pending row is `oldest_age_ms` old. Asks Postgres and Kafka (at most 5 s). ST_OK;
 * look at w->stage. */
enum status watch_step(struct watch *w, const struct settings *cfg, struct db *db, int64_t oldest_age_ms,
                       const struct progress *progress, struct err *err) MUST_CHECK;
/* After the rows were sent again (or could not be). */
void watch_quiet(struct watch *w, const struct settings *cfg);

/* The ends are read: every partition's committed offset is at its end as noted, or there is nothing left to read.
 * Ends that went backwards (topic made anew) are lowered. */
bool watch_is_read(struct kafka_lag *noted, int n, const struct kafka_lag *now, int nnow);

struct resender {
    char *store; /* NULL = nothing to do */
    char *snapshot;
    int64_t age_ms;
    int64_t after_id;
    struct pg_result *page;
    int row;
    int64_t sent;
};

void resender_release(struct resender *r);
/* From the first row again: what was in flight is lost. */
void resender_rewind(struct resender *r);
/* Send what there is room for. ST_OK with *done true at the end (r->sent rows), ST_THROTTLED, or the error. */
enum status resender_step(struct resender *r, struct db *db, struct sender *sender, bool *done,
                          struct err *err) MUST_CHECK;

#endif
