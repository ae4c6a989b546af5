#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/config/internal.h"

struct unit {
    const char *name;
    int64_t factor;
};

/* Largest first, for showing; "m" is left out because it could be minutes or milliseconds. */
static const struct unit durations[] = {{"d", 86400000}, {"h", 3600000}, {"min", 60000}, {"s", 1000}, {"ms", 1}};
static const struct unit sizes[] = {{"TiB", 1LL << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}};
#define UNITS 5

static void show_number(struct buf *out, const struct cfg_key *k, int64_t v)
{
    const struct unit *units = k->type == CFG_DURATION ? durations : sizes;

    if (k->type != CFG_DURATION && k->type != CFG_SIZE) {
        buf_addf(out, "%" PRId64, v);
        return;
    }
    if (v == 0) {
        buf_addc(out, '0');
        return;
    }
    for (int i = 0; i < UNITS; i++) {
        if (v % units[i].factor == 0) {
            buf_addf(out, "%" PRId64 "%s", v / units[i].factor, units[i].name);
            return;
        }
    }
}

static void show_choices(struct buf *out, const char *choices)
{
    for (const char *p = choices; *p; p++) {
        if (*p == '|')
            buf_adds(out, ", ");
        else
            buf_addc(out, *p);
    }
}

void value_domain(const struct cfg_key *k, struct buf *out)
{
    bool number = k->type == CFG_INT || k->type == CFG_DURATION || k->type == CFG_SIZE;

    if (k->type == CFG_ENUM) {
        show_choices(out, k->choices);
    } else if (number && (k->min != 0 || k->max != 0)) {
        show_number(out, k, k->min);
        buf_adds(out, " to ");
        show_number(out, k, k->max);
    }
}

const char *value_type_name(enum cfg_type type)
{
    switch (type) {
    case CFG_STRING:
        return "text";
    case CFG_SECRET:
        return "secret";
    case CFG_INT:
        return "number";
    case CFG_BOOL:
        return "true or false";
    case CFG_DURATION:
        return "duration";
    case CFG_SIZE:
        return "size";
    case CFG_ENUM:
        return "choice";
    case CFG_MAP:
        return "passed through";
    }
    return "";
}

static enum status check_range(const struct cfg_key *k, int64_t v, struct err *err)
{
    struct buf domain;

    if ((k->min == 0 && k->max == 0) || (v >= k->min && v <= k->max))
        return ST_OK;
    buf_init(&domain, 256);
    value_domain(k, &domain);
    err_set(err, ST_CONFIG, NULL, "must be from %s%s%s", buf_str(&domain), k->unit ? " " : "", k->unit ? k->unit : "");
    buf_release(&domain);
    return ST_CONFIG;
}

/* Digits only, so that a sign, a space or "0x" is never taken for a number. */
static bool parse_digits(const char *text, const char **end, int64_t *out)
{
    const char *p = text;
    int64_t v = 0;

    for (; *p >= '0' && *p <= '9'; p++) {
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *p - '0', &v))
            return false;
    }
    *end = p;
    *out = v;
    return p > text;
}

static enum status parse_int(const struct cfg_key *k, const char *text, int64_t *out, struct err *err)
{
    const char *end = text;
    bool negative = *text == '-';

    if (!parse_digits(text + negative, &end, out) || *end)
        return err_set(err, ST_CONFIG, NULL, "must be a whole number");
    if (negative)
        *out = -*out;
    return check_range(k, *out, err);
}

static enum status parse_united(const struct cfg_key *k, const char *text, int64_t *out, struct err *err)
{
    bool duration = k->type == CFG_DURATION;
    const struct unit *units = duration ? durations : sizes;
    const char *wanted = duration ? "must be a whole number and a unit: ms, s, min, h or d (250ms, 5s)"
                                  : "must be a whole number of bytes, or one with KiB, MiB, GiB or TiB (64KiB)";
    const char *end = text;

    if (!parse_digits(text, &end, out))
        return err_set(err, ST_CONFIG, NULL, "%s", wanted);
    while (*end == ' ')
        end++;
    if (*end == '\0') {
        if (duration && *out != 0)
            return err_set(err, ST_CONFIG, NULL, "%s", wanted);
        return check_range(k, *out, err);
    }
    for (int i = 0; i < UNITS; i++) {
        if (strcmp(end, units[i].name) != 0)
            continue;
        if (__builtin_mul_overflow(*out, units[i].factor, out))
            return err_set(err, ST_CONFIG, NULL, "is too large");
        return check_range(k, *out, err);
    }
    return err_set(err, ST_CONFIG, NULL, "%s", wanted);
}

static enum status parse_bool(const char *text, bool *out, struct err *err)
{
    static const char *const words[][2] = {{"true", "false"}, {"yes", "no"}, {"on", "off"}, {"1", "0"}};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        for (int v = 0; v < 2; v++) {
            if (strcasecmp(text, words[i][v]) == 0) {
                *out = v == 0;
                return ST_OK;
            }
        }
    }
    return err_set(err, ST_CONFIG, NULL, "must be true or false");
}

static enum status parse_choice(const struct cfg_key *k, const char *text, int *out, struct err *err)
{
    struct buf hint;
    int i = 0;

    for (const char *p = k->choices;; i++) {
        size_t len = strcspn(p, "|");

        if (strlen(text) == len && memcmp(text, p, len) == 0) {
            *out = i;
            return ST_OK;
        }
        if (p[len] == '\0')
            break;
        p += len + 1;
    }
    buf_init(&hint, 512);
    show_choices(&hint, k->choices);
    err_set(err, ST_CONFIG, NULL, "must be one of: %s", buf_str(&hint));
    buf_release(&hint);
    return ST_CONFIG;
}

enum status value_parse(const struct cfg_key *k, const char *text, union cfg_value *out, struct err *err)
{
    switch (k->type) {
    case CFG_STRING:
    case CFG_SECRET:
    case CFG_MAP:
        return ST_OK;
    case CFG_INT:
        return parse_int(k, text, &out->i, err);
    case CFG_BOOL:
        return parse_bool(text, &out->b, err);
    case CFG_DURATION:
    case CFG_SIZE:
        return parse_united(k, text, &out->i, err);
    case CFG_ENUM:
        return parse_choice(k, text, &out->choice, err);
    }
    return err_set(err, ST_FATAL, NULL, "key %s.%s has no type", k->section, k->key);
}

bool value_name_is_secret(const char *name)
{
    static const char *const parts[] = {"password",           "secret",    "jaas", "token", "key.pem",
                                        "oauthbearer.config", "credential"};

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strcasestr(name, parts[i]))
            return true;
    }
    return false;
}

/* "user:password@" right after "://": the length of the password and where it starts. */
static size_t url_password(const char *authority, const char **start)
{
    size_t len = strcspn(authority, "/?#, \t");
    const char *colon = memchr(authority, ':', len);
    const char *at = memrchr(authority, '@', len);

    if (!colon || !at || colon > at)
        return 0;
    *start = colon + 1;
    return (size_t)(at - colon - 1);
}

void value_redact(const char *text, struct buf *out)
{
    const char *p = text;

    while (*p) {
        const char *secret = NULL;
        size_t n = strncmp(p, "://", 3) == 0 ? url_password(p + 3, &secret) : 0;

        if (n > 0) {
            buf_add(out, p, (size_t)(secret - p));
            buf_adds(out, "***");
            p = secret + n;
        } else {
            buf_addc(out, (unsigned char)*p < ' ' || *p == 0x7F ? '?' : *p);
            p++;
        }
    }
}
