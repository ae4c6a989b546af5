/* db.c - a fresh database for each test, from a migrated template that is made once for each server. */
#include <dirent.h>
#include <inttypes.h>
#include <poll.h>
#include <unistd.h>
#include <xxhash.h>

#include "tests/harness/internal.h"

#define QUERY_MS 30000
#define TEMPLATE_LOCK "7265674, 1"

static struct pg *connect_to(const char *dsn)
{
    struct pg_config cfg = {.dsn = dsn, .application_name = "test"};
    struct pg *pg = NULL;
    struct err err;

    if (pg_open(&pg, &cfg, deadline_in_ms(harness_ms(20000)), &err) != ST_OK)
        fail_msg("cannot connect to %s: %s", dsn, err.text);
    return pg;
}

static void run(struct pg *pg, const char *sql)
{
    struct err err;

    if (pg_exec(pg, sql, deadline_in_ms(harness_ms(QUERY_MS)), &err) != ST_OK)
        fail_msg("%s: %s\n%.2000s", err.code, err.text, sql);
}

struct pg *harness_connect(struct harness *h, const char *dsn)
{
    return connect_to(dsn != NULL ? dsn : h->dsn);
}

void harness_commits_wait(struct harness *h)
{
    struct pg *probe = harness_connect(h, NULL);
    enum status st = ST_OK;
    for (mono_us end = deadline_in_ms(harness_ms(30000)); st != ST_UNKNOWN && clock_mono_us() < end; usleep(10000))
        st = pg_query(probe, NULL, "SELECT pg_logical_emit_message(true, 'test', 'probe')", NULL, 0,
                      deadline_in_ms(harness_ms(500)), NULL, NULL);
    assert_int_equal(st, ST_UNKNOWN);
    pg_close(probe);
}

void harness_sql(struct harness *h, const char *sql)
{
    run(h->pg, sql);
}

void harness_sqlf(struct harness *h, const char *fmt, ...)
{
    struct buf b;
    va_list ap;

    buf_init(&b, 64 << 20);
    va_start(ap, fmt);
    buf_vaddf(&b, fmt, ap);
    va_end(ap);
    if (!buf_ok(&b))
        fail_msg("no memory for a statement");
    run(h->pg, buf_str(&b));
    buf_release(&b);
}

const char *harness_sql_text(struct harness *h, const char *sql)
{
    struct pg_result *r = NULL;
    struct err err;
    const char *text;

    if (pg_query(h->pg, NULL, sql, NULL, 0, deadline_in_ms(harness_ms(QUERY_MS)), &r, &err) != ST_OK)
        fail_msg("%s: %s\n%.2000s", err.code, err.text, sql);
    text = harness_strf(h, "%s", pg_rows(r) > 0 ? pg_text(r, 0, 0) : "");
    pg_result_free(r);
    return text;
}

int64_t harness_sql_int(struct harness *h, const char *sql)
{
    return strtoll(harness_sql_text(h, sql), NULL, 10);
}

struct sql_wait {
    struct harness *h;
    const char *sql, *want;
    struct buf last;
};

static bool sql_is(void *arg)
{
    struct sql_wait *w = arg;
    struct pg_result *r = NULL;
    struct err err;

    /* Servers are restarted under running tests: an error is only a reason to ask again. */
    buf_clear(&w->last);
    if (!pg_alive(w->h->pg) && pg_reopen(w->h->pg, deadline_in_ms(1000), &err) != ST_OK) {
        buf_addf(&w->last, "%s", err.text);
        return false;
    }
    if (pg_query(w->h->pg, NULL, w->sql, NULL, 0, deadline_in_ms(harness_ms(QUERY_MS)), &r, &err) != ST_OK) {
        buf_addf(&w->last, "%s: %s", err.code, err.text);
        return false;
    }
    buf_adds(&w->last, pg_rows(r) > 0 ? pg_text(r, 0, 0) : "");
    pg_result_free(r);
    return strcmp(buf_str(&w->last), w->want) == 0;
}

void assert_sql_eventually(struct harness *h, const char *sql, const char *want, int timeout_ms)
{
    struct sql_wait w = {.h = h, .sql = sql, .want = want};
    const char *last;

    buf_init(&w.last, 1 << 20);
    if (!eventually(sql_is, &w, timeout_ms)) {
        last = harness_strf(h, "%s", buf_str(&w.last));
        buf_release(&w.last);
        fail_msg("after %d ms still \"%s\", not \"%s\": %s", timeout_ms, last, want, sql);
    }
    buf_release(&w.last);
}

/* ---- migrations ---- */

static int is_migration(const struct dirent *e)
{
    size_t n = strlen(e->d_name);

    return n > 4 && strcmp(e->d_name + n - 4, ".sql") == 0;
}

/* Calls `each` for the files of migrations/ in their order. */
static void each_migration(void (*each)(void *arg, const char *path, const char *sql), void *arg)
{
    char dir[4096], path[8192];
    struct dirent **names = NULL;
    struct buf b;
    int n;

    snprintf(dir, sizeof(dir), "%s/migrations", harness_root());
    n = scandir(dir, &names, is_migration, alphasort);
    if (n < 0)
        fail_msg("no folder %s: run from the repository's root", dir);
    buf_init(&b, 16 << 20);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]->d_name);
        buf_clear(&b);
        harness_read_file(path, &b);
        each(arg, path, buf_str(&b));
        free(names[i]);
    }
    free(names);
    buf_release(&b);
}

static void hash_one(void *arg, const char *path, const char *sql)
{
    XXH64_hash_t *h = arg;

    *h = XXH64(sql, strlen(sql), *h + path[strlen(path) - 5]);
}

static bool have_relatactl(char *path, size_t size)
{
    snprintf(path, size, "%s/relatactl", harness_env("BIN"));
    return access(path, X_OK) == 0;
}

static void apply_one(void *arg, const char *path, const char *sql)
{
    struct err err;

    if (pg_exec(arg, sql, deadline_in_ms(harness_ms(QUERY_MS)), &err) != ST_OK)
        fail_msg("%s: %s: %s", path, err.code, err.text);
}

void harness_migrate(const char *dsn)
{
    char relatactl[4096], set[4096], log[4096];
    struct pg *pg;
    struct buf out;

    if (have_relatactl(relatactl, sizeof(relatactl))) {
        snprintf(set, sizeof(set), "pg.dsn=%s", dsn);
        snprintf(log, sizeof(log), "%s/migrate-%d.log", harness_run_dir(), (int)getpid());
        const char *argv[] = {relatactl, "migrate", "--set", set, NULL};
        int code = proc_run_logged(argv, log, harness_ms(60000));
        buf_init(&out, 1 << 20);
        harness_read_file(log, &out);
        if (code != 0)
            fail_msg("relatactl migrate: exit code %d: %.3000s", code, buf_str(&out));
        buf_release(&out);
        unlink(log);
        return;
    }
    pg = connect_to(dsn);
    each_migration(apply_one, pg);
    pg_close(pg);
}

/* ---- databases ---- */

/* The DSN scripts/services writes: postgresql://user:password@host:port/database. `user` may be "name:password". */
static const char *dsn_with(struct harness *h, const char *dsn, const char *user, const char *host_port,
                            const char *database)
{
    const char *scheme = strstr(dsn, "://"), *at = NULL, *slash = NULL;

    if (scheme != NULL && (at = strchr(scheme, '@')) != NULL)
        slash = strchr(at, '/');
    if (slash == NULL)
        fail_msg("not of the form postgresql://user:password@host:port/database: %s", dsn);
    if (user == NULL)
        user = harness_strf(h, "%.*s", (int)(at - scheme - 3), scheme + 3);
    if (host_port == NULL)
        host_port = harness_strf(h, "%.*s", (int)(slash - at - 1), at + 1);
    return harness_strf(h, "postgresql://%s@%s/%s", user, host_port, database != NULL ? database : slash + 1);
}

const char *harness_dsn(struct harness *h, const char *user, const char *host_port, const char *database)
{
    return dsn_with(h, h->dsn, user, host_port, database);
}

/* The migrated template of these migrations on this server, made under a lock by whoever comes first. */
static const char *template_database(struct harness *h, struct pg *admin)
{
    XXH64_hash_t hash = 0;
    struct pg_result *r = NULL;
    struct err err;
    const char *name, *sql;
    bool there;

    each_migration(hash_one, &hash);
    name = harness_strf(h, "relata_template_%016" PRIx64, (uint64_t)hash);
    sql = harness_strf(h, "SELECT 1 FROM pg_database WHERE datname = '%s'", name);
    run(admin, "SELECT pg_advisory_lock(" TEMPLATE_LOCK ")");
    if (pg_query(admin, NULL, sql, NULL, 0, deadline_in_ms(QUERY_MS), &r, &err) != ST_OK)
        fail_msg("%s", err.text);
    there = pg_rows(r) == 1;
    pg_result_free(r);
    if (!there) {
        /* Renamed when done, so that a template is never half migrated. */
        run(admin, "DROP DATABASE IF EXISTS relata_template_new");
        run(admin, "CREATE DATABASE relata_template_new TEMPLATE template0 LOCALE 'C.UTF-8' ENCODING 'UTF8'");
        harness_migrate(dsn_with(h, h->pg_admin, NULL, NULL, "relata_template_new"));
        run(admin, harness_strf(h, "ALTER DATABASE relata_template_new RENAME TO %s", name));
    }
    return name;
}

void harness_db_open(struct harness *h)
{
    struct harness_private *p = h->private;
    struct pg *admin = connect_to(h->pg_admin);
    const char *source = "template0";

    if (p->parts & HARNESS_DB)
        source = template_database(h, admin);
    p->database = strdup(h->id);
    if (p->database == NULL)
        fail_msg("no memory");
    /* Still under the lock where there is one: two copies of one template at once refuse each other. */
    run(admin, harness_strf(h, "CREATE DATABASE %s TEMPLATE %s", h->id, source));
    pg_close(admin);
    h->dsn = dsn_with(h, h->pg_admin, NULL, NULL, h->id);
    h->pg = connect_to(h->dsn);
}

/* Slots of the test's database must go first; one that is in use goes once its walsender has ended. */
static bool drop_slots(struct harness *h, struct pg *admin)
{
    struct err err;
    const char *sql = harness_strf(h,
                                   "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
                                   "WHERE database = '%s' AND active_pid IS NOT NULL;"
                                   "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                                   "WHERE database = '%s'",
                                   h->private->database, h->private->database);

    for (int i = 0; i < 100; i++) {
        if (pg_exec(admin, sql, deadline_in_ms(QUERY_MS), &err) == ST_OK)
            return true;
        poll(NULL, 0, 20);
    }
    return false;
}

void harness_db_close(struct harness *h)
{
    struct pg_config cfg = {.dsn = h->pg_admin, .application_name = "test"};
    struct pg *admin = NULL;
    struct err err;

    pg_close(h->pg);
    h->pg = NULL;
    /* A private server ends with all that it holds. */
    if (h->private->database == NULL || (h->private->parts & HARNESS_OWN_PG))
        return;
    if (pg_open(&admin, &cfg, deadline_in_ms(harness_ms(10000)), &err) != ST_OK)
        return;
    if (drop_slots(h, admin) &&
        pg_exec(admin, harness_strf(h, "DROP DATABASE IF EXISTS %s WITH (FORCE)", h->private->database),
                deadline_in_ms(QUERY_MS), &err) != ST_OK)
        print_error("database %s stays: %s\n", h->private->database, err.text);
    pg_close(admin);
}

void harness_pin(struct harness *h, const char *store_id, const char *model_id)
{
    harness_sqlf(h,
                 "INSERT INTO relata.store (name, store_id, model_id, generation, pinned_at) "
                 "VALUES ('%s', '%s', '%s', 1, now()) ON CONFLICT (name) DO UPDATE SET store_id = excluded.store_id, "
                 "model_id = excluded.model_id, generation = relata.store.generation + 1, pinned_at = now()",
                 h->store_name, store_id, model_id);
}
