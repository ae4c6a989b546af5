/*
 * config.h - configuration from one table per program.
 *
 * Sources, weakest first: the table's defaults, the INI file of --config
 * (libinih), the environment RELATA_SECTION_KEY, --set section.key=value. Unknown
 * sections and keys are errors that suggest the nearest known name, naming
 * file and line. Each program also gets --config FILE, --set, --check-config,
 * --print-config (secrets shown as "***"), --help and --version for free.
 * A key of type CFG_SECRET may also be given as <key>_file, a path whose first
 * line is the value (also RELATA_SECTION_KEY_FILE and --set section.key_file=path).
 * Give the type CFG_SECRET to all that may hold a password: DSNs too.
 *
 * Environment: RELATA_SECTION_KEY in upper case, '-' and '.' as '_'. An empty value counts as unset (--set can empty
 * a key). Variables
 * starting with RELATA_ that name no key of the table are ignored (other
 * programs' settings may share the environment), unless their section is one
 * of the table's: then they are unknown keys. The names that `make up` writes to build/run/env
 * are always ignored where they are no keys: RELATA_PG_DSN, RELATA_STORE_URL, RELATA_STORE_ID,
 * RELATA_MODEL_ID, RELATA_NATS_URL, RELATA_KAFKA_BROKERS, RELATA_LISTER_URL, RELATA_LISTER_TOKEN,
 * RELATA_<PROGRAM>_URL.
 *
 * The file: [section] lines, `key = value` lines, comments in lines of their own (';' or '#'). What libinih would cut,
 * join or skip without a word is an error here that names file and line: lines over 4,096 bytes, values with
 * " ;", section names over 48 bytes, text after a section's "]", keys given twice, values in quotes, a byte order mark,
 * NUL and control bytes.
 */
#ifndef RELATA_CONFIG_CONFIG_H
#define RELATA_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/status.h"

enum cfg_type {
    CFG_STRING,   /* char *, owned by the config; "" is allowed */
    CFG_SECRET,   /* the same, never printed */
    CFG_INT,      /* int64_t, within [min, max] */
    CFG_BOOL,     /* bool: true/false/yes/no/on/off/1/0 */
    CFG_DURATION, /* int64_t milliseconds: "250ms", "5s", "2min", "1h", "7d" */
    CFG_SIZE,     /* int64_t bytes: "64KiB", "8MiB", "1GiB", plain = bytes */
    CFG_ENUM,     /* int: index into `choices` */
    CFG_MAP,      /* struct cfg_map: the whole section is free keys passed through (librdkafka properties); key "*" */
};

struct cfg_map_item {
    char *key;
    char *value;
    char *origin; /* where the value comes from: "relata.conf:12" or "--set" */
};

struct cfg_map {
    struct cfg_map_item *items;
    size_t len;
};

struct cfg_key {
    const char *section;
    const char *key;
    enum cfg_type type;
    size_t offset;       /* offsetof() into the program's own settings struct */
    const char *preset;  /* default, as text; NULL = required */
    int64_t min, max;    /* CFG_INT, CFG_DURATION (ms), CFG_SIZE; both 0 = unbounded */
    const char *choices; /* CFG_ENUM: "wal|poll" */
    const char *unit;    /* for help; may be NULL */
    const char *help;    /* one sentence, lower case, no full stop */
};

/* A setting that a program's example gives, because it does not start without one. */
struct cfg_sample {
    const char *section, *key, *value;
};

/* An option that is short for a setting: "--type doc" for "--set audit.type=doc". */
struct cfg_option {
    const char *name; /* "--type" */
    const char *section, *key;
    const char *value;       /* what it sets; NULL: it takes a value */
    const char *placeholder; /* how --help calls that value; NULL if it takes none */
};

struct cfg_program {
    const char *name;           /* "outbox-relay" */
    const char *summary;        /* one sentence for --help */
    const struct cfg_key *keys; /* ended by section == NULL */
    const char *details;        /* further text for --help (exit codes, examples); may be NULL */
    /* Checks of what can be known without connecting: DSNs, URLs, files, keys that depend on each other; NULL if none.
     * Names the keys in err. Runs at every start and for --check-config, so that both say the same. */
    enum status (*validate)(const void *settings, struct err *err);
    /* Values for the example, ended by section == NULL, with which it passes --check-config; NULL = it needs none. */
    const struct cfg_sample *samples;
    /* Ended by name == NULL; NULL = none. As strong as --set, in the order of the command line. --help shows them at
     * their settings. */
    const struct cfg_option *options;
    /* Whether arguments may follow the options (config_load_args); `usage` is how --help shows them. */
    bool takes_args;
    const char *usage; /* "COMMAND [ARGUMENT]..." */
    /* For --help=metrics: the Markdown of the program's metrics (metrics_reference, after registering them before
     * config_load); may be NULL. */
    void (*metrics)(struct buf *out);
};

enum cfg_action {
    CFG_RUN,  /* settings are filled: go on */
    CFG_EXIT, /* --help, --version, --check-config or --print-config was served on stdout: exit 0 */
};

/*
 * Parse the command line and all sources into `settings` (a zeroed struct of
 * the program). ST_OK with *action, or ST_CONFIG with a one-line reason (main
 * prints it and exits EXIT_USAGE), or ST_NOMEM. Strings belong to `settings`; config_release() frees them.
 * After CFG_EXIT or an error `settings` holds nothing to free (releasing it is harmless). Not thread-safe: for main,
 * before threads start. Blocks only on reading files.
 */
enum status config_load(const struct cfg_program *prog, int argc, char **argv, void *settings, enum cfg_action *action,
                        struct err *err) MUST_CHECK;

/*
 * The same for a program with subcommands (prog->takes_args): *args gets what follows the options, from the first
 * non-option on, or all that follows "--". --config and --set are taken from after the subcommand too; every other
 * option there is left to the subcommand. args->argv points into `argv`, which is reordered; nothing to free. It is
 * ended by NULL.
 */
struct cfg_args {
    int argc;
    char **argv;
};
enum status config_load_args(const struct cfg_program *prog, int argc, char **argv, void *settings,
                             struct cfg_args *args, enum cfg_action *action, struct err *err) MUST_CHECK;

/* Frees the strings and maps, and clears their members. Accepts a zeroed struct. */
void config_release(const struct cfg_program *prog, void *settings);

/* A file for --config with every key, commented out at its default, and the program's samples (--help=example). */
void config_example(const struct cfg_program *prog, struct buf *out);
/* The table as a Markdown reference (--help=markdown); docs/reference/configuration.md is made of these. */
void config_reference(const struct cfg_program *prog, struct buf *out);

/* Keys that several programs share: each expands to table rows of the section, given the settings struct type and
 * a member of the shared struct's type. */
struct cfg_log {
    int level, format;
};
/* clang-format off */
#define CFG_LOG_KEYS(T, m)                                                                                        \
    {"log", "level", CFG_ENUM, offsetof(T, m.level), "info", 0, 0, "debug|info|warn|error", NULL,                 \
     "least severe level that is written"},                                                                       \
    {"log", "format", CFG_ENUM, offsetof(T, m.format), "logfmt", 0, 0, "logfmt|json", NULL, "form of a log line"}
/* clang-format on */

#endif
