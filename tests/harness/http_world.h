/*
 * http_world.h - the lister's HTTP server in this process with a tiny application, and clients that are raw sockets, so
 * that they may misbehave. No services. One world a test; one thread, but for the calls that say otherwise.
 *
 * The application: /block waits until `released` (or until the request is cancelled), /big answers 4 MiB, /fail an
 * internal error, /nothing... nothing; anything else is echoed, with a long Link header at /link. All but /open need a
 * caller.
 */
#ifndef RELATA_HARNESS_HTTP_WORLD_H
#define RELATA_HARNESS_HTTP_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>

#include "inventory-lister/http/internal.h"
#include "tests/harness/lister_settings.h"

#define PATIENCE_MS 10000

extern atomic_bool released;                             /* /block returns */
extern atomic_int blocked, cancelled, ran, began, ended; /* requests in /block, cancelled there, run at all; workers */

struct world {
    struct cfg_http cfg;
    struct cfg_callers callers_cfg;
    struct http_app app;
    struct callers *callers;
    struct http *http;
    int port;
};

/* For cmocka: settings of a small server, not yet started; and its end, which fails if a worker did not end. */
int world_setup(void **state);
int world_teardown(void **state);
#define HTTP_TEST(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)
void start(struct world *w);

/* -1 if refused; any thread. dial_world() fails the test instead. The caller closes. */
int dial(int port);
int dial_local(const char *path);
int dial_world(const struct world *w);

/* False if the server has ended the connection. */
bool try_write(int fd, const char *data, size_t len);
void say(int fd, const char *text);
void get(int fd, const char *target, const char *headers);

/* One byte, or -1 at the end. */
int next_byte(int fd);

struct reply {
    int status; /* 0 = the connection ended without one */
    char head[16384];
    char *body;
    size_t len;
};
struct reply reply_of(int fd, bool is_head);
struct reply next_reply(int fd);
void reply_free(struct reply *r);

/* Status, and what head or body must hold; NULL = anything. */
void expect(int fd, int status, const char *in_head, const char *in_body);
void expect_end(int fd);
void ask(const struct world *w, const char *target, const char *headers, int status, const char *in_body);

/* Whether it becomes `want` within PATIENCE_MS. */
bool comes_to(atomic_int *n, int want);

#endif
