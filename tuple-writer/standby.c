#include "tuple-writer/standby.h"

#include "common/base/log.h"
#include "tuple-writer/metrics.h"

/* Changes that are older than this while another is the active reader: it hangs, or the store does. */
#define HANGS_MS 30000

/* The session with the lock of the active reader, and the registration that lives on the same session. */
static const char holder_sql[] =
    "SELECT l.pid, coalesce(w.name, ''), coalesce(w.id, 0), coalesce(extract(epoch FROM w.started_at), 0), "
    "coalesce(to_char(w.started_at, 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), 'an unknown time'), "
    "coalesce((SELECT application_name FROM pg_stat_activity WHERE pid = l.pid), '') "
    "FROM relata.session_lock l LEFT JOIN relata.session_lock m ON m.pid = l.pid AND m.kind = 1380270081 "
    "LEFT JOIN relata.writer w ON w.id = m.id "
    "WHERE l.kind = 1380270082 AND l.id = hashtext($1)::bigint & 4294967295 LIMIT 1";

/* Healthy all the while: whoever rolls out a new version waits for it to be ready before the old one is ended. */
static void say(struct standby *s, struct writer *w, const struct pg_result *r)
{
    const char *pid = pg_text(r, 0, 0), *name = pg_text(r, 0, 1), *since = pg_text(r, 0, 4),
               *session = pg_text(r, 0, 5);
    char text[512];
    bool hangs = atomic_load(&w->oldest_age_ms) >= HANGS_MS;
    snprintf(text, sizeof text,
             "standing by: writer \"%.100s\" is the active reader, registered at %s, session \"%.64s\" with pid %s%s",
             name, since, session, pid,
             hangs ? "; changes are pending for long: if it hangs, SELECT pg_terminate_backend(pid)" : "");
    admin_ready(w->admin, "outbox", true, text);
    if (!s->waits || pg_int(r, 0, 0) != s->pid) {
        log_info("standing by: another writer is the active reader of the outbox", "store", w->cfg->store.name,
                 "reader", name, "session", session, "pid", pid, "since", since, NULL);
        s->warned = false;
    }
    if (hangs && !s->warned)
        log_warn("changes are pending for long, and another writer is the active reader; if it hangs, SELECT "
                 "pg_terminate_backend(pid) lets this one take over",
                 "reader", name, "session", session, "pid", pid, "since", since, NULL);
    s->warned = hangs;
    s->waits = true;
    s->pid = pg_int(r, 0, 0);
    metric_set(&m_reader_pid, (double)s->pid);
    metric_set(&m_reader_since, pg_double(r, 0, 3));
}

enum status standby_step(struct standby *s, struct writer *w, struct pg *pg, mono_us deadline, struct err *err)
{
    struct pg_result *r = NULL;
    const struct pg_param params[] = {pg_p_text(w->cfg->store.name)};
    enum status st = pg_query(pg, "writer_holder", holder_sql, params, 1, deadline, &r, err);
    if (st == ST_OK && pg_rows(r) == 1)
        say(s, w, r);
    else if (st == ST_OK) /* just ended: the next step takes the lock */
        admin_ready(w->admin, "outbox", true, "standing by");
    pg_result_free(r);
    return st;
}

void standby_end(struct standby *s)
{
    *s = (struct standby){0};
    metric_set(&m_reader_pid, 0);
    metric_set(&m_reader_since, 0);
}
