#include "tuple-writer/wait.h"

void wait_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

void wait_cond(pthread_cond_t *c, pthread_mutex_t *m, mono_us deadline)
{
    if (deadline == DEADLINE_NONE) {
        pthread_cond_wait(c, m);
        return;
    }
    struct timespec ts = {.tv_sec = (time_t)(deadline / 1000000), .tv_nsec = (long)(deadline % 1000000) * 1000};
    pthread_cond_timedwait(c, m, &ts);
}
