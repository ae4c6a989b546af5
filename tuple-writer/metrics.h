/*
 * metrics.h - tuple-writer's time series. Updated where things happen, by any thread.
 */
#ifndef RELATA_WRITER_METRICS_H
#define RELATA_WRITER_METRICS_H

#include "common/admin/metrics.h"
#include "common/base/status.h"

extern struct metric m_lag, m_pending, m_parked, m_intents;
extern struct metric m_active, m_reader_pid, m_reader_since;
extern struct metric m_keys_held, m_lanes_busy, m_lane_age, m_hints_dropped;
extern struct metric m_batches, m_writes, m_deletes, m_replaced;
extern struct metric m_duplicates, m_moved, m_unseen, m_future;
extern struct metric m_unknown, m_late_batches, m_late_undone, m_late_open, m_adopted;
extern struct metric m_halved, m_parked_total, m_unparked_total;
extern struct metric m_circuit, m_shut, m_send_limit, m_store_drift, m_model_newer;
extern struct metric m_store_seconds, m_applied_seconds, m_ledger_seconds;
extern struct metric m_events, m_events_failed, m_events_connected, m_nats_reconnects;
extern struct metric m_rescans, m_unreadable, m_registrations;
extern struct metric m_uncommitted, m_uncommitted_age;

void metrics_init(void);
/* One more try because of this outcome of the store, or (postgres) of the database. */
void metric_retry(enum status st);
void metric_retry_postgres(void);

#endif
