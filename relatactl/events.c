/* events.c - relatactl events: show tuple change events as they come over NATS. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "relatactl/commands.h"

#define QUEUE_MAX 100000
#define SUBSCRIBE_MS 10000

struct events_options {
    const char *store;
    int64_t count, timeout_s;
    bool heartbeats;
};

/* Events that a NATS thread enqueues and the main thread prints. */
struct item {
    json_t *event;
    struct item *next;
};

struct queue {
    pthread_mutex_t lock;
    struct item *first, **last;
    size_t len;
    uint64_t lost; /* the queue was full */
    int wake;
    bool heartbeats;
};

static json_t *event_json(const struct events_seen *seen)
{
    json_t *event = json_pack("{s:s, s:b, s:I, s:I, s:I, s:I, s:b}", "subject", seen->subject ? seen->subject : "",
                              "heartbeat", (int)seen->heartbeat, "writer_id", (json_int_t)seen->writer_id, "epoch",
                              (json_int_t)seen->epoch, "sequence", (json_int_t)seen->sequence, "missed",
                              (json_int_t)seen->gap, "new_epoch", (int)seen->new_epoch);
    json_t *tuples = json_array();
    for (size_t i = 0; i < seen->n; i++) {
        const struct events_change *c = &seen->changes[i];
        (void)json_array_append_new(tuples, json_pack("{s:s, s:s, s:s, s:b, s:I, s:I, s:s*}", "object", c->key.object,
                                                      "relation", c->key.relation, "subject", c->key.subject, "present",
                                                      (int)c->present, "version", (json_int_t)c->version, "xid",
                                                      (json_int_t)c->xid, "traceparent", c->traceparent));
    }
    (void)json_object_set_new(event, "tuples", tuples);
    return event;
}

/* In a NATS thread. */
static void on_event(void *arg, const struct events_seen *seen)
{
    struct queue *q = arg;
    if (seen->heartbeat && !q->heartbeats && !seen->gap && !seen->new_epoch)
        return;
    struct item *item = calloc(1, sizeof *item);
    json_t *event = event_json(seen);
    uint64_t one = 1;
    (void)pthread_mutex_lock(&q->lock);
    if (item && event && q->len < QUEUE_MAX) {
        item->event = event;
        *q->last = item;
        q->last = &item->next;
        q->len++;
        item = NULL;
        event = NULL;
    } else {
        q->lost++;
    }
    (void)pthread_mutex_unlock(&q->lock);
    free(item);
    json_decref(event);
    while (write(q->wake, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

static json_t *queue_take(struct queue *q)
{
    json_t *event = NULL;
    (void)pthread_mutex_lock(&q->lock);
    struct item *item = q->first;
    if (item) {
        q->first = item->next;
        if (!q->first)
            q->last = &q->first;
        q->len--;
        event = item->event;
    }
    (void)pthread_mutex_unlock(&q->lock);
    free(item);
    return event;
}

static void print_text(json_t *event)
{
    const char *subject = json_string_value(json_object_get(event, "subject"));
    long long missed = json_integer_value(json_object_get(event, "missed"));
    long long sequence = json_integer_value(json_object_get(event, "sequence"));
    size_t i;
    json_t *t;
    if (missed)
        (void)printf("%s  MISSED %lld events before sequence %lld\n", subject, missed, sequence);
    if (json_is_true(json_object_get(event, "new_epoch")))
        (void)printf("%s  new writer %lld epoch %lld\n", subject,
                     (long long)json_integer_value(json_object_get(event, "writer_id")),
                     (long long)json_integer_value(json_object_get(event, "epoch")));
    else if (json_is_true(json_object_get(event, "heartbeat")))
        (void)printf("%s  heartbeat\n", subject);
    json_array_foreach(json_object_get(event, "tuples"), i, t)
    {
        (void)printf("%s  %lld  %s %s#%s@%s  version %lld\n", subject, sequence,
                     json_is_true(json_object_get(t, "present")) ? "+" : "-",
                     json_string_value(json_object_get(t, "object")), json_string_value(json_object_get(t, "relation")),
                     json_string_value(json_object_get(t, "subject")),
                     (long long)json_integer_value(json_object_get(t, "version")));
    }
}

/* One JSON document a line, so that it can be followed. */
static void print_event(const struct ctl *ctl, json_t *event)
{
    if (!ctl->json) {
        print_text(event);
    } else if (json_dumpf(event, stdout, JSON_COMPACT) == 0) {
        (void)fputc('\n', stdout);
    }
    (void)fflush(stdout);
}

/* Until `count` events, the deadline (ST_DEADLINE) or the stop flag (ST_OK). */
static enum status follow(struct ctl *ctl, struct queue *q, const struct events_options *o, struct err *err)
{
    mono_us deadline = o->timeout_s ? deadline_in_ms(o->timeout_s * 1000) : DEADLINE_NONE;
    for (int64_t shown = 0; o->count == 0 || shown < o->count;) {
        json_t *event = queue_take(q);
        if (event) {
            print_event(ctl, event);
            shown += !json_is_true(json_object_get(event, "heartbeat"));
            json_decref(event);
            if (ferror(stdout))
                return err_set(err, ST_FATAL, "", "cannot write to standard output");
            continue;
        }
        if (stop_requested())
            return ST_OK;
        if (clock_mono_us() >= deadline)
            return err_set(err, ST_DEADLINE, "", "%lld events in %lld s", (long long)shown, (long long)o->timeout_s);
        struct pollfd p[2] = {{.fd = q->wake, .events = POLLIN}, {.fd = stop_fd(), .events = POLLIN}};
        uint64_t count;
        if (poll(p, 2, deadline_poll_ms(deadline)) > 0 && p[0].revents && read(q->wake, &count, sizeof count) < 0 &&
            errno != EAGAIN && errno != EINTR)
            return err_set(err, ST_FATAL, "", "cannot read an eventfd: %m");
    }
    return ST_OK;
}

static enum exit_code events_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    (void)nargs;
    (void)args;
    const struct events_options *o = opts;
    struct err err = {.status = ST_OK};
    struct events_sub *sub = NULL;
    struct queue q = {.lock = PTHREAD_MUTEX_INITIALIZER, .heartbeats = o->heartbeats};
    enum status st = ST_OK;
    q.last = &q.first;
    q.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (q.wake < 0)
        st = err_set(&err, ST_FATAL, "", "no eventfd: %m");
    if (st == ST_OK && !*ctl->settings.nats.url)
        st = err_set(&err, ST_CONFIG, "", "nats.url is empty: where are the events?");
    if (st == ST_OK)
        st = events_sub_new(&sub, &ctl->settings.nats, o->store ? o->store : ctl->settings.store.name, on_event, &q,
                            deadline_in_ms(SUBSCRIBE_MS), &err);
    if (st == ST_OK)
        st = follow(ctl, &q, o, &err);
    events_sub_free(sub);
    for (json_t *left; (left = queue_take(&q)) != NULL;)
        json_decref(left);
    if (q.lost)
        (void)fprintf(stderr, "relatactl events: %llu events were not shown: output is too slow\n",
                      (unsigned long long)q.lost);
    if (q.wake >= 0)
        (void)close(q.wake);
    return st == ST_OK ? EXIT_DONE : ctl_fail(ctl, &err);
}

#define AT(member) offsetof(struct events_options, member)
static const struct option_spec events_specs[] = {
    {"store", OPTION_TEXT, AT(store), "NAME", "events of this store; * = of all; default: store.name", 0, 0, 0},
    {"count", OPTION_INT, AT(count), "N", "end after so many events; 0 = go on until interrupted", 0, 0, INT64_MAX},
    {"timeout", OPTION_INT, AT(timeout_s), "SECONDS", "give up after so long, exit code 4; 0 = never", 0, 0, 31536000},
    {"heartbeats", OPTION_FLAG, AT(heartbeats), NULL, "show the writers' heartbeats too", 0, 0, 0},
    {0},
};

const struct command command_events = {
    .name = "events",
    .args = "",
    .summary = "Show changes of tuples as they are published on NATS",
    .details =
        "One line a tuple: subject, sequence, + or -, the tuple. Events that were missed are told. With --json each\n"
        "event is one line of JSON. Example:\n"
        "  relatactl events --set nats.url=nats://127.0.0.1:4222 --count 10",
    .options = events_specs,
    .run = events_run,
};
