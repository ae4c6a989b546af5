/*
 * http.h - the lister's HTTP server (libmicrohttpd): TCP, TLS, Unix socket. It takes requests in, hands each to a
 * worker thread, and sends the answer. Nothing here knows what a list is.
 *
 * Threads: one event loop (epoll) takes bytes in and out and never waits for anything else; `workers` threads run
 * handlers; a watcher looks at the sockets of suspended requests, since the library does not tell of a hang-up there,
 * and ends connections that are over their time (its own timeout counts inactivity only).
 *
 * Overload: a request that finds the queue full, or its caller over caller_in_flight, is answered at once by the event
 * loop with 503 and Retry-After. A request that waited past its deadline in the queue is answered 503 without being
 * run.
 *
 * Bounds: connections, 16 KiB of request line and headers (else 431), body_max of body (else 413), header_timeout from
 * the first byte to the last header byte, request_timeout from there to the answer, idle_timeout between requests.
 */
#ifndef RELATA_LISTER_HTTP_HTTP_H
#define RELATA_LISTER_HTTP_HTTP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/config/config.h"

struct callers;
struct caller;

struct cfg_http {
    char *listen;               /* "127.0.0.1:0"; "" = no TCP */
    char *unix_socket;          /* path; "" = none */
    char *url_file;             /* gets the URL once listening */
    char *cert_file, *key_file; /* TLS on the TCP port; read again when they change */
    char *cors_origin;          /* "" = no CORS headers */
    int64_t workers, queue, caller_in_flight, connections;
    int64_t body_max;
    int64_t header_timeout_ms, request_timeout_ms, idle_timeout_ms;
};
/* CFG_HTTP_KEYS(T, m) belongs here: section [http]. */

struct param {
    const char *name, *value; /* decoded; valid UTF-8 without NUL (anything else was answered 400) */
};

/* One request, owned by the server; a handler sees it on one worker thread. */
struct request {
    const char *method;         /* "GET", "HEAD", "POST", "OPTIONS" */
    const char *path;           /* decoded, without the query */
    const struct param *params; /* of the query, in order */
    size_t nparams;
    struct bytes body;
    const struct caller *caller; /* who asks; NULL only for paths that need none */
    const char *traceparent;     /* valid W3C, or NULL */
    mono_us received, deadline;
    atomic_bool cancelled; /* the client has hung up */

    /* the answer */
    int status;
    const char *content_type;             /* constant */
    struct buf answer;                    /* bounded at 16 MiB */
    struct buf link, etag_or_www, timing; /* Link, WWW-Authenticate, Server-Timing values; empty = none */
    unsigned retry_after_s;               /* 0 = no header */
};

/* NULL if absent. The first one of that name; handlers that forbid repetition look themselves. */
const char *request_param(const struct request *rq, const char *name);
const char *request_header(const struct request *rq, const char *name);

/* Answer with RFC 9457 application/problem+json; `code` is the stable error code ("invalid_page_token"), also part of
 * `type`; `detail` is for a person and tells nothing about hidden rows. */
void problem(struct request *rq, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The same from a failed call: which HTTP status an `enum status` is; internals (URLs, SQL) are logged, not told. */
void problem_of(struct request *rq, const struct err *err);

/* Runs on a worker. Must fill the answer. `worker` is what worker_begin returned. */
typedef void http_handler(void *worker, struct request *rq);

struct http_app {
    void *arg;
    /* Called in each worker thread when it starts and ends (its Postgres session lives there). NULL = failed. */
    void *(*worker_begin)(void *arg, int number);
    void (*worker_end)(void *worker);
    http_handler *handle;
    /* Whether this path needs a caller (true for all but /openapi.json, /.well-known/...). */
    bool (*needs_caller)(const char *path);
};

struct http;
/* ST_CONFIG: address or certificate is nonsense, or the address is taken. All pointers must outlive the server. */
enum status http_start(struct http **out, const struct cfg_http *cfg, const struct http_app *app,
                       struct callers *callers, struct err *err) MUST_CHECK;
/* Stop taking connections; false if requests are still running at the deadline (then nothing may be freed). */
bool http_drain(struct http *h, mono_us deadline);
void http_free(struct http *h); /* accepts NULL */
const char *http_url(const struct http *h);

#endif
