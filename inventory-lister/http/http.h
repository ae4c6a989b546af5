/*
 * http.h - the lister's HTTP server (libmicrohttpd): TCP, TLS, Unix socket. It takes requests in, hands each to a
 * worker thread, and sends the answer. Nothing here knows what a list is.
 *
 * Threads: an event loop (epoll) for TCP and one for the Unix socket take bytes in and out and never wait for anything
 * else; `workers` threads run handlers; a watcher looks at the sockets of suspended requests, since the library does
 * not tell of a hang-up there, ends connections that are over their time (its own timeout counts inactivity only), and
 * reads certificates again.
 *
 * Overload: a request that finds the queue full, or its caller over caller_in_flight, is answered at once by the event
 * loop with 503 and Retry-After; so is one whose body would make all bodies together larger than 32 MiB. A request that
 * waited past its deadline in the queue is answered 503 without being run. A caller's request is in flight until its
 * answer is sent.
 *
 * Bounds: connections (of each of TCP and the Unix socket; more wait until one ends), 16 KiB of request line and
 * headers (else 431), body_max of body (else 413), header_timeout from the connection's start to the last header byte
 * (else 408), request_timeout from there to the answer (a handler that takes 5 s more, or twice its time, is cancelled
 * and its connection ended), idle_timeout of silence between requests, and 64 KiB/s for reading an answer. A second
 * request on a connection has idle_timeout + header_timeout from the answer before it.
 *
 * Answered here, as application/problem+json: 400 bad_request (encoding, headers given twice), 401, 403 forbidden_host,
 * 405 method_not_allowed, 408 request_timeout, 413 body_too_large, 431 headers_too_large, 503 overloaded, caller_busy.
 * What the library refuses before it knows a request (no HTTP, headers far over the bound, HTTP/1.1 without Host)
 * gets its own short HTML with status 400, 413, 414 or 431 and the connection's end.
 *
 * Every answer has Cache-Control: no-store, X-Content-Type-Options: nosniff and, if the request has an X-Request-ID of
 * at most 256 visible ASCII characters, that again. CORS headers and OPTIONS only if cors_origin is set. With
 * callers.anonymous, TCP requests must name a loopback Host: a page of another site cannot make a browser read answers
 * by pointing its own name here.
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

/* clang-format off */
#define CFG_HTTP_KEYS(T, m)                                                                                     \
    {"http", "listen", CFG_STRING, offsetof(T, m.listen), "127.0.0.1:0", 0, 0, NULL, NULL,                      \
     "address and port of the API; port 0 picks a free one, empty = no TCP"},                                   \
    {"http", "unix_socket", CFG_STRING, offsetof(T, m.unix_socket), "", 0, 0, NULL, NULL,                       \
     "path of a Unix socket (mode 0660) with the API; empty = none"},                                           \
    {"http", "url_file", CFG_STRING, offsetof(T, m.url_file), "", 0, 0, NULL, NULL,                             \
     "file that gets the API's URL once it is listening"},                                                      \
    {"http", "cert_file", CFG_STRING, offsetof(T, m.cert_file), "", 0, 0, NULL, NULL,                           \
     "certificate chain (PEM) of the TCP port; read again when it changes; empty = no TLS"},                    \
    {"http", "key_file", CFG_STRING, offsetof(T, m.key_file), "", 0, 0, NULL, NULL,                             \
     "private key (PEM) of cert_file"},                                                                         \
    {"http", "cors_origin", CFG_STRING, offsetof(T, m.cors_origin), "", 0, 0, NULL, NULL,                       \
     "the origin whose pages may read answers, such as https://console.example, or * for all; empty = none"},   \
    {"http", "workers", CFG_INT, offsetof(T, m.workers), "16", 1, 1024, NULL, "threads",                        \
     "requests that are worked on at once; each has a Postgres session"},                                       \
    {"http", "queue", CFG_INT, offsetof(T, m.queue), "64", 1, 65536, NULL, "requests",                          \
     "requests that may wait for a worker; more get 503 at once"},                                              \
    {"http", "caller_in_flight", CFG_INT, offsetof(T, m.caller_in_flight), "32", 1, 65536, NULL, "requests",    \
     "requests that one caller may have waiting or worked on; more get 503 at once"},                           \
    {"http", "connections", CFG_INT, offsetof(T, m.connections), "4096", 1, 100000, NULL, NULL,                 \
     "most connections of the TCP port, and of the Unix socket"},                                               \
    {"http", "body_max", CFG_SIZE, offsetof(T, m.body_max), "1MiB", 1024, 67108864, NULL, NULL,                 \
     "largest body of a request; larger ones get 413"},                                                         \
    {"http", "header_timeout", CFG_DURATION, offsetof(T, m.header_timeout_ms), "10s", 50, 600000, NULL, NULL,   \
     "longest time from a connection's start to the end of its first request's headers"},                       \
    {"http", "request_timeout", CFG_DURATION, offsetof(T, m.request_timeout_ms), "10s", 50, 600000, NULL, NULL, \
     "longest time from the end of the headers to the answer"},                                                 \
    {"http", "idle_timeout", CFG_DURATION, offsetof(T, m.idle_timeout_ms), "60s", 1000, 3600000, NULL, NULL,    \
     "longest silence of a connection between two requests"}
/* clang-format on */

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
    struct buf link, timing;              /* values of Link and Server-Timing, bounded at 8 KiB; empty = none */
    const char *allow, *www_authenticate; /* header values for 405 and 401; constant; NULL = none */
    unsigned retry_after_s;               /* 0 = no header */

    void *impl; /* private; NULL in a request that a test has made, which then has no headers */
};

/* NULL if absent. The first one of that name; handlers that forbid repetition look themselves. */
const char *request_param(const struct request *rq, const char *name);
/* By any case of the name. The value's bytes are as they came, but for NUL, which ends it. */
const char *request_header(const struct request *rq, const char *name);

/* Answer with RFC 9457 application/problem+json, instead of what was in `answer` before; `code` is the stable error
 * code
 * ("invalid_page_token"), also part of `type` ("urn:relata:problem:<code>"); `detail` is for a person and tells nothing
 * about hidden rows. */
void problem(struct request *rq, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The same from a failed call: ST_INVALID is 400 (err->code if it is of a-z and _, else invalid_argument), ST_TOO_BIG
 * 413, ST_NOT_FOUND 404, ST_CONFLICT 409, these with err->text as the detail; ST_DEADLINE is 504, the rest 503 with
 * Retry-After, but for ST_FATAL, which is 500: their texts (URLs, SQL) are logged, not told. */
void problem_of(struct request *rq, const struct err *err);
/* A traceparent of W3C Trace Context, as request.traceparent holds it. */
bool traceparent_valid(const char *value);

/* Runs on a worker. Must fill the answer: a status and a body, or problem(). Status 0 is right only if the client has
 * hung up: nothing is sent then. */
typedef void http_handler(void *worker, struct request *rq);

struct http_app {
    void *arg;
    /* Called in each worker thread when it starts and ends (its Postgres session lives there). NULL = failed. */
    void *(*worker_begin)(void *arg, int number);
    void (*worker_end)(void *worker);
    http_handler *handle;
    /* Whether this path needs a caller (true for all but /openapi.json, /.well-known/...). */
    bool (*needs_caller)(const char *path);
    /* A path's methods, as Allow names them, for answers to methods that the server does not know; the path as it came,
     * not decoded. The result is constant. The member may be NULL: GET, HEAD, POST everywhere. */
    const char *(*methods)(const char *path);
};

struct http;
/* What can be told of the settings without listening: ST_OK or ST_CONFIG (files are read). */
enum status http_check(const struct cfg_http *cfg, struct err *err) MUST_CHECK;
/* ST_CONFIG: address or certificate is nonsense, the address is taken, a worker could not begin, or anonymous callers
 * would be let in from afar. All pointers must outlive the server. One server with TLS in a process. */
enum status http_start(struct http **out, const struct cfg_http *cfg, const struct http_app *app,
                       struct callers *callers, struct err *err) MUST_CHECK;
/* Stop taking connections, end idle ones, finish the requests that are there (each with Connection: close). False if
 * requests are still running at the deadline: http_free would wait for their handlers. Blocks; one thread. */
bool http_drain(struct http *h, mono_us deadline);
/* Accepts NULL. Requests that still run are cancelled, and waited for; those that wait are answered 503. */
void http_free(struct http *h);
/* "http://127.0.0.1:40123", "https://..", or "unix:/path" if there is no TCP. */
const char *http_url(const struct http *h);
/* Before threads start. */
void http_metrics_register(void);

#endif
