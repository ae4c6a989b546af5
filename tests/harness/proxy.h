/*
 * proxy.h - a TCP proxy that misbehaves on demand, between a program and a real server. Bytes are not interpreted.
 *
 * Runs in a thread of the test; every function is thread-safe and takes effect for existing connections too.
 * Directions: PROXY_UP is client to server, PROXY_DOWN server to client.
 */
#ifndef RELATA_TESTS_PROXY_H
#define RELATA_TESTS_PROXY_H

#include <stdbool.h>
#include <stdint.h>

struct proxy;

enum proxy_way { PROXY_UP = 1, PROXY_DOWN = 2, PROXY_BOTH = 3 };

/* Listens on a free loopback port. target: "127.0.0.1:4222"; NULL = set later by proxy_target(). NULL if it fails. */
struct proxy *proxy_start(const char *target);
void proxy_stop(struct proxy *p); /* cuts everything; accepts NULL */
void proxy_target(struct proxy *p, const char *target);
/* "127.0.0.1:40123", for as long as the proxy lives. */
const char *proxy_address(const struct proxy *p);
int proxy_port(const struct proxy *p);

/* Normal again, for both ways: bytes held back by freeze or delay flow on. */
void proxy_pass(struct proxy *p);
/* Bytes of that way are kept back until proxy_pass. Connections stay open, new ones are accepted. */
void proxy_freeze(struct proxy *p, enum proxy_way way);
/* Bytes of that way vanish: the sender believes they arrived. What was kept back before stays. */
void proxy_drop(struct proxy *p, enum proxy_way way);
/* Bytes of that way arrive `ms` after they were sent, in order. */
void proxy_delay(struct proxy *p, enum proxy_way way, int ms);
/*
 * What the client sends reaches the server `ms` later, even if the client has closed its connection meanwhile: a
 * request that takes effect after its sender gave up. Answers to a client that is gone are read and discarded.
 */
void proxy_late(struct proxy *p, int ms);
/* Resets all connections now (RST); new ones are accepted as before. Late bytes still to be delivered are delivered. */
void proxy_cut(struct proxy *p);
/* true: nothing listens any more, connection attempts are refused; existing connections stay. false: listens again. */
void proxy_refuse(struct proxy *p, bool refuse);

/* Connections accepted so far, open now, and bytes that arrived from the sender of that way (PROXY_UP or PROXY_DOWN).
 */
uint64_t proxy_accepted(struct proxy *p);
int proxy_open(struct proxy *p);
uint64_t proxy_bytes(struct proxy *p, enum proxy_way way);
/* Bytes taken from clients that have not been passed on yet (frozen, delayed, late). */
uint64_t proxy_held(struct proxy *p);

#endif
