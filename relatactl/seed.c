/* seed.c - relatactl seed: fill a store from the ledger. */
#include <stdlib.h>
#include <unistd.h>

#include "common/base/wait.h"
#include "common/cli/progress.h"
#include "relatactl/commands.h"
#include "relatactl/job.h"
#include "relatactl/model_file.h"
#include "relatactl/seed.h"

/* After another store was pinned, writers that have not heard of it yet write to the former one for a while. */
#define SETTLE_MS 15000

struct run {
    struct seed seed;
    struct job job;
    struct progress progress;
    struct seed_counts before; /* of earlier runs of this job */
    bool registered;
    bool second_pass;
    int64_t total; /* present tuples in the ledger */
    int64_t settle_ms;
};

/* ---- which store ---- */

static enum status check_options(const struct seed_options *o, struct err *err)
{
    if (o->create && (o->store_id || o->model_id))
        return err_set(err, ST_CONFIG, "", "--create makes a new store and model: not with --store-id or --model-id");
    if (o->create && !o->model_file)
        return err_set(err, ST_CONFIG, "", "--create needs the model: --model FILE");
    if (o->model_file && !o->create)
        return err_set(err, ST_CONFIG, "", "--model goes with --create (relatactl model use --file writes a new one)");
    if (o->model_id && !o->store_id)
        return err_set(err, ST_CONFIG, "", "--model-id goes with --store-id");
    return ST_OK;
}

static enum status create_store(struct run *run, char id[static ID_MAX], char model[static ID_MAX], struct err *err)
{
    struct ctl *ctl = run->seed.ctl;
    char *json = NULL, *store_id = NULL, *model_id = NULL;
    enum status st = model_file_read(run->seed.options->model_file, &json, err);
    if (st == ST_OK)
        st = ctl_store(ctl, "", err);
    if (st == ST_OK)
        st = store_create(ctl->store_conn, ctl->settings.store.name, &store_id, ctl_store_deadline(ctl), err);
    if (st == ST_OK)
        st = ctl_store(ctl, store_id, err);
    if (st == ST_OK) {
        st = store_write_model(ctl->store_conn, json, &model_id, ctl_store_deadline(ctl), err);
        if (st != ST_OK)
            err_prefix(err, "%s, into the new store %s", run->seed.options->model_file, store_id);
    }
    (void)snprintf(id, ID_MAX, "%s", store_id ? store_id : "");
    (void)snprintf(model, ID_MAX, "%s", model_id ? model_id : "");
    free(json);
    free(store_id);
    free(model_id);
    return st;
}

static enum status name_store(struct run *run, char id[static ID_MAX], char model[static ID_MAX], struct err *err)
{
    struct ctl *ctl = run->seed.ctl;
    const struct seed_options *o = run->seed.options;
    char *text = NULL;
    (void)snprintf(id, ID_MAX, "%s", o->store_id);
    enum status st = ctl_store(ctl, o->store_id, err);
    if (st == ST_OK && !o->model_id)
        st = store_latest_model(ctl->store_conn, &text, ctl_store_deadline(ctl), err);
    if (st == ST_OK)
        (void)snprintf(model, ID_MAX, "%s", o->model_id ? o->model_id : text);
    free(text);
    return st;
}

/* Refused before anything is changed. */
static enum status check_empty(struct run *run, const char *store_id, struct err *err)
{
    struct ctl *ctl = run->seed.ctl;
    struct store_tuples page = {0};
    char *next = NULL;
    bool unfinished = false;
    enum status st = job_unfinished(ctl, "seed", store_id, &unfinished, err);
    if (st != ST_OK || unfinished || run->seed.options->merge)
        return st;
    st = store_read_page(ctl->store_conn, "", &page, &next, ctl_store_deadline(ctl), err);
    if (st == ST_OK && page.len)
        st = err_set(err, ST_INVALID, CTL_REFUSED,
                     "store %s is not empty; --merge adds what is missing and leaves other tuples alone", store_id);
    store_tuples_free(&page);
    free(next);
    return st;
}

static enum status last_version(struct ctl *ctl, int64_t *version, struct err *err)
{
    struct pg_result *r = NULL;
    enum status st =
        pg_query(ctl->pg, NULL, "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM relata.outbox_id", NULL, 0,
                 ctl_deadline(ctl), &r, err);
    *version = st == ST_OK ? pg_int(r, 0, 0) : 0;
    pg_result_free(r);
    return st;
}

/* The store to fill, pinned, and the job. */
static enum status choose_store(struct run *run, struct err *err)
{
    struct ctl *ctl = run->seed.ctl;
    const struct seed_options *o = run->seed.options;
    struct pin *pin = &run->seed.pin;
    char id[ID_MAX] = "", model[ID_MAX] = "";
    int64_t since = 0;
    enum status st = last_version(ctl, &since, err);
    if (st != ST_OK)
        return st;
    if (o->create || o->store_id) {
        st = o->create ? create_store(run, id, model, err) : name_store(run, id, model, err);
        if (st == ST_OK)
            st = check_empty(run, id, err);
        if (st == ST_OK)
            st = pin_write(ctl, id, model, pin, err);
    }
    if (st == ST_OK)
        st = pin_connect(ctl, pin, err); /* store and model exist */
    if (st == ST_OK && !*id)
        st = check_empty(run, pin->store_id, err);
    if (st == ST_OK)
        st = job_begin(ctl, &run->job, "seed", pin->store_id, o->restart, since, err);
    return st;
}

/* ---- being a writer, for the others ---- */

/* Others leave the intents of a writer alone while it holds this lock. */
static enum status lock_writer(struct ctl *ctl, int64_t id, struct err *err)
{
    char scratch[24];
    const struct pg_param params[] = {pg_p_int(id, scratch)};
    return pg_query(ctl->pg, NULL, "SELECT pg_advisory_lock(1380270081, $1::int)", params, 1, ctl_deadline(ctl), NULL,
                    err);
}

static enum status register_writer(struct run *run, struct err *err)
{
    struct ctl *ctl = run->seed.ctl;
    struct pg_result *r = NULL;
    char host[64] = "", name[128];
    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(name, sizeof name, "relatactl seed on %s", host);
    const struct pg_param params[] = {pg_p_text(ctl->settings.store.name), pg_p_text(name)};
    enum status st =
        pg_query(ctl->pg, NULL, "INSERT INTO relata.writer (store, name, epoch) VALUES ($1, $2, 0) RETURNING id",
                 params, 2, ctl_deadline(ctl), &r, err);
    if (st == ST_OK)
        run->seed.writer_id = pg_int(r, 0, 0);
    pg_result_free(r);
    if (st == ST_OK)
        st = lock_writer(ctl, run->seed.writer_id, err);
    run->registered = st == ST_OK;
    return st;
}

/* ---- progress ---- */

static json_t *counts_json(const struct seed_counts *a, const struct seed_counts *b)
{
#define SUM(member) (json_int_t)(a->member + b->member)
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "done", SUM(done), "writes", SUM(writes), "deletes",
                     SUM(deletes), "refused", SUM(refused), "moved", SUM(moved), "retries", SUM(retries), "unknown",
                     SUM(unknown), "throttled", SUM(throttled));
#undef SUM
}

static int64_t count_of(const json_t *counts, const char *name)
{
    return json_integer_value(json_object_get(counts, name));
}

static struct seed_counts counts_of(const json_t *c)
{
    return (struct seed_counts){.done = count_of(c, "done"),
                                .writes = count_of(c, "writes"),
                                .deletes = count_of(c, "deletes"),
                                .refused = count_of(c, "refused"),
                                .moved = count_of(c, "moved"),
                                .retries = count_of(c, "retries"),
                                .unknown = count_of(c, "unknown"),
                                .throttled = count_of(c, "throttled")};
}

/* Position and counts as they are now, into the job. */
static void take_state(struct run *run)
{
    struct seed *seed = &run->seed;
    (void)pthread_mutex_lock(&seed->lock);
    if (seed->position && !run->second_pass) {
        json_decref(run->job.position);
        run->job.position =
            json_pack("[s, s, s]", seed->position->object, seed->position->relation, seed->position->subject);
    }
    json_decref(run->job.counts);
    run->job.counts = counts_json(&seed->counts, &run->before);
    if (!run->second_pass)
        progress_set(&run->progress, run->before.done + seed->counts.done);
    (void)pthread_mutex_unlock(&seed->lock);
}

/* The session with its locks, made again if it was lost. */
static enum status have_session(struct run *run, struct err *err)
{
    struct ctl *ctl = run->seed.ctl;
    if (pg_alive(ctl->pg))
        return ST_OK;
    enum status st = job_reconnect(ctl, "seed", err);
    return st == ST_OK ? lock_writer(ctl, run->seed.writer_id, err) : st;
}

/* A step that may be repeated, through the loss of the session. */
static enum status with_session(struct run *run, enum status (*step)(struct run *run, struct err *err), struct err *err)
{
    mono_us give_up = deadline_in_ms(run->seed.options->patience_s * 1000);
    for (unsigned i = 0;; i++) {
        enum status st = have_session(run, err);
        if (st == ST_OK)
            st = step(run, err);
        if (!status_is_retryable(st) || clock_mono_us() >= give_up)
            return st;
        if (stop_sleep_until(deadline_in_ms(backoff_ms(i, 100, 5000))) == ST_STOPPED)
            return err_set(err, ST_STOPPED, "", "interrupted");
    }
}

/* Each second: show and save; a failure that passes is met again the next second. */
static enum status on_tick(void *arg, struct err *err)
{
    struct run *run = arg;
    take_state(run);
    enum status st = have_session(run, err);
    if (st == ST_OK)
        st = job_save(run->seed.ctl, &run->job, false, err);
    return status_is_retryable(st) ? ST_OK : st;
}

/* ---- the passes ---- */

static struct tuple_key *saved_position(const struct job *job)
{
    const char *o = json_string_value(json_array_get(job->position, 0));
    const char *r = json_string_value(json_array_get(job->position, 1));
    const char *s = json_string_value(json_array_get(job->position, 2));
    const struct tuple_key key = {o, r, s};
    return o && r && s ? tuple_key_dup(&key) : NULL;
}

static enum status count_present(struct run *run, struct err *err)
{
    struct ctl *ctl = run->seed.ctl;
    const struct pg_param params[] = {pg_p_text(ctl->settings.store.name)};
    struct pg_result *r = NULL;
    enum status st = pg_query(ctl->pg, NULL, "SELECT count(*) FROM relata.tuple WHERE store = $1 AND present", params,
                              1, deadline_in_ms(CTL_COUNT_MS), &r, err);
    run->total = st == ST_OK ? pg_int(r, 0, 0) : 0;
    pg_result_free(r);
    return st;
}

static enum status first_pass(struct run *run, struct err *err)
{
    struct tuple_key *from = saved_position(&run->job);
    enum status st = with_session(run, count_present, err);
    if (st == ST_OK) {
        if (from)
            (void)fprintf(stderr, "going on after %s#%s@%s\n", from->object, from->relation, from->subject);
        progress_start(&run->progress, "seeding", "tuples", run->total, run->before.done);
        st = seed_keys(&run->seed, from, -1, on_tick, run, err);
        take_state(run);
        progress_end(&run->progress);
    }
    free(from);
    return st;
}

/* run->settle_ms: until every writer that lives must have heard of the pinned store. */
static enum status ask_settled(struct run *run, struct err *err)
{
    struct ctl *ctl = run->seed.ctl;
    const struct pg_param params[] = {pg_p_text(ctl->settings.store.name)};
    struct pg_result *r = NULL;
    int writers = 0;
    enum status st = live_writers(ctl, &writers, err);
    if (st == ST_OK)
        st = pg_query(
            ctl->pg, NULL,
            "SELECT extract(epoch FROM clock_timestamp() - pinned_at) * 1000 FROM relata.store WHERE name = $1 AND "
            "pinned_at IS NOT NULL",
            params, 1, ctl_deadline(ctl), &r, err);
    if (st == ST_OK)
        run->settle_ms = writers > 1 && pg_rows(r) ? SETTLE_MS - (int64_t)pg_double(r, 0, 0) : 0; /* one is ourselves */
    pg_result_free(r);
    return st;
}

/*
 * What changed since before the pin: a writer that had not heard of the new store yet took its change to the former one
 * and acknowledged it. By now all have heard.
 */
static enum status second_pass(struct run *run, struct err *err)
{
    enum status st = with_session(run, ask_settled, err);
    if (st == ST_OK && run->settle_ms > 0) {
        (void)fprintf(stderr, "waiting %.0f s until all writers know the new store\n", (double)run->settle_ms / 1000);
        if (stop_sleep_until(deadline_in_ms(run->settle_ms)) == ST_STOPPED)
            return err_set(err, ST_STOPPED, "", "interrupted");
    }
    run->second_pass = true;
    if (st == ST_OK)
        st = seed_keys(&run->seed, NULL, run->job.since, on_tick, run, err);
    return st;
}

/* ---- the end ---- */

static long long done_in_all(const struct run *run)
{
    return (long long)run->before.done + run->seed.counts.done;
}

static void print_summary(const struct run *run, const struct comparison *v, double seconds)
{
    const struct seed_counts *c = &run->seed.counts;
    char took[32];
    (void)printf("store %s, model %s: %lld tuples in %s (%.0f/s)%s\n", run->seed.pin.store_id, run->seed.pin.model_id,
                 done_in_all(run), age_text(seconds, took), seconds > 0 ? (double)c->done / seconds : 0,
                 run->job.resumed ? ", continued" : "");
    if (c->refused)
        (void)printf("%lld refused by the store and parked (relatactl dead-letters list)\n", (long long)c->refused);
    if (c->moved || c->retries || c->unknown)
        (void)printf("%lld changed meanwhile and were done again, %lld retries, %lld unknown outcomes\n",
                     (long long)c->moved, (long long)c->retries, (long long)c->unknown);
    if (v)
        comparison_print(v);
}

static bool verdict_good(const struct run *run, const struct comparison *v)
{
    return v->missing <= run->seed.counts.refused + run->before.refused && v->other_condition == 0 &&
           (v->extra == 0 || run->seed.options->merge);
}

/* With all keys done, no intent of ours covers anything. Otherwise writers see to them, once we are gone. */
static enum status finish(struct run *run, struct err *err)
{
    struct ctl *ctl = run->seed.ctl;
    char scratch[24];
    const struct pg_param params[] = {pg_p_int(run->seed.writer_id, scratch)};
    enum status st = job_save(ctl, &run->job, true, err);
    if (st == ST_OK)
        st = pg_query(
            ctl->pg, NULL,
            "WITH intents AS (DELETE FROM relata.inflight WHERE writer = $1) UPDATE relata.writer SET ended_at = "
            "clock_timestamp() WHERE id = $1",
            params, 1, ctl_deadline(ctl), NULL, err);
    return st;
}

/* Stopped midway: at least the position, if that is possible. */
static void save_position(struct run *run)
{
    struct err ignored;
    take_state(run);
    if (pg_alive(run->seed.ctl->pg) && job_save(run->seed.ctl, &run->job, false, &ignored) != ST_OK)
        (void)ignored; /* the last second's stands */
}

static enum status passes(struct run *run, struct err *err)
{
    enum status st = first_pass(run, err);
    if (st == ST_OK)
        st = second_pass(run, err);
    take_state(run);
    if (st == ST_OK)
        st = with_session(run, finish, err);
    else
        save_position(run);
    return st;
}

static enum status seed_all(struct run *run, struct comparison *verdict, struct err *err)
{
    struct ctl *ctl = run->seed.ctl;
    enum status st = ctl_pg(ctl, err);
    if (st == ST_OK)
        st = job_lock(ctl, "seed", err);
    if (st == ST_OK)
        st = choose_store(run, err);
    if (st == ST_OK) {
        run->before = counts_of(run->job.counts);
        st = register_writer(run, err);
    }
    if (st == ST_OK)
        st = passes(run, err);
    if (st == ST_OK && !run->seed.options->no_verify)
        st = compare_store(ctl, &run->seed.pin, verdict, err);
    return st;
}

static void init(struct run *run, struct ctl *ctl, const void *opts)
{
    run->seed = (struct seed){.ctl = ctl, .options = opts};
    (void)pthread_mutex_init(&run->seed.lock, NULL);
    wait_cond_init(&run->seed.changed);
}

static void release(struct run *run)
{
    job_release(&run->job);
    free(run->seed.position);
    (void)pthread_mutex_destroy(&run->seed.lock);
    (void)pthread_cond_destroy(&run->seed.changed);
}

static enum exit_code report(struct run *run, const struct comparison *verdict, double seconds)
{
    struct ctl *ctl = run->seed.ctl;
    bool verified = !run->seed.options->no_verify;
    if (ctl->json)
        ctl_print_json(json_pack("{s:s, s:s, s:s, s:b, s:f, s:O, s:o}", "store", ctl->settings.store.name, "store_id",
                                 run->seed.pin.store_id, "model_id", run->seed.pin.model_id, "continued",
                                 (int)run->job.resumed, "seconds", seconds, "counts", run->job.counts, "compared",
                                 verified ? comparison_json(verdict) : json_null()));
    else
        print_summary(run, verified ? verdict : NULL, seconds);
    if (verified && !verdict_good(run, verdict)) {
        (void)fprintf(stderr,
                      "relatactl seed: ledger and store differ; changes that were pending while it was verified count "
                      "as well (relatactl lag)\n");
        return EXIT_FAILED;
    }
    return run->seed.counts.refused ? EXIT_PARTIAL : EXIT_DONE;
}

static enum exit_code seed_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    (void)nargs;
    (void)args;
    struct run run = {.total = 0};
    struct comparison verdict = {0};
    struct err err = {.status = ST_OK};
    mono_us started = clock_mono_us();
    enum exit_code code;
    init(&run, ctl, opts);
    enum status st = check_options(opts, &err);
    if (st == ST_OK)
        st = seed_all(&run, &verdict, &err);
    if (st == ST_OK) {
        code = report(&run, &verdict, (double)(clock_mono_us() - started) / 1e6);
    } else {
        if (run.registered && st != ST_CONFIG)
            err_prefix(&err, "stopped after %lld tuples (the same command goes on there)", done_in_all(&run));
        code = ctl_fail(ctl, &err);
    }
    release(&run);
    return code;
}

#define AT(member) offsetof(struct seed_options, member)
static const struct option_spec seed_specs[] = {
    {"create", OPTION_FLAG, AT(create), NULL, "make a new store with the model of --model, and pin both", 0, 0, 0},
    {"model", OPTION_TEXT, AT(model_file), "FILE", "the model of the new store, as JSON", 0, 0, 0},
    {"store-id", OPTION_TEXT, AT(store_id), "ID", "pin and fill this store instead of the pinned one", 0, 0, 0},
    {"model-id", OPTION_TEXT, AT(model_id), "ID", "with --store-id: the model to put in force; default: its newest", 0,
     0, 0},
    {"merge", OPTION_FLAG, AT(merge), NULL,
     "the store may hold tuples already; others than the ledger's are left alone", 0, 0, 0},
    {"restart", OPTION_FLAG, AT(restart), NULL, "begin with the first tuple, even if an earlier run stopped midway", 0,
     0, 0},
    {"no-verify", OPTION_FLAG, AT(no_verify), NULL, "do not read the store back at the end", 0, 0, 0},
    {"in-flight", OPTION_INT, AT(in_flight), "N", "Writes under way at once, each with a connection to Postgres", 8, 1,
     64},
    {"patience", OPTION_INT, AT(patience_s), "SECONDS", "give up when one batch has failed for so long", 120, 1, 86400},
    {0},
};

const struct command command_seed = {
    .name = "seed",
    .args = "",
    .summary = "Fill an empty store from the ledger",
    .details =
        "Writes every present tuple of relata.tuple to the store, in batches of 100, many at once. It is safe while\n"
        "writers run: each batch is recorded as an intent and checked against the ledger afterwards, so that an old\n"
        "state cannot win. Interrupted or failed, it goes on where it stopped when run again (relata.job); what was\n"
        "done already is harmless to do twice. Tuples that the store refuses are parked. At the end the store is read\n"
        "back and compared. Needs the rights of relata_writer and, to pin, relata_repair.\n\n"
        "Examples:\n"
        "  relatactl seed --create --model model.json      a new store, for a first start or after a loss\n"
        "  relatactl seed --store-id 01ARZ3NDEKTSV4RRFFQ69G5FAV   move to another store\n"
        "  relatactl seed --merge                          fill up the pinned one",
    .options = seed_specs,
    .run = seed_run,
};
