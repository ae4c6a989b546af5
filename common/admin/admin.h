/*
 * admin.h - the HTTP admin port of every program (libmicrohttpd): GET /metrics, /healthz, /readyz.
 *
 * Runs in a thread of its own; answers from memory only, so it never waits for the program. Plain text, GET and HEAD.
 * Listens on loopback unless configured otherwise. Bounded: 64 connections, 10 s each whatever they send, 8 KiB of
 * request, one request a connection.
 */
#ifndef RELATA_ADMIN_ADMIN_H
#define RELATA_ADMIN_ADMIN_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"
#include "common/config/config.h"

struct cfg_admin {
    char *listen;    /* "127.0.0.1:0" picks a free port; "" = no admin port */
    char *port_file; /* the URL is written here once listening; "" = not */
};
/* clang-format off */
#define CFG_ADMIN_KEYS(T, m)                                                                       \
    {"admin", "listen", CFG_STRING, offsetof(T, m.listen), "127.0.0.1:0", 0, 0, NULL, NULL,        \
     "address and port of /metrics, /healthz and /readyz; port 0 picks a free one, empty = none"}, \
    {"admin", "url_file", CFG_STRING, offsetof(T, m.port_file), "", 0, 0, NULL, NULL,              \
     "file that gets the admin URL once it is listening"}
/* clang-format on */

struct admin;

/* What can be told of the settings without listening: ST_OK or ST_CONFIG. */
enum status admin_check(const struct cfg_admin *cfg, struct err *err) MUST_CHECK;
/* ST_OK, also when there is no port (listen = ""); ST_CONFIG if the address is nonsense or taken, or the file cannot be
 * written. The file gets one line, in one step (rename), and stays after admin_stop(). */
enum status admin_start(struct admin **out, const struct cfg_admin *cfg, struct err *err) MUST_CHECK;
void admin_stop(struct admin *a); /* accepts NULL */
/* "http://127.0.0.1:40123"; "" if there is none. */
const char *admin_url(const struct admin *a);

/*
 * Readiness is a set of named conditions ("postgres", "store", "circuit", ...): /readyz is 200 when all hold, else 503
 * with the reasons, one a line; a reason given with a condition that holds is shown too. Before the first condition is
 * set it is 503 too. So main sets all of its conditions unready before it starts to work. At most 32; names up to 31
 * bytes. Thread-safe; `name` and `reason` are copied. These three accept NULL.
 */
void admin_ready(struct admin *a, const char *name, bool ready, const char *reason);
/* /healthz turns 503 when the main loop has not called this for `stall` milliseconds (admin_health_bound; 0, the
 * default, = no bound). */
void admin_alive(struct admin *a);
void admin_health_bound(struct admin *a, int stall_ms);

#endif
