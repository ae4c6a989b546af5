/* store_command.c - relatactl store: which store a name means, and what of it this database owns. */
#include <stdlib.h>

#include "relatactl/commands.h"
#include "relatactl/compare.h"
#include "relatactl/identity.h"

struct store_options {
    const char *model;
    bool force, full;
};

/* ---- pin ---- */

/* The store to be pinned must exist; its model is the one named, else its newest. */
static enum status choose_model(struct ctl *ctl, const char *store_id, const char *wanted, char model[static ID_MAX],
                                struct err *err)
{
    char *text = NULL;
    enum status st = ctl_store(ctl, store_id, err);
    if (st == ST_OK)
        st = store_get(ctl->store_conn, &text, ctl_store_deadline(ctl), err);
    free(text);
    text = NULL;
    if (st == ST_OK && wanted) {
        st = store_model(ctl->store_conn, wanted, &text, ctl_store_deadline(ctl), err);
        (void)snprintf(model, ID_MAX, "%s", wanted);
    } else if (st == ST_OK) {
        st = store_latest_model(ctl->store_conn, &text, ctl_store_deadline(ctl), err);
        (void)snprintf(model, ID_MAX, "%s", st == ST_OK ? text : "");
        if (st == ST_MISSING)
            err_prefix(err, "store %s has no model yet (relatactl seed --create --model FILE makes both)", store_id);
    }
    free(text);
    return st;
}

/* Another store than the one in force must hold what was last applied, or the changes made before would be missing. */
static enum status refuse_other_store(struct ctl *ctl, const char *store_id, struct err *err)
{
    struct probes probes;
    enum status st = probes_check(ctl, &probes, err);
    if (st == ST_OK && probes.differ)
        st = err_set(
            err, ST_INVALID, CTL_REFUSED,
            "store %s does not hold what was last applied (%d of %d read back, first difference %s): fill it with "
            "relatactl seed --store-id %s, or pin it with --force",
            store_id, probes.agree, probes.agree + probes.differ, buf_str(&probes.first_difference), store_id);
    probes_release(&probes);
    return st;
}

static enum exit_code pin_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    (void)nargs;
    const struct store_options *o = opts;
    struct err err = {.status = ST_OK};
    struct pin before = {.generation = 0}, after = {.generation = 0};
    char model[ID_MAX] = "";
    enum status st = pin_find(ctl, &before, &err);
    bool same = strcmp(before.store_id, args[0]) == 0;
    if (st == ST_OK) /* pinning the same store again does not change the model by the way */
        st = choose_model(ctl, args[0],
                          o->model                   ? o->model
                          : same && *before.model_id ? before.model_id
                                                     : NULL,
                          model, &err);
    if (st == ST_OK && *before.store_id && !same && !o->force)
        st = refuse_other_store(ctl, args[0], &err);
    if (st == ST_OK)
        st = pin_write(ctl, args[0], model, &after, &err);
    if (st != ST_OK)
        return ctl_fail(ctl, &err);
    if (ctl->json)
        ctl_print_json(json_pack("{s:s, s:s, s:s, s:I, s:b}", "store", ctl->settings.store.name, "store_id",
                                 after.store_id, "model_id", after.model_id, "generation", (json_int_t)after.generation,
                                 "changed", (int)(after.generation != before.generation)));
    else
        (void)printf("store \"%s\" is %s, model %s (generation %lld%s)\n", ctl->settings.store.name, after.store_id,
                     after.model_id, (long long)after.generation,
                     after.generation == before.generation ? ", as before" : "");
    return EXIT_DONE;
}

/* ---- show ---- */

static const char show_sql[] = "SELECT l.store, s.store_id, s.model_id, s.generation, " CTL_WHEN(
    "s.pinned_at") ", "
                   "(SELECT count(*) FROM relata.tuple t WHERE t.store = l.store AND t.present), l.pending, l.parked, "
                   "coalesce((SELECT jsonb_agg(o.object_type || '#' || o.relation ORDER BY o.object_type, o.relation) "
                   "FROM "
                   "relata.owned o "
                   "WHERE o.store = l.store), '[]') FROM relata.lag l LEFT JOIN relata.store s ON s.name = l.store "
                   "WHERE s.name IS NOT "
                   "NULL OR l.pending > 0 OR l.parked > 0 ORDER BY l.store";
static const char *const show_names[] = {"store",  "store_id", "model_id", "generation", "pinned_at",
                                         "tuples", "pending",  "parked",   "owned"};

static void show_json(struct ctl *ctl, const struct pg_result *r)
{
    json_t *rows = json_of_rows(r, show_names, "sssisiiij");
    for (int i = 0; i < pg_rows(r); i++)
        (void)json_object_set_new(json_array_get(rows, (size_t)i), "state",
                                  json_string(store_state(ctl, pg_text(r, i, 0), pg_text(r, i, 1))));
    ctl_print_json(rows);
}

static void show_table(struct ctl *ctl, const struct pg_result *r)
{
    static const char *const headings[] = {"STORE",  "STATE",   "STORE ID", "MODEL IN FORCE", "GENERATION",
                                           "TUPLES", "PENDING", "PARKED",   "OWNED"};
    struct table *t = table_new(9, headings);
    for (int i = 0; i < pg_rows(r); i++)
        table_add(t, (const char *const[]){
                         pg_text(r, i, 0), store_state(ctl, pg_text(r, i, 0), pg_text(r, i, 1)),
                         *pg_text(r, i, 1) ? pg_text(r, i, 1) : NULL, *pg_text(r, i, 2) ? pg_text(r, i, 2) : NULL,
                         pg_is_null(r, i, 3) ? NULL : pg_text(r, i, 3), pg_text(r, i, 5), pg_text(r, i, 6),
                         pg_text(r, i, 7), strcmp(pg_text(r, i, 8), "[]") == 0 ? "everything" : pg_text(r, i, 8)});
    table_print(t);
}

static enum exit_code show_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    (void)opts;
    (void)nargs;
    (void)args;
    struct err err = {.status = ST_OK};
    struct pg_result *r = NULL;
    enum status st = ctl_pg(ctl, &err);
    if (st == ST_OK)
        st = pg_query(ctl->pg, NULL, show_sql, NULL, 0, deadline_in_ms(CTL_COUNT_MS), &r, &err);
    if (st != ST_OK)
        return ctl_fail(ctl, &err);
    if (ctl->json)
        show_json(ctl, r);
    else if (pg_rows(r) == 0)
        (void)printf("no store is pinned (relatactl store pin STORE_ID)\n");
    else
        show_table(ctl, r);
    pg_result_free(r);
    return EXIT_DONE;
}

/* ---- verify ---- */

struct verdict {
    struct pin pin;
    struct probes probes;
    char *latest; /* the store's newest model */
    bool full;
    struct comparison comparison;
};

static enum status verify(struct ctl *ctl, struct verdict *v, struct err *err)
{
    enum status st = pin_connect(ctl, &v->pin, err);
    if (st == ST_OK)
        st = store_latest_model(ctl->store_conn, &v->latest, ctl_store_deadline(ctl), err);
    if (st == ST_OK)
        st = probes_check(ctl, &v->probes, err);
    if (st == ST_OK && v->probes.differ)
        st = probes_refuse(&v->probes, v->pin.store_id, err);
    if (st == ST_OK && v->full)
        st = compare_store(ctl, &v->pin, &v->comparison, err);
    return st;
}

static void print_verdict(const struct ctl *ctl, const struct verdict *v)
{
    const struct probes *p = &v->probes;
    if (ctl->json) {
        ctl_print_json(json_pack("{s:s, s:s, s:s, s:s, s:{s:i, s:i, s:i}, s:o}", "store", ctl->settings.store.name,
                                 "store_id", v->pin.store_id, "model_id", v->pin.model_id, "latest_model_id", v->latest,
                                 "probes", "agree", p->agree, "differ", p->differ, "unsettled", p->unsettled,
                                 "compared", v->full ? comparison_json(&v->comparison) : json_null()));
        return;
    }
    (void)printf("store %s exists, model %s exists, %d of %d probes agree, %d are changing\n", v->pin.store_id,
                 v->pin.model_id, p->agree, p->agree + p->differ, p->unsettled);
    if (strcmp(v->latest, v->pin.model_id) != 0)
        (void)printf("warning: the store has a newer model, %s (relatactl model use %s)\n", v->latest, v->latest);
    if (v->full)
        comparison_print(&v->comparison);
}

static enum exit_code verify_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    (void)nargs;
    (void)args;
    const struct store_options *o = opts;
    struct err err = {.status = ST_OK};
    struct verdict v = {.full = o->full};
    enum status st = verify(ctl, &v, &err);
    enum exit_code code = EXIT_DONE;
    if (st != ST_OK) {
        code = ctl_fail(ctl, &err);
    } else {
        print_verdict(ctl, &v);
        if (v.full && v.comparison.equal != v.comparison.ledger)
            code = EXIT_FAILED;
        if (v.full && v.comparison.equal != v.comparison.store)
            code = EXIT_FAILED;
    }
    free(v.latest);
    probes_release(&v.probes);
    return code;
}

/* ---- own, disown ---- */

static enum status parse_pairs(int nargs, char **args, struct buf *types, struct buf *relations, struct err *err)
{
    pg_array_begin(types);
    pg_array_begin(relations);
    for (int i = 0; i < nargs; i++) {
        char *hash = strchr(args[i], '#');
        if (!hash || hash == args[i] || !hash[1] || strpbrk(args[i], ":@ \t") || strchr(hash + 1, '#'))
            return err_set(err, ST_CONFIG, "", "\"%s\" is no TYPE#RELATION", args[i]);
        *hash = '\0';
        pg_array_add(types, args[i]);
        pg_array_add(relations, hash + 1);
        *hash = '#';
    }
    pg_array_end(types);
    pg_array_end(relations);
    return ST_OK;
}

static enum exit_code own_or_disown(struct ctl *ctl, int nargs, char **args, const char *sql, const char *verb)
{
    struct err err = {.status = ST_OK};
    struct buf types, relations;
    struct pg_result *r = NULL;
    buf_init(&types, 1 << 20);
    buf_init(&relations, 1 << 20);
    enum status st = parse_pairs(nargs, args, &types, &relations, &err);
    const struct pg_param params[] = {pg_p_text(ctl->settings.store.name), pg_p_buf(&types), pg_p_buf(&relations)};
    if (st == ST_OK)
        st = ctl_pg(ctl, &err);
    if (st == ST_OK)
        st = pg_query(ctl->pg, NULL, sql, params, 3, ctl_deadline(ctl), &r, &err);
    enum exit_code code = st == ST_OK ? EXIT_DONE : ctl_fail(ctl, &err);
    if (st == ST_OK && ctl->json)
        ctl_print_json(json_pack("{s:I}", verb, (json_int_t)pg_affected(r)));
    else if (st == ST_OK)
        (void)printf("%lld of %d %s (relatactl store show)\n", (long long)pg_affected(r), nargs, verb);
    pg_result_free(r);
    buf_release(&types);
    buf_release(&relations);
    return code;
}

static enum exit_code own_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    (void)opts;
    return own_or_disown(
        ctl, nargs, args,
        "INSERT INTO relata.owned (store, object_type, relation) SELECT $1, t, r FROM unnest($2::text[], "
        "$3::text[]) AS u (t, r) ON CONFLICT DO NOTHING",
        "owned");
}

static enum exit_code disown_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    (void)opts;
    return own_or_disown(
        ctl, nargs, args,
        "DELETE FROM relata.owned o USING unnest($2::text[], $3::text[]) AS u (t, r) WHERE o.store = $1 "
        "AND o.object_type = u.t AND o.relation = u.r",
        "disowned");
}

static const struct option_spec pin_specs[] = {
    {"model", OPTION_TEXT, offsetof(struct store_options, model), "MODEL_ID",
     "the model to put in force; default: as before, for another store its newest", 0, 0, 0},
    {"force", OPTION_FLAG, offsetof(struct store_options, force), NULL,
     "pin another store although it does not hold what was last applied", 0, 0, 0},
    {0},
};

static const struct option_spec verify_specs[] = {
    {"full", OPTION_FLAG, offsetof(struct store_options, full), NULL,
     "compare every tuple of the store with the ledger", 0, 0, 0},
    {0},
};

const struct command command_store_pin = {
    .name = "store pin",
    .args = "STORE_ID",
    .summary = "Say which store at store.url the name store.name means, and which model is in force",
    .details =
        "Writers obey it within seconds. Pinning another store than before is refused (exit code 3) while that store\n"
        "does not hold the last applied tuples: relatactl seed fills it.",
    .options = pin_specs,
    .min_args = 1,
    .max_args = 1,
    .run = pin_run,
};
const struct command command_store_show = {
    .name = "store show",
    .args = "",
    .summary = "Show the stores that are pinned or that changes wait for, with tuples, lag and owned relations",
    .details = "STATE is pinned, not pinned, or, for the store of store.name, which is asked, store gone or store\n"
               "unreachable.",
    .run = show_run,
};
const struct command command_store_verify = {
    .name = "store verify",
    .args = "",
    .summary = "Ask the store whether it is the one that is pinned",
    .details =
        "Checks that the store and the model in force exist, and reads the last applied tuples back (relata.probe).\n"
        "Exit code 3: it is another store, or it was wiped or restored; 4: it could not be asked. With --full 1: some\n"
        "tuples differ, and at rest none may (relatactl lag tells whether anything is pending or parked).",
    .options = verify_specs,
    .run = verify_run,
};
const struct command command_store_own = {
    .name = "store own",
    .args = "TYPE#RELATION...",
    .summary = "Say that this database owns these relations of a store that others write to as well",
    .details =
        "Without any owned relation everything in the store is owned. What is not owned is left alone by adopt and by\n"
        "audits. Example: relatactl store own folder#viewer doc#owner",
    .min_args = 1,
    .max_args = 10000,
    .run = own_run,
};
const struct command command_store_disown = {
    .name = "store disown",
    .args = "TYPE#RELATION...",
    .summary = "Take relations off the owned ones",
    .details = "When the last one is taken off, everything in the store is owned again.",
    .min_args = 1,
    .max_args = 10000,
    .run = disown_run,
};
