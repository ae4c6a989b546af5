/* slot_maker.c - see slot_maker.h. */
#include "outbox-relay/slot_maker.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct slot_maker {
    const struct settings *cfg;
    char application_name[96];
    char slot[64];
    int wake;
    atomic_int pid;    /* of its backend, 0 = not connected */
    atomic_int owners; /* the thread and the relay; the last one frees */
    pthread_mutex_t lock;
    bool done;
    enum status status;
    struct err err;
    char lsn[24];
};

static void release(struct slot_maker *m)
{
    if (atomic_fetch_sub(&m->owners, 1) > 1)
        return;
    close(m->wake);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static enum status make(struct slot_maker *m, char lsn[24], struct err *err)
{
    struct db db = {.timeout_ms = m->cfg->statement_timeout_ms};
    struct pg_param p = pg_p_text(m->slot);
    struct pg_result *r = NULL;
    enum status st = db_connect(&db, m->cfg->dsn, m->application_name, err);
    /* The server would go on waiting for a client that died, and keep the slot's name. */
    if (st == ST_OK)
        st = pg_exec(db.pg, "SET client_connection_check_interval = '1s'; SET lock_timeout = 0",
                     deadline_in_ms(db.timeout_ms), err);
    if (st == ST_OK) {
        atomic_store(&m->pid, pg_backend_pid(db.pg));
        st = pg_query(db.pg, NULL, "SELECT lsn FROM pg_create_logical_replication_slot($1, 'pgoutput')", &p, 1,
                      DEADLINE_NONE, &r, err);
    }
    if (st == ST_OK)
        (void)snprintf(lsn, 24, "%s", pg_text(r, 0, 0));
    pg_result_free(r);
    atomic_store(&m->pid, 0);
    db_close(&db);
    return st;
}

static void *thread(void *arg)
{
    struct slot_maker *m = arg;
    struct err err = {0};
    char lsn[24] = "";
    enum status st = make(m, lsn, &err);
    pthread_mutex_lock(&m->lock);
    m->status = st;
    m->err = err;
    memcpy(m->lsn, lsn, sizeof lsn);
    m->done = true;
    pthread_mutex_unlock(&m->lock);
    uint64_t one = 1;
    ssize_t n = write(m->wake, &one, sizeof one);
    (void)n;
    release(m);
    return NULL;
}

enum status slot_maker_start(struct slot_maker **out, const struct settings *cfg, const char *application_name,
                             const char *slot, struct err *err)
{
    *out = NULL;
    struct slot_maker *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(err, ST_NOMEM, "", "out of memory");
    m->cfg = cfg;
    (void)snprintf(m->application_name, sizeof m->application_name, "%s slot", application_name);
    (void)snprintf(m->slot, sizeof m->slot, "%s", slot);
    m->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&m->lock, NULL);
    atomic_init(&m->owners, 2);
    pthread_t id;
    int failed = m->wake < 0 ? errno : pthread_create(&id, NULL, thread, m);
    if (failed) {
        atomic_store(&m->owners, 1);
        release(m);
        return err_set(err, ST_FATAL, "", "cannot start a thread: %s", strerror(failed));
    }
    pthread_detach(id);
    *out = m;
    return ST_OK;
}

int slot_maker_fd(const struct slot_maker *m)
{
    return m->wake;
}

bool slot_maker_result(struct slot_maker *m, enum status *st, char lsn[24], struct err *err)
{
    pthread_mutex_lock(&m->lock);
    bool done = m->done;
    if (done) {
        *st = m->status;
        memcpy(lsn, m->lsn, sizeof m->lsn);
        if (err)
            *err = m->err;
    }
    pthread_mutex_unlock(&m->lock);
    return done;
}

void slot_maker_stop(struct slot_maker *m, struct db *db)
{
    if (!m)
        return;
    enum status st;
    char lsn[24];
    mono_us end = deadline_in_ms(2000);
    int pid = 0;
    while (!slot_maker_result(m, &st, lsn, NULL) && clock_mono_us() < end) {
        int now = atomic_load(&m->pid);
        if (now != pid && now != 0 && db_cancel(db, now, NULL) == ST_OK)
            pid = now;
        struct timespec nap = {.tv_nsec = 10 * 1000 * 1000};
        nanosleep(&nap, NULL);
    }
    release(m);
}
