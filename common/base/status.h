/*
 * status.h - the one set of outcomes that Relata's library code returns.
 *
 * Every fallible function returns `enum status` and takes a `struct err *`
 * (which may be NULL) that it fills only when it fails. Library code neither
 * logs what it returns nor exits; the loop that decides what to do logs once.
 */
#ifndef RELATA_BASE_STATUS_H
#define RELATA_BASE_STATUS_H

#include <stdbool.h>

enum status {
    ST_OK = 0,

    /* Retryable: the same call may succeed later. */
    ST_RETRY,     /* refused or failed, and certainly without effect */
    ST_THROTTLED, /* refused because of load; err.retry_after_ms may say for how long */
    ST_CONFLICT,  /* lost a race, or the stored value differs (store: 409) */
    ST_UNKNOWN,   /* sent, but the outcome is not known: timeout, lost connection, 5xx */
    ST_DEADLINE,  /* the caller's deadline passed before anything was sent */

    /* Permanent: this input will never be accepted; others may be. */
    ST_INVALID, /* malformed or refused by its content */
    ST_TOO_BIG, /* over a size limit */

    /* Wrong set-up: stop making progress and tell a person; nothing is to be parked. */
    ST_DENIED,  /* authentication or authorization failed (401, 403, 28xxx, 42501) */
    ST_MISSING, /* the store, model, table, topic or slot that was named does not exist */
    ST_CONFIG,  /* bad option, key, DSN, URL or file */

    /* Local. */
    ST_NOT_FOUND, /* a lookup that found nothing; not an error by itself */
    ST_STOPPED,   /* the stop flag was raised while waiting */
    ST_NOMEM,
    ST_FATAL, /* a bug or a broken invariant */
};

/* What went wrong, for a person. Owned by the caller, no heap. */
struct err {
    enum status status;
    unsigned retry_after_ms; /* ST_THROTTLED: wait at least this long; 0 = unknown */
    char code[64];           /* the peer's own code: SQLSTATE, OpenFGA code name, librdkafka name */
    char text[1024];         /* one line: what happened, to which thing, what to do */
};

/* A short lower-case word for logs and metrics: "ok", "retry", ... Never NULL. */
const char *status_name(enum status st);

/* True for the first class above: trying again makes sense. */
bool status_is_retryable(enum status st);

/* Fill `err` (if not NULL) and return `st`. The text is cut at a UTF-8 boundary; newlines become spaces. */
enum status err_set(struct err *err, enum status st, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Put context before err->text: "reading slot: <text>". Keeps status and code. Returns err->status. */
enum status err_prefix(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define MUST_CHECK __attribute__((warn_unused_result))

#endif
