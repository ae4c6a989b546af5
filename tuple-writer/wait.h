/*
 * wait.h - condition variables on the monotonic clock.
 */
#ifndef RELATA_WRITER_WAIT_H
#define RELATA_WRITER_WAIT_H

#include <pthread.h>

#include "common/base/clock.h"

void wait_cond_init(pthread_cond_t *c);
/* Wait for the condition, at most until `deadline` (DEADLINE_NONE = without end). May return early. */
void wait_cond(pthread_cond_t *c, pthread_mutex_t *m, mono_us deadline);

#endif
