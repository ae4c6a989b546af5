#include "common/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/utf8.h"

#define VALUE_MAX 2048
#define PAIRS_MAX 40
#define LINE_MAX_BYTES (4U * 1024 * 1024)

struct pair {
    const char *key;
    const char *value;
};

struct event {
    struct pair pairs[PAIRS_MAX];
    size_t n;
};

static const char *const level_names[] = {"debug", "info", "warn", "error"};

static const char *program = "relata";
static _Atomic int least = LOG_LVL_INFO;
static enum log_format form = LOG_FMT_LOGFMT;

void log_init(const char *name, enum log_level level, enum log_format format)
{
    program = name;
    form = format;
    atomic_store(&least, (int)level);
}

static bool log_enabled(enum log_level level)
{
    return (int)level >= atomic_load_explicit(&least, memory_order_relaxed);
}

static void event_add(struct event *e, const char *key, const char *value)
{
    if (e->n < PAIRS_MAX)
        e->pairs[e->n++] = (struct pair){key, value ? value : ""};
}

static void event_vadd(struct event *e, va_list ap)
{
    const char *key;

    while ((key = va_arg(ap, const char *)) != NULL) {
        const char *value = va_arg(ap, const char *);

        event_add(e, key, value);
        if (!value)
            break; /* perhaps the end of a list with a key too much: never read past it */
    }
}

/* Valid UTF-8 of bounded length. DEL and the C1 controls, which terminals obey and JSON lets through, are replaced. */
static void clean(struct buf *out, const char *s)
{
    size_t full = strlen(s), len = utf8_cut(s, full, VALUE_MAX);

    buf_clear(out);
    for (size_t i = 0; i < len;) {
        uint32_t cp = 0;
        size_t n = utf8_next(s + i, len - i, &cp);

        if (n == 0 || (cp >= 0x7F && cp <= 0x9F))
            buf_adds(out, "\xEF\xBF\xBD");
        else
            buf_add(out, s + i, n);
        i += n ? n : 1;
    }
    if (len < full)
        buf_adds(out, "...");
}

static void logfmt_value(struct buf *line, const char *s)
{
    bool quote = *s == '\0';

    for (const char *p = s; *p && !quote; p++)
        quote = (unsigned char)*p <= ' ' || *p == '"' || *p == '=' || *p == '\\';
    if (!quote) {
        buf_adds(line, s);
        return;
    }
    buf_addc(line, '"');
    for (const char *p = s; *p; p++) {
        if (*p == '"' || *p == '\\')
            buf_addf(line, "\\%c", *p);
        else if (*p == '\n')
            buf_adds(line, "\\n");
        else if (*p == '\t')
            buf_adds(line, "\\t");
        else if (*p == '\r')
            buf_adds(line, "\\r");
        else if ((unsigned char)*p < ' ')
            buf_addf(line, "\\u%04x", (unsigned)(unsigned char)*p);
        else
            buf_addc(line, *p);
    }
    buf_addc(line, '"');
}

static void render_logfmt(const struct event *e, struct buf *line)
{
    struct buf value;

    buf_init(&value, 4 * VALUE_MAX);
    for (size_t i = 0; i < e->n; i++) {
        clean(&value, e->pairs[i].value);
        buf_addf(line, "%s%s=", i ? " " : "", e->pairs[i].key);
        logfmt_value(line, buf_str(&value));
    }
    buf_release(&value);
}

static void render_json(const struct event *e, struct buf *line)
{
    json_t *root = json_object();
    struct buf value;

    buf_init(&value, 4 * VALUE_MAX);
    for (size_t i = 0; i < e->n; i++) {
        clean(&value, e->pairs[i].value);
        if (json_object_set_new(root, e->pairs[i].key, json_stringn(buf_str(&value), value.len)) != 0)
            line->failed = true;
    }
    if (!json_add(line, root, JSON_COMPACT))
        line->failed = true;
    json_decref(root);
    buf_release(&value);
}

static void write_line(const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(STDERR_FILENO, data, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return; /* nowhere left to complain */
        data += n;
        len -= (size_t)n;
    }
}

static void emit(const struct event *e)
{
    static const char lost[] = "level=error msg=\"a log line was lost: no memory\"\n";
    struct buf line;
    int keep = errno;

    buf_init(&line, LINE_MAX_BYTES);
    if (form == LOG_FMT_JSON)
        render_json(e, &line);
    else
        render_logfmt(e, &line);
    buf_addc(&line, '\n');
    if (buf_ok(&line))
        write_line(line.data, line.len);
    else
        write_line(lost, sizeof lost - 1);
    buf_release(&line);
    errno = keep;
}

static void event_begin(struct event *e, enum log_level level, const char *msg, char ts[CLOCK_TEXT_MAX])
{
    e->n = 0;
    clock_text(clock_wall_us(), 3, ts);
    event_add(e, "ts", ts);
    event_add(e, "level", level_names[level]);
    event_add(e, "program", program);
    event_add(e, "msg", msg);
}

void log_event(enum log_level level, const char *msg, ...)
{
    struct event e;
    char ts[CLOCK_TEXT_MAX];
    va_list ap;

    if (!log_enabled(level))
        return;
    event_begin(&e, level, msg, ts);
    va_start(ap, msg);
    event_vadd(&e, ap);
    va_end(ap);
    emit(&e);
}

void log_err(enum log_level level, const char *msg, const struct err *err, ...)
{
    struct event e;
    char ts[CLOCK_TEXT_MAX];
    va_list ap;

    if (!log_enabled(level))
        return;
    event_begin(&e, level, msg, ts);
    va_start(ap, err);
    event_vadd(&e, ap);
    va_end(ap);
    if (err) {
        event_add(&e, "status", status_name(err->status));
        if (err->code[0])
            event_add(&e, "code", err->code);
        event_add(&e, "error", err->text);
    }
    emit(&e);
}
