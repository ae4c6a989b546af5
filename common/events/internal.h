/*
 * internal.h - what the files of common/events share: connection options, and errors of nats.c as ours.
 */
#ifndef RELATA_EVENTS_INTERNAL_H
#define RELATA_EVENTS_INTERNAL_H

#include <nats/nats.h>

#include "common/events/events.h"

/* Names under which everything is published. */
#define EVENTS_TUPLES "relata.tuples."
#define EVENTS_HEARTBEAT "relata.heartbeat."
#define EVENTS_WRITE_DEADLINE_MS 500
#define EVENTS_CONNECT_TIMEOUT_MS 2000

/* Options for one connection: servers, credentials, TLS, endless reconnects. ST_CONFIG names the setting at fault.
 * Free with natsOptions_Destroy(). */
enum status events_options(natsOptions **out, const struct cfg_nats *cfg, const char *name, struct err *err) MUST_CHECK;
/* err_set() with the library's own code and text. */
enum status events_err(struct err *err, enum status st, natsStatus s, const char *what);

/* The public key ("U...") that belongs to the seed ("SU...") in the first line of `path` that holds one. `out` has
 * NKEY_TEXT_MAX bytes. ST_CONFIG if the file cannot be read or holds no user seed. */
#define NKEY_TEXT_MAX 64
enum status nkey_public(const char *path, char *out, struct err *err) MUST_CHECK;

#endif
