/* relay_metrics.c - see relay_metrics.h. */
#include "outbox-relay/relay_metrics.h"

#define METRIC(var, k, n, h) struct metric var = {.kind = (k), .name = "relata_relay_" n, .help = (h)}

METRIC(m_rows, METRIC_COUNTER, "rows_total", "Outbox rows that Kafka has acknowledged.");
METRIC(m_bytes, METRIC_COUNTER, "bytes_total", "Bytes of key and payload that Kafka has acknowledged.");
METRIC(m_in_flight, METRIC_GAUGE, "in_flight", "Messages that wait for their delivery report.");
METRIC(m_delivery_failures, METRIC_COUNTER, "delivery_failures_total",
       "Messages whose delivery report was bad; they are sent again.");
METRIC(m_replays, METRIC_COUNTER, "replays_total",
       "Times that reading began again at the first unacknowledged change.");
METRIC(m_dead_letters, METRIC_COUNTER, "dead_letters_total",
       "Changes that can never be a message of this topic and were moved to relata.dead_letter.");
METRIC(m_hidden, METRIC_GAUGE, "hidden_rows",
       "Such changes whose transaction queries do not show yet; the slot waits for them.");
METRIC(m_ack_seconds, METRIC_HISTOGRAM, "produce_ack_seconds",
       "Time from handing over a message to its delivery report.");
METRIC(m_lag, METRIC_GAUGE, "lag_seconds", "Age of the oldest pending row of all stores, 0 when nothing is pending.");
METRIC(m_pending, METRIC_GAUGE, "pending_rows", "Rows in relata.outbox.");
METRIC(m_parked, METRIC_GAUGE, "parked_rows", "Open dead letters.");
METRIC(m_standby, METRIC_GAUGE, "standby", "1 while another relay of this name is active, else 0.");
METRIC(m_kafka_up, METRIC_GAUGE, "kafka_up", "1 while brokers can be reached, else 0.");
METRIC(m_slot_retained, METRIC_GAUGE, "slot_retained_bytes",
       "WAL that the replication slot keeps on the server's disk.");
METRIC(m_slot_behind, METRIC_GAUGE, "slot_behind_bytes", "WAL written after the position that was last confirmed.");
METRIC(m_confirmed_age, METRIC_GAUGE, "confirmed_age_seconds",
       "Time since the slot's confirmed position last moved or was at the end of the WAL.");
METRIC(m_handovers, METRIC_COUNTER, "handovers_total",
       "Replication slots made anew, all pending rows sent by queries.");
METRIC(m_handover_running, METRIC_GAUGE, "handover_running", "1 while a slot is made anew, else 0.");
METRIC(m_heartbeats, METRIC_COUNTER, "heartbeats_total", "Logical messages emitted to move the slot.");
METRIC(m_resends, METRIC_COUNTER, "resends_total",
       "Times that pending rows were sent again because writers had read the topic and left them pending.");
METRIC(m_resent_rows, METRIC_COUNTER, "resent_rows_total", "Rows sent again by that.");
METRIC(m_maintain_failures, METRIC_COUNTER, "maintain_failures_total", "Failed calls of relata.maintain().");

void relay_metrics_register(void)
{
    static struct metric *const all[] = {
        &m_rows,       &m_bytes,         &m_in_flight,   &m_delivery_failures, &m_replays,   &m_dead_letters,
        &m_hidden,     &m_ack_seconds,   &m_lag,         &m_pending,           &m_parked,    &m_standby,
        &m_kafka_up,   &m_slot_retained, &m_slot_behind, &m_confirmed_age,     &m_handovers, &m_handover_running,
        &m_heartbeats, &m_resends,       &m_resent_rows, &m_maintain_failures,
    };
    metric_register_all(all, sizeof all / sizeof all[0]);
}
