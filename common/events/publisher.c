/*
 * publisher.c - events and heartbeats out.
 *
 * Sequences are taken and messages queued under one mutex, so that they leave in order; what talks to the server is the
 * pump's thread. A message that cannot be sent has used up its sequence number: subscribers see the gap.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "common/events/pump.h"
#include "proto/relata.pb-c.h"

#define SUBJECT_MAX 4096

struct subject {
    char *type;
    char *name;
    uint64_t sequence;
};

struct events_pub {
    char *store;
    char *prefix;      /* relata.tuples.<store>. */
    char *heartbeat;   /* relata.heartbeat.<store> */
    struct pump *pump; /* NULL = no events are configured */

    pthread_mutex_t mu; /* everything below but the counters */
    int64_t writer_id, epoch;
    struct subject *subjects;
    size_t nsubjects, cap;

    _Atomic uint64_t published, failed;
};

static char *concat(const char *a, const char *b, const char *c)
{
    struct buf buf;
    buf_init(&buf, SUBJECT_MAX);
    buf_adds(&buf, a);
    events_token(b, &buf);
    buf_adds(&buf, c);
    char *out = buf_ok(&buf) ? strdup(buf_str(&buf)) : NULL;
    buf_release(&buf);
    return out;
}

enum status events_pub_new(struct events_pub **out, const struct cfg_nats *cfg, const char *store, struct err *err)
{
    *out = NULL;
    struct events_pub *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    pthread_mutex_init(&p->mu, NULL);
    p->store = strdup(store);
    p->prefix = concat(EVENTS_TUPLES, store, ".");
    p->heartbeat = concat(EVENTS_HEARTBEAT, store, "");
    enum status st = ST_OK;
    if (!p->store || !p->prefix || !p->heartbeat)
        st = err_set(err, ST_NOMEM, NULL, "no memory");
    if (st == ST_OK && *cfg->url) {
        natsOptions *opts;
        st = events_options(&opts, cfg, "relata tuple-writer", err);
        if (st == ST_OK)
            st = pump_new(&p->pump, opts, cfg->flush_timeout_ms, err);
    }
    if (st != ST_OK) {
        events_pub_free(p);
        return st;
    }
    *out = p;
    return ST_OK;
}

static void subjects_clear(struct events_pub *p)
{
    for (size_t i = 0; i < p->nsubjects; i++) {
        free(p->subjects[i].type);
        free(p->subjects[i].name);
    }
    p->nsubjects = 0;
}

void events_pub_free(struct events_pub *p)
{
    if (!p)
        return;
    pump_free(p->pump);
    subjects_clear(p);
    free(p->subjects);
    free(p->store);
    free(p->prefix);
    free(p->heartbeat);
    pthread_mutex_destroy(&p->mu);
    free(p);
}

void events_pub_identity(struct events_pub *p, int64_t writer_id, int64_t epoch)
{
    pthread_mutex_lock(&p->mu);
    p->writer_id = writer_id;
    p->epoch = epoch;
    subjects_clear(p);
    pthread_mutex_unlock(&p->mu);
}

static struct subject *subject_of(struct events_pub *p, struct bytes type)
{
    for (size_t i = 0; i < p->nsubjects; i++) {
        struct subject *s = &p->subjects[i];
        if (strlen(s->type) == type.len && memcmp(s->type, type.data, type.len) == 0)
            return s;
    }
    if (p->nsubjects == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 16;
        struct subject *grown = realloc(p->subjects, cap * sizeof *grown);
        if (!grown)
            return NULL;
        p->subjects = grown;
        p->cap = cap;
    }
    struct subject s = {.type = strndup(type.data, type.len)};
    s.name = s.type ? concat(p->prefix, s.type, "") : NULL;
    if (!s.name) {
        free(s.type);
        return NULL;
    }
    p->subjects[p->nsubjects] = s;
    return &p->subjects[p->nsubjects++];
}

static natsStatus set_headers(struct events_pub *p, natsMsg *msg, const struct subject *s, const char *traceparent)
{
    char source[128], id[160], when[CLOCK_TEXT_MAX];
    clock_text(clock_wall_us(), 6, when);
    snprintf(source, sizeof source, "/relata/tuple-writer/%lld/%lld", (long long)p->writer_id, (long long)p->epoch);
    snprintf(id, sizeof id, "%lld-%lld-%.80s-%llu", (long long)p->writer_id, (long long)p->epoch, s->type,
             (unsigned long long)s->sequence);
    const struct {
        const char *name, *value;
    } headers[] = {
        {"ce-specversion", "1.0"}, {"ce-type", "relata.v1.TuplesChanged"},   {"ce-source", source},       {"ce-id", id},
        {"ce-time", when},         {"content-type", "application/protobuf"}, {"traceparent", traceparent}};
    natsStatus st = NATS_OK;
    for (size_t i = 0; i < sizeof headers / sizeof *headers && st == NATS_OK; i++)
        if (headers[i].value)
            st = natsMsgHeader_Set(msg, headers[i].name, headers[i].value);
    return st;
}

/* Pack `n` changes of one object type. *data is malloc'd. */
static size_t pack_changes(struct events_pub *p, const struct subject *s, const char *model_id,
                           const struct events_change *changes, size_t n, uint8_t **data)
{
    *data = NULL;
    if (n == 0)
        return 0;
    Relata__V1__TupleState *states = calloc(n, sizeof *states);
    Relata__V1__TupleState **list = calloc(n, sizeof *list);
    size_t len = 0;
    if (states && list) {
        for (size_t i = 0; i < n; i++) {
            relata__v1__tuple_state__init(&states[i]);
            union {
                const char *in;
                char *out;
            } object = {changes[i].key.object}, relation = {changes[i].key.relation},
              subject = {changes[i].key.subject};
            states[i].object = object.out;
            states[i].relation = relation.out;
            states[i].subject = subject.out;
            states[i].present = changes[i].present;
            states[i].version = changes[i].version;
            states[i].xid = changes[i].xid;
            list[i] = &states[i];
        }
        union {
            const char *in;
            char *out;
        } model = {model_id};
        Relata__V1__TuplesChanged event;
        relata__v1__tuples_changed__init(&event);
        event.store = p->store;
        event.writer_id = p->writer_id;
        event.epoch = p->epoch;
        event.sequence = s->sequence;
        event.model_id = model.out;
        event.n_tuples = n;
        event.tuples = list;
        *data = malloc(relata__v1__tuples_changed__get_packed_size(&event));
        if (*data)
            len = relata__v1__tuples_changed__pack(&event, *data);
    }
    free(states);
    free(list);
    return len;
}

static natsStatus message(natsMsg **msg, const char *subject, const uint8_t *data, size_t len)
{
    union {
        const uint8_t *in;
        const char *out;
    } payload = {data};
    return data ? natsMsg_Create(msg, subject, NULL, payload.out, (int)len) : NATS_NO_MEMORY;
}

/* With mu held. The event of a run of changes of one object type; NULL if there can be none, its number is used up. */
static natsMsg *event_of(struct events_pub *p, const char *model_id, const struct events_change *changes, size_t n)
{
    struct subject *s = subject_of(p, tuple_type(changes[0].key.object));
    if (!s)
        return NULL;
    s->sequence++;
    if (!pump_ready(p->pump))
        return NULL;
    const char *traceparent = NULL;
    for (size_t i = 0; i < n && !traceparent; i++)
        traceparent = changes[i].traceparent;
    uint8_t *data = NULL;
    size_t len = pack_changes(p, s, model_id, changes, n, &data);
    natsMsg *msg = NULL;
    natsStatus st = message(&msg, s->name, data, len);
    if (st == NATS_OK)
        st = set_headers(p, msg, s, traceparent);
    free(data);
    if (st == NATS_OK)
        return msg;
    natsMsg_Destroy(msg);
    return NULL;
}

static size_t run_of(const struct events_change *changes, size_t n)
{
    struct bytes type = tuple_type(changes[0].key.object);
    size_t j = 1;
    while (j < n && strncmp(changes[j].key.object, type.data, type.len) == 0 &&
           tuple_type(changes[j].key.object).len == type.len)
        j++;
    return j;
}

enum status events_publish(struct events_pub *p, const char *model_id, const struct events_change *changes, size_t n,
                           struct err *err)
{
    if (!p->pump || n == 0)
        return ST_OK;
    size_t events = 0, made = 0;
    natsMsg **msgs = calloc(n, sizeof(natsMsg *));
    struct batch *batch = NULL;
    pthread_mutex_lock(&p->mu);
    for (size_t i = 0, run; i < n; i += run) {
        run = run_of(changes + i, n - i);
        natsMsg *msg = event_of(p, model_id, changes + i, run);
        events++;
        if (msgs && msg)
            msgs[made++] = msg;
        else
            natsMsg_Destroy(msg);
    }
    if (made > 0)
        batch = pump_queue(p->pump, msgs, made);
    pthread_mutex_unlock(&p->mu);
    free(msgs);
    if (batch && pump_wait(p->pump, batch) && made == events) {
        atomic_fetch_add(&p->published, events);
        return ST_OK;
    }
    atomic_fetch_add(&p->failed, events);
    return err_set(err, ST_RETRY, NULL, "%zu events could not be handed to NATS in time", events);
}

/* With mu held. */
static natsMsg *heartbeat_of(struct events_pub *p)
{
    Relata__V1__Heartbeat hb;
    relata__v1__heartbeat__init(&hb);
    size_t n = p->nsubjects;
    Relata__V1__LastSequence *last = calloc(n + 1, sizeof *last);
    Relata__V1__LastSequence **list = calloc(n + 1, sizeof *list);
    natsMsg *msg = NULL;
    if (last && list) {
        for (size_t i = 0; i < n; i++) {
            relata__v1__last_sequence__init(&last[i]);
            last[i].subject = p->subjects[i].name;
            last[i].sequence = p->subjects[i].sequence;
            list[i] = &last[i];
        }
        hb.store = p->store;
        hb.writer_id = p->writer_id;
        hb.epoch = p->epoch;
        hb.n_last = n;
        hb.last = list;
        uint8_t *data = malloc(relata__v1__heartbeat__get_packed_size(&hb));
        size_t len = data ? relata__v1__heartbeat__pack(&hb, data) : 0;
        if (message(&msg, p->heartbeat, data, len) != NATS_OK)
            msg = NULL;
        free(data);
    }
    free(last);
    free(list);
    return msg;
}

void events_heartbeat(struct events_pub *p)
{
    if (!p->pump)
        return;
    pthread_mutex_lock(&p->mu);
    natsMsg *msg = p->writer_id ? heartbeat_of(p) : NULL;
    if (msg)
        pump_beat(p->pump, msg);
    pthread_mutex_unlock(&p->mu);
}

void events_pub_stats(struct events_pub *p, struct events_stats *out)
{
    *out = (struct events_stats){.published = atomic_load(&p->published), .failed = atomic_load(&p->failed)};
    if (!p->pump)
        return;
    out->reconnects = pump_reconnects(p->pump);
    out->connected = pump_ready(p->pump);
}
