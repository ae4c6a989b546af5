/*
 * clients.h - services that run txgen's transactions against a Postgres that is restarted, frozen and cut off under
 * them.
 *
 * Each client is a thread with its own connection. A lost connection or a refused transaction (40P01, 40001) is no
 * failure: what was not committed is in no account, and what was is in all of them.
 */
#ifndef RELATA_TESTS_MODEL_CLIENTS_H
#define RELATA_TESTS_MODEL_CLIENTS_H

#include <stdbool.h>
#include <stdint.h>

#define MODEL_CLIENTS 8

struct clients;

/* Starts MODEL_CLIENTS threads that make `changes` changes together, client i from seed and i. `dsn` must live until
 * the end. NULL if it fails. */
struct clients *clients_start(const char *dsn, uint64_t seed, unsigned changes);
/* Changes made so far. */
unsigned clients_made(struct clients *c);
bool clients_done(struct clients *c);
/* Waits for the end of all threads and frees. Returns the number of transactions that ended in an error that no fault
 * explains (their text is printed), which a test expects to be 0. Writes how many committed, were refused (deadlock,
 * serialisation) and had their connection lost. */
unsigned clients_join(struct clients *c, unsigned *committed, unsigned *refused, unsigned *lost);

#endif
