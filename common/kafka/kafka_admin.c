/* kafka_admin.c - questions to the cluster, each with a client of its own. */
#include "common/base/stop.h"
#include "common/kafka/kafka_internal.h"

#define DEFAULT_WAIT_MS 30000

static mono_us bounded(mono_us deadline)
{
    return deadline_min(deadline, deadline_in_ms(deadline == DEADLINE_NONE ? DEFAULT_WAIT_MS : INT32_MAX));
}

/* A question that cannot be answered yet is better answered "later" than by librdkafka's own long timeouts. */
static int ms_left(mono_us deadline)
{
    int ms = deadline_poll_ms(deadline);
    return ms > 0 ? ms : 1;
}

static enum status client_new(rd_kafka_t **out, const struct cfg_map *properties, const char *group, struct err *err)
{
    char reason[512];
    rd_kafka_conf_t *conf;
    *out = NULL;
    enum status st = kafka_conf(&conf, KAFKA_ADMIN, properties, err);
    if (st == ST_OK)
        st = kafka_set(conf, "allow.auto.create.topics", "false", err);
    if (st == ST_OK && group)
        st = kafka_set(conf, "group.id", group, err);
    if (st != ST_OK)
        return st;
    *out = rd_kafka_new(group ? RD_KAFKA_CONSUMER : RD_KAFKA_PRODUCER, conf, reason, sizeof reason);
    if (!*out) {
        rd_kafka_conf_destroy(conf);
        return err_set(err, ST_CONFIG, "", "kafka client: %s", reason);
    }
    return ST_OK;
}

static enum status partitions_of(rd_kafka_t *rk, const char *topic, int *partitions, mono_us deadline, struct err *err)
{
    const struct rd_kafka_metadata *md = NULL;
    *partitions = 0;
    rd_kafka_topic_t *rkt = rd_kafka_topic_new(rk, topic, NULL);
    if (!rkt)
        return kafka_fail(err, rd_kafka_last_error(), topic, NULL);
    rd_kafka_resp_err_t code = rd_kafka_metadata(rk, 0, rkt, &md, ms_left(deadline));
    rd_kafka_topic_destroy(rkt);
    if (code)
        return kafka_fail(err, code, "asking the brokers for the topic", NULL);
    code = md->topic_cnt == 1 ? md->topics[0].err : RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    if (!code)
        *partitions = md->topics[0].partition_cnt;
    rd_kafka_metadata_destroy(md);
    if (code)
        return kafka_fail(err, code, topic, NULL);
    return ST_OK;
}

enum status kafka_topic_partitions(const struct cfg_map *properties, const char *topic, int *partitions,
                                   mono_us deadline, struct err *err)
{
    rd_kafka_t *rk;
    enum status st = client_new(&rk, properties, NULL, err);
    if (st != ST_OK)
        return st;
    st = partitions_of(rk, topic, partitions, bounded(deadline), err);
    rd_kafka_destroy(rk);
    return st;
}

static enum status create_result(rd_kafka_event_t *ev, const char *topic, struct err *err)
{
    if (!ev)
        return err_set(err, ST_RETRY, "", "creating topic \"%s\": no answer from the brokers in time", topic);
    rd_kafka_resp_err_t code = rd_kafka_event_error(ev);
    const char *reason = rd_kafka_event_error_string(ev);
    const rd_kafka_CreateTopics_result_t *result = rd_kafka_event_CreateTopics_result(ev);
    size_t n = 0;
    const rd_kafka_topic_result_t **topics = result ? rd_kafka_CreateTopics_result_topics(result, &n) : NULL;
    if (!code && n > 0) {
        code = rd_kafka_topic_result_error(topics[0]);
        reason = rd_kafka_topic_result_error_string(topics[0]);
    }
    if (!code || code == RD_KAFKA_RESP_ERR_TOPIC_ALREADY_EXISTS)
        return ST_OK;
    char what[320];
    snprintf(what, sizeof what, "creating topic \"%.255s\"", topic);
    return kafka_fail(err, code, what, reason);
}

static enum status topic_create(rd_kafka_t *rk, const char *topic, int partitions, int replication, mono_us deadline,
                                struct err *err)
{
    char reason[512];
    rd_kafka_NewTopic_t *topic_new = rd_kafka_NewTopic_new(topic, partitions, replication, reason, sizeof reason);
    if (!topic_new)
        return err_set(err, ST_CONFIG, "", "topic \"%s\": %s", topic, reason);
    rd_kafka_queue_t *q = rd_kafka_queue_new(rk);
    rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(rk, RD_KAFKA_ADMIN_OP_CREATETOPICS);
    int ms = ms_left(deadline);
    rd_kafka_AdminOptions_set_request_timeout(options, ms, reason, sizeof reason);
    rd_kafka_AdminOptions_set_operation_timeout(options, ms, reason, sizeof reason);
    rd_kafka_CreateTopics(rk, &topic_new, 1, options, q);
    rd_kafka_event_t *ev = rd_kafka_queue_poll(q, ms);
    enum status st = create_result(ev, topic, err);
    if (ev)
        rd_kafka_event_destroy(ev);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_NewTopic_destroy(topic_new);
    rd_kafka_queue_destroy(q);
    return st;
}

enum status kafka_topic_ensure(const struct cfg_map *properties, const char *topic, int partitions, int replication,
                               mono_us deadline, struct err *err)
{
    rd_kafka_t *rk;
    int have;
    deadline = bounded(deadline);
    enum status st = client_new(&rk, properties, NULL, err);
    if (st != ST_OK)
        return st;
    st = partitions_of(rk, topic, &have, deadline, err);
    if (st == ST_MISSING)
        st = topic_create(rk, topic, partitions, replication, deadline, err);
    /* A new topic is not known to every broker at once. */
    while (st == ST_OK && have == 0 && clock_mono_us() < deadline) {
        st = partitions_of(rk, topic, &have, deadline, err);
        if (st == ST_MISSING && stop_sleep_until(deadline_in_ms(20)) == ST_OK)
            st = ST_OK;
    }
    if (st == ST_OK && have == 0)
        st = err_set(err, ST_RETRY, "", "topic \"%s\" was created and is not visible yet", topic);
    rd_kafka_destroy(rk);
    return st;
}

static enum status max_bytes_result(rd_kafka_event_t *ev, int64_t *bytes, struct err *err)
{
    if (!ev)
        return err_set(err, ST_RETRY, "", "asking for the topic's configuration: no answer from the brokers in time");
    rd_kafka_resp_err_t code = rd_kafka_event_error(ev);
    const rd_kafka_DescribeConfigs_result_t *result = rd_kafka_event_DescribeConfigs_result(ev);
    size_t n = 0, m = 0;
    const rd_kafka_ConfigResource_t **resources = result ? rd_kafka_DescribeConfigs_result_resources(result, &n) : NULL;
    if (!code && n > 0)
        code = rd_kafka_ConfigResource_error(resources[0]);
    if (code)
        return kafka_fail(err, code, "asking for the topic's configuration", NULL);
    const rd_kafka_ConfigEntry_t **entries = n > 0 ? rd_kafka_ConfigResource_configs(resources[0], &m) : NULL;
    for (size_t i = 0; i < m; i++) {
        const char *value = rd_kafka_ConfigEntry_value(entries[i]);
        if (value && strcmp(rd_kafka_ConfigEntry_name(entries[i]), "max.message.bytes") == 0) {
            *bytes = strtoll(value, NULL, 10);
            return ST_OK;
        }
    }
    return err_set(err, ST_NOT_FOUND, "", "the brokers do not tell the topic's max.message.bytes");
}

enum status kafka_topic_max_bytes(const struct cfg_map *properties, const char *topic, int64_t *bytes, mono_us deadline,
                                  struct err *err)
{
    rd_kafka_t *rk;
    char reason[512];
    *bytes = 0;
    enum status st = client_new(&rk, properties, NULL, err);
    if (st != ST_OK)
        return st;
    int ms = ms_left(bounded(deadline));
    rd_kafka_queue_t *q = rd_kafka_queue_new(rk);
    rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(rk, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
    rd_kafka_ConfigResource_t *resource = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topic);
    rd_kafka_AdminOptions_set_request_timeout(options, ms, reason, sizeof reason);
    rd_kafka_DescribeConfigs(rk, &resource, 1, options, q);
    rd_kafka_event_t *ev = rd_kafka_queue_poll(q, ms);
    st = max_bytes_result(ev, bytes, err);
    if (ev)
        rd_kafka_event_destroy(ev);
    rd_kafka_ConfigResource_destroy(resource);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_queue_destroy(q);
    rd_kafka_destroy(rk);
    return st;
}

static enum status watermarks(rd_kafka_t *rk, const char *topic, struct kafka_lag *lags, int n, mono_us deadline,
                              struct err *err)
{
    for (int i = 0; i < n; i++) {
        rd_kafka_resp_err_t code =
            rd_kafka_query_watermark_offsets(rk, topic, i, &lags[i].begin, &lags[i].end, ms_left(deadline));
        if (code)
            return kafka_fail(err, code, "asking for the topic's offsets", NULL);
    }
    return ST_OK;
}

static enum status committed(rd_kafka_t *rk, const char *topic, struct kafka_lag *lags, int n, mono_us deadline,
                             struct err *err)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(n);
    for (int i = 0; i < n; i++)
        rd_kafka_topic_partition_list_add(list, topic, i);
    rd_kafka_resp_err_t code = rd_kafka_committed(rk, list, ms_left(deadline));
    for (int i = 0; i < n && !code; i++) {
        code = list->elems[i].err;
        lags[i].committed = list->elems[i].offset >= 0 ? list->elems[i].offset : -1;
    }
    rd_kafka_topic_partition_list_destroy(list);
    return code ? kafka_fail(err, code, "asking for the group's offsets", NULL) : ST_OK;
}

enum status kafka_group_lag(const struct cfg_map *properties, const char *group, const char *topic,
                            struct kafka_lag *lags, int n, mono_us deadline, struct err *err)
{
    rd_kafka_t *rk;
    deadline = bounded(deadline);
    for (int i = 0; i < n; i++)
        lags[i] = (struct kafka_lag){.committed = -1};
    enum status st = client_new(&rk, properties, group, err);
    if (st != ST_OK)
        return st;
    st = watermarks(rk, topic, lags, n, deadline, err);
    if (st == ST_OK && group)
        st = committed(rk, topic, lags, n, deadline, err);
    rd_kafka_destroy(rk);
    return st;
}
