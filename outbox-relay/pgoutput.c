/* pgoutput.c - see pgoutput.h. Big-endian integers, NUL-terminated names, counted columns. */
#include "outbox-relay/pgoutput.h"

#include <inttypes.h>
#include <string.h>

#define POSTGRES_EPOCH_US INT64_C(946684800000000)

/* A reader that stays at its end once it has run over: checks come once, after a run of reads. */
struct reader {
    char *at;
    char *end;
    bool overrun;
};

static uint64_t read_uint(struct reader *r, size_t n)
{
    uint64_t v = 0;
    if ((size_t)(r->end - r->at) < n) {
        r->overrun = true;
        r->at = r->end;
        return 0;
    }
    for (size_t i = 0; i < n; i++)
        v = v << 8 | (unsigned char)r->at[i];
    r->at += n;
    return v;
}

static char *read_bytes(struct reader *r, size_t n)
{
    if ((size_t)(r->end - r->at) < n) {
        r->overrun = true;
        r->at = r->end;
        return NULL;
    }
    char *p = r->at;
    r->at += n;
    return p;
}

/* "" when it is not terminated. */
static const char *read_name(struct reader *r)
{
    char *nul = memchr(r->at, '\0', (size_t)(r->end - r->at));
    if (!nul) {
        r->overrun = true;
        r->at = r->end;
        return "";
    }
    const char *name = r->at;
    r->at = nul + 1;
    return name;
}

/* ---- frames ---- */

enum status wal_frame_parse(char *bytes, size_t len, struct wal_frame *out, struct err *err)
{
    struct reader r = {.at = bytes, .end = bytes + len};
    memset(out, 0, sizeof *out);
    char kind = (char)read_uint(&r, 1);
    if (kind == 'w') {
        out->kind = WAL_FRAME_DATA;
        read_uint(&r, 8); /* where the message starts */
        out->end_lsn = read_uint(&r, 8);
        read_uint(&r, 8); /* the server's clock */
        out->data = r.at;
        out->len = (size_t)(r.end - r.at);
    } else if (kind == 'k') {
        out->kind = WAL_FRAME_KEEPALIVE;
        out->end_lsn = read_uint(&r, 8);
        read_uint(&r, 8);
        out->reply_wanted = read_uint(&r, 1) != 0;
    } else {
        return err_set(err, ST_INVALID, "", "replication stream: unknown frame of kind 0x%02x",
                       (unsigned)(unsigned char)kind);
    }
    if (r.overrun)
        return err_set(err, ST_INVALID, "", "replication stream: frame '%c' of %zu bytes is too short", kind, len);
    return ST_OK;
}

static void put_uint64(char *out, uint64_t v)
{
    for (int i = 7; i >= 0; i--, v >>= 8)
        out[i] = (char)(v & 0xff);
}

void wal_status_format(char out[WAL_STATUS_LEN], uint64_t received, uint64_t flushed, int64_t wall_us,
                       bool reply_wanted)
{
    out[0] = 'r';
    put_uint64(out + 1, received);
    put_uint64(out + 9, flushed);
    put_uint64(out + 17, flushed);
    put_uint64(out + 25, (uint64_t)(wall_us - POSTGRES_EPOCH_US));
    out[33] = reply_wanted ? 1 : 0;
}

void lsn_format(uint64_t lsn, char out[LSN_TEXT_LEN])
{
    (void)snprintf(out, LSN_TEXT_LEN, "%" PRIX32 "/%" PRIX32, (uint32_t)(lsn >> 32), (uint32_t)lsn);
}

bool lsn_parse(const char *text, uint64_t *lsn)
{
    uint32_t hi, lo;
    char rest;
    if (sscanf(text, "%8" SCNx32 "/%8" SCNx32 "%c", &hi, &lo, &rest) != 2)
        return false;
    *lsn = (uint64_t)hi << 32 | lo;
    return true;
}

/* ---- columns ---- */

enum field_type { FIELD_INT, FIELD_TIME, FIELD_TEXT, FIELD_JSON };

static const struct field {
    const char *name;
    enum field_type type;
    bool required;
    size_t offset;
} fields[PGOUTPUT_FIELDS] = {
    {"id", FIELD_INT, true, offsetof(struct outbox_row, id)},
    {"store", FIELD_TEXT, true, offsetof(struct outbox_row, store)},
    {"op", FIELD_TEXT, true, offsetof(struct outbox_row, op)},
    {"object", FIELD_TEXT, true, offsetof(struct outbox_row, object)},
    {"relation", FIELD_TEXT, true, offsetof(struct outbox_row, relation)},
    {"subject", FIELD_TEXT, true, offsetof(struct outbox_row, subject)},
    {"condition_name", FIELD_TEXT, false, offsetof(struct outbox_row, condition_name)},
    {"condition_context", FIELD_JSON, false, offsetof(struct outbox_row, condition_context)},
    {"actor", FIELD_TEXT, false, offsetof(struct outbox_row, actor)},
    {"headers", FIELD_JSON, false, offsetof(struct outbox_row, headers)},
    {"xid", FIELD_INT, true, offsetof(struct outbox_row, xid)},
    {"created_at", FIELD_TIME, true, offsetof(struct outbox_row, created_at_us)},
};

static int field_named(const char *name)
{
    for (int i = 0; i < PGOUTPUT_FIELDS; i++)
        if (strcmp(fields[i].name, name) == 0)
            return i;
    return -1;
}

void pgoutput_init(struct pgoutput *p)
{
    p->known = false;
    p->ncolumns = 0;
}

static enum status decode_relation(struct pgoutput *p, struct reader *r, struct err *err)
{
    uint32_t oid = (uint32_t)read_uint(r, 4);
    const char *schema = read_name(r);
    const char *table = read_name(r);
    if (r->overrun)
        return err_set(err, ST_INVALID, "", "pgoutput: relation message is too short");
    if (strcmp(schema, "relata") != 0 || strcmp(table, "outbox") != 0) {
        if (p->known && p->relation == oid) /* renamed away */
            p->known = false;
        return ST_OK;
    }
    read_uint(r, 1); /* replica identity */
    int n = (int)read_uint(r, 2);
    if (n > PGOUTPUT_COLUMNS_MAX)
        return err_set(err, ST_INVALID, "", "pgoutput: relata.outbox has %d columns", n);
    bool seen[PGOUTPUT_FIELDS] = {false};
    for (int i = 0; i < n; i++) {
        read_uint(r, 1); /* part of the key */
        int f = field_named(read_name(r));
        read_uint(r, 4); /* type */
        read_uint(r, 4); /* its modifier */
        p->field_of[i] = (int16_t)f;
        if (f >= 0)
            seen[f] = true;
    }
    if (r->overrun)
        return err_set(err, ST_INVALID, "", "pgoutput: relation message is too short");
    for (int f = 0; f < PGOUTPUT_FIELDS; f++)
        if (!seen[f])
            return err_set(err, ST_INVALID, "", "relata.outbox is published without its column \"%s\"", fields[f].name);
    p->relation = oid;
    p->ncolumns = n;
    p->known = true;
    return ST_OK;
}

/* ---- rows ---- */

struct value {
    char kind; /* n, t, b */
    char *data;
    size_t len;
};

static bool parse_int(const struct value *v, int64_t *out)
{
    struct reader r = {.at = v->data, .end = v->data + v->len};
    if (v->kind == 'b') {
        *out = (int64_t)read_uint(&r, 8);
        return v->len == 8;
    }
    /* Terminated by now. xid8 may pass INT64_MAX in text as in binary. */
    char *end;
    *out = v->data[0] == '-' ? (int64_t)strtoll(v->data, &end, 10) : (int64_t)strtoull(v->data, &end, 10);
    return v->len > 0 && end == v->data + v->len;
}

/* "2026-01-02 03:04:05.678901+00": TimeZone is UTC and DateStyle ISO on our connections. */
static bool parse_time_text(const char *text, int64_t *out)
{
    struct tm tm = {0};
    const char *rest = strptime(text, "%Y-%m-%d %H:%M:%S", &tm);
    if (!rest)
        return false;
    int64_t us = 0;
    if (*rest == '.') {
        int64_t unit = 100000;
        for (rest++; *rest >= '0' && *rest <= '9'; rest++, unit /= 10)
            us += (*rest - '0') * unit;
    }
    if (strcmp(rest, "+00") != 0)
        return false;
    *out = (int64_t)timegm(&tm) * 1000000 + us;
    return true;
}

static bool parse_time(const struct value *v, int64_t *out)
{
    if (v->kind == 't')
        return parse_time_text(v->data, out);
    int64_t since_2000;
    if (!parse_int(v, &since_2000) || __builtin_add_overflow(since_2000, POSTGRES_EPOCH_US, out))
        return false;
    return true;
}

static bool parse_value(const struct field *f, const struct value *v, struct outbox_row *row)
{
    void *member = (char *)row + f->offset;
    switch (f->type) {
    case FIELD_INT:
        return parse_int(v, member);
    case FIELD_TIME:
        return parse_time(v, member);
    case FIELD_JSON:
        if (v->kind == 'b') { /* a version number goes before the text */
            if (v->len < 1 || v->data[0] != 1)
                return false;
            *(const char **)member = v->data + 1;
            return memchr(v->data + 1, '\0', v->len - 1) == NULL;
        }
        __attribute__((fallthrough));
    case FIELD_TEXT:
        *(const char **)member = v->data;
        return memchr(v->data, '\0', v->len) == NULL;
    }
    return false;
}

static bool read_values(struct reader *r, int n, const struct pgoutput *p, struct value values[PGOUTPUT_FIELDS])
{
    for (int i = 0; i < n && !r->overrun; i++) {
        struct value v = {.kind = (char)read_uint(r, 1)};
        if (v.kind == 't' || v.kind == 'b') {
            v.len = (size_t)read_uint(r, 4);
            v.data = read_bytes(r, v.len);
        } else if (v.kind != 'n' && v.kind != 'u') {
            return false;
        }
        if (p->field_of[i] >= 0)
            values[p->field_of[i]] = v;
    }
    return !r->overrun;
}

static enum status decode_insert(struct pgoutput *p, struct reader *r, struct pgoutput_event *out, struct err *err)
{
    struct value values[PGOUTPUT_FIELDS] = {{0}};
    uint32_t oid = (uint32_t)read_uint(r, 4);
    if (!p->known || oid != p->relation)
        return r->overrun ? err_set(err, ST_INVALID, "", "pgoutput: insert message is too short") : ST_OK;
    char kind = (char)read_uint(r, 1);
    int n = (int)read_uint(r, 2);
    if (kind != 'N' || n != p->ncolumns || !read_values(r, n, p, values))
        return err_set(err, ST_INVALID, "", "pgoutput: insert message into relata.outbox is damaged");
    /* Only now: the byte after a value is the kind of the next one. */
    for (int f = 0; f < PGOUTPUT_FIELDS; f++)
        if (values[f].data)
            values[f].data[values[f].len] = '\0';
    for (int f = 0; f < PGOUTPUT_FIELDS; f++) {
        if (!values[f].data && !fields[f].required)
            continue;
        if (!values[f].data || !parse_value(&fields[f], &values[f], &out->row))
            return err_set(err, ST_INVALID, "", "pgoutput: column \"%s\" of relata.outbox is not as expected",
                           fields[f].name);
    }
    out->kind = PGOUTPUT_ROW;
    return ST_OK;
}

enum status pgoutput_decode(struct pgoutput *p, char *data, size_t len, struct pgoutput_event *out, struct err *err)
{
    struct reader r = {.at = data, .end = data + len};
    memset(out, 0, sizeof *out);
    out->kind = PGOUTPUT_OTHER;
    char kind = (char)read_uint(&r, 1);
    switch (kind) {
    case 'B':
        out->kind = PGOUTPUT_BEGIN;
        out->lsn = read_uint(&r, 8);
        break;
    case 'C':
        out->kind = PGOUTPUT_COMMIT;
        read_uint(&r, 1); /* flags */
        out->lsn = read_uint(&r, 8);
        out->end_lsn = read_uint(&r, 8);
        break;
    case 'M':
        out->kind = PGOUTPUT_MESSAGE;
        read_uint(&r, 1); /* flags */
        out->lsn = read_uint(&r, 8);
        break;
    case 'R':
        return decode_relation(p, &r, err);
    case 'I':
        return decode_insert(p, &r, out, err);
    default:
        break;
    }
    if (r.overrun)
        return err_set(err, ST_INVALID, "", "pgoutput: message of kind 0x%02x and %zu bytes is too short",
                       (unsigned)(unsigned char)kind, len);
    return ST_OK;
}
