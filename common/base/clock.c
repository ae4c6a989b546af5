#include "common/base/clock.h"

#include <limits.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>

static int64_t read_us(clockid_t id)
{
    struct timespec ts;

    if (clock_gettime(id, &ts) != 0)
        return 0;
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

mono_us clock_mono_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

int64_t clock_wall_us(void)
{
    return read_us(CLOCK_REALTIME);
}

void clock_text(int64_t wall_us, int decimals, char out[CLOCK_TEXT_MAX])
{
    time_t seconds = (time_t)(wall_us / 1000000);
    int us = (int)(wall_us % 1000000);
    struct tm tm;

    gmtime_r(&seconds, &tm);
    size_t n = strftime(out, CLOCK_TEXT_MAX, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, CLOCK_TEXT_MAX - n, ".%0*dZ", decimals, decimals == 3 ? us / 1000 : us);
}

int64_t clock_cpu_us(void)
{
    return read_us(CLOCK_PROCESS_CPUTIME_ID);
}

mono_us deadline_in_ms(int64_t ms)
{
    mono_us now = clock_mono_us();

    if (ms <= 0)
        return now;
    if (ms >= (DEADLINE_NONE - now) / 1000)
        return DEADLINE_NONE;
    return now + ms * 1000;
}

mono_us deadline_min(mono_us a, mono_us b)
{
    return a < b ? a : b;
}

int deadline_poll_ms(mono_us deadline)
{
    mono_us now;
    int64_t ms;

    if (deadline == DEADLINE_NONE)
        return -1;
    now = clock_mono_us();
    if (deadline <= now)
        return 0;
    ms = (deadline - now) / 1000 + ((deadline - now) % 1000 != 0);
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

static uint64_t random_u64(void)
{
    uint64_t r;

    if (getrandom(&r, sizeof r, GRND_NONBLOCK) != (ssize_t)sizeof r)
        r = (uint64_t)clock_mono_us() * 0x9E3779B97F4A7C15ULL; /* spread is all that is needed */
    return r;
}

int64_t backoff_ms(unsigned attempt, int64_t base_ms, int64_t cap_ms)
{
    int64_t high = base_ms, low;

    if (base_ms < 1)
        high = base_ms = 1;
    while (attempt-- > 0 && high < cap_ms)
        high = high > INT64_MAX / 2 ? INT64_MAX : high * 2;
    if (high > cap_ms)
        high = cap_ms > 0 ? cap_ms : 1;
    low = base_ms / 2;
    if (low > high)
        low = high;
    return low + (int64_t)(random_u64() % (uint64_t)(high - low + 1));
}
