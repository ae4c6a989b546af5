/* progress.c - bars and lines. */
#include "common/cli/progress.h"

#include <stdio.h>
#include <unistd.h>

#define BAR_WIDTH 30
#define TERMINAL_EVERY_US 100000
#define PLAIN_EVERY_US 5000000

void progress_start(struct progress *p, const char *what, const char *unit, int64_t total, int64_t base)
{
    *p = (struct progress){.what = what, .unit = unit, .total = total, .base = base, .done = base};
    p->started = p->shown = clock_mono_us();
    p->terminal = isatty(STDERR_FILENO) == 1;
}

/* Per second since the start. */
static double progress_rate(const struct progress *p)
{
    int64_t us = clock_mono_us() - p->started;
    return us > 0 ? (double)(p->done - p->base) * 1e6 / (double)us : 0;
}

static void show(const struct progress *p)
{
    double rate = progress_rate(p);
    char rest[64] = "", age[32];
    if (p->total > 0 && rate > 0 && p->done < p->total)
        (void)snprintf(rest, sizeof rest, ", %s left", age_text((double)(p->total - p->done) / rate, age));
    int percent = p->total > 0 ? (int)(p->done * 100 / p->total) : 0;
    if (percent > 100)
        percent = 100;
    if (p->terminal && p->total > 0) {
        char bar[BAR_WIDTH + 1];
        int full = percent * BAR_WIDTH / 100;
        for (int i = 0; i < BAR_WIDTH; i++)
            bar[i] = i < full ? '#' : '.';
        bar[BAR_WIDTH] = '\0';
        (void)fprintf(stderr, "\r%s [%s] %3d%% %lld/%lld %s, %.0f/s%s\033[K", p->what, bar, percent, (long long)p->done,
                      (long long)p->total, p->unit, rate, rest);
    } else if (p->total > 0) {
        (void)fprintf(stderr, "%s: %lld of %lld %s (%d%%), %.0f/s%s\n", p->what, (long long)p->done,
                      (long long)p->total, p->unit, percent, rate, rest);
    } else {
        (void)fprintf(stderr, "%s%s: %lld %s, %.0f/s%s", p->terminal ? "\r" : "", p->what, (long long)p->done, p->unit,
                      rate, p->terminal ? "\033[K" : "\n");
    }
    (void)fflush(stderr);
}

void progress_set(struct progress *p, int64_t done)
{
    p->done = done;
    mono_us now = clock_mono_us();
    if (now - p->shown < (p->terminal ? TERMINAL_EVERY_US : PLAIN_EVERY_US))
        return;
    p->shown = now;
    show(p);
}

void progress_end(struct progress *p)
{
    if (!p->what)
        return;
    if (p->done || p->total)
        show(p);
    if (p->terminal && (p->done || p->total))
        (void)fputc('\n', stderr);
    p->what = NULL;
}

const char *age_text(double seconds, char out[static 32])
{
    if (seconds < 1)
        (void)snprintf(out, 32, "%.0f ms", seconds * 1000);
    else if (seconds < 120)
        (void)snprintf(out, 32, "%.1f s", seconds);
    else if (seconds < 7200)
        (void)snprintf(out, 32, "%.0f min", seconds / 60);
    else if (seconds < 172800)
        (void)snprintf(out, 32, "%.1f h", seconds / 3600);
    else
        (void)snprintf(out, 32, "%.1f d", seconds / 86400);
    return out;
}
