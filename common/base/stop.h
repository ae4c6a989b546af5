/*
 * stop.h - orderly end. SIGTERM or SIGINT once: drain; a second time: _exit(EXIT_KILLED) at once.
 *
 * stop_init() installs the handlers (sigaction; they only write an eventfd and
 * a flag), ignores SIGPIPE, and is called once by main before any thread
 * starts. The other functions are thread-safe.
 */
#ifndef RELATA_BASE_STOP_H
#define RELATA_BASE_STOP_H

#include <stdatomic.h>
#include <stdbool.h>

#include "common/base/clock.h"
#include "common/base/status.h"

/* Exit codes of every program. Servers use 0, 1, 2 and 137; docs/relatactl.md has the table of one-shot commands. */
enum exit_code {
    EXIT_DONE = 0,     /* finished, or drained after SIGTERM */
    EXIT_FAILED = 1,   /* failed at run time; the log says why */
    EXIT_USAGE = 2,    /* bad option, key, value, file */
    EXIT_UNSAFE = 3,   /* refused: the set-up is not what it must be, or going on could lose or damage something */
    EXIT_UNREADY = 4,  /* a service that is needed could not be reached in time */
    EXIT_PARTIAL = 5,  /* done, but for what was refused and put aside */
    EXIT_KILLED = 137, /* second signal: ended without draining */
};

void stop_init(void);
/* Raise the flag as a signal would. */
void stop_request(void);
bool stop_requested(void);
/* The flag itself, for what heeds one (pg_heed). Lives as long as the process. */
const atomic_bool *stop_flag(void);
/* Readable once the flag is raised, for poll(2). Never read from it. -1 before stop_init(). */
int stop_fd(void);
/* Sleep until the deadline or the stop flag. ST_OK = the time has come, ST_STOPPED. */
enum status stop_sleep_until(mono_us deadline);

#endif
