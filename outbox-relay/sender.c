/* sender.c - see sender.h. */
#include "outbox-relay/sender.h"

#include <stdlib.h>
#include <string.h>

#include "outbox-relay/relay_metrics.h"

#define BATCH_MIN 1024
#define BATCH_OVERHEAD 256
#define HIDDEN_MS 50

static bool is_refusal(enum status st)
{
    return st == ST_TOO_BIG || st == ST_INVALID;
}

static enum status fail(struct sender *s, enum status st, const struct err *why, struct err *err)
{
    if (s->failure.status == ST_OK) {
        if (why)
            s->failure = *why;
        s->failure.status = st;
    }
    if (err)
        *err = s->failure;
    return s->failure.status;
}

/* In kafka_producer_poll(): note only. */
static void on_delivery(void *arg, uint64_t number, enum status st, const struct err *why)
{
    struct sender *s = arg;
    struct window_item *item = window_item(&s->window, number);
    if (!item) { /* forgotten: the window began anew */
        if (s->alone == number)
            s->alone = 0;
        return;
    }
    if (st == ST_OK) {
        metric_observe_us(&m_ack_seconds, clock_mono_us() - item->sent_at);
        metric_add(&m_rows, 1);
        metric_add(&m_bytes, item->size);
        window_done(&s->window, number);
        if (s->alone == number)
            s->alone = 0;
        return;
    }
    if (s->alone == number && is_refusal(st)) {
        s->refused = *why;
        return;
    }
    metric_add(&m_delivery_failures, 1);
    if (is_refusal(st) && item->size > s->largest)
        s->largest = item->size;
    fail(s, is_refusal(st) ? ST_RETRY : st, why, NULL);
}

enum status sender_init(struct sender *s, const struct cfg_map *kafka, const char *topic, size_t in_flight,
                        sender_park *park, void *park_arg, struct err *err)
{
    *s = (struct sender){.topic = topic, .park = park, .park_arg = park_arg, .alone_from = SIZE_MAX};
    message_init(&s->message);
    enum status st = window_init(&s->window, in_flight, err);
    if (st == ST_OK)
        st = kafka_producer_new(&s->kafka, kafka, on_delivery, s, err);
    if (st != ST_OK)
        sender_release(s);
    return st;
}

static void hidden_release(struct hidden_row *h)
{
    free(h->store);
    free(h->text);
}

static void hidden_clear(struct sender *s)
{
    for (size_t i = 0; i < s->nhidden; i++)
        hidden_release(&s->hidden[i]);
    s->nhidden = 0;
}

void sender_release(struct sender *s)
{
    kafka_producer_free(s->kafka);
    window_release(&s->window);
    message_release(&s->message);
    free(s->alone_store);
    hidden_clear(s);
    free(s->hidden);
    *s = (struct sender){0};
}

/* ---- rows that are refused ---- */

static enum status hide(struct sender *s, const char *store, uint64_t xid, uint64_t number, const struct err *why,
                        struct err *err)
{
    if (s->nhidden == s->hidden_cap) {
        size_t cap = s->hidden_cap ? s->hidden_cap * 2 : 16;
        struct hidden_row *grown = realloc(s->hidden, cap * sizeof *grown);
        if (!grown)
            return err_set(err, ST_NOMEM, "", "out of memory");
        s->hidden = grown;
        s->hidden_cap = cap;
    }
    struct hidden_row h = {.number = number,
                           .outbox_id = window_item(&s->window, number)->outbox_id,
                           .xid = xid,
                           .store = strdup(store),
                           .status = why->status,
                           .text = strdup(why->text)};
    (void)snprintf(h.code, sizeof h.code, "%s", why->code);
    if (!h.store || !h.text) {
        hidden_release(&h);
        return err_set(err, ST_NOMEM, "", "out of memory");
    }
    if (s->nhidden == 0)
        s->ask_at = deadline_in_ms(HIDDEN_MS);
    s->hidden[s->nhidden++] = h;
    return ST_OK;
}

static void gone(struct sender *s, uint64_t number)
{
    metric_add(&m_dead_letters, 1);
    window_done(&s->window, number);
}

static enum status park_now(struct sender *s, const char *store, uint64_t xid, uint64_t number, const struct err *why,
                            struct err *err)
{
    struct err e;
    enum status st = s->park(s->park_arg, store, window_item(&s->window, number)->outbox_id, xid, why, &e);
    if (st == ST_OK)
        gone(s, number);
    else if (st == ST_NOT_FOUND)
        st = hide(s, store, xid, number, why, &e);
    return st == ST_OK ? ST_OK : fail(s, st, &e, err);
}

/* The hidden rows again; one question is enough for those of one transaction. */
static enum status park_hidden(struct sender *s, struct err *err)
{
    if (s->nhidden == 0 || clock_mono_us() < s->ask_at)
        return ST_OK;
    enum status st = ST_OK;
    struct err why, e;
    uint64_t invisible = 0;
    size_t kept = 0;
    for (size_t i = 0; i < s->nhidden; i++) {
        struct hidden_row *h = &s->hidden[i];
        enum status now = st == ST_OK && h->xid != invisible ? ST_OK : ST_NOT_FOUND;
        if (now == ST_OK) {
            (void)err_set(&why, h->status, h->code, "%s", h->text);
            now = s->park(s->park_arg, h->store, h->outbox_id, h->xid, &why, &e);
            invisible = now == ST_NOT_FOUND ? h->xid : invisible;
        }
        if (now == ST_OK) {
            gone(s, h->number);
            hidden_release(h);
            continue;
        }
        if (now != ST_NOT_FOUND)
            st = now;
        s->hidden[kept++] = *h;
    }
    s->nhidden = kept;
    s->ask_at = deadline_in_ms(HIDDEN_MS);
    return st == ST_OK ? ST_OK : fail(s, st, &e, err);
}

mono_us sender_due(const struct sender *s)
{
    return s->nhidden > 0 ? s->ask_at : DEADLINE_NONE;
}

/* Nothing is on its way to the broker. */
static bool quiet(const struct sender *s)
{
    return s->window.open == s->nhidden;
}

/* The suspects have passed. Without a culprit among them it was not a message but the batch that was too big. */
static enum status suspects_passed(struct sender *s, struct err *err)
{
    if (s->found)
        return ST_OK;
    size_t limit = kafka_producer_batch_limit(s->kafka, 0) / 4;
    kafka_producer_batch_limit(s->kafka, limit > BATCH_MIN ? limit : BATCH_MIN);
    s->alone_from = SIZE_MAX;
    struct err e;
    enum status st = kafka_producer_reset(s->kafka, &e); /* nothing is in flight */
    return st == ST_OK ? ST_OK : fail(s, st, &e, err);
}

/* What the broker has refused before goes alone. ST_OK: send now. */
static enum status take_turn(struct sender *s, const struct outbox_row *row, size_t size, bool *alone, struct err *err)
{
    *alone = size >= s->alone_from;
    if (s->suspects > 0) {
        if (s->suspects == 1 && !quiet(s))
            return ST_THROTTLED;
        if (--s->suspects == 0) {
            enum status st = suspects_passed(s, err);
            if (st != ST_OK)
                return st;
            *alone = size >= s->alone_from;
        }
    }
    if (!*alone)
        return ST_OK;
    if (!quiet(s)) {
        if (s->suspects > 0)
            s->suspects++; /* it will come again */
        return ST_THROTTLED;
    }
    free(s->alone_store);
    s->alone_store = strdup(row->store);
    s->alone_xid = row->xid;
    return s->alone_store ? ST_OK : err_set(err, ST_NOMEM, "", "out of memory");
}

enum status sender_send(struct sender *s, const struct outbox_row *row, struct position from, struct err *err)
{
    if (s->failure.status != ST_OK)
        return fail(s, s->failure.status, NULL, err);
    if (s->alone != 0 || window_full(&s->window))
        return ST_THROTTLED;

    struct err why = {0};
    struct message *m = &s->message;
    enum status st = message_encode(m, row, &why);
    if (st == ST_NOMEM)
        return fail(s, st, &why, err);
    size_t size = m->key.len + m->payload.len;
    bool alone = false;
    if (st == ST_OK) {
        enum status turn = take_turn(s, row, size, &alone, err);
        if (turn != ST_OK)
            return turn;
    }
    uint64_t number = window_add(&s->window, row->id, from, (uint32_t)size);
    if (st == ST_OK)
        st = kafka_produce(s->kafka, s->topic, m->key.data, m->key.len, m->payload.data, m->payload.len, m->headers,
                           m->nheaders, number, &why);
    if (st == ST_OK) {
        s->alone = alone ? number : 0;
        return ST_OK;
    }
    if (is_refusal(st))
        return park_now(s, row->store ? row->store : "", row->xid, number, &why, err);
    window_undo(&s->window, number);
    return st == ST_THROTTLED ? st : fail(s, st, &why, err);
}

enum status sender_serve(struct sender *s, int timeout_ms, struct err *err)
{
    kafka_producer_poll(s->kafka, timeout_ms);
    struct err why;
    if (s->failure.status == ST_OK && kafka_producer_broken(s->kafka, &why))
        fail(s, ST_FATAL, &why, NULL);
    if (s->failure.status == ST_OK && s->refused.status != ST_OK) {
        why = s->refused;
        uint64_t number = s->alone;
        s->refused.status = ST_OK;
        s->alone = 0;
        s->found = true;
        enum status st = park_now(s, s->alone_store, s->alone_xid, number, &why, err);
        if (st != ST_OK)
            return st;
    }
    if (s->failure.status == ST_OK)
        (void)!park_hidden(s, NULL);
    return s->failure.status == ST_OK ? ST_OK : fail(s, s->failure.status, NULL, err);
}

enum status sender_batch_bytes(struct sender *s, int64_t bytes, struct err *err)
{
    size_t limit = bytes > BATCH_MIN + BATCH_OVERHEAD ? (size_t)bytes - BATCH_OVERHEAD : BATCH_MIN;
    if (bytes <= 0 || limit >= kafka_producer_batch_limit(s->kafka, 0))
        return ST_OK;
    kafka_producer_batch_limit(s->kafka, limit);
    return kafka_producer_reset(s->kafka, err);
}

void sender_restart(struct sender *s, uint64_t confirmed)
{
    hidden_clear(s);
    window_restart(&s->window, confirmed);
}

enum status sender_reset(struct sender *s, struct err *err)
{
    if (s->largest > 0) {
        s->suspects = window_len(&s->window) + 1;
        s->alone_from = s->largest / 2;
        s->found = false;
        s->largest = 0;
    }
    hidden_clear(s);
    window_clear(&s->window);
    s->failure = (struct err){0};
    s->refused = (struct err){0};
    s->alone = 0;
    return kafka_producer_reset(s->kafka, err);
}
