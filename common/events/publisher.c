/*
 * publisher.c - events and heartbeats out.
 *
 * Sequences are taken and messages handed to nats.c under one mutex, so that they leave in order. The flush that
 * waits for the server runs outside it. A flush that times out makes the publisher suspect: until a heartbeat's flush
 * succeeds, events are counted as failed at once (their sequence numbers are used up: subscribers see the gap), so that
 * a frozen server costs one wait, not one per batch. While nats.c reconnects, it buffers what is published.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "common/events/internal.h"
#include "proto/relata.pb-c.h"

#define SUBJECT_MAX 4096

struct subject {
    char *type;
    char *name;
    uint64_t sequence;
};

struct events_pub {
    char *store;
    char *prefix;    /* relata.tuples.<store>. */
    char *heartbeat; /* relata.heartbeat.<store> */
    int64_t flush_ms;
    natsOptions *opts;

    pthread_mutex_t mu; /* everything below but the counters */
    natsConnection *nc;
    int users; /* threads that use nc outside the mutex */
    int64_t writer_id, epoch;
    struct subject *subjects;
    size_t nsubjects, cap;

    _Atomic bool suspect;
    _Atomic uint64_t published, failed, reconnects;
};

static void on_connected(natsConnection *nc, void *arg)
{
    (void)nc;
    (void)arg;
}

static void on_reconnected(natsConnection *nc, void *arg)
{
    struct events_pub *p = arg;
    (void)nc;
    atomic_fetch_add(&p->reconnects, 1);
    atomic_store(&p->suspect, false);
}

static void on_error(natsConnection *nc, natsSubscription *sub, natsStatus s, void *arg)
{
    (void)nc;
    (void)sub;
    (void)s;
    (void)arg; /* the default handler would print */
}

/* With mu held. Not being connected yet is fine: nats.c goes on by itself. */
static enum status pub_connect(struct events_pub *p, struct err *err)
{
    natsStatus s = natsConnection_Connect(&p->nc, p->opts);
    if (s == NATS_OK || s == NATS_NOT_YET_CONNECTED)
        return ST_OK;
    p->nc = NULL;
    if (s == NATS_INVALID_ARG || s == NATS_ADDRESS_MISSING)
        return events_err(err, ST_CONFIG, s, "nats.url");
    return events_err(err, ST_RETRY, s, "connecting to NATS");
}

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
    p->flush_ms = cfg->flush_timeout_ms;
    p->store = strdup(store);
    p->prefix = concat(EVENTS_TUPLES, store, ".");
    p->heartbeat = concat(EVENTS_HEARTBEAT, store, "");
    enum status st = ST_OK;
    if (!p->store || !p->prefix || !p->heartbeat)
        st = err_set(err, ST_NOMEM, NULL, "no memory");
    if (st == ST_OK && *cfg->url) {
        st = events_options(&p->opts, cfg, "relata tuple-writer", err);
        if (st == ST_OK) {
            natsOptions_SetRetryOnFailedConnect(p->opts, true, on_connected, NULL);
            natsOptions_SetReconnectedCB(p->opts, on_reconnected, p);
            natsOptions_SetErrorHandler(p->opts, on_error, NULL);
            st = pub_connect(p, err);
            if (st == ST_RETRY)
                st = ST_OK; /* the heartbeat tries again */
        }
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
    if (p->nc) {
        natsConnection_Close(p->nc);
        natsConnection_Destroy(p->nc);
    }
    natsOptions_Destroy(p->opts);
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
    char source[128], id[160], when[40];
    int64_t now = clock_wall_us();
    time_t seconds = (time_t)(now / 1000000);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    size_t n = strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(when + n, sizeof when - n, ".%06dZ", (int)(now % 1000000));
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

/* With mu held. */
static bool publish_run(struct events_pub *p, const char *model_id, const struct events_change *changes, size_t n)
{
    struct subject *s = subject_of(p, tuple_type(changes[0].key.object));
    if (!s)
        return false;
    s->sequence++;
    if (!p->nc || atomic_load(&p->suspect))
        return false;
    const char *traceparent = NULL;
    for (size_t i = 0; i < n && !traceparent; i++)
        traceparent = changes[i].traceparent;
    uint8_t *data = NULL;
    size_t len = pack_changes(p, s, model_id, changes, n, &data);
    natsMsg *msg = NULL;
    union {
        uint8_t *in;
        const char *out;
    } payload = {data};
    natsStatus st = data ? natsMsg_Create(&msg, s->name, NULL, payload.out, (int)len) : NATS_NO_MEMORY;
    if (st == NATS_OK)
        st = set_headers(p, msg, s, traceparent);
    if (st == NATS_OK)
        st = natsConnection_PublishMsg(p->nc, msg);
    natsMsg_Destroy(msg);
    free(data);
    return st == NATS_OK;
}

/* Wait until the server has what was published before. Takes and gives back a use of nc. */
static bool pub_flush(struct events_pub *p)
{
    pthread_mutex_lock(&p->mu);
    natsConnection *nc = p->nc;
    bool connected = nc && natsConnection_Status(nc) == NATS_CONN_STATUS_CONNECTED;
    p->users += connected;
    pthread_mutex_unlock(&p->mu);
    if (!connected)
        return false;
    natsStatus s = natsConnection_FlushTimeout(nc, p->flush_ms);
    if (s == NATS_TIMEOUT)
        atomic_store(&p->suspect, true);
    pthread_mutex_lock(&p->mu);
    p->users--;
    pthread_mutex_unlock(&p->mu);
    return s == NATS_OK;
}

enum status events_publish(struct events_pub *p, const char *model_id, const struct events_change *changes, size_t n,
                           struct err *err)
{
    if (!p->opts || n == 0)
        return ST_OK;
    size_t events = 0, sent = 0;
    pthread_mutex_lock(&p->mu);
    for (size_t i = 0; i < n;) {
        struct bytes type = tuple_type(changes[i].key.object);
        size_t j = i + 1;
        while (j < n && strncmp(changes[j].key.object, type.data, type.len) == 0 &&
               tuple_type(changes[j].key.object).len == type.len)
            j++;
        events++;
        sent += publish_run(p, model_id, changes + i, j - i);
        i = j;
    }
    pthread_mutex_unlock(&p->mu);
    if (sent == events && pub_flush(p)) {
        atomic_fetch_add(&p->published, events);
        return ST_OK;
    }
    atomic_fetch_add(&p->failed, events);
    return err_set(err, ST_RETRY, NULL, "%zu events could not be handed to NATS in time", events);
}

/* With mu held: a connection that nats.c gave up (refused credentials, for instance) is made anew. */
static void pub_revive(struct events_pub *p)
{
    if (p->nc && !natsConnection_IsClosed(p->nc))
        return;
    if (p->users > 0)
        return;
    if (p->nc)
        natsConnection_Destroy(p->nc);
    p->nc = NULL;
    enum status st = pub_connect(p, NULL);
    (void)st; /* the next heartbeat tries again */
}

/* With mu held. */
static bool heartbeat_send(struct events_pub *p)
{
    Relata__V1__Heartbeat hb;
    relata__v1__heartbeat__init(&hb);
    size_t n = p->nsubjects;
    Relata__V1__LastSequence *last = calloc(n + 1, sizeof *last);
    Relata__V1__LastSequence **list = calloc(n + 1, sizeof *list);
    bool ok = false;
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
        if (data)
            ok = natsConnection_Publish(p->nc, p->heartbeat, data, (int)relata__v1__heartbeat__pack(&hb, data)) ==
                 NATS_OK;
        free(data);
    }
    free(last);
    free(list);
    return ok;
}

void events_heartbeat(struct events_pub *p)
{
    if (!p->opts)
        return;
    bool sent = false;
    pthread_mutex_lock(&p->mu);
    pub_revive(p);
    /* A heartbeat that waited in a buffer would tell old news. */
    if (p->nc && p->writer_id && natsConnection_Status(p->nc) == NATS_CONN_STATUS_CONNECTED)
        sent = heartbeat_send(p);
    pthread_mutex_unlock(&p->mu);
    if (sent && pub_flush(p))
        atomic_store(&p->suspect, false);
}

void events_pub_stats(struct events_pub *p, struct events_stats *out)
{
    *out = (struct events_stats){.published = atomic_load(&p->published),
                                 .failed = atomic_load(&p->failed),
                                 .reconnects = atomic_load(&p->reconnects)};
    if (!p->opts)
        return;
    pthread_mutex_lock(&p->mu);
    out->connected = p->nc && natsConnection_Status(p->nc) == NATS_CONN_STATUS_CONNECTED && !atomic_load(&p->suspect);
    pthread_mutex_unlock(&p->mu);
}
