/*
 * message.h - an outbox row as a Kafka message: key "store|object", payload relata.v1.TupleChange, headers.
 */
#ifndef RELATA_RELAY_MESSAGE_H
#define RELATA_RELAY_MESSAGE_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/kafka/kafka.h"
#include "outbox-relay/row.h"

struct json_t;

/* Reused from row to row. */
struct message {
    struct buf key;
    struct buf payload;
    char id[24];
    struct kafka_header *headers; /* point into id, constants and `json` */
    size_t nheaders;
    size_t headers_cap;
    struct json_t *json; /* the row's own headers */
};

void message_init(struct message *m);
void message_release(struct message *m);

/*
 * Fill `m` from the row. ST_OK; ST_INVALID: the row can never be a message (no object or store, bytes that are not
 * UTF-8); ST_TOO_BIG: larger than any broker takes (1 GB); ST_NOMEM.
 *
 * Headers: relata-outbox-id (decimal), relata-schema "1", content-type "application/protobuf", then each member of the
 * row's headers that is a string and does not bear one of those names. Anything else there is left out.
 */
enum status message_encode(struct message *m, const struct outbox_row *row, struct err *err) MUST_CHECK;

#endif
