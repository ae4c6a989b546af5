/*
 * writer.h - what the parts of one tuple-writer process share.
 *
 * Threads: main runs the source (source_outbox.h or source_kafka.h), the lanes converge (lane.h, converge.h), the
 * keeper tends to what Postgres knows of this process (keeper.h), the verifier to the store's identity (identity.h),
 * the ticker to heartbeats and gauges. Everything here is set before they start, or atomic.
 */
#ifndef RELATA_WRITER_WRITER_H
#define RELATA_WRITER_WRITER_H

#include <stdatomic.h>

#include "common/admin/admin.h"
#include "common/events/events.h"
#include "tuple-writer/gate.h"
#include "tuple-writer/settings.h"

struct lanes;

struct writer {
    const struct settings *cfg;
    struct admin *admin;
    struct store *store;
    struct events_pub *events;
    struct gate *gate;
    struct lanes *lanes;
    _Atomic int64_t id;            /* the row of relata.writer; 0 before the first registration */
    _Atomic int64_t oldest_age_ms; /* of the store's pending rows, as last measured */
    _Atomic bool active;           /* source = outbox: this process holds the lock of the active reader */
};

#endif
