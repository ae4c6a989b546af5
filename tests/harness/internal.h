/* internal.h - what the files of the harness share; tests do not include it. */
#ifndef RELATA_TESTS_INTERNAL_H
#define RELATA_TESTS_INTERNAL_H

#include "common/base/buf.h"
#include "tests/harness/proc.h"

struct note { /* memory that lives as long as the test */
    struct note *next;
    char text[];
};

struct harness_private {
    unsigned parts;
    struct note *notes;
    struct proc *procs;
    char *services_dir; /* private servers, or NULL */
    char *database;     /* to be dropped, or NULL */
    struct cfg_store store_cfg;
    int serial;
};

/* The repository's root: $RELATA_ROOT, else the working folder. */
const char *harness_root(void);
/* Where folders of tests are made: $HARNESS_DIR, else build/run/test. */
const char *harness_run_dir(void);
/* $name, or fails the test with how to get it. */
const char *harness_env(const char *name);
/* KEY of a file of KEY=VALUE lines (a value may stand in single quotes); NULL if it is not there. Valid until the test
 * ends. */
const char *harness_file_value(struct harness *h, const char *path, const char *key);
/* A whole file, at most 64 MiB; "" if there is none. `out` is set up by the caller. */
void harness_read_file(const char *path, struct buf *out);
/* mkdir -p */
void harness_mkdirs(const char *path);
/* Kills what still runs, frees, and returns a sanitizer's report found in a log (valid until the next call) or NULL. */
const char *proc_end_all(struct harness *h);
/* Runs a command to its end with output to `log_path`; the exit code, 128 + signal, or -1 if it took too long (killed).
 */
int proc_run_logged(const char *const *argv, const char *log_path, int timeout_ms);

void harness_db_open(struct harness *h);
void harness_db_close(struct harness *h);
void harness_store_open(struct harness *h);
void harness_store_close(struct harness *h);

#endif
