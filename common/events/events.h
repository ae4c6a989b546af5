/*
 * events.h - "these tuples changed", on NATS (nats.c). Only this room includes nats.h.
 *
 * Subject: relata.tuples.<store>.<object type>, both encoded injectively (events_token). Payload:
 * relata.v1.TuplesChanged (proto/), with CloudEvents headers (ce-specversion, ce-type, ce-source, ce-id, ce-time,
 * content-type) and traceparent. Each publisher has (writer id, epoch); each subject has a sequence that grows by one
 * per event. Each second a heartbeat on relata.heartbeat.<store> carries the last sequence of every subject, so that a
 * subscriber sees every gap, a lost last event and a new epoch.
 *
 * The publisher is thread-safe; a thread of its own talks to the server. NATS being down or frozen never blocks a
 * caller longer than nats.flush_timeout, and that once, not per call; it never fails replication: events that could not
 * be sent are counted and make a gap that subscribers see.
 */
#ifndef RELATA_EVENTS_EVENTS_H
#define RELATA_EVENTS_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tuple/tuple.h"

/* Section [nats]. */
struct cfg_nats {
    char *url; /* nats://, tls://, several with commas; "" = no events */
    char *user, *password, *token, *credentials_file, *nkey_seed_file, *ca_file, *cert_file, *key_file;
    int64_t flush_timeout_ms;
};
/* clang-format off */
#define CFG_NATS_KEYS(T, m)                                                                                       \
    {"nats", "url", CFG_STRING, offsetof(T, m.url), "", 0, 0, NULL, NULL,                                         \
     "NATS servers, comma separated; empty = no events are sent"},                                                \
    {"nats", "user", CFG_STRING, offsetof(T, m.user), "", 0, 0, NULL, NULL, "user name"},                         \
    {"nats", "password", CFG_SECRET, offsetof(T, m.password), "", 0, 0, NULL, NULL, "password of that user"},     \
    {"nats", "token", CFG_SECRET, offsetof(T, m.token), "", 0, 0, NULL, NULL, "authentication token"},            \
    {"nats", "credentials_file", CFG_STRING, offsetof(T, m.credentials_file), "", 0, 0, NULL, NULL,               \
     "user credentials (.creds): JWT and seed"},                                                                  \
    {"nats", "nkey_seed_file", CFG_STRING, offsetof(T, m.nkey_seed_file), "", 0, 0, NULL, NULL, "NKey seed"},     \
    {"nats", "ca_file", CFG_STRING, offsetof(T, m.ca_file), "", 0, 0, NULL, NULL,                                 \
     "PEM file of the authorities that sign the servers' certificates"},                                          \
    {"nats", "cert_file", CFG_STRING, offsetof(T, m.cert_file), "", 0, 0, NULL, NULL, "client certificate, PEM"}, \
    {"nats", "key_file", CFG_STRING, offsetof(T, m.key_file), "", 0, 0, NULL, NULL, "client key, PEM"},           \
    {"nats", "flush_timeout", CFG_DURATION, offsetof(T, m.flush_timeout_ms), "500ms", 1, 60000, NULL, NULL,       \
     "longest wait for NATS to take a batch's events before replication goes on without it"}
/* clang-format on */

struct events_pub;

struct events_change {
    struct tuple_key key;
    bool present;
    int64_t version; /* outbox id of the state */
    uint64_t xid;
    const char *traceparent; /* may be NULL */
};

/* What can be told of the settings without connecting, files included: ST_OK (also for an empty URL) or ST_CONFIG. */
enum status events_check(const struct cfg_nats *cfg, struct err *err) MUST_CHECK;

/* Starts connecting, and waits for it at most flush_timeout: without success it goes on in the background. ST_CONFIG
 * for bad settings. With an empty URL all calls do nothing and succeed. */
enum status events_pub_new(struct events_pub **out, const struct cfg_nats *cfg, const char *store,
                           struct err *err) MUST_CHECK;
/* May wait for a connection attempt to end, up to 2 s a server. Accepts NULL. */
void events_pub_free(struct events_pub *p);
/* A new identity: sequences start at 1 again. Called at start and whenever the writer registers anew. */
void events_pub_identity(struct events_pub *p, int64_t writer_id, int64_t epoch);
/* Publish the changes, one event per object type, and wait for the flush, at most flush_timeout; while the server is
 * away or did not answer the last flush, return at once. ST_OK: the server has them; ST_RETRY: it could not be told
 * within the bound (counted). */
enum status events_publish(struct events_pub *p, const char *model_id, const struct events_change *changes, size_t n,
                           struct err *err);
/* Call each second; does not block. */
void events_heartbeat(struct events_pub *p);

struct events_stats {
    bool connected;
    uint64_t published, failed, reconnects;
};
void events_pub_stats(struct events_pub *p, struct events_stats *out);

/* One NATS subject token: [A-Za-z0-9_-] stay, every other byte becomes %XX; injective. */
void events_token(const char *s, struct buf *out);

/* ---- subscriber ---- */
struct events_sub;
struct events_seen {
    bool heartbeat;
    int64_t writer_id, epoch;
    uint64_t sequence;
    uint64_t gap;   /* events of this subject that were missed before this one (0 = none) */
    bool new_epoch; /* the first message of this (writer, epoch), or since a reconnect */
    bool unknown;   /* the first that is heard of this subject, and it is not its first event: not known to be missed,
                     * but not known to have been heard either */
    const char *subject;
    const char *model_id; /* of an event: the model in force for its writer; "" in a heartbeat */
    int64_t sent_us;      /* of an event: when it was made (ce-time), microseconds since the Unix epoch; 0 = unknown */
    const struct events_change *changes;
    size_t n;
};
/* A cache built from decisions must be flushed when this is true: something may have changed unheard. */
static inline bool events_unheard(const struct events_seen *seen)
{
    return seen->gap > 0 || seen->new_epoch || seen->unknown;
}
/* Called in a NATS thread; only enqueue there. A heartbeat calls once for each subject with a gap, or unknown in an
 * epoch that is not new, then once for itself. */
typedef void events_on_event(void *arg, const struct events_seen *seen);
/* Subscribes to all events and heartbeats of a store ("*" = every store). Blocks until subscribed or the deadline. */
enum status events_sub_new(struct events_sub **out, const struct cfg_nats *cfg, const char *store,
                           events_on_event *on_event, void *arg, mono_us deadline, struct err *err) MUST_CHECK;
void events_sub_free(struct events_sub *s); /* accepts NULL */

#endif
