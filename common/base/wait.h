/*
 * wait.h - condition variables on the monotonic clock, so that a deadline is what it is everywhere else.
 */
#ifndef RELATA_BASE_WAIT_H
#define RELATA_BASE_WAIT_H

#include <pthread.h>
#include <stdbool.h>

#include "common/base/clock.h"

void wait_cond_init(pthread_cond_t *c);
/* Wait for the condition, at most until `deadline` (DEADLINE_NONE = without end). False once the deadline has passed;
 * true may come early. */
bool wait_cond(pthread_cond_t *c, pthread_mutex_t *m, mono_us deadline);

#endif
