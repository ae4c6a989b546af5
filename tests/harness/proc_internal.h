/* proc_internal.h - a process, for the files of the harness that deal with it. */
#ifndef RELATA_TESTS_PROC_INTERNAL_H
#define RELATA_TESTS_PROC_INTERNAL_H

#include "common/base/buf.h"
#include "tests/harness/proc.h"

struct proc {
    struct harness *h;
    const char *label; /* "tuple-writer.2" */
    const char *log_path;
    const char *url_file;
    const char *admin_url;
    pid_t pid;
    bool ended;
    int code;
    struct buf log, body;
    struct proc *next;
};

/* The last 3,000 bytes of its output. */
const char *proc_log_tail(struct proc *p);

#endif
