#include "common/base/wait.h"

#include <errno.h>

void wait_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

bool wait_cond(pthread_cond_t *c, pthread_mutex_t *m, mono_us deadline)
{
    if (deadline == DEADLINE_NONE) {
        pthread_cond_wait(c, m);
        return true;
    }
    struct timespec ts = {.tv_sec = (time_t)(deadline / 1000000), .tv_nsec = (long)(deadline % 1000000) * 1000};
    return pthread_cond_timedwait(c, m, &ts) != ETIMEDOUT;
}
