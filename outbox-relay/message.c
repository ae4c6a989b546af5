/* message.c - see message.h. */
#include "outbox-relay/message.h"

#include <inttypes.h>
#include <jansson.h>

#include "common/base/utf8.h"
#include "proto/relata.pb-c.h"

#define MESSAGE_MAX 1000000000U

void message_init(struct message *m)
{
    *m = (struct message){0};
    buf_init(&m->key, MESSAGE_MAX);
    buf_init(&m->payload, MESSAGE_MAX);
}

void message_release(struct message *m)
{
    buf_release(&m->key);
    buf_release(&m->payload);
    free(m->headers);
    json_decref(m->json);
    m->headers = NULL;
    m->json = NULL;
}

/* Postgres keeps its text valid, unless the database's encoding is SQL_ASCII. */
static bool is_utf8(const char *s)
{
    size_t left = strlen(s);
    while (left > 0) {
        uint32_t cp;
        size_t n = (unsigned char)*s < 0x80 ? 1 : utf8_next(s, left, &cp);
        if (n == 0)
            return false;
        s += n;
        left -= n;
    }
    return true;
}

static enum status check_row(const struct outbox_row *row, struct err *err)
{
    const struct {
        const char *name, *value;
        bool wanted;
    } parts[] = {
        {"store", row->store, true},
        {"object", row->object, true},
        {"relation", row->relation, true},
        {"subject", row->subject, true},
        {"condition_name", row->condition_name, false},
        {"condition_context", row->condition_context, false},
        {"actor", row->actor, false},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].wanted && (!parts[i].value || !*parts[i].value))
            return err_set(err, ST_INVALID, "row_incomplete", "the row has no %s", parts[i].name);
        if (parts[i].value && !is_utf8(parts[i].value))
            return err_set(err, ST_INVALID, "row_not_utf8", "%s is not valid UTF-8", parts[i].name);
    }
    return ST_OK;
}

static bool header_add(struct message *m, const char *name, const void *value, size_t len)
{
    if (m->nheaders == m->headers_cap) {
        size_t cap = m->headers_cap ? m->headers_cap * 2 : 8;
        struct kafka_header *grown = realloc(m->headers, cap * sizeof *grown);
        if (!grown)
            return false;
        m->headers = grown;
        m->headers_cap = cap;
    }
    m->headers[m->nheaders++] = (struct kafka_header){name, value, len};
    return true;
}

static bool reserved(const char *name)
{
    return strncmp(name, "relata-", 7) == 0 || strcmp(name, "content-type") == 0;
}

static bool encode_headers(struct message *m, const struct outbox_row *row)
{
    int n = snprintf(m->id, sizeof m->id, "%" PRId64, row->id);
    m->nheaders = 0;
    json_decref(m->json);
    m->json = NULL;
    bool ok = header_add(m, "relata-outbox-id", m->id, (size_t)n) && header_add(m, "relata-schema", "1", 1) &&
              header_add(m, "content-type", "application/protobuf", strlen("application/protobuf"));
    if (!ok || !row->headers)
        return ok;
    m->json = json_loads(row->headers, 0, NULL);
    const char *name;
    json_t *value;
    json_object_foreach(m->json, name, value)
    {
        if (json_is_string(value) && *name && !reserved(name))
            ok = ok && header_add(m, name, json_string_value(value), json_string_length(value));
    }
    return ok;
}

static Relata__V1__Op op_of(const char *op)
{
    if (op && strcmp(op, "write") == 0)
        return RELATA__V1__OP__OP_WRITE;
    if (op && strcmp(op, "delete") == 0)
        return RELATA__V1__OP__OP_DELETE;
    return RELATA__V1__OP__OP_TOUCH; /* "apply what the ledger says" fits whatever it was */
}

/* protobuf-c has no const; NULL stands for an absent string in Postgres only. */
static char *part(const char *s)
{
    union {
        const char *c;
        char *v;
    } u = {.c = s ? s : ""};
    return u.v;
}

enum status message_encode(struct message *m, const struct outbox_row *row, struct err *err)
{
    enum status st = check_row(row, err);
    if (st != ST_OK)
        return st;

    buf_clear(&m->key);
    buf_adds(&m->key, row->store);
    buf_addc(&m->key, '|');
    buf_adds(&m->key, row->object);

    Relata__V1__TupleChange c;
    relata__v1__tuple_change__init(&c);
    c.store = part(row->store);
    c.id = row->id;
    c.xid = row->xid;
    c.op = op_of(row->op);
    c.object = part(row->object);
    c.relation = part(row->relation);
    c.subject = part(row->subject);
    c.condition_name = part(row->condition_name);
    c.condition_context = part(row->condition_context);
    c.actor = part(row->actor);
    c.created_at_us = row->created_at_us;

    buf_clear(&m->payload);
    size_t len = relata__v1__tuple_change__get_packed_size(&c);
    if (len > MESSAGE_MAX)
        return err_set(err, ST_TOO_BIG, "row_too_big", "the row makes a message of %zu bytes", len);
    if (!buf_reserve(&m->payload, len) || !encode_headers(m, row))
        return err_set(err, ST_NOMEM, "", "out of memory for a message of %zu bytes", len);
    m->payload.len = relata__v1__tuple_change__pack(&c, (uint8_t *)m->payload.data);
    return buf_ok(&m->key) ? ST_OK : err_set(err, ST_NOMEM, "", "out of memory for a message's key");
}
