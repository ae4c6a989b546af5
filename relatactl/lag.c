/* lag.c - relatactl lag: what is pending and parked, per store. */
#include "common/cli/progress.h"
#include "relatactl/commands.h"
#include "relatactl/identity.h"

struct lag_options {
    const char *store;
    int64_t max_age;
    bool max_parked_zero;
};

static const char *const names[] = {"store", "pending", "oldest_age_seconds", "parked"};

static void print_rows(struct ctl *ctl, const struct pg_result *r)
{
    struct table *t = table_new(5, (const char *const[]){"STORE", "PENDING", "OLDEST", "PARKED", "STATE"});
    for (int i = 0; i < pg_rows(r); i++) {
        char age[32] = "0";
        if (pg_double(r, i, 2) > 0)
            (void)age_text(pg_double(r, i, 2), age);
        table_add(t, (const char *const[]){pg_text(r, i, 0), pg_text(r, i, 1), age, pg_text(r, i, 3),
                                           store_state(ctl, pg_text(r, i, 0), pg_text(r, i, 4))});
    }
    table_print(t);
}

static json_t *json_rows(struct ctl *ctl, const struct pg_result *r)
{
    json_t *rows = json_of_rows(r, names, "sifi");
    for (int i = 0; i < pg_rows(r); i++)
        (void)json_object_set_new(json_array_get(rows, (size_t)i), "state",
                                  json_string(store_state(ctl, pg_text(r, i, 0), pg_text(r, i, 4))));
    return rows;
}

/* For cron and probes: 1 when something waits too long or is parked. */
static enum exit_code judge(const struct lag_options *o, const struct pg_result *r)
{
    enum exit_code code = EXIT_DONE;
    for (int i = 0; i < pg_rows(r); i++) {
        if (o->max_age >= 0 && pg_double(r, i, 2) > (double)o->max_age) {
            (void)fprintf(stderr,
                          "relatactl lag: store \"%s\": the oldest pending change is %.1f s old, allowed %lld s\n",
                          pg_text(r, i, 0), pg_double(r, i, 2), (long long)o->max_age);
            code = EXIT_FAILED;
        }
        if (o->max_parked_zero && pg_int(r, i, 3) > 0) {
            (void)fprintf(stderr, "relatactl lag: store \"%s\": parked changes: %s (relatactl dead-letters list)\n",
                          pg_text(r, i, 0), pg_text(r, i, 3));
            code = EXIT_FAILED;
        }
    }
    return code;
}

static enum exit_code lag_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    (void)nargs;
    (void)args;
    const struct lag_options *o = opts;
    struct err err = {.status = ST_OK};
    struct pg_result *r = NULL;
    const struct pg_param params[] = {pg_p_text(o->store)};
    enum status st = ctl_pg(ctl, &err);
    if (st == ST_OK)
        st = pg_query(
            ctl->pg, NULL,
            "SELECT l.store, l.pending, l.oldest_age_seconds, l.parked, s.store_id FROM relata.lag l LEFT JOIN "
            "relata.store s ON s.name = l.store WHERE $1::text IS NULL OR l.store = $1 ORDER BY l.store",
            params, 1, ctl_deadline(ctl), &r, &err);
    if (st == ST_OK && pg_rows(r) == 0)
        st = err_set(&err, ST_NOT_FOUND, "", "no store \"%s\" in this database", o->store);
    if (st != ST_OK) {
        pg_result_free(r);
        return ctl_fail(ctl, &err);
    }
    if (ctl->json)
        ctl_print_json(json_rows(ctl, r));
    else
        print_rows(ctl, r);
    enum exit_code code = judge(o, r);
    pg_result_free(r);
    return code;
}

#define AT(member) offsetof(struct lag_options, member)
static const struct option_spec lag_specs[] = {
    {"store", OPTION_TEXT, AT(store), "NAME", "this store only", 0, 0, 0},
    {"max-age", OPTION_INT, AT(max_age), "SECONDS", "exit with 1 if a pending change is older; -1 = any age is fine",
     -1, -1, 31536000},
    {"none-parked", OPTION_FLAG, AT(max_parked_zero), NULL, "exit with 1 if anything is parked", 0, 0, 0},
    {0},
};

const struct command command_lag = {
    .name = "lag",
    .args = "",
    .summary = "Show how many changes wait, how old the oldest is, and how many are parked",
    .details =
        "Read from the outbox itself, so it is true even if no other program of Relata runs: an idle system has\n"
        "lag 0. STATE says what the name means: pinned; not pinned (no writer applies it: is the name right?); for "
        "the\n"
        "store of store.name, which is asked, also store gone or store unreachable. With --max-age or --none-parked it "
        "serves as a check, for example from cron:\n"
        "  relatactl lag --max-age 60 --none-parked > /dev/null",
    .options = lag_specs,
    .run = lag_run,
};
