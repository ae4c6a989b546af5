/*
 * gate.h - whether Writes may be sent now, how many at once, and with which store and model.
 *
 * One gate a process, shared by all lanes. It is shut at start, when the store's set-up is wrong (401, 403, store or
 * model not found, identity mismatch), and when calls failed several times in a row (the circuit). Whatever shut it,
 * the verifier (identity.h) checks the store's identity, at growing intervals, before it opens again; then one lane
 * tries, and its success lets the others go on. If it was one lane alone that failed, the store being well, all go on
 * at once: what makes every call of one lane fail is no reason to hold up the others. Throttling lowers the number of
 * lanes that send at once. All functions are thread-safe.
 */
#ifndef RELATA_WRITER_GATE_H
#define RELATA_WRITER_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/admin/admin.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "tuple-writer/settings.h"

#define GATE_ID_MAX 64

/* The store in force: what relata.store says. */
struct pin {
    char store_id[GATE_ID_MAX];
    char model_id[GATE_ID_MAX];
    int64_t generation; /* 0 = nothing is pinned */
};

struct gate;

struct gate *gate_new(const struct settings *cfg, struct admin *admin); /* NULL = no memory */
void gate_free(struct gate *g);

/* Wait until a Write may be sent. True with the pin, and gate_leave() is owed; false once gate_stop() was called. */
bool gate_enter(struct gate *g, struct pin *pin);
/* The outcome of what this lane has sent; ST_STOPPED = nothing was sent. */
void gate_leave(struct gate *g, unsigned lane, enum status st, const struct err *err);
/* True while Writes flow, so that a lane that gets nowhere does so for a reason of its own. */
bool gate_is_open(struct gate *g);
/* Nobody enters any more. */
void gate_stop(struct gate *g);

/* relata.store changed (or was read for the first time): shuts until verified. Unchanged: nothing happens. True if
 * the pin is another one. */
bool gate_pin(struct gate *g, const struct pin *pin);
struct pin gate_pinned(struct gate *g);

/* Shut, whatever the state: the reason is for people. `stop`: a wrong set-up, not a failure that passes. */
void gate_shut(struct gate *g, bool stop, const char *reason);

/* Wait until a verification is due: because the gate is shut, or after `interval_ms`. False once stopped. *shut tells
 * which. */
bool gate_await_verification(struct gate *g, int64_t interval_ms, bool *shut);
/* What it found, for the pin it was made with: the gate opens for a trial; or stays shut (shuts) with a reason. */
void gate_verified(struct gate *g, const struct pin *pin);
void gate_refused(struct gate *g, const struct pin *pin, bool stop, const char *reason);

#endif
