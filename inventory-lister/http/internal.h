/*
 * internal.h - the parts of the server: connections and their watcher (watch.c), the queue and its workers (queue.c), a
 * request's way in (intake.c) and out (answer.c), certificates (certs.c), the whole (server.c).
 *
 * Who owns a job: the event loop until it is queued, then a worker until it resumes the connection, then the event loop
 * again, which frees it when the library says that the request has ended.
 */
#ifndef RELATA_LISTER_HTTP_INTERNAL_H
#define RELATA_LISTER_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>

#include "common/admin/metrics.h"
#include "common/http/certs.h"
#include "inventory-lister/callers/callers.h"
#include "inventory-lister/http/http.h"

#define HEADERS_MAX (16U * 1024)
/* Headers as sent, the library's lists of them, and with them still there the answer's headers, of which Link may have
 * HEADER_VALUE_MAX: what does not fit ends the connection without an answer. */
#define CONNECTION_MEMORY (40U * 1024)
#define ANSWER_MAX (16U * 1024 * 1024)
#define BODIES_MAX (32 * 1024 * 1024) /* all that are being taken in or worked on, of all connections */
#define HEADER_VALUE_MAX 8192
#define RETRY_AFTER_S 1

struct http;

/* ---- jobs ---- */

enum job_state { JOB_TAKING_IN, JOB_QUEUED, JOB_ANSWERED };

struct job {
    struct request rq; /* rq.impl is this */
    struct http *http;
    struct MHD_Connection *c;
    struct conn *conn;
    _Atomic enum job_state state; /* JOB_ANSWERED is set last: who sees it sees the whole answer */
    bool entered;                 /* counted at its caller */
    bool close;                   /* the connection ends with this answer */
    bool has_body;                /* announced */
    bool over_body;               /* more came than is taken */
    bool over_bodies;             /* others have taken too much */
    struct buf body;              /* as it comes in */
    int64_t counted;              /* of it in http.bodies */
    char *text;                   /* path, names and values, decoded */
    mono_us queued;
    struct job *next; /* in the queue */
};

/* ---- connections (watch.c) ---- */

enum phase {
    PHASE_FREE,
    PHASE_HEAD,   /* new: the first request's headers */
    PHASE_BODY,   /* headers are in, the body is not */
    PHASE_RUN,    /* queued or worked on */
    PHASE_ANSWER, /* being sent */
    PHASE_IDLE,   /* between requests, the next one's headers included */
};

struct conn {
    int fd;
    uint32_t generation; /* which use of this slot: events of a former one are dropped */
    enum phase phase;
    bool hung_up;
    bool tls;
    long peer_uid; /* -1 = TCP */
    mono_us deadline;
    struct job *job;   /* while in PHASE_RUN */
    struct conn *next; /* free ones */
};

struct watch;
enum status watch_new(struct watch **out, const struct cfg_http *cfg, size_t max, struct err *err) MUST_CHECK;
enum status watch_start(struct watch *w, void (*tick)(void *arg), void *arg, struct err *err) MUST_CHECK;
void watch_stop(struct watch *w); /* ends the thread */
void watch_free(struct watch *w); /* accepts NULL */
/* NULL if there is no room. */
struct conn *watch_add(struct watch *w, int fd, bool tls, long peer_uid);
void watch_remove(struct watch *w, struct conn *c);
/* The connection's next phase and its end of patience. */
void watch_phase(struct watch *w, struct conn *c, enum phase phase, mono_us deadline);
/* From here on a hang-up cancels the job; one that came before does so at once. Counted until watch_end. */
void watch_run(struct watch *w, struct conn *c, struct job *job, mono_us deadline);
/* The worker is done with it. */
void watch_answer(struct watch *w, struct conn *c, mono_us deadline);
/* A request has begun or ended altogether: what watch_wait_idle counts. */
void watch_begin(struct watch *w);
void watch_end(struct watch *w);
/* Ends idle connections now and, from now on, each when it becomes idle. */
void watch_drain(struct watch *w);
/* False: requests are left at the deadline. */
bool watch_wait_idle(struct watch *w, mono_us deadline);
void watch_cancel_all(struct watch *w);

/* ---- queue (queue.c) ---- */

struct queue;
/* ST_CONFIG or ST_FATAL if a worker cannot begin; `done` is called on the worker with each job when its answer is made.
 */
enum status queue_new(struct queue **out, const struct cfg_http *cfg, const struct http_app *app,
                      void (*done)(struct job *job), struct err *err) MUST_CHECK;
/* A place in the queue, to be used by queue_push or given back by queue_cancel; false if it is full. Never blocks. */
bool queue_reserve(struct queue *q);
/* False: the queue is being freed, the place is given back. */
bool queue_push(struct queue *q, struct job *job) MUST_CHECK;
void queue_cancel(struct queue *q);
/* From now on there is no place any more, and what no worker has begun is answered 503. The queue may be asked until it
 * is freed. Accepts NULL. */
void queue_close(struct queue *q);
void queue_stop(struct queue *q); /* closes it, and waits for what the workers run; accepts NULL */
void queue_free(struct queue *q); /* stops it too; accepts NULL */

/* ---- in and out ---- */

/* The library's callback for a request's parts. `arg` is the struct http. */
enum MHD_Result intake_on_request(void *arg, struct MHD_Connection *c, const char *path, const char *method,
                                  const char *version, const char *body, size_t *body_len, void **state);
/* Leaves texts as they are: decoding is done here, where errors can be answered. */
size_t intake_unescape(void *arg, struct MHD_Connection *c, char *text);
void job_free(struct job *job);
/* Path and query of rq from text as it came, into memory of the job. False: badly encoded. */
bool intake_decode(struct job *job, const char *path);
/* %XX in place; false if malformed, NUL, or no UTF-8. */
bool intake_decode_text(char *text, size_t *len);

/* Queue the answer at the library. */
enum MHD_Result answer_send(struct job *job);
/* A refusal of the server's own, counted by its metric. */
void answer_refuse(struct job *job, struct metric *why, int status, const char *code, const char *detail);

/* ---- the whole ---- */

struct http {
    const struct cfg_http *cfg;
    const struct http_app *app;
    struct callers *callers;
    struct MHD_Daemon *tcp, *local; /* NULL = none */
    int tcp_fd, local_fd;           /* the listening ones; -1 = none */
    struct watch *watch;
    struct queue *queue;
    struct certs *certs;
    struct buf url;
    _Atomic int64_t bodies; /* bytes of all bodies */
    atomic_bool draining;
    bool quiesced;
};

extern struct metric http_refused_queue, http_refused_caller, http_refused_waited, http_refused_token,
    http_refused_headers, http_refused_body, http_refused_slow, http_refused_bad, http_hangups, http_connections,
    http_in_flight, http_queue_wait, http_duration;
void http_count_status(int status);

#endif
