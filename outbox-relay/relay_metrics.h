/* relay_metrics.h - what the relay counts and shows. Updated by any of its threads. */
#ifndef RELATA_RELAY_METRICS_H
#define RELATA_RELAY_METRICS_H

#include "common/admin/metrics.h"

extern struct metric m_rows, m_bytes, m_in_flight, m_delivery_failures, m_replays, m_dead_letters, m_hidden;
extern struct metric m_ack_seconds;
extern struct metric m_lag, m_pending, m_parked, m_standby, m_kafka_up;
extern struct metric m_slot_retained, m_slot_behind, m_confirmed_age, m_handovers, m_handover_running, m_heartbeats;
extern struct metric m_resends, m_resent_rows, m_maintain_failures;

/* Once, before threads start. */
void relay_metrics_register(void);

#endif
