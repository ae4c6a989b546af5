/* migrate.c - relatactl migrate: bring schema relata, or relata_store, to this program's version. */
#include <stdlib.h>

#include "relatactl/commands.h"
#include "relatactl/migrate_files.h"

#define MIGRATE_CLASS "1380270085"
#define RETRY_BASE_MS 200
#define RETRY_CAP_MS 2000

struct migrate_options {
    const char *dir;
    bool store; /* authz-store's schema */
    bool dry_run;
    int64_t wait_s, lock_ms, timeout_s;
};

/* One migration that this run applied, or would. */
struct migrate_run {
    struct ctl *ctl;
    const char *schema; /* a name of ours: may stand in SQL */
    const struct migrate_options *options;
    const struct migrations *files;
    json_t *applied; /* names */
    size_t already;
};

/* The transaction lock that two migrates at once queue on; released by COMMIT, so that it works behind poolers too. */
static enum status begin_locked(struct migrate_run *run, struct err *err)
{
    char sql[256];
    (void)snprintf(
        sql, sizeof sql,
        "BEGIN; SET LOCAL synchronous_commit TO on; SET LOCAL statement_timeout TO 0; SET LOCAL lock_timeout "
        "TO '%lldms'; SELECT pg_advisory_xact_lock(" MIGRATE_CLASS ", 0)",
        (long long)run->options->lock_ms);
    return pg_exec(run->ctl->pg, sql, deadline_in_ms(run->options->lock_ms + 10000), err);
}

static enum status table_exists(struct migrate_run *run, bool *exists, struct err *err)
{
    struct pg_result *r = NULL;
    char table[64];
    (void)snprintf(table, sizeof table, "%s.migration", run->schema);
    const struct pg_param name = pg_p_text(table);
    enum status st =
        pg_query(run->ctl->pg, NULL, "SELECT to_regclass($1) IS NOT NULL", &name, 1, ctl_deadline(run->ctl), &r, err);
    *exists = st == ST_OK && pg_bool(r, 0, 0);
    pg_result_free(r);
    return st;
}

static const struct migration *file_of(const struct migrations *files, int64_t version)
{
    for (size_t i = 0; i < files->len; i++) {
        if (files->items[i].version == version)
            return &files->items[i];
    }
    return NULL;
}

/* What is recorded must be what the files say, name by name and byte by byte. */
static enum status compare_recorded(struct migrate_run *run, const struct pg_result *r, struct err *err)
{
    run->already = (size_t)pg_rows(r);
    for (int i = 0; i < pg_rows(r); i++) {
        const struct migration *m = file_of(run->files, pg_int(r, i, 0));
        if (!m)
            return err_set(err, ST_INVALID, CTL_REFUSED,
                           "the database has migration %s, which this program does not know: use the newer relatactl",
                           pg_text(r, i, 1));
        if (strcmp(m->checksum, pg_text(r, i, 2)) != 0)
            return err_set(
                err, ST_INVALID, CTL_REFUSED,
                "migration %s was changed after it was applied on %s (file %.19s.., recorded %.19s..): restore "
                "the file; changes belong in a new migration",
                m->name, pg_text(r, i, 3), m->checksum, pg_text(r, i, 2));
    }
    return ST_OK;
}

static bool is_recorded(const struct pg_result *r, int version)
{
    for (int i = 0; r && i < pg_rows(r); i++) {
        if (pg_int(r, i, 0) == version)
            return true;
    }
    return false;
}

/* The first file that is not recorded; NULL if all are. */
static enum status next_pending(struct migrate_run *run, const struct migration **next, struct err *err)
{
    struct pg_result *r = NULL;
    char sql[256];
    bool exists = false;
    *next = NULL;
    enum status st = table_exists(run, &exists, err);
    (void)snprintf(sql, sizeof sql,
                   "SELECT version, name, checksum, " CTL_WHEN("applied_at") " FROM %s.migration ORDER BY version",
                   run->schema);
    if (st == ST_OK && exists)
        st = pg_query(run->ctl->pg, NULL, sql, NULL, 0, ctl_deadline(run->ctl), &r, err);
    if (st == ST_OK && exists)
        st = compare_recorded(run, r, err);
    for (size_t i = 0; st == ST_OK && i < run->files->len && !*next; i++) {
        if (!is_recorded(r, run->files->items[i].version))
            *next = &run->files->items[i];
    }
    pg_result_free(r);
    return st;
}

static enum status apply(struct migrate_run *run, const struct migration *m, struct err *err)
{
    struct pg *pg = run->ctl->pg;
    char version[24], sql[128];
    mono_us deadline = deadline_in_ms(run->options->timeout_s * 1000);
    enum status st = pg_exec(pg, buf_str(&m->sql), deadline, err);
    if (st != ST_OK) {
        err_prefix(err, "migration %s", m->name);
        return st;
    }
    const struct pg_param params[] = {pg_p_int(m->version, version), pg_p_text(m->name), pg_p_text(m->checksum)};
    /* The first migration makes the table. */
    (void)snprintf(sql, sizeof sql, "INSERT INTO %s.migration (version, name, checksum) VALUES ($1, $2, $3)",
                   run->schema);
    st = pg_query(pg, NULL, sql, params, 3, ctl_deadline(run->ctl), NULL, err);
    if (st == ST_OK)
        st = pg_exec(pg, "COMMIT", deadline, err);
    return st;
}

/* One step in a transaction of its own: *done when nothing is pending. */
static enum status step(struct migrate_run *run, bool *done, struct err *err)
{
    const struct migration *m = NULL;
    struct err ignored;
    enum status st = begin_locked(run, err);
    if (st == ST_OK)
        st = next_pending(run, &m, err);
    if (st == ST_OK && m) {
        if (!run->ctl->json)
            (void)printf("applying %s\n", m->name);
        (void)fflush(stdout);
        st = apply(run, m, err);
    }
    if (st == ST_OK && m)
        (void)json_array_append_new(run->applied, json_string(m->name));
    *done = st == ST_OK && !m;
    if (pg_alive(run->ctl->pg) && pg_exec(run->ctl->pg, "ROLLBACK", ctl_deadline(run->ctl), &ignored) != ST_OK)
        (void)ignored; /* the connection is gone, and the transaction with it */
    return st;
}

/* Whoever holds a lock that a migration waits for is most likely the oldest transaction. */
static void name_blocker(struct migrate_run *run, struct err *err)
{
    struct pg_result *r = NULL;
    char text[sizeof err->text];
    if (pg_query(run->ctl->pg, NULL,
                 "SELECT pid, coalesce(application_name, ''), coalesce(usename::text, ''), "
                 "date_trunc('second', clock_timestamp() - xact_start)::text FROM pg_stat_activity "
                 "WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid() "
                 "ORDER BY xact_start LIMIT 1",
                 NULL, 0, ctl_deadline(run->ctl), &r, NULL) == ST_OK &&
        pg_rows(r) == 1) {
        (void)snprintf(text, sizeof text, "%s", err->text);
        err_set(err, err->status, err->code, "%.700s; oldest transaction: pid %s, \"%s\", user %s, since %s", text,
                pg_text(r, 0, 0), pg_text(r, 0, 1), pg_text(r, 0, 2), pg_text(r, 0, 3));
    }
    pg_result_free(r);
}

static enum status run_all(struct migrate_run *run, struct err *err)
{
    mono_us give_up = deadline_in_ms(run->options->wait_s * 1000);
    bool done = false;
    for (unsigned attempt = 0; !done;) {
        enum status st = step(run, &done, err);
        if (st == ST_OK) {
            attempt = 0;
            continue;
        }
        /* A lock that is held, a deadlock, a restart, a COMMIT whose answer was lost: the records tell what is left. */
        if (!status_is_retryable(st) || clock_mono_us() >= give_up) {
            if (strcmp(err->code, "55P03") == 0)
                name_blocker(run, err);
            return st;
        }
        if (stop_sleep_until(deadline_in_ms(backoff_ms(attempt++, RETRY_BASE_MS, RETRY_CAP_MS))) == ST_STOPPED)
            return err_set(err, ST_STOPPED, "", "interrupted; what was applied is recorded, run it again");
        if (!pg_alive(run->ctl->pg)) {
            st = pg_reopen(run->ctl->pg, give_up, err);
            if (st != ST_OK)
                return st;
        }
    }
    return ST_OK;
}

/* Without changing anything: all files that are not recorded. */
static enum status plan(struct migrate_run *run, struct err *err)
{
    const struct migration *next = NULL;
    enum status st = next_pending(run, &next, err);
    if (st != ST_OK || !next)
        return st;
    struct pg_result *r = NULL;
    char sql[64];
    bool exists = false;
    st = table_exists(run, &exists, err);
    (void)snprintf(sql, sizeof sql, "SELECT version FROM %s.migration", run->schema);
    if (st == ST_OK && exists)
        st = pg_query(run->ctl->pg, NULL, sql, NULL, 0, ctl_deadline(run->ctl), &r, err);
    for (size_t i = 0; st == ST_OK && i < run->files->len; i++) {
        if (!is_recorded(r, run->files->items[i].version))
            (void)json_array_append_new(run->applied, json_string(run->files->items[i].name));
    }
    pg_result_free(r);
    return st;
}

static void report(const struct migrate_run *run)
{
    size_t n = json_array_size(run->applied);
    bool dry = run->options->dry_run;
    if (run->ctl->json) {
        ctl_print_json(json_pack("{s:O, s:i, s:b}", dry ? "would_apply" : "applied", run->applied, "up_to",
                                 run->files->items[run->files->len - 1].version, "dry_run", (int)dry));
        return;
    }
    for (size_t i = 0; dry && i < n; i++)
        (void)printf("would apply %s\n", json_string_value(json_array_get(run->applied, i)));
    if (!n)
        (void)printf("schema %s is up to date: version %d\n", run->schema,
                     run->files->items[run->files->len - 1].version);
    else if (!dry)
        (void)printf("%zu applied, schema %s is at version %d\n", n, run->schema,
                     run->files->items[run->files->len - 1].version);
}

static enum exit_code migrate_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    (void)nargs;
    (void)args;
    const struct migrate_options *options = opts;
    struct err err = {.status = ST_OK};
    struct migrations files = {0};
    struct buf dir;
    struct migrate_run run = {.ctl = ctl,
                              .schema = options->store ? "relata_store" : "relata",
                              .options = options,
                              .files = &files,
                              .applied = json_array()};
    enum status st = ST_OK;
    enum exit_code code = EXIT_DONE;

    buf_init(&dir, 8192);
    if (options->dir)
        buf_adds(&dir, options->dir);
    else
        st = migrations_find(&dir, &err);
    if (!options->dir && options->store)
        buf_adds(&dir, "/store");
    if (st == ST_OK)
        st = migrations_read(buf_str(&dir), &files, &err);
    if (st == ST_OK)
        st = ctl_pg(ctl, &err);
    if (st == ST_OK)
        st = options->dry_run ? plan(&run, &err) : run_all(&run, &err);
    if (st == ST_OK)
        report(&run);
    else
        code = ctl_fail(ctl, &err);
    migrations_release(&files);
    buf_release(&dir);
    json_decref(run.applied);
    return code;
}

#define AT(member) offsetof(struct migrate_options, member)
static const struct option_spec migrate_specs[] = {
    {"dir", OPTION_TEXT, AT(dir), "FOLDER", "where the migrations are; default: those that came with this program", 0,
     0, 0},
    {"store", OPTION_FLAG, AT(store), NULL,
     "schema relata_store, which authz-store keeps its data in, instead of relata", 0, 0, 0},
    {"dry-run", OPTION_FLAG, AT(dry_run), NULL, "show what would be applied, change nothing", 0, 0, 0},
    {"wait", OPTION_INT, AT(wait_s), "SECONDS", "keep trying this long while locks are held", 60, 0, 86400},
    {"lock-timeout", OPTION_INT, AT(lock_ms), "MS",
     "one wait for a lock: a migration never queues behind a long "
     "transaction longer than this",
     3000, 1, 600000},
    {"timeout", OPTION_INT, AT(timeout_s), "SECONDS", "longest time for one migration", 3600, 1, 604800},
    {0},
};

const struct command command_migrate = {
    .name = "migrate",
    .args = "",
    .summary = "Create or update the schema relata in the database, or authz-store's",
    .details =
        "Applies the numbered migrations that are not recorded in relata.migration (with --store, in\n"
        "relata_store.migration: that schema may be in another database), each in a transaction. Running\n"
        "it again changes nothing; two at once wait for each other. A migration whose file was changed after it\n"
        "was applied, or a database newer than this program, is refused with exit code 3.\n\n"
        "The role needs CREATE on the database and CREATEROLE, no superuser. Examples:\n"
        "  relatactl migrate --set pg.dsn=postgresql://owner@db/inventory\n"
        "  relatactl migrate --store --set pg.dsn=postgresql://owner@db/authz\n"
        "  relatactl migrate --dry-run --json",
    .options = migrate_specs,
    .max_args = 0,
    .run = migrate_run,
};
