/* settings.c - the relay's configuration table. */
#include "outbox-relay/settings.h"

#include <stddef.h>
#include <string.h>

#include "common/admin/metrics.h"
#include "common/kafka/kafka.h"
#include "common/pg/settings.h"
#include "outbox-relay/relay_metrics.h"

#define NAME_CHARS "abcdefghijklmnopqrstuvwxyz0123456789_"
#define AT(member) offsetof(struct settings, member)

/* clang-format off */
static const struct cfg_key keys[] = {
    CFG_PG_KEYS(struct settings, dsn, statement_timeout_ms),
    {"kafka", "*", CFG_MAP, AT(kafka), "", 0, 0, NULL, NULL,
     "any property of librdkafka, such as bootstrap.servers or sasl.password"},
    CFG_ADMIN_KEYS(struct settings, admin),
    CFG_LOG_KEYS(struct settings, log),
    {"relay", "name", CFG_STRING, AT(name), "main", 0, 0, NULL, NULL,
     "name of this relay: of those with the same name in one database one is active, the others stand by"},
    {"relay", "mode", CFG_ENUM, AT(mode), "wal", 0, 0, "wal|poll", NULL,
     "read a logical replication slot, or poll the outbox table"},
    {"relay", "topic", CFG_STRING, AT(topic), "relata.tuple-changes", 0, 0, NULL, NULL,
     "Kafka topic that gets the changes"},
    {"relay", "topic_partitions", CFG_INT, AT(topic_partitions), "0", 0, 100000, NULL, NULL,
     "create the topic with so many partitions if it is missing; 0 = it must exist"},
    {"relay", "topic_replication", CFG_INT, AT(topic_replication), "-1", -1, 100, NULL, NULL,
     "replication factor of a topic that is created; -1 = the brokers' default"},
    {"relay", "slot", CFG_STRING, AT(slot), "", 0, 0, NULL, NULL,
     "mode wal: name of the replication slot; empty = relata_ and the relay's name"},
    {"relay", "publication", CFG_STRING, AT(publication), "relata_outbox", 0, 0, NULL, NULL,
     "mode wal: publication of relata.outbox"},
    {"relay", "writer_group", CFG_STRING, AT(writer_group), "relata-writer.%s", 0, 0, NULL, NULL,
     "consumer group of a store's writers, %s being the store; asked before changes are sent again"},
    {"relay", "in_flight", CFG_INT, AT(in_flight), "10000", 1, 1000000, NULL, "messages",
     "most messages that wait for their delivery report"},
    {"relay", "resend_after", CFG_DURATION, AT(resend_after_ms), "10min", 0, INT64_C(604800000), NULL, NULL,
     "send changes again that have been pending so long although the writers have read all of the topic; 0 = never"},
    {"relay", "poll_interval", CFG_DURATION, AT(poll_interval_ms), "20ms", 1, 60000, NULL, NULL,
     "mode poll: longest pause between two looks while a transaction that wrote the outbox is open"},
    {"relay", "status_interval", CFG_DURATION, AT(status_interval_ms), "10s", 100, 60000, NULL, NULL,
     "mode wal: longest pause between two status messages; must stay below half of the server's wal_sender_timeout"},
    {"relay", "heartbeat_interval", CFG_DURATION, AT(heartbeat_interval_ms), "30s", 0, 3600000, NULL, NULL,
     "mode wal: emit a logical message when others write WAL and the slot has not moved for so long; 0 = never"},
    {"relay", "maintain_interval", CFG_DURATION, AT(maintain_interval_ms), "5s", 100, 3600000, NULL, NULL,
     "pause between two calls of relata.maintain()"},
    {"relay", "drain_timeout", CFG_DURATION, AT(drain_timeout_ms), "10s", 0, 600000, NULL, NULL,
     "longest wait for outstanding delivery reports after SIGTERM"},
    {NULL, NULL, CFG_STRING, 0, NULL, 0, 0, NULL, NULL, NULL},
};
/* clang-format on */

static enum status check_name(const char *key, const char *value, struct err *err)
{
    if (!*value || strlen(value) > 50 || value[strspn(value, NAME_CHARS)])
        return err_set(err, ST_CONFIG, "", "%s = \"%s\": use 1 to 50 of a-z, 0-9 and _", key, value);
    return ST_OK;
}

static enum status check_topic(const char *topic, struct err *err)
{
    static const char legal[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (!*topic || strlen(topic) > 249 || topic[strspn(topic, legal)] || !strcmp(topic, ".") || !strcmp(topic, ".."))
        return err_set(err, ST_CONFIG, "", "relay.topic = \"%s\": use 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'",
                       topic);
    return ST_OK;
}

/* At most one "%s", and no other '%'. */
static enum status check_group(const char *group, struct err *err)
{
    const char *percent = strchr(group, '%');
    if (!*group || (percent && (percent[1] != 's' || strchr(percent + 1, '%'))))
        return err_set(err, ST_CONFIG, "", "relay.writer_group = \"%s\": a group's name with at most one %%s", group);
    return ST_OK;
}

static enum status validate(const void *settings, struct err *err)
{
    const struct settings *s = settings;
    enum status st = check_name("relay.name", s->name, err);
    if (st == ST_OK && *s->slot)
        st = check_name("relay.slot", s->slot, err);
    if (st == ST_OK)
        st = check_name("relay.publication", s->publication, err);
    if (st == ST_OK)
        st = check_topic(s->topic, err);
    if (st == ST_OK)
        st = check_group(s->writer_group, err);
    if (st == ST_OK && s->topic_replication == 0)
        st = err_set(err, ST_CONFIG, "", "relay.topic_replication = 0: give a number of brokers, or -1");
    if (st == ST_OK)
        st = pg_dsn_check(s->dsn, err);
    if (st == ST_OK)
        st = admin_check(&s->admin, err);
    return st == ST_OK ? kafka_properties_check(&s->kafka, err) : st;
}

static void metrics_markdown(struct buf *out)
{
    relay_metrics_register();
    metrics_reference(out);
}

static const struct cfg_sample samples[] = {
    {"kafka", "bootstrap.servers", "127.0.0.1:9092"},
    {NULL, NULL, NULL},
};

const struct cfg_program relay_program = {
    .name = "outbox-relay",
    .summary = "Carries pending tuple changes from relata.outbox to a Kafka topic.",
    .keys = keys,
    .details =
        "Exit codes: 0 drained after SIGTERM, 1 failed at run time, 2 bad option, key, value or connection string,\n"
        "137 ended by a second signal. Example:\n"
        "  outbox-relay --set pg.dsn='host=db dbname=app user=relay' --set kafka.bootstrap.servers=kafka:9092\n",
    .validate = validate,
    .samples = samples,
    .metrics = metrics_markdown,
};

void settings_slot(const struct settings *s, char out[64])
{
    if (*s->slot)
        (void)snprintf(out, 64, "%s", s->slot);
    else
        (void)snprintf(out, 64, "relata_%s", s->name);
}
