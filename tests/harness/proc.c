/* proc.c - starting and ending programs. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/internal.h"
#include "tests/harness/proc_internal.h"

/* ---- spawning ---- */

/* A child in a process group of its own, which dies with this thread; output to log_path, input from nothing. */
static pid_t spawn(const char *const *argv, const char *log_path)
{
    pid_t parent = getpid(), pid;
    int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    sigset_t none;

    if (log < 0 || null < 0)
        fail_msg("cannot open %s: %s", log_path, strerror(errno));
    pid = fork();
    if (pid < 0)
        fail_msg("fork: %s", strerror(errno));
    if (pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
        dup2(null, 0);
        dup2(log, 1);
        dup2(log, 2);
        if (getppid() != parent)
            _exit(126);
        /* exec's prototype is older than const. */
        execv(argv[0], (char *const *)(uintptr_t)argv);
        dprintf(2, "cannot run %s: %s\n", argv[0], strerror(errno));
        _exit(127);
    }
    setpgid(pid, pid);
    close(log);
    close(null);
    return pid;
}

static int code_of(int wstatus)
{
    return WIFEXITED(wstatus) ? WEXITSTATUS(wstatus) : 128 + WTERMSIG(wstatus);
}

int proc_run_logged(const char *const *argv, const char *log_path, int timeout_ms)
{
    mono_us deadline = deadline_in_ms(timeout_ms);
    pid_t pid = spawn(argv, log_path);
    int wstatus;

    while (waitpid(pid, &wstatus, WNOHANG) == 0) {
        if (clock_mono_us() > deadline) {
            kill(-pid, SIGKILL);
            waitpid(pid, &wstatus, 0);
            return -1;
        }
        poll(NULL, 0, 2);
    }
    return code_of(wstatus);
}

/* "outbox-relay" is $BIN/outbox-relay; what has a slash is a path. */
static const char *program_path(struct harness *h, const char *program)
{
    return strchr(program, '/') != NULL ? program : harness_strf(h, "%s/%s", harness_env("BIN"), program);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

struct proc *proc_startv(struct harness *h, const char *program, const char *const *args)
{
    struct proc *p = calloc(1, sizeof(*p));
    size_t n = 0;
    const char **argv;

    if (p == NULL)
        fail_msg("no memory");
    while (args[n] != NULL)
        n++;
    argv = calloc(n + 2, sizeof(*argv));
    if (argv == NULL)
        fail_msg("no memory");
    argv[0] = program_path(h, program);
    memcpy(argv + 1, args, n * sizeof(*argv));
    p->h = h;
    p->label = harness_strf(h, "%s.%d", base_name(program), ++h->private->serial);
    p->log_path = harness_strf(h, "%s/%s.log", h->dir, p->label);
    p->url_file = harness_strf(h, "%s/%s.url", h->dir, p->label);
    buf_init(&p->log, 256 << 20);
    buf_init(&p->body, 16 << 20);
    p->pid = spawn(argv, p->log_path);
    p->next = h->private->procs;
    h->private->procs = p;
    free(argv);
    return p;
}

struct proc *proc_start(struct harness *h, const char *program, ...)
{
    const char *args[64];
    va_list ap;
    size_t n = 0;

    va_start(ap, program);
    while (n < 63 && (args[n] = va_arg(ap, const char *)) != NULL)
        n++;
    va_end(ap);
    args[n] = NULL;
    return proc_startv(h, program, args);
}

int proc_run(struct harness *h, const char **out, const char *program, const char *const *args)
{
    struct proc *p = proc_startv(h, program, args);
    int code = proc_wait(p, 60000);

    if (out != NULL)
        *out = harness_strf(h, "%s", proc_log(p));
    return code;
}

int relatactl(struct harness *h, const char **out, ...)
{
    const char *args[64] = {0};
    va_list ap;
    size_t n = 0;

    va_start(ap, out);
    while (n < 48 && (args[n] = va_arg(ap, const char *)) != NULL)
        n++;
    va_end(ap);
    if (h->dsn != NULL) {
        args[n++] = "--set";
        args[n++] = harness_strf(h, "pg.dsn=%s", h->dsn);
    }
    if (h->store_url != NULL) {
        args[n++] = "--set";
        args[n++] = harness_strf(h, "store.url=%s", h->store_url);
    }
    return proc_run(h, out, "relatactl", args);
}

/* ---- our services, with the settings of the test's world ---- */

static struct proc *service_start(struct harness *h, const char *program, const char *const *defaults, va_list ap)
{
    const char *args[96] = {0};
    size_t n = 0;
    struct proc *p;
    /* The label's number is that of the process about to be started. */
    const char *url_file = harness_strf(h, "%s/%s.%d.url", h->dir, program, h->private->serial + 1);

    args[n++] = "--set";
    args[n++] = harness_strf(h, "pg.dsn=%s", h->dsn);
    args[n++] = "--set";
    args[n++] = "log.level=debug";
    args[n++] = "--set";
    args[n++] = harness_strf(h, "admin.url_file=%s", url_file);
    for (size_t i = 0; defaults[i] != NULL; i++) {
        args[n++] = "--set";
        args[n++] = defaults[i];
    }
    while (n < 95 && (args[n] = va_arg(ap, const char *)) != NULL)
        n++;
    args[n] = NULL;
    p = proc_startv(h, program, args);
    return p;
}

struct proc *relay_start(struct harness *h, ...)
{
    const char *defaults[8] = {0};
    size_t n = 0;
    va_list ap;
    struct proc *p;

    /* Slots belong to the whole server, which other tests use too. */
    defaults[n++] = harness_strf(h, "relay.slot=%.50s", h->id);
    if (h->brokers != NULL) {
        defaults[n++] = harness_strf(h, "kafka.bootstrap.servers=%s", h->brokers);
        defaults[n++] = harness_strf(h, "relay.topic=%s", h->topic);
        defaults[n++] = harness_strf(h, "relay.writer_group=%s.%%s", h->id);
    }
    va_start(ap, h);
    p = service_start(h, "outbox-relay", defaults, ap);
    va_end(ap);
    return p;
}

struct proc *writer_start(struct harness *h, ...)
{
    const char *defaults[8] = {0};
    size_t n = 0;
    va_list ap;
    struct proc *p;

    if (h->store_url != NULL) {
        defaults[n++] = harness_strf(h, "store.url=%s", h->store_url);
        defaults[n++] = harness_strf(h, "store.name=%s", h->store_name);
    }
    if (h->nats_url != NULL)
        defaults[n++] = harness_strf(h, "nats.url=%s", h->nats_url);
    if (h->brokers != NULL) {
        defaults[n++] = harness_strf(h, "kafka.bootstrap.servers=%s", h->brokers);
        defaults[n++] = harness_strf(h, "writer.topic=%s", h->topic);
        /* The broker is shared with other tests, whose writers are no members of this group. */
        defaults[n++] = harness_strf(h, "writer.group=%s.%s", h->id, h->store_name);
    }
    va_start(ap, h);
    p = service_start(h, "tuple-writer", defaults, ap);
    va_end(ap);
    return p;
}

struct proc *lister_start(struct harness *h, ...)
{
    const char *defaults[8] = {0};
    size_t n = 0;
    va_list ap;
    struct proc *p;

    if (h->store_url != NULL) {
        defaults[n++] = harness_strf(h, "store.url=%s", h->store_url);
        defaults[n++] = harness_strf(h, "store.name=%s", h->store_name);
    }
    if (h->nats_url != NULL)
        defaults[n++] = harness_strf(h, "nats.url=%s", h->nats_url);
    va_start(ap, h);
    p = service_start(h, "inventory-lister", defaults, ap);
    va_end(ap);
    return p;
}

struct proc *authz_store_start(struct harness *h, ...)
{
    const char *const defaults[] = {NULL};
    va_list ap;
    struct proc *p;

    va_start(ap, h);
    p = service_start(h, "authz-store", defaults, ap);
    va_end(ap);
    return p;
}

/* ---- signals and ends ---- */

pid_t proc_pid(const struct proc *p)
{
    return p->pid;
}

bool proc_running(struct proc *p)
{
    int wstatus;

    if (p->ended)
        return false;
    if (waitpid(p->pid, &wstatus, WNOHANG) != p->pid)
        return true;
    p->ended = true;
    p->code = code_of(wstatus);
    return false;
}

void proc_signal(struct proc *p, int sig)
{
    if (!proc_running(p))
        fail_msg("%s has ended with %d:\n%.4000s", p->label, p->code, proc_log_tail(p));
    kill(p->pid, sig);
}

void proc_kill(struct proc *p)
{
    int wstatus;

    if (!proc_running(p))
        return;
    kill(-p->pid, SIGKILL);
    if (waitpid(p->pid, &wstatus, 0) != p->pid)
        fail_msg("waitpid: %s", strerror(errno));
    p->ended = true;
    p->code = code_of(wstatus);
}

void proc_freeze(struct proc *p)
{
    siginfo_t info;

    proc_signal(p, SIGSTOP);
    if (waitid(P_PID, (id_t)p->pid, &info, WSTOPPED | WEXITED | WNOWAIT) != 0 || info.si_code != CLD_STOPPED)
        fail_msg("%s could not be frozen", p->label);
}

void proc_continue(struct proc *p)
{
    proc_signal(p, SIGCONT);
}

int proc_wait(struct proc *p, int timeout_ms)
{
    mono_us deadline = deadline_in_ms(harness_ms(timeout_ms));

    while (proc_running(p)) {
        if (clock_mono_us() > deadline)
            fail_msg("%s has not ended within %d ms:\n%.4000s", p->label, timeout_ms, proc_log_tail(p));
        poll(NULL, 0, 2);
    }
    return p->code;
}

void proc_stop(struct proc *p)
{
    proc_signal(p, SIGTERM);
    if (proc_wait(p, 20000) != 0)
        fail_msg("%s ended with %d after SIGTERM:\n%.4000s", p->label, p->code, proc_log_tail(p));
}

const char *proc_end_all(struct harness *h)
{
    static const char *const reports[] = {"ERROR: AddressSanitizer", "WARNING: ThreadSanitizer", "ERROR: LeakSanitizer",
                                          "runtime error: "};
    static char found[512];
    struct proc *p;

    found[0] = '\0';
    for (p = h->private->procs; p != NULL; p = h->private->procs) {
        proc_kill(p);
        const char *log = proc_log(p);
        for (size_t i = 0; found[0] == '\0' && i < sizeof(reports) / sizeof(*reports); i++) {
            if (strstr(log, reports[i]) != NULL)
                snprintf(found, sizeof(found), "%s in %s", reports[i], p->log_path);
        }
        h->private->procs = p->next;
        buf_release(&p->log);
        buf_release(&p->body);
        free(p);
    }
    return found[0] != '\0' ? found : NULL;
}
