#include "tests/harness/raw_events.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/relata.pb-c.h"
#include "tests/harness/harness.h"

struct raw_events {
    int fd;
    char store[80];
};

static void say(struct raw_events *r, const void *data, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = send(r->fd, (const char *)data + done, len - done, MSG_NOSIGNAL);
        if (n <= 0)
            fail_msg("NATS took no event");
        done += (size_t)n;
    }
}

/* Read until the server has said `word`. */
static void await(struct raw_events *r, const char *word)
{
    char seen[8192];
    size_t len = 0;
    do {
        ssize_t n = recv(r->fd, seen + len, sizeof seen - 1 - len, 0);
        if (n <= 0)
            fail_msg("NATS did not say %s", word);
        len += (size_t)n;
        seen[len] = '\0';
    } while (!strstr(seen, word));
    if (strstr(seen, "-ERR"))
        fail_msg("NATS: %s", seen);
}

struct raw_events *raw_events_new(const char *url, const char *store)
{
    struct raw_events *r = calloc(1, sizeof *r);
    char host[64];
    unsigned port;
    struct sockaddr_in to = {.sin_family = AF_INET};
    struct timeval wait = {.tv_sec = 30};
    static const char hello[] = "CONNECT {\"verbose\":false,\"pedantic\":false}\r\nPING\r\n";
    if (!r || sscanf(url, "nats://%63[0-9.]:%u", host, &port) != 2 || inet_pton(AF_INET, host, &to.sin_addr) != 1)
        fail_msg("not the URL of a local NATS server: %s", url);
    snprintf(r->store, sizeof r->store, "%s", store);
    to.sin_port = htons((uint16_t)port);
    r->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(r->fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    if (connect(r->fd, (const struct sockaddr *)&to, sizeof to) != 0)
        fail_msg("no connection to %s", url);
    say(r, hello, sizeof hello - 1);
    await(r, "PONG");
    return r;
}

void raw_events_free(struct raw_events *r)
{
    if (!r)
        return;
    close(r->fd);
    free(r);
}

static void publish(struct raw_events *r, const char *subject, const void *data, size_t len)
{
    char line[256];
    int n = snprintf(line, sizeof line, "PUB %s %zu\r\n", subject, len);
    say(r, line, (size_t)n);
    say(r, data, len);
    say(r, "\r\nPING\r\n", 8);
    await(r, "PONG");
}

static char *text(const char *s)
{
    return (char *)(uintptr_t)s;
}

void raw_events_tuple(struct raw_events *r, int64_t writer, int64_t epoch, uint64_t sequence, const char *model_id,
                      const char *object, const char *relation, const char *subject)
{
    Relata__V1__TuplesChanged event;
    Relata__V1__TupleState state, *states[] = {&state};
    uint8_t data[2048];
    char to[160];
    relata__v1__tuples_changed__init(&event);
    relata__v1__tuple_state__init(&state);
    state.object = text(object);
    state.relation = text(relation);
    state.subject = text(subject);
    event.store = r->store;
    event.writer_id = writer;
    event.epoch = epoch;
    event.sequence = sequence;
    event.model_id = text(model_id);
    event.n_tuples = 1;
    event.tuples = states;
    assert_true(relata__v1__tuples_changed__get_packed_size(&event) <= sizeof data);
    snprintf(to, sizeof to, "relata.tuples.%s.%.*s", r->store, (int)strcspn(object, ":"), object);
    publish(r, to, data, relata__v1__tuples_changed__pack(&event, data));
}

void raw_events_beat(struct raw_events *r, int64_t writer, int64_t epoch, const char *type, uint64_t last)
{
    Relata__V1__Heartbeat beat;
    Relata__V1__LastSequence of, *list[] = {&of};
    uint8_t data[512];
    char subject[160], to[160];
    relata__v1__heartbeat__init(&beat);
    relata__v1__last_sequence__init(&of);
    snprintf(subject, sizeof subject, "relata.tuples.%s.%s", r->store, type ? type : "");
    snprintf(to, sizeof to, "relata.heartbeat.%s", r->store);
    of.subject = subject;
    of.sequence = last;
    beat.store = r->store;
    beat.writer_id = writer;
    beat.epoch = epoch;
    beat.n_last = type != NULL;
    beat.last = list;
    publish(r, to, data, relata__v1__heartbeat__pack(&beat, data));
}
