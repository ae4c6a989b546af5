#include "demo/life/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define OUT_LEN 32

void progress_init(struct progress *p, int every)
{
    const char *term = getenv("TERM");
    *p = (struct progress){.tty = isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0, .every = every};
}

void progress_line(struct progress *p, bool last, const char *fmt, ...)
{
    char line[96]; /* 80 columns, but for very large numbers */
    va_list ap;
    int every = p->calls < 10 * p->every ? p->every : 5 * p->every; /* less often as time goes on */
    if (!p->tty && !last && p->calls++ % every != 0)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    printf(p->tty ? "\r%s\033[K%s" : "%s%s", line, last || !p->tty ? "\n" : "");
    fflush(stdout);
}

const char *progress_count(uint64_t n, char *out)
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n);
    char *o = out;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            *o++ = ',';
        *o++ = digits[i];
    }
    *o = '\0';
    return out;
}

const char *progress_time(uint64_t us, char *out)
{
    double ms = (double)us / 1000;
    if (ms < 1000)
        snprintf(out, OUT_LEN, ms < 10 ? "%.2f ms" : ms < 100 ? "%.1f ms" : "%.0f ms", ms);
    else
        snprintf(out, OUT_LEN, "%.2f s", ms / 1000);
    return out;
}
