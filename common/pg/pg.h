/*
 * pg.h - Postgres connections with deadlines. Only this room includes libpq.
 *
 * A `struct pg` is one connection, used by one thread at a time. Every call
 * that waits takes a deadline and watches the stop flag's descriptor if the
 * connection was opened with one. When a deadline passes, the query is
 * cancelled at the server, and its results are read to their end, so that
 * the connection stays usable; when even that takes longer than a second, the
 * connection is closed and pg_alive() turns false. Parameters are always
 * parameters, never text. Errors carry the SQLSTATE in err.code and the server's
 * message, DETAIL and HINT in err.text; passwords never appear.
 *
 * Statuses of all calls that talk to the server:
 *   ST_OK
 *   ST_RETRY     nothing happened: cannot connect, connection found dead before sending, or lost inside a transaction
 *                that was not being committed; 40xxx, 53xxx, 55P03, 55006, 57P03, 25006 (standby), 58000, 58030;
 *                57014 that was not our own cancel (statement_timeout)
 *   ST_UNKNOWN   connection lost (or 57P01, 57P02) after a COMMIT, or a statement outside a transaction, was sent:
 *                it may have been committed; also a commit whose wait for a standby was given up at the deadline
 *   ST_DEADLINE  cancelled at the deadline: rolled back, unless it was a COMMIT (then ST_UNKNOWN); or nothing was sent
 *   ST_DENIED    28xxx, 42501
 *   ST_MISSING   3D000, 3F000, 42P01, 42703, 42704, 42883, 58P01: no such database, not migrated, or no such slot
 *   ST_CONFIG    the DSN cannot be parsed
 *   ST_INVALID   every other error of the statement
 *   ST_FATAL     XXxxx, or a call that does not fit the connection's state
 *   ST_STOPPED   the stop flag was raised while waiting for a connection; running statements are finished within their
 *                deadline
 */
#ifndef RELATA_PG_PG_H
#define RELATA_PG_PG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/status.h"

struct pg;
struct pg_result;

struct pg_config {
    const char *dsn;              /* libpq conninfo or URI; the PG* environment and .pgpass apply */
    const char *application_name; /* shown in pg_stat_activity */
    bool replication;             /* a walsender connection (replication=database) */
    bool watch_stop;              /* connecting, pg_wait and pg_reopen end early with ST_STOPPED */
};

/* Connect by `deadline`. The connection has client_encoding UTF8, standard_conforming_strings,
 * JIT off, TimeZone UTC, DateStyle ISO and search_path pg_catalog (name relata.x in full). *out is NULL on failure. */
enum status pg_open(struct pg **out, const struct pg_config *cfg, mono_us deadline, struct err *err) MUST_CHECK;
/* Connect again after a loss, waiting with jittered back-off (100 ms .. 5 s) between tries, until `deadline`.
 * Session state (prepared statements, LISTEN, advisory locks) is gone; prepared statements are made anew by themselves.
 */
enum status pg_reopen(struct pg *pg, mono_us deadline, struct err *err) MUST_CHECK;
/* From now on, when `flag` becomes true, statements on this connection end within some 20 ms as if their deadline had
 * passed (cancelled at the server, ST_DEADLINE), and new ones are not sent. NULL (the default) = no flag. It must live
 * until it is replaced. */
void pg_heed(struct pg *pg, const atomic_bool *flag);
void pg_close(struct pg *pg); /* accepts NULL */
bool pg_alive(const struct pg *pg);
int pg_socket(const struct pg *pg);
int pg_backend_pid(const struct pg *pg);
int pg_server_version(const struct pg *pg); /* 150018 */
/* Counts successful connects: a change means that session state is gone. */
unsigned pg_generation(const struct pg *pg);

/* Parameters, as text unless `binary`; NULL data is SQL NULL. Postgres text holds no NUL byte: one within the `len` of
 * a text parameter is ST_INVALID. */
struct pg_param {
    const char *data;
    size_t len;  /* 0 with data: strlen is used; otherwise data need not be NUL-terminated */
    bool binary; /* in the type's binary form (pg_p_bin) */
};

/*
 * One statement with parameters ($1..). `name` is NULL, or a constant that
 * names it for this connection: then it is prepared on first use and reused
 * (one name, one text). A prepared statement that a pooler or a migration took
 * away is made anew; inside a transaction that is ST_RETRY for the transaction.
 * `out` may be NULL if no rows are wanted; otherwise free with pg_result_free().
 * The whole result is held in memory: large ones belong in pg_copy_out().
 */
enum status pg_query(struct pg *pg, const char *name, const char *sql, const struct pg_param *params, int nparams,
                     mono_us deadline, struct pg_result **out, struct err *err) MUST_CHECK;
/* Several statements without parameters, in one simple query (migrations, BEGIN, LISTEN). Always constant text. */
enum status pg_exec(struct pg *pg, const char *sql, mono_us deadline, struct err *err) MUST_CHECK;

void pg_result_free(struct pg_result *r); /* accepts NULL */
int pg_rows(const struct pg_result *r);
/* Rows affected by INSERT, UPDATE, DELETE. */
int64_t pg_affected(const struct pg_result *r);
bool pg_is_null(const struct pg_result *r, int row, int col);
/* NUL-terminated, "" for NULL; valid until the result is freed. */
const char *pg_text(const struct pg_result *r, int row, int col);
size_t pg_len(const struct pg_result *r, int row, int col);
int64_t pg_int(const struct pg_result *r, int row, int col); /* 0 for NULL */
double pg_double(const struct pg_result *r, int row, int col);
bool pg_bool(const struct pg_result *r, int row, int col);

/* Build a text-format array literal for a text[] or bigint[] parameter: begin (clears the buffer), add.., end. */
void pg_array_begin(struct buf *b);
void pg_array_add(struct buf *b, const char *s); /* NULL adds SQL NULL */
void pg_array_add_int(struct buf *b, int64_t v);
void pg_array_end(struct buf *b);

/* The same in binary form, which costs the server and us a fraction; for arrays of many elements. The parameter's type
 * in the statement must be the array of this element type. */
enum pg_elem { PG_ELEM_TEXT = 25, PG_ELEM_INT8 = 20, PG_ELEM_XID8 = 5069 }; /* OIDs that never change */
void pg_bin_begin(struct buf *b, enum pg_elem elem);
void pg_bin_add(struct buf *b, const char *s);                   /* NULL adds SQL NULL, whatever the element type is */
void pg_bin_add_bytes(struct buf *b, const char *s, size_t len); /* the same without a NUL at the end */
void pg_bin_add_int(struct buf *b, int64_t v);                   /* PG_ELEM_INT8, PG_ELEM_XID8 */
void pg_bin_end(struct buf *b);

/* Parameters from what callers have. A buffer that failed makes the statement fail with ST_TOO_BIG, unsent. */
struct pg_param pg_p_text(const char *s);
struct pg_param pg_p_buf(const struct buf *b);
struct pg_param pg_p_bin(const struct buf *b);
/* `scratch` must hold 24 bytes and outlive the call. */
struct pg_param pg_p_int(int64_t v, char *scratch);

/* COPY (query) TO STDOUT, text format: `row` is called for each line without its newline, NUL-terminated, which it may
 * change in place (pg_copy_split); a status other than ST_OK from it cancels the copy and is returned. The deadline is
 * for each wait, not for the whole. `row` must not use the connection. */
enum status pg_copy_out(struct pg *pg, const char *sql, int64_t idle_ms,
                        enum status (*row)(void *arg, char *line, size_t len, struct err *err), void *arg,
                        struct err *err) MUST_CHECK;
/* Split one text-format COPY line in place (line[len] is overwritten with NUL) into fields; \N gives NULL. Returns the
 * number of fields in the line, of which the first `max` are stored. */
int pg_copy_split(char *line, size_t len, char **fields, int max);
/* COPY .. FROM STDIN: begin, put lines (text format, complete rows), end; or abort, which makes the server forget all
 * rows. Memory is flat: put waits until the server has taken what was put. After an error the copy is over. */
enum status pg_copy_in_begin(struct pg *pg, const char *sql, mono_us deadline, struct err *err) MUST_CHECK;
enum status pg_copy_in_put(struct pg *pg, const char *data, size_t len, mono_us deadline, struct err *err) MUST_CHECK;
enum status pg_copy_in_end(struct pg *pg, mono_us deadline, struct err *err) MUST_CHECK;
void pg_copy_in_abort(struct pg *pg, const char *reason);
void pg_copy_escape(struct buf *b, const char *s); /* one field, NULL gives \N */

/* Wait for a NOTIFY on any channel this session listens to. ST_OK with *channel (static for the connection; may be
 * NULL when `extra_fd` >= 0 became readable instead), ST_DEADLINE, ST_STOPPED, or a lost connection as ST_RETRY. */
enum status pg_wait_notify(struct pg *pg, int extra_fd, mono_us deadline, const char **channel,
                           struct err *err) MUST_CHECK;

/* A walsender stream (after START_REPLICATION). Non-blocking: ST_OK with one CopyData message (*data is freed by
 * pg_stream_free), ST_NOT_FOUND when none is there yet (poll pg_socket), or the error that ended it. */
enum status pg_stream_start(struct pg *pg, const char *command, mono_us deadline, struct err *err) MUST_CHECK;
enum status pg_stream_get(struct pg *pg, char **data, size_t *len, struct err *err) MUST_CHECK;
enum status pg_stream_put(struct pg *pg, const char *data, size_t len, mono_us deadline, struct err *err) MUST_CHECK;
void pg_stream_free(char *data);

/* What can be told of a DSN without connecting: ST_OK, or ST_CONFIG with the reason, out of which anything that may be
 * a secret is taken. pg_open() begins with it. */
enum status pg_dsn_check(const char *dsn, struct err *err) MUST_CHECK;
/* The DSN in keyword form with its password (and any sslpassword) replaced by "***", for logs. Clears `out` first. */
void pg_dsn_redact(const char *dsn, struct buf *out);

#endif
