/* internal.h - what the files of common/config share; nobody else includes it. */
#ifndef RELATA_CONFIG_INTERNAL_H
#define RELATA_CONFIG_INTERNAL_H

#include "common/config/config.h"

#define CFG_LINE_MAX 4096
#define CFG_SECTION_MAX 48
#define CFG_FILE_MAX (1024 * 1024)
#define CFG_SECRET_FILE_MAX (64 * 1024)

enum cfg_origin { CFG_FROM_PRESET, CFG_FROM_FILE, CFG_FROM_ENV, CFG_FROM_SET };

/* The strongest value seen so far of one key, or of one name of a map. */
struct cfg_slot {
    size_t key;     /* index into the program's table */
    char *name;     /* map only: the free key */
    char *text;     /* as given */
    char *where;    /* "relata.ini:12", "RELATA_LOG_LEVEL", "--set"; NULL = default */
    bool from_path; /* `text` is the path of a file that holds the secret */
    enum cfg_origin origin;
};

struct cfg_loader {
    const struct cfg_program *prog;
    struct cfg_slot *slots; /* one a key first, in the table's order; then the maps' names */
    size_t nslots, nkeys;
};

union cfg_value {
    int64_t i;
    int choice;
    bool b;
};

/* value.c: one text to one value. Errors say what is wanted ("must be from 1 to 10"), without the key. */
enum status value_parse(const struct cfg_key *k, const char *text, union cfg_value *out, struct err *err);
/* "wal, poll", "1 to 10", ...: what a key accepts; empty if there is nothing to say. */
void value_domain(const struct cfg_key *k, struct buf *out);
const char *value_type_name(enum cfg_type type);
/* True if a key that is passed through (librdkafka's) looks like a secret. */
bool value_name_is_secret(const char *name);
/* The text with passwords in URLs (scheme://user:password@host) replaced by "***", control bytes by '?'. */
void value_redact(const char *text, struct buf *out);

/* names.c: spelling. */
bool name_is_near(const char *given, const char *known);
/* The nearest of the table's sections, or of the section's keys; NULL if none is near. */
const char *names_nearest_section(const struct cfg_program *prog, const char *given);
const char *names_nearest_key(const struct cfg_program *prog, const char *section, const char *given);
bool names_section_known(const struct cfg_program *prog, const char *section);
const struct cfg_key *names_map_of(const struct cfg_program *prog, const char *section);
/* "RELATA_PG_DSN". `key` may be NULL: "RELATA_PG_". */
void names_env(struct buf *out, const char *section, const char *key);
/* Adds `: did you mean "x"?` or `: known keys: a, b` */
void names_hint(struct buf *out, const struct cfg_program *prog, const char *section, const char *given);

/* config.c: take one value. */
enum status loader_assign(struct cfg_loader *l, const char *section, const char *key, const char *text,
                          enum cfg_origin origin, const char *where, struct err *err);

/* file.c: the INI file, and the first line of a secret's file (malloc'd). */
enum status loader_read_file(struct cfg_loader *l, const char *path, struct err *err);
enum status secret_read(const char *path, char **out, struct err *err);

/* environ.c */
enum status loader_read_environ(struct cfg_loader *l, char *const *env, struct err *err);

/* args.c: the command line. */
struct cfg_command {
    const char *file; /* NULL = none */
    char **sets;      /* owned */
    size_t nsets;
    bool check, print, version;
    const char *help; /* NULL = not asked; else "", "markdown", "metrics" or "example" */
    struct cfg_args rest;
};
enum status command_parse(const struct cfg_program *prog, int argc, char **argv, struct cfg_command *out,
                          struct err *err);
void command_release(struct cfg_command *c);

/* help.c */
void help_text(const struct cfg_program *prog, struct buf *out);
/* print.c: the settings in force, as a file that --config takes. */
void print_settings(const struct cfg_loader *l, struct buf *out);

#endif
