/* kafka_conf.c - properties, error classes and log lines of librdkafka. */
#include "common/kafka/kafka_internal.h"

#include "common/base/log.h"

struct property {
    const char *key;
    const char *value;
};

/* What correctness rests on. The second names are librdkafka's aliases of the same property. */
static const struct property fixed_producer[] = {
    {"enable.idempotence", "true"},        {"acks", "all"}, {"partitioner", "murmur2_random"},
    {"allow.auto.create.topics", "false"}, {NULL, NULL},
};
static const struct property fixed_consumer[] = {
    {"enable.auto.commit", "false"},       {"enable.auto.offset.store", "false"}, {"auto.offset.reset", "earliest"},
    {"allow.auto.create.topics", "false"}, {"enable.partition.eof", "false"},     {NULL, NULL},
};
static const char *const refused[] = {
    "enable.idempotence",
    "acks",
    "request.required.acks",
    "partitioner",
    "enable.auto.commit",
    "auto.commit.enable",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "allow.auto.create.topics",
    "enable.partition.eof",
    "group.id",
    "transactional.id",
    "delivery.report.only.error",
    "enable.gapless.guarantee",
    "produce.offset.report",
    NULL,
};

static const struct property defaults_all[] = {
    {"client.id", "relata"},
    {"socket.keepalive.enable", "true"},
    {"reconnect.backoff.max.ms", "2000"},
    {NULL, NULL},
};
static const struct property defaults_producer[] = {
    {"queue.buffering.max.messages", "10000"},
    {"queue.buffering.max.kbytes", "4096"},
    {"linger.ms", "1"},
    {NULL, NULL},
};
static const struct property defaults_consumer[] = {
    {"queued.min.messages", "10000"},
    {"queued.max.messages.kbytes", "8192"},
    {"partition.assignment.strategy", "cooperative-sticky"},
    {NULL, NULL},
};

/* Properties of the other role, which librdkafka would warn about. */
static const char *const only_producer[] = {
    "queue.buffering.",
    "linger.ms",
    "batch.",
    "message.send.max.retries",
    "retries",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "compression.",
    "request.timeout.ms",
    "msg.order.cmp",
    "queuing.strategy",
    "sticky.partitioning.",
    "retry.backoff.ms",
    NULL,
};
static const char *const only_consumer[] = {
    "group.",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "partition.assignment.strategy",
    "queued.m",
    "fetch.",
    "max.partition.fetch.bytes",
    "isolation.level",
    "check.crcs",
    "coordinator.query.",
    NULL,
};

static bool listed(const char *const *list, const char *key, bool prefix)
{
    for (; *list; list++)
        if (prefix ? strncmp(key, *list, strlen(*list)) == 0 : strcmp(key, *list) == 0)
            return true;
    return false;
}

enum status kafka_set(rd_kafka_conf_t *conf, const char *key, const char *value, struct err *err)
{
    char reason[512];
    if (rd_kafka_conf_set(conf, key, value, reason, sizeof reason) != RD_KAFKA_CONF_OK)
        return err_set(err, ST_CONFIG, "", "kafka.%s: %s", key, reason);
    return ST_OK;
}

static enum status set_all(rd_kafka_conf_t *conf, const struct property *p, struct err *err)
{
    for (; p->key; p++) {
        enum status st = kafka_set(conf, p->key, p->value, err);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static enum status set_user(rd_kafka_conf_t *conf, enum kafka_role role, const struct cfg_map *properties,
                            struct err *err)
{
    bool servers = false;
    for (size_t i = 0; properties && i < properties->len; i++) {
        const char *key = properties->items[i].key;
        const char *value = properties->items[i].value;
        if (listed(refused, key, false))
            return err_set(err, ST_CONFIG, "", "kafka.%s cannot be set: Relata depends on its own value; remove it",
                           key);
        if (strcmp(key, "bootstrap.servers") == 0 || strcmp(key, "metadata.broker.list") == 0)
            servers = value[0] != '\0';
        if (role != KAFKA_PRODUCER && listed(only_producer, key, true))
            continue;
        if (role != KAFKA_CONSUMER && listed(only_consumer, key, true))
            continue;
        enum status st = kafka_set(conf, key, value, err);
        if (st != ST_OK)
            return st;
    }
    if (!servers)
        return err_set(err, ST_CONFIG, "", "kafka.bootstrap.servers is not set: name the brokers, host:port,host:port");
    return ST_OK;
}

/* Called by any thread of librdkafka. */
static void on_log(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
    (void)rk;
    enum log_level l = level <= 3   ? LOG_LVL_ERROR
                       : level == 4 ? LOG_LVL_WARN
                       : level <= 6 ? LOG_LVL_INFO
                                    : LOG_LVL_DEBUG;
    /* A broken connection is retried for ever, and readiness and metrics show it: no error. */
    if (l == LOG_LVL_ERROR)
        l = LOG_LVL_WARN;
    log_event(l, "kafka client", "facility", facility, "text", text, NULL);
}

enum status kafka_conf(rd_kafka_conf_t **out, enum kafka_role role, const struct cfg_map *properties, struct err *err)
{
    *out = NULL;
    kafka_threads();
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_log_cb(conf, on_log);
    enum status st = set_all(conf, defaults_all, err);
    if (st == ST_OK && role == KAFKA_PRODUCER)
        st = set_all(conf, defaults_producer, err);
    if (st == ST_OK && role == KAFKA_CONSUMER)
        st = set_all(conf, defaults_consumer, err);
    if (st == ST_OK)
        st = set_user(conf, role, properties, err);
    if (st == ST_OK && role == KAFKA_PRODUCER)
        st = set_all(conf, fixed_producer, err);
    if (st == ST_OK && role == KAFKA_CONSUMER)
        st = set_all(conf, fixed_consumer, err);
    if (st != ST_OK) {
        rd_kafka_conf_destroy(conf);
        return st;
    }
    *out = conf;
    return ST_OK;
}

static void no_log(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
    (void)rk, (void)level, (void)facility, (void)text;
}

/* Some properties librdkafka judges only when a client is made: those that depend on each other, and files. Without
 * brokers it connects to nothing. */
static enum status try_client(const rd_kafka_conf_t *conf, enum kafka_role role, struct err *err)
{
    const char *brokers[] = {"bootstrap.servers", "metadata.broker.list"};
    char reason[512];
    rd_kafka_conf_t *alone = rd_kafka_conf_dup_filter(conf, 2, brokers);
    rd_kafka_conf_set_log_cb(alone, no_log);
    enum status st = role == KAFKA_CONSUMER ? kafka_set(alone, "group.id", "relata-check", err) : ST_OK;
    rd_kafka_t *rk = NULL;
    if (st == ST_OK) {
        rk = rd_kafka_new(role == KAFKA_CONSUMER ? RD_KAFKA_CONSUMER : RD_KAFKA_PRODUCER, alone, reason, sizeof reason);
        if (!rk)
            st = err_set(err, ST_CONFIG, "", "kafka: %s", reason);
    }
    if (rk)
        rd_kafka_destroy(rk);
    else
        rd_kafka_conf_destroy(alone);
    return st;
}

enum status kafka_properties_check(const struct cfg_map *properties, struct err *err)
{
    static const enum kafka_role roles[] = {KAFKA_PRODUCER, KAFKA_CONSUMER};
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        rd_kafka_conf_t *conf;
        enum status st = kafka_conf(&conf, roles[i], properties, err);
        if (st != ST_OK)
            return st;
        st = try_client(conf, roles[i], err);
        rd_kafka_conf_destroy(conf);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

enum status kafka_status(rd_kafka_resp_err_t code)
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wswitch-enum"
    switch (code) {
    case RD_KAFKA_RESP_ERR_NO_ERROR:
        return ST_OK;
    case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
    case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
        return ST_TOO_BIG;
    case RD_KAFKA_RESP_ERR_INVALID_RECORD:
    case RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP:
    case RD_KAFKA_RESP_ERR_UNSUPPORTED_FOR_MESSAGE_FORMAT:
        return ST_INVALID;
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
        return ST_MISSING;
    case RD_KAFKA_RESP_ERR__AUTHENTICATION:
    case RD_KAFKA_RESP_ERR__SSL:
    case RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED:
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
        return ST_DENIED;
    case RD_KAFKA_RESP_ERR__INVALID_ARG:
    case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
    case RD_KAFKA_RESP_ERR_INVALID_PARTITIONS:
    case RD_KAFKA_RESP_ERR_INVALID_REPLICATION_FACTOR:
    case RD_KAFKA_RESP_ERR_INVALID_CONFIG:
    case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
        return ST_CONFIG;
    case RD_KAFKA_RESP_ERR__QUEUE_FULL:
        return ST_THROTTLED;
    case RD_KAFKA_RESP_ERR__FATAL:
    case RD_KAFKA_RESP_ERR__FENCED:
        return ST_FATAL;
    default:
        return ST_RETRY;
    }
#pragma GCC diagnostic pop
}

enum status kafka_fail(struct err *err, rd_kafka_resp_err_t code, const char *what, const char *reason)
{
    return err_set(err, kafka_status(code), rd_kafka_err2name(code), "%s: %s", what,
                   reason && *reason ? reason : rd_kafka_err2str(code));
}
