/*
 * fake_store.h - a scripted HTTP server in the place of the store: answers of its own, or in front of a real one.
 *
 * A request is matched against the rules in the order they were added; the first that matches and is not used up
 * decides. Without a rule it is passed to the real store and its answer returned, or answered with 500 if there is
 * none. Runs in threads of the test; every function is thread-safe.
 */
#ifndef RELATA_TESTS_FAKE_STORE_H
#define RELATA_TESTS_FAKE_STORE_H

#include <stdbool.h>
#include <stddef.h>

struct fake_store;

enum fake_action {
    FAKE_REPLY,       /* status, headers and body of the rule; the real store sees nothing */
    FAKE_PASS,        /* to the real store, its answer back (after delay_ms) */
    FAKE_REPLY_AFTER, /* to the real store, but answer as the rule says: an effect that its sender believes failed */
    FAKE_HANG,        /* no answer until the client goes away or the server is stopped; the real store sees nothing */
    FAKE_CUT,         /* the connection is closed without an answer; the real store sees nothing */
    FAKE_CUT_AFTER,   /* to the real store, then the connection is closed without an answer */
    FAKE_LATE,        /* no answer; to the real store `delay_ms` after it came, whatever the client does meanwhile */
};

struct fake_rule {
    const char *path; /* a part of the path, e.g. "/write"; NULL = any */
    const char *body; /* a part of the body; NULL = any */
    int skip;         /* matching requests to let pass before the rule takes effect */
    int times;        /* how often it may be used; 0 = without end */
    enum fake_action action;
    int status;          /* FAKE_REPLY, FAKE_REPLY_AFTER */
    const char *headers; /* "Retry-After: 1\nX: y", or NULL; Content-Type is application/json unless given */
    const char *reply;   /* the body, or NULL */
    size_t reply_len;    /* 0 = strlen */
    int delay_ms;        /* before the answer (or, FAKE_LATE, before the effect) */
};

/* upstream: URL of a real store ("http://127.0.0.1:8080") or NULL. NULL if it fails. */
struct fake_store *fake_store_start(const char *upstream);
void fake_store_stop(struct fake_store *f); /* waits for late requests to be delivered; accepts NULL */
const char *fake_store_url(const struct fake_store *f);

/* Strings are copied. Returns the rule's number, for fake_store_used. */
int fake_store_rule(struct fake_store *f, const struct fake_rule *rule);
void fake_store_clear(struct fake_store *f); /* no rules any more; hanging requests go on hanging */
/* How often a rule was used. */
int fake_store_used(struct fake_store *f, int rule);

/* Requests whose path holds `path` (NULL = all), so far. */
int fake_store_count(struct fake_store *f, const char *path);
/* The n-th (from 0; -1 = the last) of those: body and header lines; malloc'd, NULL if there is none. */
char *fake_store_body(struct fake_store *f, const char *path, int n);
char *fake_store_headers(struct fake_store *f, const char *path, int n);
/* FAKE_LATE requests that are still to be delivered. */
int fake_store_late_pending(struct fake_store *f);

#endif
