/* kafka_consumer.c - a group member whose offsets are committed by hand. */
#include "common/kafka/kafka_internal.h"

#define COMMIT_AGAIN_MS 1000

struct part {
    bool ours;
    bool releasing;
    int64_t wanted; /* last offset given to kafka_consumer_commit; -1 = none */
    int64_t done;   /* last offset that the group is known to hold */
    mono_us sent;   /* when `wanted` was last sent */
};

struct kafka_consumer {
    rd_kafka_t *rk;
    char *topic;
    struct kafka_rebalance cb;
    struct part *parts;
    int nparts;
    rd_kafka_queue_t *commits; /* reports of the commits that a revocation waits for */
    mono_us next_check;
};

static struct part *part_of(struct kafka_consumer *c, int32_t partition)
{
    if (partition < 0)
        return NULL;
    if (partition >= c->nparts) {
        int n = partition + 16;
        struct part *grown = realloc(c->parts, (size_t)n * sizeof *grown);
        if (!grown)
            return NULL;
        for (int i = c->nparts; i < n; i++)
            grown[i] = (struct part){.wanted = -1, .done = -1};
        c->parts = grown;
        c->nparts = n;
    }
    return &c->parts[partition];
}

static void note_committed(struct kafka_consumer *c, const rd_kafka_topic_partition_list_t *list)
{
    for (int i = 0; list && i < list->cnt; i++) {
        struct part *p = list->elems[i].err ? NULL : part_of(c, list->elems[i].partition);
        if (p && list->elems[i].offset > p->done)
            p->done = list->elems[i].offset;
    }
}

/* The report of an asynchronous commit. A failed one is sent again by commit_again(). */
static void on_commit(rd_kafka_t *rk, rd_kafka_resp_err_t code, rd_kafka_topic_partition_list_t *list, void *opaque)
{
    (void)rk;
    if (!code)
        note_committed(opaque, list);
}

/* What is wanted and not known to be done, and was last sent before `since`; NULL if nothing is. */
static rd_kafka_topic_partition_list_t *unsettled(struct kafka_consumer *c, bool releasing, mono_us since)
{
    rd_kafka_topic_partition_list_t *list = NULL;
    mono_us now = clock_mono_us();
    for (int i = 0; i < c->nparts; i++) {
        struct part *p = &c->parts[i];
        if (!p->ours || p->wanted <= p->done || p->sent > since || (releasing && !p->releasing))
            continue;
        if (!list)
            list = rd_kafka_topic_partition_list_new(4);
        rd_kafka_topic_partition_list_add(list, c->topic, i)->offset = p->wanted;
        p->sent = now;
    }
    return list;
}

static void commit_again(struct kafka_consumer *c)
{
    mono_us now = clock_mono_us();
    if (now < c->next_check)
        return;
    c->next_check = now + COMMIT_AGAIN_MS * 1000;
    rd_kafka_topic_partition_list_t *list = unsettled(c, false, now - COMMIT_AGAIN_MS * 1000);
    if (!list)
        return;
    rd_kafka_commit(c->rk, list, 1);
    rd_kafka_topic_partition_list_destroy(list);
}

/* One commit, waited for. */
static rd_kafka_resp_err_t commit_now(struct kafka_consumer *c, rd_kafka_topic_partition_list_t *list, mono_us end)
{
    rd_kafka_resp_err_t code = rd_kafka_commit_queue(c->rk, list, c->commits, NULL, NULL);
    if (code)
        return code;
    rd_kafka_event_t *ev = rd_kafka_queue_poll(c->commits, deadline_poll_ms(end));
    if (!ev)
        return RD_KAFKA_RESP_ERR__TIMED_OUT;
    if (rd_kafka_event_type(ev) == RD_KAFKA_EVENT_OFFSET_COMMIT) {
        code = rd_kafka_event_error(ev);
        if (!code)
            note_committed(c, rd_kafka_event_topic_partition_list(ev));
    }
    rd_kafka_event_destroy(ev);
    return code;
}

/* Before a release: what the drain has committed must have arrived, or the next owner repeats it. */
static void settle(struct kafka_consumer *c)
{
    mono_us end = deadline_in_ms(KAFKA_COMMIT_WAIT_MS);
    rd_kafka_topic_partition_list_t *list;
    while (clock_mono_us() < end && (list = unsettled(c, true, INT64_MAX))) {
        rd_kafka_resp_err_t code = commit_now(c, list, end);
        rd_kafka_topic_partition_list_destroy(list);
        if (code == RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION || code == RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID)
            return;
        if (code) {
            struct timespec nap = {.tv_nsec = 50 * 1000 * 1000};
            nanosleep(&nap, NULL);
        }
    }
}

static void assigned(struct kafka_consumer *c, rd_kafka_topic_partition_list_t *list, bool cooperative)
{
    for (int i = 0; i < list->cnt; i++) {
        struct part *p = part_of(c, list->elems[i].partition);
        if (p)
            *p = (struct part){.ours = true, .wanted = -1, .done = -1};
    }
    if (cooperative)
        rd_kafka_error_destroy(rd_kafka_incremental_assign(c->rk, list));
    else
        rd_kafka_assign(c->rk, list);
    for (int i = 0; i < list->cnt; i++)
        c->cb.assigned(c->cb.arg, list->elems[i].partition);
}

static void give_back(struct kafka_consumer *c, const rd_kafka_topic_partition_list_t *list)
{
    int32_t *partitions = calloc((size_t)list->cnt + 1, sizeof *partitions);
    mono_us deadline = deadline_in_ms(c->cb.drain_ms);
    for (int i = 0; i < list->cnt; i++) {
        struct part *p = part_of(c, list->elems[i].partition);
        if (p)
            p->releasing = true;
        if (partitions)
            partitions[i] = list->elems[i].partition;
    }
    if (partitions)
        c->cb.revoked(c->cb.arg, partitions, list->cnt, deadline);
    for (int i = 0; !partitions && i < list->cnt; i++) /* no memory: one by one, all by the same deadline */
        c->cb.revoked(c->cb.arg, &list->elems[i].partition, 1, deadline);
    free(partitions);
    settle(c);
}

static void revoked(struct kafka_consumer *c, rd_kafka_topic_partition_list_t *list, bool cooperative)
{
    if (rd_kafka_assignment_lost(c->rk)) {
        for (int i = 0; i < list->cnt; i++)
            c->cb.lost(c->cb.arg, list->elems[i].partition);
    } else {
        give_back(c, list);
    }
    /* librdkafka would remember a pause when the partition comes back. Resuming it then would fetch it twice. */
    rd_kafka_resume_partitions(c->rk, list);
    for (int i = 0; i < list->cnt; i++) {
        struct part *p = part_of(c, list->elems[i].partition);
        if (p)
            *p = (struct part){.wanted = -1, .done = -1};
    }
    if (cooperative)
        rd_kafka_error_destroy(rd_kafka_incremental_unassign(c->rk, list));
    else
        rd_kafka_assign(c->rk, NULL);
}

static void on_rebalance(rd_kafka_t *rk, rd_kafka_resp_err_t code, rd_kafka_topic_partition_list_t *list, void *opaque)
{
    struct kafka_consumer *c = opaque;
    const char *protocol = rd_kafka_rebalance_protocol(rk);
    bool cooperative = protocol && strcmp(protocol, "COOPERATIVE") == 0;
    if (code == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS)
        assigned(c, list, cooperative);
    else if (code == RD_KAFKA_RESP_ERR__REVOKE_PARTITIONS)
        revoked(c, list, cooperative);
    else
        rd_kafka_assign(rk, NULL);
}

/* Brokers that cannot be reached are in the log already; what a caller must act upon comes from the poll. */
static void on_error(rd_kafka_t *rk, int code, const char *reason, void *opaque)
{
    (void)rk;
    (void)code;
    (void)reason;
    (void)opaque;
}

static enum status consumer_start(struct kafka_consumer *c, rd_kafka_conf_t *conf, struct err *err)
{
    char reason[512];
    rd_kafka_conf_set_opaque(conf, c);
    rd_kafka_conf_set_rebalance_cb(conf, on_rebalance);
    rd_kafka_conf_set_offset_commit_cb(conf, on_commit);
    rd_kafka_conf_set_error_cb(conf, on_error);
    c->rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, reason, sizeof reason);
    if (!c->rk) {
        rd_kafka_conf_destroy(conf);
        return err_set(err, ST_CONFIG, "", "kafka consumer: %s", reason);
    }
    rd_kafka_poll_set_consumer(c->rk);
    c->commits = rd_kafka_queue_new(c->rk);
    rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(topics, c->topic, RD_KAFKA_PARTITION_UA);
    rd_kafka_resp_err_t code = rd_kafka_subscribe(c->rk, topics);
    rd_kafka_topic_partition_list_destroy(topics);
    return code ? kafka_fail(err, code, "subscribing to the topic", NULL) : ST_OK;
}

enum status kafka_consumer_new(struct kafka_consumer **out, const struct cfg_map *properties, const char *group,
                               const char *topic, const struct kafka_rebalance *cb, struct err *err)
{
    *out = NULL;
    rd_kafka_conf_t *conf;
    enum status st = kafka_conf(&conf, KAFKA_CONSUMER, properties, err);
    if (st != ST_OK)
        return st;
    st = kafka_set(conf, "group.id", group, err);
    struct kafka_consumer *c = st == ST_OK ? calloc(1, sizeof *c) : NULL;
    if (c)
        c->topic = strdup(topic);
    if (st == ST_OK && (!c || !c->topic))
        st = err_set(err, ST_NOMEM, "", "kafka consumer: out of memory");
    if (st != ST_OK) {
        rd_kafka_conf_destroy(conf);
        free(c);
        return st;
    }
    c->cb = *cb;
    st = consumer_start(c, conf, err);
    if (st != ST_OK) {
        kafka_consumer_free(c);
        return st;
    }
    *out = c;
    return ST_OK;
}

void kafka_consumer_free(struct kafka_consumer *c)
{
    if (!c)
        return;
    if (c->rk) {
        rd_kafka_consumer_close(c->rk);
        if (c->commits)
            rd_kafka_queue_destroy(c->commits);
        rd_kafka_destroy(c->rk);
    }
    free(c->parts);
    free(c->topic);
    free(c);
}

/* A message that is an error: what it means for whoever polls. */
static enum status consumer_error(struct kafka_consumer *c, const rd_kafka_message_t *m, struct err *err)
{
    if (m->err == RD_KAFKA_RESP_ERR__FATAL || rd_kafka_fatal_error(c->rk, NULL, 0)) {
        char text[512];
        rd_kafka_resp_err_t cause = rd_kafka_fatal_error(c->rk, text, sizeof text);
        return err_set(err, ST_FATAL, rd_kafka_err2name(cause), "consumer failed: %s", text);
    }
    return kafka_fail(err, m->err, "consuming the topic", rd_kafka_message_errstr(m));
}

enum status kafka_consumer_poll(struct kafka_consumer *c, int timeout_ms, struct kafka_message *out, struct err *err)
{
    memset(out, 0, sizeof *out);
    commit_again(c);
    rd_kafka_message_t *m = rd_kafka_consumer_poll(c->rk, timeout_ms);
    if (!m)
        return ST_NOT_FOUND;
    if (m->err) {
        enum status st = m->err == RD_KAFKA_RESP_ERR__PARTITION_EOF ? ST_NOT_FOUND : consumer_error(c, m, err);
        rd_kafka_message_destroy(m);
        return st;
    }
    *out = (struct kafka_message){
        .topic = c->topic,
        .partition = m->partition,
        .offset = m->offset,
        .key = m->key,
        .key_len = m->key_len,
        .payload = m->payload,
        .payload_len = m->len,
        .handle = m,
    };
    return ST_OK;
}

void kafka_message_free(struct kafka_message *m)
{
    if (m->handle)
        rd_kafka_message_destroy(m->handle);
    memset(m, 0, sizeof *m);
}

bool kafka_message_header(const struct kafka_message *m, const char *name, const void **value, size_t *len)
{
    rd_kafka_headers_t *list;
    *value = NULL;
    *len = 0;
    return m->handle && !rd_kafka_message_headers(m->handle, &list) &&
           !rd_kafka_header_get_last(list, name, value, len);
}

enum status kafka_consumer_pause(struct kafka_consumer *c, int32_t partition, bool paused, struct err *err)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, c->topic, partition);
    rd_kafka_resp_err_t code =
        paused ? rd_kafka_pause_partitions(c->rk, list) : rd_kafka_resume_partitions(c->rk, list);
    if (!code)
        code = list->elems[0].err;
    rd_kafka_topic_partition_list_destroy(list);
    return code ? kafka_fail(err, code, paused ? "pausing a partition" : "resuming a partition", NULL) : ST_OK;
}

enum status kafka_consumer_commit(struct kafka_consumer *c, int32_t partition, int64_t next, struct err *err)
{
    struct part *p = part_of(c, partition);
    if (!p || !p->ours)
        return err_set(err, ST_NOT_FOUND, "", "partition %d is not assigned to this consumer", (int)partition);
    p->wanted = next;
    if (p->releasing)
        return ST_OK; /* settle() sends it, and waits */
    p->sent = clock_mono_us();
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, c->topic, partition)->offset = next;
    rd_kafka_resp_err_t code = rd_kafka_commit(c->rk, list, 1);
    rd_kafka_topic_partition_list_destroy(list);
    return code ? kafka_fail(err, code, "committing an offset", NULL) : ST_OK;
}
