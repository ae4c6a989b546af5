/* kafka_producer.c - the idempotent producer. */
#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/kafka/kafka_internal.h"

struct kafka_producer {
    rd_kafka_conf_t *conf; /* template: every reset starts from a copy */
    rd_kafka_t *rk;        /* NULL after a failed reset */
    rd_kafka_topic_t *topic;
    char topic_name[256];
    kafka_on_delivery *on_delivery;
    void *arg;
    int wake; /* eventfd that librdkafka writes when its queue stops being empty */
    int outstanding;
    bool muted; /* reports of purged messages */
    bool broken;
    bool down;
    struct err reason; /* of broken or down */
    size_t batch_limit;
};

static void on_report(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque)
{
    struct kafka_producer *p = opaque;
    (void)rk;
    if (p->muted)
        return;
    p->outstanding--;
    if (!m->err) {
        p->down = false;
        p->on_delivery(p->arg, (uint64_t)(uintptr_t)m->_private, ST_OK, NULL);
        return;
    }
    struct err e;
    kafka_fail(&e, m->err, "message was not stored", NULL);
    p->on_delivery(p->arg, (uint64_t)(uintptr_t)m->_private, e.status, &e);
}

static void on_error(rd_kafka_t *rk, int code, const char *reason, void *opaque)
{
    struct kafka_producer *p = opaque;
    if (p->muted)
        return;
    if (code == RD_KAFKA_RESP_ERR__FATAL) {
        char text[512];
        rd_kafka_resp_err_t cause = rd_kafka_fatal_error(rk, text, sizeof text);
        p->broken = true;
        err_set(&p->reason, ST_FATAL, rd_kafka_err2name(cause), "producer failed: %s", text);
        return;
    }
    enum status st = kafka_status(code);
    if (code == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN || st == ST_DENIED) {
        /* "All down" comes last and says least: keep a cause that is known. */
        if (!p->down || st == ST_DENIED)
            kafka_fail(&p->reason, code, "brokers", reason);
        p->down = true;
    }
}

static enum status producer_start(struct kafka_producer *p, struct err *err)
{
    char reason[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_dup(p->conf);
    if (p->batch_limit > 0) {
        char size[24];
        snprintf(size, sizeof size, "%zu", p->batch_limit);
        enum status st = kafka_set(conf, "batch.size", size, err);
        if (st != ST_OK) {
            rd_kafka_conf_destroy(conf);
            return st;
        }
    }
    p->rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, reason, sizeof reason);
    if (!p->rk) {
        rd_kafka_conf_destroy(conf);
        return err_set(err, ST_CONFIG, "", "kafka producer: %s", reason);
    }
    static const uint64_t one = 1;
    rd_kafka_queue_t *q = rd_kafka_queue_get_main(p->rk);
    rd_kafka_queue_io_event_enable(q, p->wake, &one, sizeof one);
    rd_kafka_queue_destroy(q);
    return ST_OK;
}

static void producer_stop(struct kafka_producer *p)
{
    if (p->topic)
        rd_kafka_topic_destroy(p->topic);
    p->topic = NULL;
    if (!p->rk)
        return;
    p->muted = true;
    rd_kafka_purge(p->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT | RD_KAFKA_PURGE_F_NON_BLOCKING);
    rd_kafka_poll(p->rk, 0);
    rd_kafka_destroy(p->rk);
    p->rk = NULL;
    p->muted = p->broken = p->down = false;
    p->outstanding = 0;
}

enum status kafka_producer_new(struct kafka_producer **out, const struct cfg_map *properties,
                               kafka_on_delivery *on_delivery, void *arg, struct err *err)
{
    *out = NULL;
    struct kafka_producer *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(err, ST_NOMEM, "", "kafka producer: out of memory");
    p->on_delivery = on_delivery;
    p->arg = arg;
    p->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    enum status st = p->wake >= 0 ? kafka_conf(&p->conf, KAFKA_PRODUCER, properties, err)
                                  : err_set(err, ST_FATAL, "", "eventfd: %s", strerror(errno));
    if (st == ST_OK) {
        rd_kafka_conf_set_opaque(p->conf, p);
        rd_kafka_conf_set_dr_msg_cb(p->conf, on_report);
        rd_kafka_conf_set_error_cb(p->conf, on_error);
        st = producer_start(p, err);
    }
    if (st != ST_OK) {
        kafka_producer_free(p);
        return st;
    }
    *out = p;
    return ST_OK;
}

void kafka_producer_free(struct kafka_producer *p)
{
    if (!p)
        return;
    producer_stop(p);
    if (p->conf)
        rd_kafka_conf_destroy(p->conf);
    if (p->wake >= 0)
        close(p->wake);
    free(p);
}

enum status kafka_producer_reset(struct kafka_producer *p, struct err *err)
{
    producer_stop(p);
    return producer_start(p, err);
}

size_t kafka_producer_batch_limit(struct kafka_producer *p, size_t bytes)
{
    if (bytes > 0)
        p->batch_limit = bytes;
    if (p->batch_limit > 0)
        return p->batch_limit;
    char size[24] = "";
    size_t len = sizeof size;
    if (rd_kafka_conf_get(p->conf, "batch.size", size, &len) != RD_KAFKA_CONF_OK)
        return 0;
    return strtoul(size, NULL, 10);
}

/* One topic is the rule: its handle is kept. */
static enum status topic_handle(struct kafka_producer *p, const char *name, struct err *err)
{
    if (p->topic && strcmp(p->topic_name, name) == 0)
        return ST_OK;
    if (strlen(name) >= sizeof p->topic_name)
        return err_set(err, ST_CONFIG, "", "topic name is longer than %zu bytes", sizeof p->topic_name - 1);
    if (p->topic)
        rd_kafka_topic_destroy(p->topic);
    p->topic = rd_kafka_topic_new(p->rk, name, NULL);
    if (!p->topic)
        return kafka_fail(err, rd_kafka_last_error(), "topic", NULL);
    memcpy(p->topic_name, name, strlen(name) + 1);
    return ST_OK;
}

static rd_kafka_headers_t *headers_new(const struct kafka_header *h, size_t n)
{
    rd_kafka_headers_t *list = rd_kafka_headers_new(n);
    for (size_t i = 0; i < n; i++)
        rd_kafka_header_add(list, h[i].name, -1, h[i].value, (ssize_t)h[i].len);
    return list;
}

/* librdkafka takes what it copies as void pointers to non-const. */
static void *unconst(const void *p)
{
    union {
        const void *c;
        void *v;
    } u = {.c = p};
    return u.v;
}

enum status kafka_produce(struct kafka_producer *p, const char *topic, const void *key, size_t key_len,
                          const void *payload, size_t payload_len, const struct kafka_header *headers, size_t nheaders,
                          uint64_t tag, struct err *err)
{
    if (p->broken || !p->rk) {
        if (err)
            *err = p->reason;
        return p->rk ? ST_FATAL : err_set(err, ST_FATAL, "", "the producer could not be made anew");
    }
    enum status st = topic_handle(p, topic, err);
    if (st != ST_OK)
        return st;

    rd_kafka_headers_t *list = nheaders > 0 ? headers_new(headers, nheaders) : NULL;
    rd_kafka_vu_t v[6] = {
        {.vtype = RD_KAFKA_VTYPE_RKT, .u.rkt = p->topic},
        {.vtype = RD_KAFKA_VTYPE_MSGFLAGS, .u.i = RD_KAFKA_MSG_F_COPY},
        {.vtype = RD_KAFKA_VTYPE_KEY, .u.mem = {unconst(key), key_len}},
        {.vtype = RD_KAFKA_VTYPE_VALUE, .u.mem = {unconst(payload), payload_len}},
        {.vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = (void *)(uintptr_t)tag},
        {.vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = list},
    };
    rd_kafka_error_t *e = rd_kafka_produceva(p->rk, v, list ? 6 : 5);
    if (!e) {
        p->outstanding++;
        return ST_OK;
    }
    if (list)
        rd_kafka_headers_destroy(list);
    st = kafka_fail(err, rd_kafka_error_code(e), "message was not accepted", rd_kafka_error_string(e));
    if (rd_kafka_error_is_fatal(e) || st == ST_FATAL) {
        p->broken = true;
        st = err_set(&p->reason, ST_FATAL, rd_kafka_error_name(e), "producer failed: %s", rd_kafka_error_string(e));
        if (err)
            *err = p->reason;
    }
    rd_kafka_error_destroy(e);
    return st;
}

int kafka_producer_poll(struct kafka_producer *p, int timeout_ms)
{
    uint64_t n;
    /* Cleared before the queue is emptied: what arrives after that writes again. */
    ssize_t got = read(p->wake, &n, sizeof n);
    (void)got;
    return p->rk ? rd_kafka_poll(p->rk, timeout_ms) : 0;
}

int kafka_producer_fd(struct kafka_producer *p)
{
    return p->wake;
}

bool kafka_producer_broken(const struct kafka_producer *p, struct err *err)
{
    if ((p->broken || !p->rk) && err)
        *err = p->reason;
    return p->broken || !p->rk;
}

bool kafka_producer_up(const struct kafka_producer *p, struct err *err)
{
    if (p->down && err)
        *err = p->reason;
    return !p->down;
}

int kafka_producer_outstanding(const struct kafka_producer *p)
{
    return p->outstanding;
}

enum status kafka_producer_ping(struct kafka_producer *p, const char *topic, int timeout_ms, int *partitions,
                                struct err *err)
{
    const struct rd_kafka_metadata *md = NULL;
    *partitions = 0;
    if (!p->rk)
        return err_set(err, ST_FATAL, "", "the producer could not be made anew");
    enum status st = topic_handle(p, topic, err);
    if (st != ST_OK)
        return st;
    rd_kafka_resp_err_t code = rd_kafka_metadata(p->rk, 0, p->topic, &md, timeout_ms);
    if (code)
        return kafka_fail(err, code, "brokers", p->down ? p->reason.text : NULL);
    if (md->topic_cnt != 1)
        code = RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    else
        code = md->topics[0].err;
    if (!code)
        *partitions = md->topics[0].partition_cnt;
    rd_kafka_metadata_destroy(md);
    p->down = false;
    if (code)
        return kafka_fail(err, code, topic, NULL);
    return ST_OK;
}
