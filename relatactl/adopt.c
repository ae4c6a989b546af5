/* adopt.c - relatactl adopt: fill the ledger from an existing store. */
#include <stdlib.h>

#include "common/cli/progress.h"
#include "relatactl/adopt.h"
#include "relatactl/commands.h"

static const struct {
    const char *name;
    size_t offset;
} fields[] = {
    {"read", offsetof(struct adopt_counts, read)},           {"adopted", offsetof(struct adopt_counts, adopted)},
    {"known", offsetof(struct adopt_counts, known)},         {"absent", offsetof(struct adopt_counts, absent)},
    {"not_owned", offsetof(struct adopt_counts, foreign)},   {"refused", offsetof(struct adopt_counts, refused)},
    {"withdrawn", offsetof(struct adopt_counts, withdrawn)}, {"corrected", offsetof(struct adopt_counts, corrected)},
};
#define NFIELDS (sizeof fields / sizeof *fields)

static int64_t *field(struct adopt_counts *c, size_t i)
{
    return (int64_t *)(void *)((char *)c + fields[i].offset);
}

static void counts_to_job(struct adopt *a)
{
    json_t *counts = json_pack("{s:I}", "pass", (json_int_t)a->pass);
    for (size_t i = 0; i < NFIELDS; i++)
        (void)json_object_set_new(counts, fields[i].name, json_integer(*field(&a->counts, i)));
    json_decref(a->job.counts);
    a->job.counts = counts;
}

static void counts_from_job(struct adopt *a)
{
    for (size_t i = 0; i < NFIELDS; i++)
        *field(&a->counts, i) = json_integer_value(json_object_get(a->job.counts, fields[i].name));
    a->pass = json_integer_value(json_object_get(a->job.counts, "pass"));
    if (a->pass < 1)
        a->pass = 1;
}

static enum status save(struct adopt *a, bool finished, struct err *err)
{
    counts_to_job(a);
    return a->options->dry_run ? ST_OK : job_save(a->ctl, &a->job, finished, err);
}

static enum status load_owned(struct adopt *a, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(a->ctl->settings.store.name)};
    struct pg_result *r = NULL;
    enum status st =
        pg_query(a->ctl->pg, NULL, "SELECT object_type || '#' || relation FROM relata.owned WHERE store = $1", params,
                 1, ctl_deadline(a->ctl), &r, err);
    a->owned = json_object();
    for (int i = 0; st == ST_OK && i < pg_rows(r); i++)
        (void)json_object_set_new(a->owned, pg_text(r, i, 0), json_true());
    pg_result_free(r);
    return st;
}

/* The job as Postgres has it: at the start, and after any failure that leaves open what was committed. */
static enum status load(struct adopt *a, bool anew, struct err *err)
{
    job_release(&a->job);
    a->job = (struct job){.kind = "adopt"};
    enum status st = ST_OK;
    if (a->options->dry_run)
        a->job =
            (struct job){.kind = "adopt", .position = json_null(), .pending = json_null(), .counts = json_object()};
    else
        st = job_begin(a->ctl, &a->job, "adopt", a->pin.store_id, anew, 0, err);
    if (st != ST_OK)
        return st;
    if (!json_is_string(a->job.position)) {
        json_decref(a->job.position);
        a->job.position = json_string("");
    }
    counts_from_job(a);
    return ST_OK;
}

/* One page; *more is false at the end of the store. */
static enum status step(struct adopt *a, bool *more, struct err *err)
{
    enum status st = ST_OK;
    if (!json_is_object(a->job.pending))
        st = adopt_insert(a, err);
    if (st == ST_OK)
        st = adopt_confirm(a, err);
    *more = st == ST_OK && *json_string_value(a->job.position);
    if (st == ST_OK && *more)
        st = save(a, false, err);
    return st;
}

/* After a failure that may pass: wait, have the session back, and see where things stand. */
static enum status recover(struct adopt *a, enum status failed, unsigned attempt, mono_us give_up, struct err *err)
{
    if (!status_is_retryable(failed) || a->options->dry_run || clock_mono_us() >= give_up)
        return failed;
    if (stop_sleep_until(deadline_in_ms(backoff_ms(attempt, 100, 5000))) == ST_STOPPED)
        return err_set(err, ST_STOPPED, "", "interrupted");
    enum status st = pg_alive(a->ctl->pg) ? ST_OK : job_reconnect(a->ctl, "adopt", err);
    return st == ST_OK ? load(a, false, err) : st;
}

static enum status one_pass(struct adopt *a, struct progress *progress, struct err *err)
{
    bool more = true;
    unsigned attempt = 0;
    mono_us give_up = deadline_in_ms(a->options->patience_s * 1000);
    while (more) {
        if (stop_requested())
            return err_set(err, ST_STOPPED, "", "interrupted");
        enum status st = step(a, &more, err);
        if (st == ST_OK) {
            attempt = 0;
            give_up = deadline_in_ms(a->options->patience_s * 1000);
        } else {
            more = true;
            st = recover(a, st, attempt++, give_up, err);
            if (st != ST_OK)
                return st;
        }
        progress_set(progress, a->counts.read);
    }
    return ST_OK;
}

/* Pages are in the order of writing and no snapshot: what was written meanwhile may lie behind the walk. */
static enum status all_passes(struct adopt *a, struct err *err)
{
    for (;; a->pass++) {
        struct progress progress;
        int64_t before = a->counts.adopted - a->counts.withdrawn;
        progress_start(&progress, a->pass == 1 ? "adopting" : "adopting, once more", "tuples", 0, a->counts.read);
        enum status st = one_pass(a, &progress, err);
        progress_end(&progress);
        if (st != ST_OK)
            return st;
        bool nothing_new = a->counts.adopted - a->counts.withdrawn == before && !a->job.resumed;
        if (a->options->dry_run || nothing_new || a->pass >= a->options->passes)
            return save(a, true, err);
        a->job.resumed = false;
        a->counts.read = a->counts.known = a->counts.absent = a->counts.foreign = a->counts.refused = 0;
        json_decref(a->job.position);
        a->job.position = json_string("");
        st = save(a, false, err);
        if (st != ST_OK)
            return st;
    }
}

static void print_summary(const struct adopt *a)
{
    const struct adopt_counts *c = &a->counts;
    int64_t adopted = c->adopted - c->withdrawn;
    (void)printf("store %s: %lld tuples, %lld %s, %lld were in the ledger\n", a->pin.store_id, (long long)c->read,
                 (long long)adopted, a->options->dry_run ? "would be adopted" : "adopted",
                 (long long)(c->read - c->foreign - c->absent - c->refused - adopted));
    if (c->foreign)
        (void)printf("%lld left alone: not owned by this database (relatactl store show)\n", (long long)c->foreign);
    if (c->absent)
        (void)printf("%lld left alone: the ledger says absent, so they are pending deletions or drift\n",
                     (long long)c->absent);
    if (c->withdrawn || c->corrected)
        (void)printf("%lld vanished from the store and %lld got another condition meanwhile\n", (long long)c->withdrawn,
                     (long long)c->corrected);
    if (c->refused)
        (void)printf("%lld refused: the ledger cannot hold them, the first is %s\n", (long long)c->refused,
                     a->first_refused);
}

static enum status adopt_all(struct adopt *a, struct err *err)
{
    struct ctl *ctl = a->ctl;
    enum status st = pin_connect(ctl, &a->pin, err);
    if (st == ST_OK && !a->options->dry_run)
        st = job_lock(ctl, "adopt", err);
    if (st == ST_OK)
        st = load_owned(a, err);
    if (st == ST_OK)
        st = load(a, a->options->restart, err);
    if (st == ST_OK && a->job.resumed)
        (void)fprintf(stderr, "going on where an earlier run stopped, %lld tuples in\n", (long long)a->counts.read);
    if (st == ST_OK)
        st = all_passes(a, err);
    return st;
}

static enum exit_code adopt_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    (void)nargs;
    (void)args;
    struct adopt a = {.ctl = ctl, .options = opts, .save = save};
    struct buf *bufs[] = {&a.objects, &a.relations, &a.subjects, &a.names, &a.contexts};
    struct err err = {.status = ST_OK};
    for (size_t i = 0; i < 5; i++)
        buf_init(bufs[i], 16 << 20);
    enum status st = adopt_all(&a, &err);
    enum exit_code code = a.counts.refused ? EXIT_PARTIAL : EXIT_DONE;
    if (st != ST_OK) {
        if (a.counts.read)
            err_prefix(&err, "stopped after %lld tuples (the same command goes on there)", (long long)a.counts.read);
        code = ctl_fail(ctl, &err);
    } else if (ctl->json) {
        ctl_print_json(json_pack("{s:s, s:s, s:b, s:O}", "store", ctl->settings.store.name, "store_id", a.pin.store_id,
                                 "dry_run", (int)a.options->dry_run, "counts", a.job.counts));
    } else {
        print_summary(&a);
    }
    for (size_t i = 0; i < 5; i++)
        buf_release(bufs[i]);
    job_release(&a.job);
    json_decref(a.owned);
    return code;
}

#define AT(member) offsetof(struct adopt_options, member)
static const struct option_spec adopt_specs[] = {
    {"dry-run", OPTION_FLAG, AT(dry_run), NULL, "only count what would be adopted", 0, 0, 0},
    {"restart", OPTION_FLAG, AT(restart), NULL, "begin anew, even if an earlier run stopped midway", 0, 0, 0},
    {"passes", OPTION_INT, AT(passes), "N", "read the store again until nothing new is found, at most so often", 3, 1,
     100},
    {"patience", OPTION_INT, AT(patience_s), "SECONDS", "give up when one page has failed for so long", 120, 1, 86400},
    {0},
};

const struct command command_adopt = {
    .name = "adopt",
    .args = "",
    .summary = "Fill the ledger from an existing store, without changing the store",
    .details =
        "For the first day with a store that is in use: every tuple that the store holds and the ledger does not know\n"
        "becomes a row of relata.tuple, without outbox rows. Rows of services always win. Each page is confirmed by\n"
        "reading it again, so that a tuple that was deleted meanwhile is not taken in. In a shared store declare "
        "first\n"
        "what this database owns (relatactl store own). It can be interrupted, and goes on where it stopped.\n\n"
        "Examples:\n"
        "  relatactl store pin 01ARZ3NDEKTSV4RRFFQ69G5FAV\n"
        "  relatactl adopt --dry-run\n"
        "  relatactl adopt",
    .options = adopt_specs,
    .run = adopt_run,
};
