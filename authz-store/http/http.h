/*
 * http.h - authz-store's HTTP server (libmicrohttpd): TCP, TLS, Unix socket. It takes calls in, has them handled, and
 * sends the answers. Nothing here knows what a check is.
 *
 * Threads: `loops` event loops (epoll) for TCP, one for the Unix socket. A handler runs on the loop that took the call
 * in, for decisions take microseconds and another thread would cost more than they do; it must not wait for anything.
 * One that has to wait calls http_suspend() and is answered by http_resume() from any thread.
 *
 * Bounds: connections (more wait), 32 KiB of request line and headers, body_max of body (else refused with status 413,
 * which the application may change), idle_timeout of silence, after which the connection ends.
 *
 * Callers: with keys, every call but GET /healthz must carry `Authorization: Bearer KEY`; keys are kept as digests and
 * compared in constant time. Without keys anyone who reaches the port may do anything, and so only loopback and the
 * Unix socket (mode 0660) are listened on.
 */
#ifndef RELATA_AUTHZ_HTTP_HTTP_H
#define RELATA_AUTHZ_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/config/config.h"

struct cfg_http {
    char *listen, *unix_socket, *url_file;
    char *cert_file, *key_file; /* TLS on the TCP port; read again when they change */
    char *keys_file;            /* preshared keys, one a line */
    int64_t loops, connections, body_max, idle_timeout_ms;
};

/* clang-format off */
#define CFG_HTTP_KEYS(T, m)                                                                                             \
    {"http", "listen", CFG_STRING, offsetof(T, m.listen), "127.0.0.1:0", 0, 0, NULL, NULL,                              \
     "address and port of the API; port 0 picks a free one, empty = no TCP"},                                           \
    {"http", "unix_socket", CFG_STRING, offsetof(T, m.unix_socket), "", 0, 0, NULL, NULL,                               \
     "path of a Unix socket (mode 0660) with the API; empty = none"},                                                   \
    {"http", "url_file", CFG_STRING, offsetof(T, m.url_file), "", 0, 0, NULL, NULL,                                     \
     "file that gets the API's URL once it is listening"},                                                              \
    {"http", "cert_file", CFG_STRING, offsetof(T, m.cert_file), "", 0, 0, NULL, NULL,                                   \
     "certificate chain (PEM) of the TCP port; read again when it changes; empty = no TLS"},                            \
    {"http", "key_file", CFG_STRING, offsetof(T, m.key_file), "", 0, 0, NULL, NULL,                                     \
     "private key (PEM) of cert_file"},                                                                                 \
    {"http", "keys_file", CFG_STRING, offsetof(T, m.keys_file), "", 0, 0, NULL, NULL,                                   \
     "file of preshared keys, one a line, of which a caller must name one; empty = none, and only loopback is served"}, \
    {"http", "loops", CFG_INT, offsetof(T, m.loops), "2", 1, 256, NULL, "threads",                                      \
     "event loops of the TCP port; decisions are made on them"},                                                        \
    {"http", "connections", CFG_INT, offsetof(T, m.connections), "4096", 1, 100000, NULL, NULL,                         \
     "most connections of the TCP port, and of the Unix socket"},                                                       \
    {"http", "body_max", CFG_SIZE, offsetof(T, m.body_max), "602KiB", 1024, 67108864, NULL, NULL,                       \
     "largest body of a request; larger ones get 413"},                                                                 \
    {"http", "idle_timeout", CFG_DURATION, offsetof(T, m.idle_timeout_ms), "60s", 1000, 3600000, NULL, NULL,            \
     "longest silence of a connection"}
/* clang-format on */

/* One request and its answer, owned by the server. */
struct http_call {
    const char *method, *path; /* the path as it came, without the query */
    struct bytes body;
    mono_us received;
    /* the answer */
    int status;
    const char *content_type;        /* constant */
    struct buf answer;               /* at most 64 MiB */
    char store_id[27], model_id[27]; /* headers; "" = none */
    void *app;                       /* the handler's own */
    void *impl;                      /* private */
};

/* Of the query, decoded; NULL = absent. On the handler's thread. */
const char *http_query(const struct http_call *call, const char *name);
/* After it the call may be answered on another thread, even before the handler returns; nothing else of it may be
 * touched here any more. */
void http_suspend(struct http_call *call);
void http_resume(struct http_call *call);

struct http_app {
    void *arg;
    void (*handle)(void *arg, struct http_call *call);
    /* Told of each call when its answer has been made. May be NULL. */
    void (*done)(void *arg, const struct http_call *call);
    /* The answer to a call without a right key, or with too large a body: status is set. */
    void (*refuse)(void *arg, struct http_call *call, const char *why);
};

struct http;
/* What can be told of the settings without listening (files are read). ST_OK or ST_CONFIG. */
enum status http_check(const struct cfg_http *cfg, struct err *err) MUST_CHECK;
/* ST_CONFIG, ST_NOMEM, ST_FATAL. Pointers must outlive the server. One server with TLS in a process. */
enum status http_start(struct http **out, const struct cfg_http *cfg, const struct http_app *app,
                       struct err *err) MUST_CHECK;
/* Stops taking connections and waits for calls that are there. False: some are left at the deadline. */
bool http_drain(struct http *h, mono_us deadline);
/* Accepts NULL. No call may be suspended. */
void http_free(struct http *h);
/* "http://127.0.0.1:40123", "https://..", or "unix:/path". */
const char *http_url(const struct http *h);
/* Now and then, on one thread: reads certificates and keys again if they have changed. */
void http_look(struct http *h);

#endif
