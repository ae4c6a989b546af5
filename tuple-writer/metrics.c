#include "tuple-writer/metrics.h"

#define COUNTER(var, n, h) struct metric var = {.kind = METRIC_COUNTER, .name = "relata_writer_" n, .help = h}
#define GAUGE(var, n, h) struct metric var = {.kind = METRIC_GAUGE, .name = "relata_writer_" n, .help = h}
#define HISTOGRAM(var, n, h) struct metric var = {.kind = METRIC_HISTOGRAM, .name = "relata_writer_" n, .help = h}

GAUGE(m_lag, "lag_seconds", "Age of the oldest pending outbox row of the store; 0 when idle.");
GAUGE(m_pending, "pending", "Outbox rows of the store that are not applied yet.");
GAUGE(m_parked, "parked", "Open dead letters of the store.");
GAUGE(m_intents, "intents", "Rows of relata.inflight for the store: batches that may be under way.");
GAUGE(m_active, "active", "1 if this writer reads (outbox: it is the active one; Kafka: it has partitions).");
GAUGE(m_reader_pid, "reader_pid",
      "source = outbox: Postgres' process id of the session that is the active reader; 0 = nobody is, or not known.");
GAUGE(m_reader_since, "reader_since_seconds", "source = outbox: when the active reader registered (Unix time).");
GAUGE(m_keys_held, "keys_held", "Keys held in memory: queued, in flight or late.");
GAUGE(m_lanes_busy, "lanes_busy", "Lanes with a batch in flight.");
GAUGE(m_lane_age, "lane_failing_seconds",
      "Longest time for which some lane's batch has failed again and again; 0 = none.");
COUNTER(m_hints_dropped, "hints_dropped_total",
        "Changes that a lane which gets nowhere did not keep in memory; they are read again when it goes on.");
COUNTER(m_batches, "batches_total", "Batches that the store has taken.");
struct metric m_writes = {.kind = METRIC_COUNTER,
                          .name = "relata_writer_tuples_total",
                          .help = "Tuples that the store has taken; divided by batches: the size of a batch.",
                          .label = "op=\"write\""};
struct metric m_deletes = {.kind = METRIC_COUNTER,
                           .name = "relata_writer_tuples_total",
                           .help = "Tuples that the store has taken; divided by batches: the size of a batch.",
                           .label = "op=\"delete\""};
COUNTER(m_replaced, "conditions_replaced_total", "Tuples deleted and written because another condition was stored.");
COUNTER(m_duplicates, "duplicates_total", "Hints that ended without a Write: nothing of their key was pending.");
COUNTER(m_moved, "moved_total", "Keys converged again because their version moved during a Write.");
COUNTER(m_unseen, "unseen_total", "Times that a key waited because SQL did not show its row yet.");
COUNTER(m_future, "future_hints_total", "Hints given up because their row did not show within visible_timeout.");
COUNTER(m_unknown, "unknown_outcomes_total", "Writes whose outcome is not known.");
COUNTER(m_late_batches, "late_batches_total", "Batches converged again after a late window.");
COUNTER(m_late_undone, "late_effects_undone_total", "Tuples found in an old state after a late window, and corrected.");
GAUGE(m_late_open, "late_open", "Batches that wait for the end of their late window.");
COUNTER(m_adopted, "intents_adopted_total", "Intents taken over from writers that ended.");
COUNTER(m_halved, "halved_total", "Batches that were halved because the store refused them.");
COUNTER(m_parked_total, "changes_parked_total", "Changes that were parked as dead letters.");
COUNTER(m_unparked_total, "parked_retried_total", "Dead letters tried again because the model or the store changed.");
GAUGE(m_circuit, "circuit_open", "1 if Writes are stopped, 0.5 while one lane tries, 0 if they flow.");
COUNTER(m_shut, "shut_total", "Times that Writes were stopped.");
GAUGE(m_send_limit, "send_limit", "Lanes that may send at once; throttling lowers it.");
GAUGE(m_store_drift, "store_drift", "Of the last applied keys, those that the store shows in another state.");
GAUGE(m_model_newer, "model_newer", "1 if the store has a newer model than the one in force.");
HISTOGRAM(m_store_seconds, "store_write_seconds", "Time of one Write at the store.");
HISTOGRAM(m_applied_seconds, "commit_to_applied_seconds", "From a change's insertion to the store's answer.");
HISTOGRAM(m_ledger_seconds, "intent_seconds", "Time of the statement that records an intent and reads the ledger.");
COUNTER(m_events, "events_total", "Events that NATS has taken.");
COUNTER(m_events_failed, "events_failed_total", "Events that NATS did not take in time: gaps to subscribers.");
GAUGE(m_events_connected, "events_connected", "1 if NATS takes events (or none are configured).");
COUNTER(m_nats_reconnects, "nats_reconnects_total", "Reconnects to NATS.");
COUNTER(m_rescans, "rescans_total", "Times that the whole outbox was read again.");
COUNTER(m_unreadable, "unreadable_messages_total", "Kafka messages that could not be read and were skipped.");
GAUGE(m_uncommitted, "uncommitted_messages",
      "Kafka messages read whose offset cannot be committed yet, in the partition that has most.");
GAUGE(m_uncommitted_age, "uncommitted_seconds", "Time since the oldest of them was read; 0 if there is none.");
COUNTER(m_registrations, "registrations_total", "Times that this process registered in relata.writer.");

#define RETRY(word)                                                                                                    \
    {                                                                                                                  \
        .kind = METRIC_COUNTER, .name = "relata_writer_retries_total",                                                 \
        .help = "Tries that were followed by another, by what happened.", .label = "class=\"" word "\""                \
    }
static struct metric retries[] = {RETRY("refused"), RETRY("throttled"), RETRY("conflict"), RETRY("unknown"),
                                  RETRY("setup"),   RETRY("other"),     RETRY("postgres")};

static struct metric *const list[] = {&m_reader_pid,    &m_reader_since,     &m_lane_age,        &m_hints_dropped,
                                      &m_lag,           &m_pending,          &m_parked,          &m_intents,
                                      &m_active,        &m_keys_held,        &m_lanes_busy,      &m_batches,
                                      &m_writes,        &m_deletes,          &m_replaced,        &m_duplicates,
                                      &m_moved,         &m_unseen,           &m_future,          &m_unknown,
                                      &m_late_batches,  &m_late_undone,      &m_late_open,       &m_adopted,
                                      &m_halved,        &m_parked_total,     &m_unparked_total,  &m_circuit,
                                      &m_shut,          &m_send_limit,       &m_store_drift,     &m_model_newer,
                                      &m_store_seconds, &m_applied_seconds,  &m_ledger_seconds,  &m_events,
                                      &m_events_failed, &m_events_connected, &m_nats_reconnects, &m_rescans,
                                      &m_unreadable,    &m_registrations,    &m_uncommitted,     &m_uncommitted_age};

void metrics_init(void)
{
    metric_register_all(list, sizeof list / sizeof *list);
    for (size_t i = 0; i < sizeof retries / sizeof *retries; i++)
        metric_register(&retries[i]);
}

void metric_retry(enum status st)
{
    size_t at = 5;
    if (st == ST_RETRY || st == ST_DEADLINE)
        at = 0;
    else if (st == ST_THROTTLED)
        at = 1;
    else if (st == ST_CONFLICT)
        at = 2;
    else if (st == ST_UNKNOWN)
        at = 3;
    else if (st == ST_DENIED || st == ST_MISSING || st == ST_CONFIG)
        at = 4;
    metric_add(&retries[at], 1);
}

void metric_retry_postgres(void)
{
    metric_add(&retries[6], 1);
}
