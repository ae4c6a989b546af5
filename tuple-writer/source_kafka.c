#include "tuple-writer/source_kafka.h"

#include <poll.h>

#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/kafka/kafka.h"
#include "proto/relata.pb-c.h"
#include "tuple-writer/lane.h"
#include "tuple-writer/metrics.h"
#include "tuple-writer/watermark.h"

#define POLL_MS 100
#define MESSAGES_MAX 500 /* offered at once */
#define COMMIT_EVERY_MS 200
#define DRAIN_EXTRA_MS 2000
#define KEPT_WINDOWS 4 /* messages of a partition that wait for an older one, in windows */
#define QUIET_MS 3000  /* without an error for so long, the group counts as reached */

struct kafka_source {
    struct writer *w;
    struct kafka_consumer *consumer;
    struct watermark **parts; /* by partition; NULL = not ours */
    int nparts, owned;
    bool paused;
    mono_us commit_at;
    mono_us error_at; /* last error, or start */
    bool ready;
    /* Messages read and not offered yet. */
    struct hint hints[MESSAGES_MAX];
    Relata__V1__TupleChange *messages[MESSAGES_MAX];
    size_t n;
};

/* ---- offsets ---- */
static void collect_done(struct kafka_source *s)
{
    for (struct offset_ref *r = lanes_done(s->w->lanes), *next; r; r = next) {
        struct watermark *wm = r->part;
        next = r->next;
        watermark_done(wm, r->seq);
        wm->refs--;
        free(r);
    }
}

static void commit(struct kafka_source *s, struct watermark *wm)
{
    struct err err;
    if (!wm || wm->next <= wm->committed)
        return;
    enum status st = kafka_consumer_commit(s->consumer, wm->partition, wm->next, &err);
    if (st == ST_OK)
        wm->committed = wm->next;
    else
        log_err(LOG_LVL_WARN, "an offset could not be committed yet", &err, NULL);
}

static void show_uncommitted(struct kafka_source *s)
{
    mono_us now = clock_mono_us(), oldest = now, added;
    size_t most = 0;
    int64_t offset;
    for (int i = 0; i < s->nparts; i++) {
        if (!s->parts[i] || !watermark_oldest(s->parts[i], &offset, &added))
            continue;
        size_t kept = watermark_kept(s->parts[i]);
        most = kept > most ? kept : most;
        oldest = added < oldest ? added : oldest;
    }
    metric_set(&m_uncommitted, (double)most);
    metric_set(&m_uncommitted_age, (double)(now - oldest) / 1e6);
}

static void commit_all(struct kafka_source *s)
{
    if (clock_mono_us() < s->commit_at)
        return;
    s->commit_at = deadline_in_ms(COMMIT_EVERY_MS);
    for (int i = 0; i < s->nparts; i++)
        commit(s, s->parts[i]);
    show_uncommitted(s);
}

/* ---- rebalance; inside kafka_consumer_poll() or _free() ---- */
static struct watermark *part_of(const struct kafka_source *s, int32_t partition)
{
    return partition >= 0 && partition < s->nparts ? s->parts[partition] : NULL;
}

static void log_partition(const char *msg, int32_t partition)
{
    char text[16];
    snprintf(text, sizeof text, "%d", partition);
    log_info(msg, "partition", text, NULL);
}

/* If it fails, the next look does it. */
static void pause_part(struct kafka_source *s, struct watermark *wm)
{
    bool pause = s->paused || wm->full;
    if (pause != wm->paused && kafka_consumer_pause(s->consumer, wm->partition, pause, NULL) == ST_OK)
        wm->paused = pause;
}

static void on_assigned(void *arg, int32_t partition)
{
    struct kafka_source *s = arg;
    if (partition >= s->nparts) {
        int n = partition + 16;
        struct watermark **grown = realloc(s->parts, (size_t)n * sizeof *grown);
        if (!grown)
            return; /* its messages are skipped over until a rebalance brings it back */
        memset(grown + s->nparts, 0, (size_t)(n - s->nparts) * sizeof *grown);
        s->parts = grown;
        s->nparts = n;
    }
    struct watermark *wm = s->parts[partition] ? NULL : calloc(1, sizeof *wm);
    if (!wm)
        return;
    watermark_init(wm, partition);
    s->parts[partition] = wm;
    s->owned++;
    metric_set(&m_active, 1);
    pause_part(s, s->parts[partition]);
    log_partition("partition assigned", partition);
}

/* Messages read but not offered: those of the partition are left to its next owner. */
static void forget_buffered(struct kafka_source *s, struct watermark *wm)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->hints[i].ref->part == wm) {
            wm->refs--;
            free(s->hints[i].ref);
            relata__v1__tuple_change__free_unpacked(s->messages[i], NULL);
        } else {
            s->hints[n] = s->hints[i];
            s->messages[n++] = s->messages[i];
        }
    }
    s->n = n;
}

static void give_up(struct kafka_source *s, struct watermark *wm)
{
    wm->refs -= lanes_forget(s->w->lanes, wm, false);
    collect_done(s);
    s->parts[wm->partition] = NULL;
    s->owned--;
    metric_set(&m_active, s->owned > 0);
    watermark_release(wm);
    free(wm);
}

static bool has_refs(const struct kafka_source *s, const int32_t *partitions, int n)
{
    for (int i = 0; i < n; i++) {
        const struct watermark *wm = part_of(s, partitions[i]);
        if (wm && wm->refs > 0)
            return true;
    }
    return false;
}

/* All partitions at once: batches in flight are waited for, what waits for a retry is left to the next owner. */
static void on_revoked(void *arg, const int32_t *partitions, int n, mono_us deadline)
{
    struct kafka_source *s = arg;
    struct watermark *wm;
    for (int i = 0; i < n; i++) {
        if (!(wm = part_of(s, partitions[i])))
            continue;
        forget_buffered(s, wm);
        wm->refs -= lanes_forget(s->w->lanes, wm, true);
    }
    collect_done(s);
    while (has_refs(s, partitions, n) && lanes_busy(s->w->lanes) && clock_mono_us() < deadline) {
        struct pollfd fd = {.fd = lanes_fd(s->w->lanes), .events = POLLIN};
        poll(&fd, 1, 10);
        lanes_fd_clear(s->w->lanes);
        collect_done(s);
    }
    for (int i = 0; i < n; i++) {
        if (!(wm = part_of(s, partitions[i])))
            continue;
        commit(s, wm);
        give_up(s, wm);
        log_partition("partition given back", partitions[i]);
    }
}

static void on_lost(void *arg, int32_t partition)
{
    struct kafka_source *s = arg;
    struct watermark *wm = part_of(s, partition);
    if (!wm)
        return;
    forget_buffered(s, wm);
    give_up(s, wm);
    log_partition("partition lost", partition);
}

/* ---- messages ---- */
static void unreadable(const struct kafka_message *m, const char *why)
{
    char partition[16], offset[24];
    snprintf(partition, sizeof partition, "%d", m->partition);
    snprintf(offset, sizeof offset, "%lld", (long long)m->offset);
    metric_add(&m_unreadable, 1);
    log_error("skipped a Kafka message that cannot be read; the outbox keeps its change", "partition", partition,
              "offset", offset, "reason", why, NULL);
}

static struct bytes view(const char *s)
{
    return (struct bytes){s, strlen(s)};
}

/* The change in the message, if it is one of our store; NULL if there is nothing to do for it. */
static Relata__V1__TupleChange *read_change(struct kafka_source *s, const struct kafka_message *m)
{
    struct err err;
    Relata__V1__TupleChange *c = m->payload ? relata__v1__tuple_change__unpack(NULL, m->payload_len, m->payload) : NULL;
    if (!c) {
        unreadable(m, m->payload ? "not a relata.v1.TupleChange" : "no payload");
        return NULL;
    }
    if (strcmp(c->store, s->w->cfg->store.name) == 0) {
        if (c->id > 0 && tuple_check(view(c->object), view(c->relation), view(c->subject), &err) == ST_OK)
            return c;
        unreadable(m, c->id > 0 ? err.text : "no outbox id");
    }
    relata__v1__tuple_change__free_unpacked(c, NULL);
    return NULL;
}

static void take_message(struct kafka_source *s, struct kafka_message *m)
{
    uint64_t seq;
    struct watermark *wm = part_of(s, m->partition);
    if (!wm)
        return; /* not ours any more */
    struct offset_ref *ref = malloc(sizeof *ref);
    if (!ref || !watermark_add(wm, m->offset, clock_mono_us(), &seq)) {
        free(ref);
        log_error("no memory for a message; its change stays in the outbox", NULL);
        return;
    }
    Relata__V1__TupleChange *c = read_change(s, m);
    if (!c) {
        free(ref);
        watermark_done(wm, seq);
        return;
    }
    wm->refs++;
    *ref = (struct offset_ref){.part = wm, .seq = seq};
    s->hints[s->n] = (struct hint){.key = {c->object, c->relation, c->subject},
                                   .id = c->id,
                                   .xid = c->xid,
                                   .unseen = true,
                                   .created_us = c->created_at_us,
                                   .revoke = c->op == RELATA__V1__OP__OP_DELETE,
                                   .ref = ref};
    s->messages[s->n++] = c;
}

static void offer(struct kafka_source *s)
{
    lanes_offer(s->w->lanes, s->hints, s->n);
    for (size_t i = 0; i < s->n; i++)
        relata__v1__tuple_change__free_unpacked(s->messages[i], NULL);
    s->n = 0;
}

/* ---- back-pressure ---- */
static void look_if_full(struct kafka_source *s, struct watermark *wm)
{
    size_t max = KEPT_WINDOWS * (size_t)s->w->cfg->window, kept = watermark_kept(wm);
    bool full = wm->full ? kept > max / 2 : kept >= max;
    int64_t offset;
    mono_us added;
    if (full && !wm->full && watermark_oldest(wm, &offset, &added)) {
        char partition[16], at[24], seconds[24];
        snprintf(partition, sizeof partition, "%d", wm->partition);
        snprintf(at, sizeof at, "%lld", (long long)offset);
        snprintf(seconds, sizeof seconds, "%lld", (long long)((clock_mono_us() - added) / 1000000));
        log_warn("a partition is read no further: too many changes wait for an older one to be applied", "partition",
                 partition, "offset", at, "seconds", seconds, NULL);
    }
    wm->full = full;
}

static void pause_or_resume(struct kafka_source *s)
{
    size_t window = (size_t)s->w->cfg->window;
    size_t held = lanes_held(s->w->lanes, false);
    size_t revokes = lanes_held(s->w->lanes, true);
    if (revokes > held)
        held = revokes;
    s->paused = s->paused ? held > window / 2 : held >= window;
    for (int i = 0; i < s->nparts; i++) {
        if (!s->parts[i])
            continue;
        look_if_full(s, s->parts[i]);
        pause_part(s, s->parts[i]);
    }
}

static void set_ready(struct kafka_source *s, const struct err *err)
{
    mono_us now = clock_mono_us();
    if (err) {
        s->error_at = now;
        if (s->ready)
            log_err(LOG_LVL_WARN, "Kafka cannot be reached; polling goes on", err, NULL);
        s->ready = false;
        admin_ready(s->w->admin, "kafka", false, err->text);
    } else if (!s->ready && (s->owned > 0 || now - s->error_at > QUIET_MS * 1000)) {
        s->ready = true;
        admin_ready(s->w->admin, "kafka", true, "");
    }
}

/* Poll until there is nothing more to be had, or enough. */
static enum status step(struct kafka_source *s, struct err *err)
{
    enum status st = ST_OK;
    while (st == ST_OK && s->n < MESSAGES_MAX) {
        struct kafka_message m;
        st = kafka_consumer_poll(s->consumer, s->n > 0 ? 0 : POLL_MS, &m, err);
        if (st == ST_OK) {
            take_message(s, &m);
            kafka_message_free(&m);
        }
    }
    offer(s);
    collect_done(s);
    lanes_fd_clear(s->w->lanes);
    commit_all(s);
    pause_or_resume(s);
    return st == ST_OK || st == ST_NOT_FOUND ? ST_OK : st;
}

static enum status consume(struct kafka_source *s, struct err *err)
{
    const struct kafka_rebalance cb = {on_assigned, on_revoked, on_lost, s, source_kafka_drain_ms(s->w->cfg)};
    enum status st = kafka_consumer_new(&s->consumer, &s->w->cfg->kafka, s->w->cfg->group, s->w->cfg->topic, &cb, err);
    while (st == ST_OK && !stop_requested()) {
        admin_alive(s->w->admin);
        enum status polled = step(s, err);
        set_ready(s, polled == ST_OK ? NULL : err);
        if (polled == ST_FATAL)
            st = polled;
        else if (polled != ST_OK)
            (void)stop_sleep_until(deadline_in_ms(POLL_MS));
    }
    return st;
}

int64_t source_kafka_drain_ms(const struct settings *cfg)
{
    return cfg->store.request_timeout_ms + DRAIN_EXTRA_MS;
}

enum status source_kafka_run(struct kafka_source **out, struct writer *w, struct err *err)
{
    struct kafka_source *s = calloc(1, sizeof *s);
    *out = s;
    if (!s)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    s->w = w;
    s->error_at = clock_mono_us();
    admin_ready(w->admin, "kafka", false, "joining the group");
    enum status st = consume(s, err);
    while (st == ST_FATAL && !stop_requested()) { /* the consumer is broken: a new one goes on from what is committed */
        log_err(LOG_LVL_ERROR, "the Kafka consumer is broken; making a new one", err, NULL);
        kafka_consumer_free(s->consumer);
        s->consumer = NULL;
        st = consume(s, err);
    }
    return st;
}

void source_kafka_end(struct kafka_source *s)
{
    if (!s)
        return;
    collect_done(s);
    kafka_consumer_free(s->consumer);
    for (int i = 0; i < s->nparts; i++)
        if (s->parts[i])
            give_up(s, s->parts[i]);
    free(s->parts);
    free(s);
}
