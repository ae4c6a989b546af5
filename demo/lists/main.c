/*
 * demo-lists - lists of instances as three people see them, page by page, compared with plain SQL row by row; then
 * rights are taken away and given back, and the lists are watched.
 *
 * Meant for a database at rest: a row that changes during a walk shows as a difference.
 */
#include <string.h>

#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/config/config.h"
#include "demo/lists/change.h"
#include "demo/lists/people.h"
#include "demo/lists/walk.h"

#define CONNECT_MS 30000
#define PROBE_ROWS 200
#define WALK_SECONDS 5
#define WALKS 6
#define CHANGES 3

struct settings {
    char *dsn, *truth_dsn, *url, *token, *relation, *json;
    int64_t rows, rounds, patience_ms;
};

#define KEY(section, key, type, member, preset, min, max, help)                                                        \
    {                                                                                                                  \
        section, key, type, offsetof(struct settings, member), preset, min, max, NULL, NULL, help                      \
    }
static const struct cfg_key keys[] = {
    KEY("pg", "dsn", CFG_SECRET, dsn, NULL, 0, 0, "the service's login, which changes the inventory"),
    KEY("lister", "url", CFG_STRING, url, NULL, 0, 0, "where inventory-lister's API is"),
    KEY("lister", "token", CFG_SECRET, token, NULL, 0, 0, "of a caller with the right name-subject"),
    KEY("lists", "truth_dsn", CFG_SECRET, truth_dsn, NULL, 0, 0, "a login that may read the inventory and relata.lag"),
    KEY("lists", "relation", CFG_STRING, relation, "can_view", 0, 0, "what the subjects may do: can_view, can_edit .."),
    KEY("lists", "rows", CFG_INT, rows, "2000", 100, 1000000,
        "walk these newest instances at most; fewer if the store is slow"),
    KEY("lists", "rounds", CFG_INT, rounds, "3", 1, ROUNDS_MAX, "how often each right is taken away and given back"),
    KEY("lists", "patience", CFG_DURATION, patience_ms, "5min", 1000, 3600000, "longest time for all of it"),
    KEY("lists", "json", CFG_STRING, json, "", 0, 0, "file for the results"),
    {0},
};
static const struct cfg_program program = {
    .name = "demo-lists",
    .summary = "walks lists of the demo's inventory and compares them with plain SQL, row by row",
    .keys = keys,
    .details = "Exit: 0 all equal, 1 a difference or a failure, 2 bad usage.",
};

struct run {
    const struct settings *cfg;
    struct lister *lister;
    struct pg *service, *truth;
    struct people people;
    mono_us deadline;
    int64_t rows;                   /* that are walked */
    struct walked walks[WALKS + 1]; /* the last one after the changes */
    struct changed changes[CHANGES];
    size_t nwalks, nchanges;
};

/* ---- walks ---- */

static enum status walk(struct run *run, const char *user, bool named, struct err *err)
{
    const struct people *p = &run->people;
    struct walked *out = &run->walks[run->nwalks];
    struct walk w = {.user = user, .relation = run->cfg->relation, .since = p->since, .from = named ? p->name : NULL};
    enum status st = walk_compare(run->lister, run->truth, &w, run->deadline, out, err);

    if (st != ST_OK)
        return st;
    run->nwalks++;
    printf("  %-14s  %-34s %6zu rows, %3zu pages  %6.2f s  %s\n", user,
           named ? "second half of the names, by name" : "newest first", out->rows, out->pages, out->seconds,
           out->equal ? "equal" : "DIFFERS");
    if (!out->equal)
        printf("    %s\n", out->difference);
    fflush(stdout);
    return ST_OK;
}

static enum status walk_all(struct run *run, struct err *err)
{
    const char *users[] = {FEW_USER, run->people.some, ALL_USER};
    enum status st = ST_OK;

    printf("  %s, of %s instances; pages of 1 to 1,000 rows; beside it the same by SQL\n", run->cfg->relation,
           run->people.live);
    if (run->people.since[0])
        printf("  walked are the newest %s, created_at from %s on\n", run->people.walked, run->people.since);
    for (size_t i = 0; i < WALKS && st == ST_OK; i++)
        st = walk(run, users[i / 2], i % 2 == 1, err);
    return st;
}

/* As many rows as a walk checks in some seconds: a check costs one store far more than another, and a busy machine. */
static enum status prepare(struct run *run, struct err *err)
{
    const struct settings *cfg = run->cfg;
    struct walk w = {.user = FEW_USER, .relation = cfg->relation, .since = run->people.since};
    struct walked probe = {0};

    run->rows = cfg->rows < PROBE_ROWS ? cfg->rows : PROBE_ROWS;
    enum status st = people_find(&run->people, run->service, run->truth, run->rows, run->deadline, err);
    if (st == ST_OK)
        st = walk_compare(run->lister, run->truth, &w, run->deadline, &probe, err);
    if (st != ST_OK)
        return st;
    double rows = (double)run->rows / (probe.seconds > 0.01 ? probe.seconds : 0.01) * WALK_SECONDS;
    if (rows > (double)run->rows)
        run->rows = rows < (double)cfg->rows ? (int64_t)rows : cfg->rows;
    return people_find(&run->people, run->service, run->truth, run->rows, run->deadline, err);
}

/* ---- changes ---- */

static double ms(int64_t us)
{
    return (double)us / 1000;
}

static enum status change(struct run *run, const struct change *c, struct err *err)
{
    struct changed *out = &run->changes[run->nchanges];
    enum status st = change_measure(run->lister, run->service, c, (size_t)run->cfg->rounds, run->deadline, out, err);

    if (st != ST_OK)
        return st;
    run->nchanges++;
    printf("  %-34s  gone after %6.1f ms, at most %6.1f   back after %6.1f ms, at most %6.1f\n", c->what,
           ms(out->gone[out->rounds / 2]), ms(out->gone[out->rounds - 1]), ms(out->back[out->rounds / 2]),
           ms(out->back[out->rounds - 1]));
    fflush(stdout);
    return ST_OK;
}

/* Ids are of the inventory, which quotes nothing that SQL would have to. */
static enum status change_all(struct run *run, struct err *err)
{
    const struct people *p = &run->people;
    char share_end[400], share[400], grant_end[400], grant[400];
    struct change all[CHANGES] = {
        {"a share of one instance ends", share_end, share, "user:" FEW_USER, run->cfg->relation, p->shared_team,
         p->shared},
        {"a person leaves a team",
         "DELETE FROM inventory.memberships WHERE team_id = '" ALL_TEAM "' AND user_id = '" ALL_USER "'",
         "INSERT INTO inventory.memberships (team_id, user_id) VALUES ('" ALL_TEAM "', '" ALL_USER "')",
         "user:" ALL_USER, run->cfg->relation, p->granted_team, p->granted},
        {"a team's grant of a company ends", grant_end, grant, "user:" ALL_USER, run->cfg->relation, p->granted_team,
         p->granted},
    };
    enum status st = ST_OK;

    snprintf(share_end, sizeof share_end,
             "DELETE FROM inventory.instance_shares WHERE user_id = '" FEW_USER "' AND resource_instance_id = %lld",
             (long long)p->shared);
    snprintf(share, sizeof share,
             "INSERT INTO inventory.instance_shares (resource_instance_id, user_id, relation)"
             " VALUES (%lld, '" FEW_USER "', 'editor')",
             (long long)p->shared);
    snprintf(grant_end, sizeof grant_end,
             "DELETE FROM inventory.team_grants WHERE team_id = '" ALL_TEAM "' AND organization_id = '%s'",
             p->granted_organization);
    snprintf(grant, sizeof grant,
             "INSERT INTO inventory.team_grants (team_id, relation, organization_id)"
             " VALUES ('" ALL_TEAM "', 'editor', '%s')",
             p->granted_organization);
    printf("  from the end of COMMIT to the first list without the row, and with it again; median of %lld\n",
           (long long)run->cfg->rounds);
    for (size_t i = 0; i < CHANGES && st == ST_OK; i++)
        st = change(run, &all[i], err);
    return st;
}

/* ---- results ---- */

static bool all_equal(const struct run *run)
{
    for (size_t i = 0; i < run->nwalks; i++) {
        if (!run->walks[i].equal)
            return false;
    }
    return run->nwalks == WALKS + 1;
}

static json_t *times_json(const int64_t *us, size_t n)
{
    return json_pack("{s:I, s:I}", "p50", (json_int_t)us[n / 2], "max", (json_int_t)us[n - 1]);
}

static enum status write_results(const struct run *run, struct err *err)
{
    json_t *walks = json_array(), *changes = json_array();
    size_t rows = 0, pages = 0, differ = 0;
    enum status st = ST_OK;

    for (size_t i = 0; i < run->nwalks; i++) {
        const struct walked *w = &run->walks[i];
        rows += w->rows;
        pages += w->pages;
        differ += !w->equal;
        json_array_append_new(walks, json_pack("{s:I, s:I, s:I, s:f, s:b}", "rows", (json_int_t)w->rows, "pages",
                                               (json_int_t)w->pages, "incomplete", (json_int_t)w->incomplete, "seconds",
                                               w->seconds, "equal", w->equal));
    }
    for (size_t i = 0; i < run->nchanges; i++) {
        const struct changed *c = &run->changes[i];
        json_array_append_new(changes, json_pack("{s:I, s:I, s:o, s:o}", "rounds", (json_int_t)c->rounds, "lists",
                                                 (json_int_t)c->polls, "gone_us", times_json(c->gone, c->rounds),
                                                 "back_us", times_json(c->back, c->rounds)));
    }
    json_t *json =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:o}", "relation", run->cfg->relation, "rows", (json_int_t)rows,
                  "pages", (json_int_t)pages, "lists_that_differ", (json_int_t)differ, "asked_again",
                  (json_int_t)lister_retries(run->lister), "walks", walks, "changes", changes);
    if (!json || json_dump_file(json, run->cfg->json, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) != 0)
        st = err_set(err, ST_CONFIG, "", "cannot write %s: does its folder exist?", run->cfg->json);
    json_decref(json);
    return st;
}

static enum status connect_all(struct run *run, struct err *err)
{
    struct pg_config service = {.dsn = run->cfg->dsn, .application_name = "demo-lists", .watch_stop = true};
    struct pg_config truth = {.dsn = run->cfg->truth_dsn, .application_name = "demo-lists", .watch_stop = true};
    enum status st = pg_open(&run->service, &service, deadline_in_ms(CONNECT_MS), err);

    if (st == ST_OK)
        st = pg_open(&run->truth, &truth, deadline_in_ms(CONNECT_MS), err);
    return st == ST_OK ? lister_new(&run->lister, run->cfg->url, run->cfg->token, err) : st;
}

static enum status run_all(struct run *run, struct err *err)
{
    run->deadline = deadline_in_ms(run->cfg->patience_ms);
    enum status st = connect_all(run, err);
    if (st == ST_OK)
        st = prepare(run, err);
    if (st == ST_OK)
        st = walk_all(run, err);
    if (st == ST_OK)
        st = change_all(run, err);
    if (st == ST_OK)
        st = people_settle(run->truth, run->deadline, err);
    if (st == ST_OK) /* once more, after all that came and went */
        st = walk(run, FEW_USER, true, err);
    if (run->lister && lister_retries(run->lister) > 0)
        printf("  %u pages were asked for again: the lister or the store had too much to do\n",
               lister_retries(run->lister));
    if (st == ST_OK && run->cfg->json[0])
        st = write_results(run, err);
    if (st == ST_OK && !all_equal(run))
        st = err_set(err, ST_FATAL, "", "lists differ from what plain SQL says");
    return st;
}

int main(int argc, char **argv)
{
    struct settings settings = {0};
    struct run run = {.cfg = &settings};
    struct err err = {0};
    enum cfg_action action;
    if (config_load(&program, argc, argv, &settings, &action, &err) != ST_OK) {
        fprintf(stderr, "demo-lists: %s\n", err.text);
        return EXIT_USAGE;
    }
    int code = EXIT_DONE;
    if (action == CFG_RUN) {
        log_init(program.name, LOG_LVL_WARN, LOG_FMT_LOGFMT);
        stop_init();
        if (run_all(&run, &err) != ST_OK) {
            fprintf(stderr, "demo-lists: %s\n", err.text);
            code = EXIT_FAILED;
        }
    }
    lister_free(run.lister);
    pg_close(run.service);
    pg_close(run.truth);
    config_release(&program, &settings);
    return code;
}
