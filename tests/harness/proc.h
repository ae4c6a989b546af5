/*
 * proc.h - our programs under test: started, killed, frozen, waited for. Linux; children die with the test.
 *
 * Output (standard output and error) goes to <test's folder>/<label>.log. Everything that still runs when the test ends
 * is killed. Functions fail the test when something that must work does not. Main thread only.
 */
#ifndef RELATA_TESTS_PROC_H
#define RELATA_TESTS_PROC_H

#include <sys/types.h>

#include "tests/harness/harness.h"

struct proc;

/* `program` is a name under $BIN, or a path with a slash. Further arguments end with NULL. */
struct proc *proc_start(struct harness *h, const char *program, ...) __attribute__((sentinel));
struct proc *proc_startv(struct harness *h, const char *program, const char *const *args);

/*
 * A program with the settings that the test's world gives it (pg.dsn; store.*, nats.url for tuple-writer and
 * inventory-lister; topic and brokers if the test has Kafka), an admin port, log.level=debug. Further "--set",
 * "section.key=value" pairs override; end with NULL. proc_ready_wait() tells when it is ready.
 */
struct proc *relay_start(struct harness *h, ...) __attribute__((sentinel));
struct proc *writer_start(struct harness *h, ...) __attribute__((sentinel));
struct proc *lister_start(struct harness *h, ...) __attribute__((sentinel));
struct proc *authz_store_start(struct harness *h, ...)
    __attribute__((sentinel)); /* its schema is to be there already */
/* `relatactl ARGS..` run to its end (60 s); returns the exit code, its output in *out if not NULL (standard output and
 * error together; valid until the test ends). */
int relatactl(struct harness *h, const char **out, ...) __attribute__((sentinel));
/* Run any program to its end like relatactl(). */
int proc_run(struct harness *h, const char **out, const char *program, const char *const *args);

pid_t proc_pid(const struct proc *p);
bool proc_running(struct proc *p);
void proc_kill(struct proc *p);     /* SIGKILL, and waits for the end */
void proc_freeze(struct proc *p);   /* SIGSTOP, and waits until it is stopped */
void proc_continue(struct proc *p); /* SIGCONT */
void proc_signal(struct proc *p, int sig);
/* Waits for the end. The exit code, or 128 + signal; fails the test after the timeout. */
int proc_wait(struct proc *p, int timeout_ms);
/* SIGTERM; asserts that it drains within 20 s and exits with 0. */
void proc_stop(struct proc *p);

/* All output so far; valid until the next call for this process. */
const char *proc_log(struct proc *p);
bool proc_logged(struct proc *p, const char *text);
void assert_logged(struct proc *p, const char *text, int timeout_ms);

/* ---- admin port ---- */
/* The base URL; waits until it is known. */
const char *proc_admin_url(struct proc *p);
/* HTTP status of a GET of `path`, 0 if there is no answer; the body in *body if not NULL, valid until the next call. */
int proc_get(struct proc *p, const char *path, const char **body);
/* Until /readyz is 200. */
void proc_ready_wait(struct proc *p, int timeout_ms);
/* Value of a metric: `series` is its full name, with labels if it has any ("x_total", "y{code=\"a\"}"). -1 if there is
 * no such series. */
double proc_metric(struct proc *p, const char *series);
void assert_metric_eventually(struct proc *p, const char *series, double at_least, int timeout_ms);

#endif
