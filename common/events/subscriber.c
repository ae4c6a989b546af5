/*
 * subscriber.c - events and heartbeats in, with gaps.
 *
 * Both subscriptions of the connection are delivered by one thread (nats.c's global pool, size 1), in the order the
 * server sent them: a heartbeat never overtakes the events it counts. Per (writer, epoch) the last sequence of every
 * subject is kept. A heartbeat names all subjects; before the first one of an epoch, a subject that is new may be one
 * that we have joined in mid-stream, afterwards it is expected to start at 1. After a reconnect every epoch counts as
 * new, since what was missed meanwhile is unknown.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "common/events/internal.h"
#include "proto/relata.pb-c.h"

#define MAX_EPOCHS 64

struct seen_subject {
    char *name;
    uint64_t sequence;
};

struct epoch {
    int64_t writer_id, epoch;
    struct seen_subject *subjects;
    size_t n, cap;
    bool complete; /* a heartbeat has named the subjects */
};

struct events_sub {
    natsOptions *opts;
    natsConnection *nc;
    natsSubscription *tuples, *heartbeats;
    events_on_event *on_event;
    void *arg;
    pthread_mutex_t mu;
    pthread_cond_t ended;
    int running;         /* subscriptions whose last callback is still to come */
    _Atomic bool resync; /* set by the reconnect callback */
    /* The delivery thread's own. */
    struct epoch epochs[MAX_EPOCHS]; /* the newest first */
    size_t nepochs;
};

static void epoch_clear(struct epoch *e)
{
    for (size_t i = 0; i < e->n; i++)
        free(e->subjects[i].name);
    free(e->subjects);
    *e = (struct epoch){0};
}

static void epochs_clear(struct events_sub *s)
{
    for (size_t i = 0; i < s->nepochs; i++)
        epoch_clear(&s->epochs[i]);
    s->nepochs = 0;
}

/* The epoch's record, moved to the front; *fresh if it was unknown. */
static struct epoch *epoch_of(struct events_sub *s, int64_t writer_id, int64_t epoch, bool *fresh)
{
    if (atomic_exchange(&s->resync, false))
        epochs_clear(s);
    size_t i = 0;
    while (i < s->nepochs && !(s->epochs[i].writer_id == writer_id && s->epochs[i].epoch == epoch))
        i++;
    *fresh = i == s->nepochs;
    struct epoch found = {.writer_id = writer_id, .epoch = epoch};
    if (!*fresh) {
        found = s->epochs[i];
    } else if (s->nepochs == MAX_EPOCHS) {
        i = MAX_EPOCHS - 1;
        epoch_clear(&s->epochs[i]);
    } else {
        s->nepochs++;
    }
    memmove(&s->epochs[1], &s->epochs[0], i * sizeof s->epochs[0]);
    s->epochs[0] = found;
    return &s->epochs[0];
}

static struct seen_subject *subject_find(const struct epoch *e, const char *name)
{
    for (size_t i = 0; i < e->n; i++)
        if (strcmp(e->subjects[i].name, name) == 0)
            return &e->subjects[i];
    return NULL;
}

static struct seen_subject *subject_add(struct epoch *e, const char *name, uint64_t sequence)
{
    if (e->n == e->cap) {
        size_t cap = e->cap ? e->cap * 2 : 16;
        struct seen_subject *grown = realloc(e->subjects, cap * sizeof *grown);
        if (!grown)
            return NULL;
        e->subjects = grown;
        e->cap = cap;
    }
    char *copy = strdup(name);
    if (!copy)
        return NULL;
    e->subjects[e->n] = (struct seen_subject){copy, sequence};
    return &e->subjects[e->n++];
}

/* Set the last sequence of seen->subject to seen->sequence, and tell what was missed. The sequence of a heartbeat has
 * not been delivered, that of an event has. */
static void subject_advance(struct epoch *e, struct events_seen *seen)
{
    uint64_t before = seen->sequence - !seen->heartbeat; /* the last one that should have been delivered earlier */
    struct seen_subject *at = subject_find(e, seen->subject);
    seen->gap = 0;
    seen->unknown = false;
    if (!at) {
        seen->unknown = !e->complete && before > 0;
        at = subject_add(e, seen->subject, seen->unknown ? before : 0);
    }
    if (!at) { /* no memory: every one of its events tells so */
        seen->unknown = true;
        return;
    }
    if (seen->sequence <= at->sequence)
        return;
    seen->gap = before > at->sequence ? before - at->sequence : 0;
    at->sequence = seen->sequence;
}

/* The time in the event's ce-time header, 0 if it has none of the publisher's form. */
static int64_t sent_us(natsMsg *msg)
{
    const char *when = NULL;
    struct tm tm = {0};
    if (natsMsgHeader_Get(msg, "ce-time", &when) != NATS_OK)
        return 0;
    const char *rest = strptime(when, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!rest)
        return 0;
    char *end = NULL;
    double fraction = *rest == '.' ? strtod(rest, &end) : 0;
    return (int64_t)timegm(&tm) * 1000000 + (int64_t)(fraction * 1e6 + 0.5);
}

static void handle_tuples(struct events_sub *s, natsMsg *msg, const char *subject, const uint8_t *data, size_t len)
{
    Relata__V1__TuplesChanged *event = relata__v1__tuples_changed__unpack(NULL, len, data);
    struct events_change *changes = event ? calloc(event->n_tuples + 1, sizeof *changes) : NULL;
    if (changes) {
        for (size_t i = 0; i < event->n_tuples; i++) {
            const Relata__V1__TupleState *t = event->tuples[i];
            changes[i] = (struct events_change){.key = {t->object, t->relation, t->subject},
                                                .present = t->present,
                                                .version = t->version,
                                                .xid = t->xid};
        }
        bool fresh;
        struct epoch *e = epoch_of(s, event->writer_id, event->epoch, &fresh);
        struct events_seen seen = {.writer_id = event->writer_id,
                                   .epoch = event->epoch,
                                   .sequence = event->sequence,
                                   .new_epoch = fresh,
                                   .subject = subject,
                                   .model_id = event->model_id,
                                   .sent_us = sent_us(msg),
                                   .changes = changes,
                                   .n = event->n_tuples};
        subject_advance(e, &seen);
        s->on_event(s->arg, &seen);
    }
    free(changes);
    if (event)
        relata__v1__tuples_changed__free_unpacked(event, NULL);
}

static void handle_heartbeat(struct events_sub *s, const char *subject, const uint8_t *data, size_t len)
{
    Relata__V1__Heartbeat *hb = relata__v1__heartbeat__unpack(NULL, len, data);
    if (!hb)
        return;
    bool fresh;
    struct epoch *e = epoch_of(s, hb->writer_id, hb->epoch, &fresh);
    struct events_seen seen = {
        .heartbeat = true, .writer_id = hb->writer_id, .epoch = hb->epoch, .new_epoch = fresh, .model_id = ""};
    for (size_t i = 0; i < hb->n_last; i++) {
        seen.subject = hb->last[i]->subject;
        seen.sequence = hb->last[i]->sequence;
        subject_advance(e, &seen);
        if (seen.gap > 0 || (seen.unknown && !fresh)) {
            s->on_event(s->arg, &seen);
            seen.new_epoch = false;
        }
    }
    e->complete = true;
    seen.subject = subject;
    seen.sequence = 0;
    seen.gap = 0;
    seen.unknown = false;
    s->on_event(s->arg, &seen);
    relata__v1__heartbeat__free_unpacked(hb, NULL);
}

static void on_message(natsConnection *nc, natsSubscription *sub, natsMsg *msg, void *arg)
{
    struct events_sub *s = arg;
    (void)nc;
    (void)sub;
    pthread_mutex_lock(&s->mu); /* what the subscribing thread wrote before is seen from here on */
    pthread_mutex_unlock(&s->mu);
    const char *subject = natsMsg_GetSubject(msg);
    union {
        const char *in;
        const uint8_t *out;
    } data = {natsMsg_GetData(msg)};
    size_t len = (size_t)natsMsg_GetDataLength(msg);
    if (strncmp(subject, EVENTS_HEARTBEAT, sizeof EVENTS_HEARTBEAT - 1) == 0)
        handle_heartbeat(s, subject, data.out, len);
    else
        handle_tuples(s, msg, subject, data.out, len);
    natsMsg_Destroy(msg);
}

/* Called in threads of the library's: the mutex also makes what events_sub_new() wrote known to them. */
static void ask_resync(struct events_sub *s)
{
    pthread_mutex_lock(&s->mu);
    atomic_store(&s->resync, true);
    pthread_mutex_unlock(&s->mu);
}

static void on_sub_reconnected(natsConnection *nc, void *arg)
{
    (void)nc;
    ask_resync(arg);
}

static void on_sub_error(natsConnection *nc, natsSubscription *sub, natsStatus st, void *arg)
{
    (void)nc;
    (void)sub;
    if (st == NATS_SLOW_CONSUMER)
        ask_resync(arg);
}

static void on_complete(void *arg)
{
    struct events_sub *s = arg;
    pthread_mutex_lock(&s->mu);
    s->running--;
    pthread_cond_signal(&s->ended);
    pthread_mutex_unlock(&s->mu);
}

static natsStatus sub_add(struct events_sub *s, natsSubscription **sub, const char *subject)
{
    pthread_mutex_lock(&s->mu); /* a first message waits until the subscription is complete */
    natsStatus st = natsConnection_Subscribe(sub, s->nc, subject, on_message, s);
    if (st == NATS_OK) {
        st = natsSubscription_SetOnCompleteCB(*sub, on_complete, s);
        s->running += st == NATS_OK;
    }
    pthread_mutex_unlock(&s->mu);
    return st;
}

static enum status sub_connect(struct events_sub *s, mono_us deadline, struct err *err)
{
    for (unsigned attempt = 0;; attempt++) {
        natsStatus st = natsConnection_Connect(&s->nc, s->opts);
        if (st == NATS_OK)
            return ST_OK;
        s->nc = NULL;
        if (st == NATS_INVALID_ARG || st == NATS_ADDRESS_MISSING)
            return events_err(err, ST_CONFIG, st, "nats.url");
        if (st == NATS_CONNECTION_AUTH_FAILED || st == NATS_NOT_PERMITTED)
            return events_err(err, ST_DENIED, st, "connecting to NATS");
        int64_t wait_us = 1000 * backoff_ms(attempt, 20, 500);
        if (clock_mono_us() + wait_us >= deadline)
            return events_err(err, ST_RETRY, st, "connecting to NATS");
        nats_Sleep(wait_us / 1000);
    }
}

enum status events_sub_new(struct events_sub **out, const struct cfg_nats *cfg, const char *store,
                           events_on_event *on_event, void *arg, mono_us deadline, struct err *err)
{
    struct buf tuples, heartbeats;
    *out = NULL;
    if (!*cfg->url)
        return err_set(err, ST_CONFIG, NULL, "nats.url is empty: there is nothing to subscribe to");
    struct events_sub *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    s->on_event = on_event;
    s->arg = arg;
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->ended, NULL);
    buf_init(&tuples, 4096);
    buf_init(&heartbeats, 4096);
    buf_adds(&tuples, EVENTS_TUPLES);
    buf_adds(&heartbeats, EVENTS_HEARTBEAT);
    if (strcmp(store, "*") == 0) {
        buf_addc(&tuples, '*');
        buf_addc(&heartbeats, '*');
    } else {
        events_token(store, &tuples);
        events_token(store, &heartbeats);
    }
    buf_adds(&tuples, ".>");
    enum status st = buf_ok(&tuples) ? ST_OK : err_set(err, ST_INVALID, NULL, "the store's name is too long");
    if (st == ST_OK)
        st = events_options(&s->opts, cfg, "relata subscriber", err);
    if (st == ST_OK) {
        natsOptions_UseGlobalMessageDelivery(s->opts, true);
        natsOptions_SetReconnectedCB(s->opts, on_sub_reconnected, s);
        natsOptions_SetErrorHandler(s->opts, on_sub_error, s);
        st = sub_connect(s, deadline, err);
    }
    if (st == ST_OK) {
        natsStatus ns = sub_add(s, &s->tuples, buf_str(&tuples));
        if (ns == NATS_OK)
            ns = sub_add(s, &s->heartbeats, buf_str(&heartbeats));
        int left = deadline_poll_ms(deadline);
        if (ns == NATS_OK)
            ns = natsConnection_FlushTimeout(s->nc, left < 1 ? 1 : left);
        if (ns != NATS_OK)
            st = events_err(err, ST_RETRY, ns, "subscribing to events");
    }
    buf_release(&tuples);
    buf_release(&heartbeats);
    if (st != ST_OK) {
        events_sub_free(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void events_sub_free(struct events_sub *s)
{
    if (!s)
        return;
    if (s->nc)
        natsConnection_Close(s->nc);
    pthread_mutex_lock(&s->mu);
    while (s->running > 0) /* a callback may be on its way */
        pthread_cond_wait(&s->ended, &s->mu);
    pthread_mutex_unlock(&s->mu);
    natsSubscription_Destroy(s->tuples);
    natsSubscription_Destroy(s->heartbeats);
    natsConnection_Destroy(s->nc);
    natsOptions_Destroy(s->opts);
    epochs_clear(s);
    pthread_cond_destroy(&s->ended);
    pthread_mutex_destroy(&s->mu);
    free(s);
}
