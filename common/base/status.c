#include "common/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/utf8.h"

const char *status_name(enum status st)
{
    switch (st) {
    case ST_OK:
        return "ok";
    case ST_RETRY:
        return "retry";
    case ST_THROTTLED:
        return "throttled";
    case ST_CONFLICT:
        return "conflict";
    case ST_UNKNOWN:
        return "unknown";
    case ST_DEADLINE:
        return "deadline";
    case ST_INVALID:
        return "invalid";
    case ST_TOO_BIG:
        return "too_big";
    case ST_DENIED:
        return "denied";
    case ST_MISSING:
        return "missing";
    case ST_CONFIG:
        return "config";
    case ST_NOT_FOUND:
        return "not_found";
    case ST_STOPPED:
        return "stopped";
    case ST_NOMEM:
        return "nomem";
    case ST_FATAL:
        return "fatal";
    }
    return "invalid_status";
}

bool status_is_retryable(enum status st)
{
    return st == ST_RETRY || st == ST_THROTTLED || st == ST_CONFLICT || st == ST_UNKNOWN || st == ST_DEADLINE;
}

/* Copies at most size - 1 bytes, cut at a code point; line breaks and tabs become one space. */
static void copy_line(char *to, size_t size, const char *from)
{
    size_t cut = utf8_cut(from, strlen(from), size - 1), len = 0;

    for (size_t i = 0; i < cut; i++) {
        bool blank = strchr("\n\r\t", from[i]) != NULL;
        if (!blank)
            to[len++] = from[i];
        else if (len > 0 && to[len - 1] != ' ')
            to[len++] = ' ';
    }
    while (len > 0 && to[len - 1] == ' ')
        len--;
    to[len] = '\0';
}

enum status err_set(struct err *err, enum status st, const char *code, const char *fmt, ...)
{
    char text[2 * sizeof err->text];
    va_list ap;

    if (!err)
        return st;
    /* Formatted aside: the arguments may point into err itself. */
    va_start(ap, fmt);
    if (vsnprintf(text, sizeof text, fmt, ap) < 0)
        text[0] = '\0';
    va_end(ap);
    if (code != err->code)
        copy_line(err->code, sizeof err->code, code ? code : "");
    copy_line(err->text, sizeof err->text, text);
    err->status = st;
    err->retry_after_ms = 0;
    return st;
}

enum status err_prefix(struct err *err, const char *fmt, ...)
{
    char text[2 * sizeof err->text];
    va_list ap;
    int n;

    if (!err)
        return ST_FATAL;
    va_start(ap, fmt);
    n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return err->status;
    if ((size_t)n < sizeof text)
        snprintf(text + n, sizeof text - (size_t)n, ": %s", err->text);
    copy_line(err->text, sizeof err->text, text);
    return err->status;
}
