/* resend.c - see resend.h. */
#include "outbox-relay/resend.h"

#include <stdlib.h>
#include <string.h>

#include "outbox-relay/pgoutput.h"
#include "outbox-relay/relay_metrics.h"

#define PAGE_ROWS 200
#define KAFKA_MS 5000

void watch_release(struct watch *w)
{
    free(w->store);
    free(w->snapshot);
    free(w->ends);
    *w = (struct watch){0};
}

void watch_quiet(struct watch *w, const struct settings *cfg)
{
    free(w->snapshot);
    free(w->ends);
    w->snapshot = NULL;
    w->ends = NULL;
    w->nends = 0;
    w->stage = WATCH_QUIET;
    w->quiet_until = deadline_in_ms(cfg->resend_after_ms);
}

static enum status note(struct watch *w, struct db *db, struct err *err)
{
    struct pg_result *r = NULL;
    /* The position after the snapshot: whatever the snapshot sees was written before. */
    enum status st = pg_query(db->pg, "relay_note", "SELECT pg_current_snapshot()::text, pg_current_wal_flush_lsn()",
                              NULL, 0, deadline_in_ms(db->timeout_ms), &r, err);
    if (st != ST_OK)
        return st;
    free(w->snapshot);
    w->snapshot = strdup(pg_text(r, 0, 0));
    w->noted_at = clock_mono_us();
    bool good = lsn_parse(pg_text(r, 0, 1), &w->target_lsn) && w->snapshot;
    pg_result_free(r);
    if (!good)
        return err_set(err, ST_NOMEM, "", "cannot note the WAL's position");
    w->stage = WATCH_NOTED;
    return ST_OK;
}

static enum status ask(const struct watch *w, const struct settings *cfg, bool group, struct kafka_lag **lags, int *n,
                       struct err *err)
{
    char name[600];
    mono_us deadline = deadline_in_ms(KAFKA_MS);
    const char *mark = strstr(cfg->writer_group, "%s");
    if (mark)
        (void)snprintf(name, sizeof name, "%.*s%s%s", (int)(mark - cfg->writer_group), cfg->writer_group, w->store,
                       mark + 2);
    else
        (void)snprintf(name, sizeof name, "%s", cfg->writer_group);
    *lags = NULL;
    enum status st = kafka_topic_partitions(&cfg->kafka, cfg->topic, n, deadline, err);
    if (st != ST_OK)
        return st;
    if (!(*lags = calloc((size_t)*n, sizeof **lags)))
        return err_set(err, ST_NOMEM, "", "out of memory");
    st = kafka_group_lag(&cfg->kafka, group ? name : NULL, cfg->topic, *lags, *n, deadline, err);
    if (st != ST_OK) {
        free(*lags);
        *lags = NULL;
    }
    return st;
}

bool watch_is_read(struct kafka_lag *noted, int n, const struct kafka_lag *now, int nnow)
{
    bool read = true;
    for (int i = 0; i < n && i < nnow; i++) {
        if (now[i].end < noted[i].end)
            noted[i].end = now[i].end;
        /* Nothing before the noted end exists any more: there is nothing that could be committed. */
        if (now[i].committed < noted[i].end && now[i].begin < noted[i].end)
            read = false;
    }
    return read;
}

static enum status step_sent(struct watch *w, const struct settings *cfg, struct err *err)
{
    struct kafka_lag *now;
    int n;
    enum status st = ask(w, cfg, true, &now, &n, err);
    if (st != ST_OK)
        return st;
    if (watch_is_read(w->ends, w->nends, now, n))
        w->stage = WATCH_DUE;
    free(now);
    return ST_OK;
}

enum status watch_step(struct watch *w, const struct settings *cfg, struct db *db, int64_t oldest_age_ms,
                       const struct progress *progress, struct err *err)
{
    if (oldest_age_ms < cfg->resend_after_ms) {
        if (w->stage != WATCH_DUE)
            w->stage = WATCH_QUIET;
        return ST_OK;
    }
    bool reached;
    enum status st = ST_OK;
    switch (w->stage) {
    case WATCH_QUIET:
        return clock_mono_us() < w->quiet_until ? ST_OK : note(w, db, err);
    case WATCH_NOTED:
        reached = cfg->mode == RELAY_WAL ? progress->confirmed_lsn >= w->target_lsn : progress->covered > w->noted_at;
        if (!reached)
            return ST_OK;
        free(w->ends);
        st = ask(w, cfg, false, &w->ends, &w->nends, err);
        if (st == ST_OK)
            w->stage = WATCH_SENT;
        return st;
    case WATCH_SENT:
        return step_sent(w, cfg, err);
    case WATCH_DUE:
        break;
    }
    return st;
}

/* ---- the relay's side ---- */

void resender_release(struct resender *r)
{
    free(r->store);
    free(r->snapshot);
    pg_result_free(r->page);
    *r = (struct resender){0};
}

void resender_rewind(struct resender *r)
{
    pg_result_free(r->page);
    r->page = NULL;
    r->after_id = 0;
    r->sent = 0;
}

enum status resender_step(struct resender *r, struct db *db, struct sender *sender, bool *done, struct err *err)
{
    static const struct position nowhere = {0, 0};
    *done = false;
    if (!r->page) {
        enum status st = db_old_page(db, r->store, r->snapshot, r->age_ms, r->after_id, PAGE_ROWS, &r->page, err);
        if (st != ST_OK)
            return st;
        r->row = 0;
    }
    int n = db_page_len(r->page);
    for (; r->row < n; r->row++) {
        struct outbox_row row;
        db_page_row(r->page, r->row, r->store, &row);
        enum status st = sender_send(sender, &row, nowhere, err);
        if (st != ST_OK)
            return st;
        r->after_id = row.id;
        r->sent++;
        metric_add(&m_resent_rows, 1);
    }
    pg_result_free(r->page);
    r->page = NULL;
    *done = n < PAGE_ROWS;
    return ST_OK;
}
