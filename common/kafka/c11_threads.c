/*
 * c11_threads.c - for ThreadSanitizer builds only: the C11 thread functions that librdkafka calls, by their pthread
 * names. GCC's sanitizer does not know the C11 ones: it would miss every lock that librdkafka takes, and crash in its
 * threads. In glibc the types of both families are the same bytes.
 */
#include "common/kafka/kafka_internal.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define WITH_TSAN 1
#endif

#ifdef WITH_TSAN

#include <errno.h>
#include <pthread.h>
#include <threads.h>

_Static_assert(sizeof(mtx_t) == sizeof(pthread_mutex_t), "mtx_t is a pthread_mutex_t");
_Static_assert(sizeof(cnd_t) == sizeof(pthread_cond_t), "cnd_t is a pthread_cond_t");

/* librdkafka itself is not instrumented: its atomics are races to the sanitizer. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:librdkafka.so\n";
}

struct start {
    thrd_start_t run;
    void *arg;
};

static void *trampoline(void *p)
{
    struct start s = *(struct start *)p;
    free(p);
    return (void *)(intptr_t)s.run(s.arg);
}

static int result(int e)
{
    return e == 0 ? thrd_success : e == ENOMEM ? thrd_nomem : e == EBUSY ? thrd_busy : thrd_error;
}

int thrd_create(thrd_t *thread, thrd_start_t run, void *arg)
{
    struct start *s = malloc(sizeof *s);
    if (!s)
        return thrd_nomem;
    *s = (struct start){run, arg};
    int e = pthread_create(thread, NULL, trampoline, s);
    if (e)
        free(s);
    return result(e);
}

int thrd_join(thrd_t thread, int *out)
{
    void *value = NULL;
    int e = pthread_join(thread, &value);
    if (out)
        *out = (int)(intptr_t)value;
    return result(e);
}

int thrd_detach(thrd_t thread)
{
    return result(pthread_detach(thread));
}

int mtx_init(mtx_t *m, int type)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, type & mtx_recursive ? PTHREAD_MUTEX_RECURSIVE : PTHREAD_MUTEX_NORMAL);
    int e = pthread_mutex_init((pthread_mutex_t *)m, &attr);
    pthread_mutexattr_destroy(&attr);
    return result(e);
}

void mtx_destroy(mtx_t *m)
{
    pthread_mutex_destroy((pthread_mutex_t *)m);
}

int mtx_lock(mtx_t *m)
{
    return result(pthread_mutex_lock((pthread_mutex_t *)m));
}

int mtx_trylock(mtx_t *m)
{
    return result(pthread_mutex_trylock((pthread_mutex_t *)m));
}

int mtx_unlock(mtx_t *m)
{
    return result(pthread_mutex_unlock((pthread_mutex_t *)m));
}

int cnd_init(cnd_t *c)
{
    return result(pthread_cond_init((pthread_cond_t *)c, NULL));
}

void cnd_destroy(cnd_t *c)
{
    pthread_cond_destroy((pthread_cond_t *)c);
}

int cnd_signal(cnd_t *c)
{
    return result(pthread_cond_signal((pthread_cond_t *)c));
}

int cnd_broadcast(cnd_t *c)
{
    return result(pthread_cond_broadcast((pthread_cond_t *)c));
}

int cnd_wait(cnd_t *c, mtx_t *m)
{
    return result(pthread_cond_wait((pthread_cond_t *)c, (pthread_mutex_t *)m));
}

int cnd_timedwait(cnd_t *c, mtx_t *m, const struct timespec *until)
{
    int e = pthread_cond_timedwait((pthread_cond_t *)c, (pthread_mutex_t *)m, until);
    return e == ETIMEDOUT ? thrd_timedout : result(e);
}

#endif

void kafka_threads(void)
{
}
