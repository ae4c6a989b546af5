#include "tuple-writer/settings.h"

#include <unistd.h>

#include "common/admin/metrics.h"
#include "common/kafka/kafka.h"
#include "common/pg/settings.h"
#include "tuple-writer/source_kafka.h"

#define AT(m) offsetof(struct settings, m)

/* Bounds that rest on each other are explained where they are checked, below. */
static const struct cfg_key keys[] = {
    {"writer", "source", CFG_ENUM, AT(source), "outbox", 0, 0, "outbox|kafka", NULL,
     "where hints come from: the outbox itself (one writer active, others stand by), or Kafka"},
    {"writer", "name", CFG_STRING, AT(name), "", 0, 0, NULL, NULL,
     "this process in relata.writer; empty = the host's name"},
    {"writer", "lanes", CFG_INT, AT(lanes), "8", 1, 256, NULL, "lanes",
     "Writes in flight at once, at most; each lane has a thread, a Postgres connection and a store connection"},
    {"writer", "batch", CFG_INT, AT(batch), "100", 1, STORE_WRITE_MAX, NULL, "tuples",
     "tuples in one Write at most; not above the store's own limit"},
    {"writer", "window", CFG_INT, AT(window), "16384", 100, 1000000, NULL, "keys",
     "keys held in memory at most, for revocations and for others each; reading pauses above it"},
    {"writer", "drain_timeout", CFG_DURATION, AT(drain_timeout_ms), "15s", 0, 600000, NULL, NULL,
     "after SIGTERM, longest wait for Writes in flight and their acknowledgement"},
    {"writer", "retry_min", CFG_DURATION, AT(retry_min_ms), "50ms", 1, 60000, NULL, NULL,
     "first wait before a failed Write is tried again (jittered, doubling)"},
    {"writer", "retry_max", CFG_DURATION, AT(retry_max_ms), "5s", 1, 600000, NULL, NULL,
     "longest wait before a failed Write is tried again"},
    {"writer", "circuit_failures", CFG_INT, AT(circuit_failures), "5", 1, 1000, NULL, "failures",
     "failures in a row, over all lanes, after which Writes stop until the store has been verified"},
    {"writer", "verify_interval", CFG_DURATION, AT(verify_interval_ms), "10s", 100, 3600000, NULL, NULL,
     "how often the store's identity is verified while all is well"},
    {"writer", "visible_timeout", CFG_DURATION, AT(visible_timeout_ms), "30s", 100, 600000, NULL, NULL,
     "longest wait for a row that Kafka told of and that SQL does not show yet"},
    {"writer", "topic", CFG_STRING, AT(topic), "relata.tuple-changes", 0, 0, NULL, NULL,
     "Kafka topic that outbox-relay produces to"},
    {"writer", "group", CFG_STRING, AT(group), "", 0, 0, NULL, NULL,
     "Kafka consumer group; empty = relata-writer.<store name>"},

    CFG_PG_KEYS(struct settings, pg_dsn, statement_timeout_ms),
    CFG_STORE_KEYS(struct settings, store),
    CFG_NATS_KEYS(struct settings, nats),
    {"kafka", "*", CFG_MAP, AT(kafka), NULL, 0, 0, NULL, NULL, "any librdkafka property, such as bootstrap.servers"},
    CFG_ADMIN_KEYS(struct settings, admin),
    CFG_LOG_KEYS(struct settings, log),
    {NULL, NULL, CFG_STRING, 0, NULL, 0, 0, NULL, NULL, NULL},
};

static const char *kafka_property(const struct settings *s, const char *name)
{
    for (size_t i = 0; i < s->kafka.len; i++)
        if (strcmp(s->kafka.items[i].key, name) == 0)
            return s->kafka.items[i].value;
    return NULL;
}

/* On revoke, the batch in flight is waited for inside the poll: Write and acknowledgement must fit into the time after
 * which the broker takes this consumer for dead. Retries do not: they are given up with the partition. */
static enum status check_kafka(const struct settings *s, struct err *err)
{
    const struct {
        const char *name;
        long long preset;
    } bounds[] = {{"session.timeout.ms", 45000}, {"max.poll.interval.ms", 300000}};
    long long batch = 2 * s->statement_timeout_ms + s->store.request_timeout_ms;
    long long rebalance = source_kafka_drain_ms(s) + KAFKA_COMMIT_WAIT_MS;
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        const char *text = kafka_property(s, bounds[i].name);
        long long have = text ? strtoll(text, NULL, 10) : bounds[i].preset;
        if (have <= batch)
            return err_set(err, ST_CONFIG, NULL,
                           "kafka.%s = %lld must be above store.request_timeout + 2 * pg.statement_timeout = %lld ms, "
                           "so that a batch in flight can end before its partition is taken away",
                           bounds[i].name, have, batch);
        if (have <= rebalance)
            return err_set(err, ST_CONFIG, NULL,
                           "kafka.%s = %lld must be above %lld ms: store.request_timeout and %lld ms, which a "
                           "rebalance may wait for batches in flight and their offsets",
                           bounds[i].name, have, rebalance, rebalance - s->store.request_timeout_ms);
    }
    return kafka_properties_check(&s->kafka, err);
}

static enum status validate(const void *settings, struct err *err)
{
    const struct settings *s = settings;
    if (s->retry_min_ms > s->retry_max_ms)
        return err_set(err, ST_CONFIG, NULL, "writer.retry_min is above writer.retry_max");
    enum status st = pg_dsn_check(s->pg_dsn, err);
    if (st == ST_OK)
        st = store_check_settings(&s->store, err);
    if (st == ST_OK)
        st = events_check(&s->nats, err);
    if (st == ST_OK)
        st = admin_check(&s->admin, err);
    return st == ST_OK && s->source == SOURCE_KAFKA ? check_kafka(s, err) : st;
}

enum status settings_complete(struct settings *s, struct err *err)
{
    char text[512];
    if (!*s->name) {
        free(s->name);
        text[0] = '\0';
        if (gethostname(text, sizeof text) != 0 || !*text)
            snprintf(text, sizeof text, "tuple-writer");
        text[sizeof text - 1] = '\0';
        s->name = strdup(text);
    }
    if (!*s->group) {
        free(s->group);
        snprintf(text, sizeof text, "relata-writer.%s", s->store.name);
        s->group = strdup(text);
    }
    return s->name && s->group ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory");
}

const struct cfg_program settings_program = {
    .name = "tuple-writer",
    .summary = "keeps an authorization store in step with the ledger in Postgres",
    .keys = keys,
    .details = "Exit codes: 0 drained after SIGTERM, 1 failed, 2 bad settings, 137 ended by a second signal.\n",
    .validate = validate,
    .metrics = metrics_reference,
};
