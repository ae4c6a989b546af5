/*
 * ctl.h - what the commands of relatactl share: settings, connections, options, output, exit codes.
 *
 * A command is one row of the table in main.c. It writes its result to standard output (a table for people, or with
 * --json one JSON document), progress and errors to standard error, and returns an exit code.
 * Main thread only, unless said otherwise.
 */
#ifndef RELATA_CTL_CTL_H
#define RELATA_CTL_CTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/stop.h"
#include "common/config/config.h"
#include "common/events/events.h"
#include "common/pg/pg.h"
#include "common/store/store.h"

struct cfg_pg {
    char *dsn;
    int64_t statement_timeout_ms;
};

struct settings {
    struct cfg_pg pg;
    struct cfg_store store;
    struct cfg_nats nats;
    struct cfg_log log;
};

struct ctl {
    struct settings settings;
    const struct command *command;
    bool json;
    struct pg *pg;       /* ctl_pg() */
    struct store *store; /* ctl_store() */
    struct store_conn *store_conn;
};

/* ---- options (options.c) ---- */

enum option_kind {
    OPTION_FLAG, /* bool */
    OPTION_TEXT, /* const char *, NULL = not given */
    OPTION_INT,  /* int64_t in [min, max]; `preset` when not given */
};

struct option_spec {
    const char *name; /* without dashes; NULL ends the table */
    enum option_kind kind;
    size_t offset;     /* into the command's options struct */
    const char *value; /* how --help calls the value */
    const char *help;  /* one sentence, lower case, no full stop */
    int64_t preset, min, max;
};

#define OPTIONS_MAX_SIZE 256

struct command {
    const char *name;                  /* "seed", or two words: "store pin" */
    const char *args;                  /* how --help shows the arguments; "" = none */
    const char *summary;               /* one sentence, lower case, no full stop */
    const char *details;               /* further paragraphs of --help, with examples */
    const struct option_spec *options; /* ended by name == NULL; may be NULL */
    int min_args, max_args;
    enum exit_code (*run)(struct ctl *ctl, const void *options, int nargs, char **args);
};

/* Parse `argv` (what follows the command's words) by the command's table into `options` (OPTIONS_MAX_SIZE zeroed
 * bytes); --json and --help are taken here. Arguments are moved to the front: *nargs of them at args[]. */
enum status options_parse(const struct command *command, int argc, char **argv, void *options, bool *json, bool *help,
                          int *nargs, char **args, struct err *err) MUST_CHECK;
void options_help(const struct command *command);

/* ---- connections and identity (ctl.c, identity.c) ---- */

/* Deadline of one ordinary statement. */
mono_us ctl_deadline(const struct ctl *ctl);
/* Connect, waiting up to 10 s. ctl->pg and ctl->store_conn are closed by main. */
enum status ctl_pg(struct ctl *ctl, struct err *err) MUST_CHECK;
/* A further connection, e.g. for a thread. */
enum status ctl_pg_new(const struct ctl *ctl, struct pg **out, struct err *err) MUST_CHECK;
enum status ctl_store(struct ctl *ctl, const char *store_id, struct err *err) MUST_CHECK;
/* Deadline of one call to the store. */
mono_us ctl_store_deadline(const struct ctl *ctl);

/* Counting a whole table may take longer than an ordinary statement. */
#define CTL_COUNT_MS 600000
/* SQL: a point in time as RFC 3339 text, the form of all output. */
#define CTL_WHEN(column) "to_char(" column " AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"

/* ---- results (output.c) ---- */

/* The one line on standard error that says what went wrong (and a JSON object on standard output with --json); returns
 * the exit code of the error. */
enum exit_code ctl_fail(const struct ctl *ctl, const struct err *err);
/* The one place where an error becomes an exit code: by its status, or 3 if its code is CTL_REFUSED. */
enum exit_code exit_of(const struct err *err);
#define CTL_REFUSED "refused" /* going on could lose or damage something */
/* The table of exit codes, for --help. */
extern const char *const exit_codes_text;
/* Print and free. */
void ctl_print_json(json_t *value);

/* Rows under a heading, columns aligned. Cells are copied; control bytes are shown as '?'. */
struct table;
struct table *table_new(size_t ncols, const char *const *headings);
void table_add(struct table *t, const char *const *cells); /* NULL cells are shown as "-" */
void table_print(struct table *t);                         /* and frees it */

/* The result as JSON: an array with an object for each row. `kinds` has a letter a column: s text, i whole number, f
 * number, b boolean, j JSON; NULL becomes null. Free with json_decref. */
json_t *json_of_rows(const struct pg_result *r, const char *const *names, const char *kinds);

#endif
