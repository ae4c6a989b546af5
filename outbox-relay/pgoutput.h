/*
 * pgoutput.h - reading a logical replication stream: the walsender's frames, and pgoutput (protocol version 1, binary
 * or text columns, option messages) within them. Bytes in, events out; no I/O.
 *
 * All lengths are checked against the frame: hostile bytes give ST_INVALID, never a read beyond `len`. Columns are
 * found by name, so that added, dropped or reordered ones do no harm; rows of other tables are skipped.
 */
#ifndef RELATA_RELAY_PGOUTPUT_H
#define RELATA_RELAY_PGOUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/status.h"
#include "outbox-relay/row.h"

/* ---- the walsender's frames (CopyData) ---- */

enum wal_frame_kind { WAL_FRAME_DATA, WAL_FRAME_KEEPALIVE };

struct wal_frame {
    enum wal_frame_kind kind;
    uint64_t end_lsn;  /* how far the server has read the WAL */
    bool reply_wanted; /* keepalive: answer at once */
    char *data;        /* data: a pgoutput message, inside the frame */
    size_t len;
};

/* ST_OK or ST_INVALID. */
enum status wal_frame_parse(char *bytes, size_t len, struct wal_frame *out, struct err *err) MUST_CHECK;

/* The answer of 34 bytes: everything up to `flushed` may be forgotten by the server. */
#define WAL_STATUS_LEN 34
void wal_status_format(char out[WAL_STATUS_LEN], uint64_t received, uint64_t flushed, int64_t wall_us,
                       bool reply_wanted);

/* "16/B374D848" */
#define LSN_TEXT_LEN 24
void lsn_format(uint64_t lsn, char out[LSN_TEXT_LEN]);
/* False if the text is no LSN. */
bool lsn_parse(const char *text, uint64_t *lsn);

/* ---- pgoutput ---- */

enum pgoutput_kind {
    PGOUTPUT_BEGIN,   /* lsn: of the commit record of the transaction that follows */
    PGOUTPUT_COMMIT,  /* lsn: of the commit record, end_lsn: of its end */
    PGOUTPUT_ROW,     /* a row inserted into relata.outbox */
    PGOUTPUT_MESSAGE, /* pg_logical_emit_message; lsn */
    PGOUTPUT_OTHER,   /* nothing to do: relation, type, origin, truncate, another table's row, unknown kinds */
};

struct pgoutput_event {
    enum pgoutput_kind kind;
    uint64_t lsn;
    uint64_t end_lsn;
    struct outbox_row row;
};

#define PGOUTPUT_FIELDS 12
#define PGOUTPUT_COLUMNS_MAX 1664 /* Postgres' own limit of a result's columns */

/* What the stream has said about relata.outbox so far: one of these per stream. */
struct pgoutput {
    uint32_t relation; /* its oid */
    bool known;
    int ncolumns;
    int16_t field_of[PGOUTPUT_COLUMNS_MAX]; /* column number -> field, -1 = none of ours */
};

void pgoutput_init(struct pgoutput *p);
/* Decode one message. `data` is written to: strings of the row are NUL-terminated in place, so data[len] must be
 * writable too (libpq's copy buffers end with such a byte). The row lives as long as `data`. ST_OK or ST_INVALID. */
enum status pgoutput_decode(struct pgoutput *p, char *data, size_t len, struct pgoutput_event *out,
                            struct err *err) MUST_CHECK;

#endif
