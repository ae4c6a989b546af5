/* job.c - relata.job. */
#include <stdlib.h>

#include "relatactl/job.h"

#define JOB_CLASS "1380270086"
#define RECONNECT_MS 60000
#define ENDING_MS 1000 /* how long the server may take to notice that a relatactl has ended */
#define RETRY_MS 50

static enum status try_lock(struct ctl *ctl, const char *kind, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(kind), pg_p_text(ctl->settings.store.name)};
    struct pg_result *r = NULL;
    enum status st = pg_query(ctl->pg, NULL, "SELECT pg_try_advisory_lock(" JOB_CLASS ", hashtext($1 || ' ' || $2))",
                              params, 2, ctl_deadline(ctl), &r, err);
    if (st == ST_OK && !pg_bool(r, 0, 0))
        st = err_set(err, ST_CONFLICT, CTL_REFUSED, "another %s of store \"%s\" is running", kind,
                     ctl->settings.store.name);
    pg_result_free(r);
    return st;
}

enum status job_lock(struct ctl *ctl, const char *kind, struct err *err)
{
    mono_us deadline = deadline_in_ms(ENDING_MS);
    for (;;) {
        enum status st = try_lock(ctl, kind, err);
        if (st != ST_CONFLICT || clock_mono_us() >= deadline)
            return st;
        if (stop_sleep_until(deadline_in_ms(RETRY_MS)) == ST_STOPPED)
            return err_set(err, ST_STOPPED, "", "interrupted");
    }
}

enum status job_reconnect(struct ctl *ctl, const char *kind, struct err *err)
{
    mono_us deadline = deadline_in_ms(RECONNECT_MS);
    for (unsigned i = 0;; i++) {
        enum status st = pg_reopen(ctl->pg, deadline, err);
        if (st != ST_OK)
            return st;
        st = try_lock(ctl, kind, err);
        /* Our own former session may hold it until the server notices its end. */
        if (st != ST_CONFLICT || clock_mono_us() >= deadline)
            return st;
        if (stop_sleep_until(deadline_in_ms(backoff_ms(i, 100, 2000))) == ST_STOPPED)
            return err_set(err, ST_STOPPED, "", "interrupted");
    }
}

static json_t *json_of(const struct pg_result *r, int col)
{
    json_t *v = pg_is_null(r, 0, col) ? NULL : json_loadb(pg_text(r, 0, col), pg_len(r, 0, col), JSON_DECODE_ANY, NULL);
    return v ? v : json_null();
}

static enum status find(struct ctl *ctl, const char *kind, const char *store_id, struct pg_result **r, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(kind), pg_p_text(ctl->settings.store.name), pg_p_text(store_id)};
    return pg_query(
        ctl->pg, NULL,
        "SELECT position, pending, counts, since FROM relata.job WHERE kind = $1 AND store = $2 AND store_id = "
        "$3 AND finished_at IS NULL",
        params, 3, ctl_deadline(ctl), r, err);
}

enum status job_unfinished(struct ctl *ctl, const char *kind, const char *store_id, bool *yes, struct err *err)
{
    struct pg_result *r = NULL;
    enum status st = find(ctl, kind, store_id, &r, err);
    *yes = st == ST_OK && pg_rows(r) == 1;
    pg_result_free(r);
    return st;
}

static enum status start(struct ctl *ctl, const char *kind, const char *store_id, int64_t since, struct err *err)
{
    char scratch[24];
    const struct pg_param params[] = {pg_p_text(kind), pg_p_text(ctl->settings.store.name), pg_p_text(store_id),
                                      pg_p_int(since, scratch)};
    return pg_query(
        ctl->pg, NULL,
        "INSERT INTO relata.job (kind, store, store_id, since) VALUES ($1, $2, $3, $4) ON CONFLICT (kind, store) "
        "DO UPDATE SET store_id = excluded.store_id, since = excluded.since, position = NULL, pending = NULL, "
        "counts = '{}', started_at = clock_timestamp(), updated_at = clock_timestamp(), finished_at = NULL",
        params, 4, ctl_deadline(ctl), NULL, err);
}

enum status job_begin(struct ctl *ctl, struct job *job, const char *kind, const char *store_id, bool anew,
                      int64_t since, struct err *err)
{
    struct pg_result *r = NULL;
    *job = (struct job){.kind = kind, .since = since};
    (void)snprintf(job->store_id, sizeof job->store_id, "%s", store_id);
    enum status st = anew ? ST_OK : find(ctl, kind, store_id, &r, err);
    if (st == ST_OK && r && pg_rows(r) == 1) {
        job->resumed = true;
        job->position = json_of(r, 0);
        job->pending = json_of(r, 1);
        job->counts = json_of(r, 2);
        job->since = pg_int(r, 0, 3);
    } else if (st == ST_OK) {
        job->position = json_null();
        job->pending = json_null();
        job->counts = json_object();
        st = start(ctl, kind, store_id, since, err);
    }
    pg_result_free(r);
    return st;
}

enum status job_save(struct ctl *ctl, const struct job *job, bool finished, struct err *err)
{
    char *position = json_dumps(job->position, JSON_ENCODE_ANY);
    char *pending = json_dumps(job->pending, JSON_ENCODE_ANY);
    char *counts = json_dumps(job->counts, JSON_ENCODE_ANY);
    const struct pg_param params[] = {pg_p_text(job->kind), pg_p_text(ctl->settings.store.name),
                                      pg_p_text(position),  pg_p_text(pending),
                                      pg_p_text(counts),    pg_p_text(finished ? "t" : "f")};
    enum status st = pg_query(
        ctl->pg, NULL,
        "UPDATE relata.job SET position = nullif($3::jsonb, 'null'), pending = nullif($4::jsonb, 'null'), counts = "
        "$5::jsonb, updated_at = clock_timestamp(), finished_at = CASE WHEN $6::boolean THEN "
        "clock_timestamp() END WHERE kind = $1 AND store = $2",
        params, 6, ctl_deadline(ctl), NULL, err);
    free(position);
    free(pending);
    free(counts);
    return st;
}

void job_release(struct job *job)
{
    json_decref(job->position);
    json_decref(job->pending);
    json_decref(job->counts);
}
