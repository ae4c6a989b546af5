/*
 * internal.h - what the files of common/pg share. Not for other rooms.
 */
#ifndef RELATA_PG_INTERNAL_H
#define RELATA_PG_INTERNAL_H

#include <libpq-fe.h>

#include "common/pg/hosts.h"
#include "common/pg/pg.h"

/* A statement that this connection has prepared. */
struct pg_prepared {
    const char *name; /* the caller's constant */
    char *server_name;
    unsigned salt; /* grows when the server's own copy became useless */
};

/* What is at stake if the connection is lost while a statement runs. */
enum pg_stake {
    PG_STAKE_NONE,   /* inside a transaction that is not being committed: the server rolls it back */
    PG_STAKE_COMMIT, /* outside a transaction, or a COMMIT: it may have been committed */
};

struct pg_cancel;

struct pg {
    PGconn *conn; /* NULL = lost or never made */
    char *dsn;
    struct pg_hosts hosts;
    char *application_name;
    bool replication;
    bool watch_stop;
    bool warned;              /* a WARNING arrived since the last statement was sent */
    bool cancelled;           /* we asked to cancel that statement */
    struct pg_cancel *cancel; /* the last one, unless it is known to have been delivered; NULL = none */
    const atomic_bool *flag;  /* whoever wants the answers has gone; NULL = nobody can */
    bool ending;              /* the COMMIT of a snapshot was sent and its outcome not read (snapshot.c) */
    unsigned generation;
    struct pg_prepared *prepared;
    size_t nprepared;
    char channel[64];         /* NAMEDATALEN */
    enum pg_stake copy_stake; /* of the COPY that runs */
};

/* errors.c */
/* Classify an error result; fills err with SQLSTATE, message, DETAIL and HINT. `cancelled`: we asked for 57014. */
enum status pg_error_result(const PGresult *res, enum pg_stake stake, bool is_commit, bool cancelled, struct err *err);
/* The connection is lost: closes it. ST_RETRY or ST_UNKNOWN by what is at stake. */
enum status pg_error_lost(struct pg *pg, enum pg_stake stake, struct err *err);
/* A failed connection attempt (conn may be NULL). Does not finish it. */
enum status pg_error_connect(PGconn *conn, struct err *err);
/* The class of a bare SQLSTATE. */
enum status pg_sqlstate_status(const char *sqlstate);

/* wait.c */
/* Wait until the socket is ready for `events` (POLLIN | POLLOUT). ST_OK, ST_DEADLINE, or ST_STOPPED if `stop`. */
enum status pg_wait_socket(int fd, short events, bool stop, mono_us deadline);
/* Until the connection can be read from; ST_DEADLINE also when its flag is raised (pg_unwanted). */
enum status pg_wait_readable(struct pg *pg, mono_us deadline);
/* Send everything buffered. ST_OK, ST_DEADLINE, or ST_RETRY when the connection is lost (err untouched). */
enum status pg_flush(struct pg *pg, mono_us deadline);
/* The flag that the connection heeds is raised, and what runs has not been cancelled yet. */
bool pg_unwanted(const struct pg *pg);
/* Wait until PQgetResult would not block. Statuses as pg_flush; ST_DEADLINE also if it is unwanted. */
enum status pg_wait_result(struct pg *pg, mono_us deadline);
/* Read what has arrived while idle (a server's farewell); false when the connection turned out dead. */
bool pg_idle_check(struct pg *pg);
/* Ask the server to cancel what runs; does not wait for it. */
void pg_cancel_async(struct pg *pg);
/* Wait until a cancel that was asked for has been delivered, so that it cannot hit the next statement. False if that
 * takes more than a second, or longer than to the deadline. */
bool pg_cancel_settled(struct pg *pg, mono_us deadline);
void pg_cancel_forget(struct pg *pg);
/* Close the connection at once. */
void pg_drop(struct pg *pg);

/* query.c */
/* Read the outcome of what was sent, to the end, cancelling at the deadline. *out (if wanted) gets the last result. */
struct pg_run {
    enum pg_stake stake;
    bool is_commit;
    ExecStatusType
        until; /* stop at this kind of result: PGRES_COPY_IN, _OUT, _BOTH; or PGRES_EMPTY_QUERY = run to end */
};
struct pg_run pg_run_of(const struct pg *pg, const char *sql, ExecStatusType until);
enum status pg_run_finish(struct pg *pg, const struct pg_run *run, mono_us deadline, PGresult **out, struct err *err);
/* Before sending: alive, idle, and the deadline not passed. */
enum status pg_run_ready(struct pg *pg, mono_us deadline, struct err *err);
/* Cancel what runs and read its results to the end within a second; drops the connection if that is too slow. */
void pg_run_abandon(struct pg *pg);
void pg_prepared_forget(struct pg *pg);

/* param.c */
/* Parameters as libpq takes them: text NUL-terminated, copied into one block if it comes with a length. */
#define PG_PARAMS_INLINE 16
struct pg_values {
    const char *inline_values[PG_PARAMS_INLINE];
    int inline_numbers[2 * PG_PARAMS_INLINE];
    const char **list;
    int *lengths, *formats; /* of binary ones; formats is NULL if there is none */
    char *block;
};
/* Release in any case. */
enum status pg_values_init(struct pg_values *v, const struct pg_param *params, int n, struct err *err);
void pg_values_release(struct pg_values *v);
/* Make sure that `name` is prepared; *out is its name at the server. */
enum status pg_prepared_get(struct pg *pg, const char *name, const char *sql, mono_us deadline, const char **out,
                            struct err *err);
/* After `code`: whether it is worth preparing anew. */
bool pg_prepared_is_stale(struct pg *pg, const char *name, const char *code);

/* snapshot.c */
/* Read the outcome of a COMMIT that was sent before. */
enum status pg_snapshot_ended(struct pg *pg, mono_us deadline, struct err *err);

#endif
