/*
 * pump.c - see pump.h.
 *
 * A flush that is not answered in time makes the pump suspect: until a beat's flush succeeds, nothing else is taken, so
 * that a frozen server costs one wait, not one per batch, and the queue holds no more than its waiters.
 */
#include "common/events/pump.h"

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/wait.h"

#define CONNECT_AGAIN_MS 1000

struct batch {
    struct batch *next;
    bool done, ok;
    bool left; /* nobody waits for it any more */
    size_t n;
    natsMsg *msgs[];
};

struct pump {
    natsOptions *opts;
    int64_t flush_ms;
    pthread_t thread;
    bool started;
    natsConnection *nc; /* the thread's own; compared by callbacks, as they may be late ones of an earlier connection */
    _Atomic(natsConnection *) current;

    pthread_mutex_t mu; /* everything down to the atomics */
    pthread_cond_t work;
    pthread_cond_t progress;
    bool closing;
    bool closed; /* the connection is past help */
    natsConnection *last_closed;
    bool tried; /* to connect, once; it gave .. */
    enum status first;
    struct err first_err;
    struct batch *head, **tail;
    natsMsg *beat;

    _Atomic bool connected, suspect;
    _Atomic uint64_t reconnects;
};

/* ---- callbacks of nats.c, in its threads ---- */

static void on_connected(natsConnection *nc, void *arg)
{
    struct pump *p = arg;
    if (nc == atomic_load(&p->current))
        atomic_store(&p->connected, true);
}

static void on_reconnected(natsConnection *nc, void *arg)
{
    struct pump *p = arg;
    if (nc != atomic_load(&p->current))
        return;
    atomic_fetch_add(&p->reconnects, 1);
    atomic_store(&p->suspect, false);
    atomic_store(&p->connected, true);
}

static void on_disconnected(natsConnection *nc, void *arg)
{
    struct pump *p = arg;
    if (nc == atomic_load(&p->current))
        atomic_store(&p->connected, false);
}

/* The last one of a connection. We have closed it, or nats.c has given up (refused credentials, for instance). */
static void on_closed(natsConnection *nc, void *arg)
{
    struct pump *p = arg;
    pthread_mutex_lock(&p->mu);
    p->last_closed = nc;
    if (nc == atomic_load(&p->current)) {
        atomic_store(&p->connected, false);
        p->closed = true;
        pthread_cond_signal(&p->work);
    }
    pthread_cond_broadcast(&p->progress);
    pthread_mutex_unlock(&p->mu);
}

static void on_error(natsConnection *nc, natsSubscription *sub, natsStatus s, void *arg)
{
    (void)nc;
    (void)sub;
    (void)s;
    (void)arg; /* the default handler would print */
}

/* ---- the thread ---- */

/* Closes, and waits for the last callback, which uses the pump. */
static void disconnect(struct pump *p)
{
    if (!p->nc)
        return;
    atomic_store(&p->current, NULL);
    atomic_store(&p->connected, false);
    natsConnection_Close(p->nc);
    mono_us end = deadline_in_ms(EVENTS_CONNECT_TIMEOUT_MS);
    pthread_mutex_lock(&p->mu);
    while (p->last_closed != p->nc && wait_cond(&p->progress, &p->mu, end))
        continue;
    p->last_closed = NULL;
    pthread_mutex_unlock(&p->mu);
    natsConnection_Destroy(p->nc);
    p->nc = NULL;
}

/* Not being connected yet is fine: nats.c goes on by itself. But it gives up on a server that says nothing at first. */
static enum status connect_now(struct pump *p, struct err *err)
{
    natsStatus s = natsConnection_Connect(&p->nc, p->opts);
    if (s == NATS_OK || s == NATS_NOT_YET_CONNECTED) {
        atomic_store(&p->suspect, false);
        atomic_store(&p->current, p->nc);
        if (natsConnection_Status(p->nc) == NATS_CONN_STATUS_CONNECTED) /* a callback may have come too early */
            atomic_store(&p->connected, true);
        if (natsConnection_IsClosed(p->nc)) {
            disconnect(p);
            return err_set(err, ST_RETRY, NULL, "NATS has refused the connection");
        }
        return ST_OK;
    }
    p->nc = NULL;
    if (s == NATS_INVALID_ARG || s == NATS_ADDRESS_MISSING)
        return events_err(err, ST_CONFIG, s, "nats.url");
    return events_err(err, ST_RETRY, s, "connecting to NATS");
}

/* With mu held, which is given up meanwhile. */
static void reconnect(struct pump *p)
{
    struct err err = {0};
    p->closed = false;
    pthread_mutex_unlock(&p->mu);
    disconnect(p);
    enum status st = connect_now(p, &err);
    pthread_mutex_lock(&p->mu);
    if (!p->tried) {
        p->tried = true;
        p->first = st;
        p->first_err = err;
        pthread_cond_broadcast(&p->progress);
    }
    mono_us again = deadline_in_ms(CONNECT_AGAIN_MS);
    while (st != ST_OK && !p->closing && wait_cond(&p->work, &p->mu, again))
        continue;
}

static void batch_free(struct batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        natsMsg_Destroy(b->msgs[i]);
    free(b);
}

/* With mu held. */
static void settle(struct pump *p, struct batch *list, bool ok)
{
    for (struct batch *b = list, *next; b; b = next) {
        next = b->next;
        b->ok = b->ok && ok;
        b->done = true;
        if (b->left)
            batch_free(b);
    }
    pthread_cond_broadcast(&p->progress);
}

/* What is queued, and the beat behind it. With mu held, which is given up meanwhile. */
static void send_queued(struct pump *p)
{
    struct batch *list = p->head;
    natsMsg *beat = p->beat;
    p->head = NULL;
    p->tail = &p->head;
    p->beat = NULL;
    pthread_mutex_unlock(&p->mu);
    bool up = p->nc && atomic_load(&p->connected);
    for (struct batch *b = list; b; b = b->next) {
        b->ok = up;
        for (size_t i = 0; i < b->n && b->ok; i++)
            b->ok = natsConnection_PublishMsg(p->nc, b->msgs[i]) == NATS_OK;
    }
    /* A beat that waits in a buffer would tell old news. */
    bool beats = up && beat && natsConnection_PublishMsg(p->nc, beat) == NATS_OK;
    natsMsg_Destroy(beat);
    natsStatus s = up ? natsConnection_FlushTimeout(p->nc, p->flush_ms) : NATS_CONNECTION_DISCONNECTED;
    if (s == NATS_TIMEOUT)
        atomic_store(&p->suspect, true);
    else if (s == NATS_OK && beats)
        atomic_store(&p->suspect, false);
    pthread_mutex_lock(&p->mu);
    settle(p, list, s == NATS_OK);
}

static void *run(void *arg)
{
    struct pump *p = arg;
    pthread_mutex_lock(&p->mu);
    while (!p->closing) {
        if (!p->nc || p->closed)
            reconnect(p);
        else if (p->head || p->beat)
            send_queued(p);
        else
            pthread_cond_wait(&p->work, &p->mu);
    }
    settle(p, p->head, false);
    p->head = NULL;
    pthread_mutex_unlock(&p->mu);
    disconnect(p);
    return NULL;
}

/* ---- the callers' side ---- */

static enum status pump_start(struct pump *p, struct err *err)
{
    natsOptions_SetRetryOnFailedConnect(p->opts, true, on_connected, p);
    natsOptions_SetReconnectedCB(p->opts, on_reconnected, p);
    natsOptions_SetDisconnectedCB(p->opts, on_disconnected, p);
    natsOptions_SetClosedCB(p->opts, on_closed, p);
    natsOptions_SetErrorHandler(p->opts, on_error, NULL);
    int failed = pthread_create(&p->thread, NULL, run, p);
    if (failed)
        return err_set(err, ST_FATAL, NULL, "cannot start a thread: %s", strerror(failed));
    p->started = true;
    mono_us end = deadline_in_ms(p->flush_ms);
    pthread_mutex_lock(&p->mu);
    while (!p->tried && wait_cond(&p->progress, &p->mu, end))
        continue;
    enum status st = p->tried && p->first == ST_CONFIG ? ST_CONFIG : ST_OK;
    if (st != ST_OK && err)
        *err = p->first_err;
    pthread_mutex_unlock(&p->mu);
    return st;
}

enum status pump_new(struct pump **out, natsOptions *opts, int64_t flush_ms, struct err *err)
{
    *out = NULL;
    struct pump *p = calloc(1, sizeof *p);
    if (!p) {
        natsOptions_Destroy(opts);
        return err_set(err, ST_NOMEM, NULL, "no memory");
    }
    p->opts = opts;
    p->flush_ms = flush_ms;
    p->tail = &p->head;
    pthread_mutex_init(&p->mu, NULL);
    wait_cond_init(&p->work);
    wait_cond_init(&p->progress);
    enum status st = pump_start(p, err);
    if (st != ST_OK) {
        pump_free(p);
        return st;
    }
    *out = p;
    return ST_OK;
}

void pump_free(struct pump *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->mu);
    p->closing = true;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->mu);
    if (p->started)
        pthread_join(p->thread, NULL);
    natsMsg_Destroy(p->beat);
    natsOptions_Destroy(p->opts);
    pthread_cond_destroy(&p->progress);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->mu);
    free(p);
}

bool pump_ready(const struct pump *p)
{
    return atomic_load(&p->connected) && !atomic_load(&p->suspect);
}

uint64_t pump_reconnects(const struct pump *p)
{
    return atomic_load(&p->reconnects);
}

struct batch *pump_queue(struct pump *p, natsMsg **msgs, size_t n)
{
    struct batch *b = pump_ready(p) ? malloc(sizeof *b + n * sizeof(natsMsg *)) : NULL;
    if (!b) {
        for (size_t i = 0; i < n; i++)
            natsMsg_Destroy(msgs[i]);
        return NULL;
    }
    *b = (struct batch){.n = n};
    memcpy(b->msgs, msgs, n * sizeof(natsMsg *));
    pthread_mutex_lock(&p->mu);
    *p->tail = b;
    p->tail = &b->next;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->mu);
    return b;
}

bool pump_wait(struct pump *p, struct batch *b)
{
    mono_us end = deadline_in_ms(p->flush_ms);
    pthread_mutex_lock(&p->mu);
    while (!b->done && wait_cond(&p->progress, &p->mu, end))
        continue;
    bool ok = b->done && b->ok;
    if (b->done) {
        batch_free(b);
    } else {
        b->left = true;
        atomic_store(&p->suspect, true);
    }
    pthread_mutex_unlock(&p->mu);
    return ok;
}

void pump_beat(struct pump *p, natsMsg *msg)
{
    pthread_mutex_lock(&p->mu);
    natsMsg_Destroy(p->beat);
    p->beat = msg;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->mu);
}
