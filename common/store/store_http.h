/*
 * store_http.h - private to common/store: HTTP/1.1 exchanges over curl's multi interface.
 *
 * A peer is where to talk to (read-only once set up, shared by threads). A wire is one thread's set of connections,
 * kept alive between exchanges. An exchange is one request and its answer; it may be used again, and several may be in
 * flight on one wire. Redirects are not followed, proxies of the environment are not used, answers are bounded.
 */
#ifndef RELATA_STORE_STORE_HTTP_H
#define RELATA_STORE_STORE_HTTP_H

#include <curl/curl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/status.h"

/* More than any answer of a store: a page of 100 tuples with the largest contexts has about 4 MB. */
#define STORE_ANSWER_MAX (8u << 20)
#define STORE_REQUEST_MAX (16u << 20)

struct store_peer {
    char *base;   /* "https://host:8080/prefix" without a slash at the end; never holds credentials */
    char *socket; /* path of a Unix socket, or NULL */
    char *shown;  /* for people: as configured */
    const char *ca_file, *cert_file, *key_file; /* the settings' strings; NULL or "" = not given */
    int64_t connect_timeout_ms;
};

/* `url`: http://, https:// or unix:/path. `setting` names it in errors. ST_CONFIG, ST_NOMEM. */
enum status store_peer_init(struct store_peer *p, const char *url, const char *setting, struct err *err) MUST_CHECK;
void store_peer_release(struct store_peer *p); /* accepts a zeroed struct */

struct store_wire;
enum status store_wire_new(struct store_wire **out, struct err *err) MUST_CHECK;
/* Accepts NULL. Its exchanges must have been released. */
void store_wire_free(struct store_wire *w);
/* Whether waiting on this wire ends when the stop flag is raised (default: no). */
void store_wire_heed_stop(struct store_wire *w, bool heed);
/* Whether waiting on this wire ends when `flag` becomes true; NULL = no flag (default). */
void store_wire_heed(struct store_wire *w, const atomic_bool *flag);
/* Makes who waits look at the flag. Any thread. */
void store_wire_wake(struct store_wire *w);
/* The wire heeds a flag that is raised. */
bool store_wire_stopped(const struct store_wire *w);

struct store_exchange {
    long http_status;        /* once answered */
    unsigned retry_after_ms; /* from Retry-After; 0 = not given */
    struct buf answer;       /* the body */
    /* private */
    const struct store_peer *peer;
    CURL *easy;
    struct curl_slist *headers;
    bool running, done;
    bool left; /* a connection stood and the request may have gone out */
    bool once;
    CURLcode rc;
    char reason[CURL_ERROR_SIZE];
};

/* `peer` must outlive it. */
enum status store_exchange_init(struct store_exchange *x, const struct store_peer *peer, struct err *err) MUST_CHECK;
/* Accepts a zeroed struct. `w` is the wire on which it may still run. */
void store_exchange_release(struct store_exchange *x, struct store_wire *w);

struct store_request {
    const char *path;        /* appended to the peer's base */
    const char *type;        /* content type of the body */
    const char *bearer;      /* NULL or "" = no Authorization header */
    const char *traceparent; /* W3C trace context to pass on; NULL or "" = none */
    struct bytes body;       /* data NULL = GET, else POST; must stay until the exchange has ended */
    bool once;               /* never sent a second time by curl: ends as ST_UNKNOWN instead */
};

/* Put the exchange in flight; does not wait. */
enum status store_wire_start(struct store_wire *w, struct store_exchange *x, const struct store_request *rq,
                             struct err *err) MUST_CHECK;
/*
 * Drive the wire until this exchange has ended. ST_OK: there is an HTTP answer, of whatever status. Otherwise the
 * exchange is withdrawn and x->left tells whether the peer may have had the request:
 *   ST_RETRY    it has not (no connection)         ST_UNKNOWN  it may have
 *   ST_DEADLINE it has not, and the deadline passed  ST_STOPPED  the wire heeds a flag, which was raised
 *   ST_CONFIG   TLS set-up or verification failed    ST_NOMEM, ST_FATAL
 */
enum status store_wire_wait(struct store_wire *w, struct store_exchange *x, mono_us deadline,
                            struct err *err) MUST_CHECK;

/* The value of a Retry-After (seconds or HTTP date) as milliseconds from now, at most 60 s; 0 = none that makes sense.
 */
unsigned store_retry_after_ms(const char *value, int64_t now_s);

#endif
