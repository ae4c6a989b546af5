/* history.c - relatactl history: switch it on and off, and what happened to one tuple. */
#include <stdlib.h>

#include "relatactl/commands.h"
#include "relatactl/history.h"

struct history_options {
    bool on, off;
};

/* From when on a period can be asked about. */
#define ANSWERS_FROM "greatest(p.since, p.swept_until)"

/* ---- windows ---- */

static enum status refuse_window(struct ctl *ctl, const char *at, struct err *err)
{
    struct pg_result *r = NULL;
    enum status st =
        pg_query(ctl->pg, NULL,
                 "SELECT coalesce(string_agg(format('%s to %s', " CTL_WHEN(ANSWERS_FROM) ", coalesce(" CTL_WHEN(
                     "p.ended_at") ", 'now')), ', ' ORDER BY p.id), '') FROM relata.history_period p WHERE "
                                   "p.since IS NOT NULL AND (p.ended_at IS NULL OR p.ended_at > " ANSWERS_FROM ")",
                 NULL, 0, ctl_deadline(ctl), &r, err);
    if (st != ST_OK)
        return st;
    if (*pg_text(r, 0, 0))
        st = err_set(err, ST_INVALID, CTL_REFUSED, "history does not reach to %s; it can be asked about: %s", at,
                     pg_text(r, 0, 0));
    else
        st = err_set(err, ST_INVALID, CTL_REFUSED,
                     "history was never on: nothing is known of %s (relatactl history --on)", at);
    pg_result_free(r);
    return st;
}

enum status history_window(struct ctl *ctl, const char *at, struct history_window *out, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(at ? at : "now")};
    struct pg_result *r = NULL;
    /* The cast stands alone: a period is looked for only if the text is a time. */
    enum status st = pg_query(
        ctl->pg, NULL,
        "SELECT " CTL_WHEN("t.at") ", t.at::text, t.at > clock_timestamp(), isfinite(t.at), (SELECT p.id FROM "
                                   "relata.history_period p WHERE p.since IS NOT NULL AND t.at >= " ANSWERS_FROM
                                   " AND (p.ended_at IS NULL OR t.at <= p.ended_at) ORDER BY p.id DESC LIMIT 1) "
                                   "FROM (SELECT $1::text::timestamptz AS at) t",
        params, 1, ctl_deadline(ctl), &r, err);
    if (st == ST_INVALID)
        return err_set(err, ST_CONFIG, "", "--at: \"%.100s\" is no point in time (like 2026-11-30T18:21:09Z)",
                       at ? at : "now");
    if (st != ST_OK)
        return st;
    (void)snprintf(out->shown, sizeof out->shown, "%s", pg_text(r, 0, 0));
    (void)snprintf(out->at, sizeof out->at, "%s", pg_text(r, 0, 1));
    out->period = pg_int(r, 0, 4);
    if (!pg_bool(r, 0, 3) || pg_bool(r, 0, 2))
        st = err_set(err, ST_CONFIG, "", "--at: \"%.100s\" lies in the future, or is no date", at ? at : "now");
    else if (pg_is_null(r, 0, 4))
        st = refuse_window(ctl, pg_text(r, 0, 0), err);
    pg_result_free(r);
    return st;
}

/* ---- on, off, state ---- */

static enum status ask_state(struct ctl *ctl, struct pg_result **periods, struct pg_result **about, struct err *err)
{
    enum status st = pg_query(
        ctl->pg, NULL,
        "SELECT " CTL_WHEN("p.started_at") ", " CTL_WHEN(ANSWERS_FROM) ", " CTL_WHEN(
            "p.ended_at") ", p.ended_at IS NULL AND p.since IS NOT NULL FROM relata.history_period p ORDER BY p.id",
        NULL, 0, ctl_deadline(ctl), periods, err);
    if (st == ST_OK)
        st = pg_query(ctl->pg, NULL,
                      "SELECT (SELECT count(*) FROM relata.history), "
                      "pg_size_pretty(pg_total_relation_size('relata.history')), "
                      "(SELECT value::text FROM relata.setting WHERE name = 'history_retention'), "
                      "EXISTS (SELECT FROM relata.history_period WHERE ended_at IS NULL AND since IS NOT NULL)",
                      NULL, 0, deadline_in_ms(CTL_COUNT_MS), about, err);
    return st;
}

static enum status show_state(struct ctl *ctl, struct err *err)
{
    static const char *const names[] = {"started_at", "answers_from", "ended_at", "on"};
    struct pg_result *periods = NULL, *about = NULL;
    enum status st = ask_state(ctl, &periods, &about, err);
    if (st == ST_OK && ctl->json) {
        ctl_print_json(json_pack("{s:b, s:o, s:I, s:s}", "on", (int)pg_bool(about, 0, 3), "periods",
                                 json_of_rows(periods, names, "sssb"), "rows", (json_int_t)pg_int(about, 0, 0),
                                 "retention", pg_text(about, 0, 2)));
    } else if (st == ST_OK) {
        (void)printf("history is %s; %s rows, %s, kept for %s after they were replaced\n",
                     pg_bool(about, 0, 3) ? "on" : "off", pg_text(about, 0, 0), pg_text(about, 0, 1),
                     pg_text(about, 0, 2));
        for (int i = 0; i < pg_rows(periods); i++) {
            if (pg_is_null(periods, i, 1))
                (void)printf("being switched on since %s (relatactl history --on goes on)\n", pg_text(periods, i, 0));
            else
                (void)printf("answers from %s to %s\n", pg_text(periods, i, 1),
                             pg_is_null(periods, i, 2) ? "now" : pg_text(periods, i, 2));
        }
    }
    pg_result_free(periods);
    pg_result_free(about);
    return st;
}

/* The procedure commits between its steps. Waiting for locks is its own business; the baseline takes its time. */
static enum status turn(struct ctl *ctl, bool on, struct err *err)
{
    enum status st = pg_exec(ctl->pg, on ? "CALL relata.history_on()" : "CALL relata.history_off()",
                             deadline_in_ms(CTL_COUNT_MS), err);
    return st == ST_OK ? show_state(ctl, err) : st;
}

/* ---- one tuple ---- */

/* `until`: when the next state took its place. What was replaced before it was acknowledged may have been in effect for
 * a moment, which nobody can tell. */
/* clang-format off */
static const char key_sql[] =
    "SELECT h.period, CASE WHEN h.baseline THEN CASE WHEN h.present THEN 'before' ELSE 'absent before' END "
        "WHEN NOT h.present THEN 'revoked' WHEN w.was THEN 'condition changed' ELSE 'granted' END, "
    "h.present, h.condition_name, h.condition_context, h.actor, h.headers->>'traceparent', h.xid::text, "
    CTL_WHEN("h.changed_at") ", " CTL_WHEN("h.applied_at") ", " CTL_WHEN("h.parked_at") ", " CTL_WHEN("w.until") ", w.until_by, "
    "CASE WHEN h.applied_at IS NOT NULL THEN 'in effect' WHEN w.later THEN 'replaced' WHEN h.parked_at IS NOT NULL THEN 'parked' "
        "ELSE 'pending' END, h.version "
    "FROM relata.history h, LATERAL (SELECT "
        "(SELECT b.present FROM relata.history b WHERE (b.object, b.relation, b.subject, b.store, b.period) = (h.object, h.relation, "
            "h.subject, h.store, h.period) AND b.version < h.version ORDER BY b.version DESC LIMIT 1) AS was, "
        "(SELECT n.changed_at FROM relata.history n WHERE (n.object, n.relation, n.subject, n.store, n.period) = (h.object, "
            "h.relation, h.subject, h.store, h.period) AND n.version > h.version ORDER BY n.version LIMIT 1) AS until, "
        "(SELECT n.actor FROM relata.history n WHERE (n.object, n.relation, n.subject, n.store, n.period) = (h.object, "
            "h.relation, h.subject, h.store, h.period) AND n.version > h.version ORDER BY n.version LIMIT 1) AS until_by, "
        "EXISTS (SELECT FROM relata.history n WHERE (n.object, n.relation, n.subject, n.store, n.period) = (h.object, "
            "h.relation, h.subject, h.store, h.period) AND n.version > h.version AND n.applied_at IS NOT NULL) AS later) w "
    "WHERE h.store = $1 AND h.object = $2 AND h.relation = $3 AND h.subject = $4 ORDER BY h.period, h.version";
/* clang-format on */
static const char *const key_names[] = {"period",    "what",        "present",  "condition_name", "condition_context",
                                        "actor",     "traceparent", "xid",      "changed_at",     "applied_at",
                                        "parked_at", "until",       "until_by", "state",          "version"};

static const char *cell(const struct pg_result *r, int row, int col)
{
    return pg_is_null(r, row, col) ? NULL : pg_text(r, row, col);
}

static void print_states(const char *key, const struct pg_result *r, const struct pg_result *periods)
{
    struct table *t =
        pg_rows(r)
            ? table_new(7, (const char *const[]){"CHANGED", "WHAT", "BY", "IN EFFECT", "UNTIL", "CONDITION", "TRACE"})
            : NULL;
    for (int i = 0; i < pg_rows(r); i++) {
        const char *state = pg_text(r, i, 13);
        char effect[96];
        (void)snprintf(effect, sizeof effect, "%s%s%s", strcmp(state, "in effect") == 0 ? pg_text(r, i, 9) : state,
                       strcmp(state, "parked") == 0 ? " " : "", strcmp(state, "parked") == 0 ? pg_text(r, i, 10) : "");
        table_add(t, (const char *const[]){pg_text(r, i, 8), pg_text(r, i, 1), cell(r, i, 5), effect, cell(r, i, 11),
                                           cell(r, i, 3), cell(r, i, 6)});
    }
    if (!pg_rows(r))
        (void)printf("%s was absent all the time\n", key);
    table_print(t);
    for (int i = 0; i < pg_rows(periods); i++)
        if (!pg_is_null(periods, i, 1))
            (void)printf("recorded from %s to %s\n", pg_text(periods, i, 1),
                         pg_is_null(periods, i, 2) ? "now" : pg_text(periods, i, 2));
}

static enum status show_key(struct ctl *ctl, const char *text, struct err *err)
{
    static const char *const names[] = {"started_at", "answers_from", "ended_at", "on"};
    struct tuple_key *key = NULL;
    struct pg_result *r = NULL, *periods = NULL, *about = NULL;
    enum status st = tuple_key_parse(text, &key, err);
    if (st != ST_OK)
        return st == ST_INVALID ? err_set(err, ST_CONFIG, "", "%s", err->text) : st;
    const struct pg_param params[] = {pg_p_text(ctl->settings.store.name), pg_p_text(key->object),
                                      pg_p_text(key->relation), pg_p_text(key->subject)};
    st = ask_state(ctl, &periods, &about, err);
    if (st == ST_OK && (pg_rows(periods) == 0 || pg_is_null(periods, 0, 1)))
        st = err_set(err, ST_INVALID, CTL_REFUSED, "history was never on: nothing is known (relatactl history --on)");
    if (st == ST_OK)
        st = pg_query(ctl->pg, NULL, key_sql, params, 4, ctl_deadline(ctl), &r, err);
    if (st == ST_OK && ctl->json)
        ctl_print_json(json_pack("{s:s, s:s, s:o, s:o}", "key", text, "store", ctl->settings.store.name, "states",
                                 json_of_rows(r, key_names, "isbsjsssssssssi"), "periods",
                                 json_of_rows(periods, names, "sssb")));
    else if (st == ST_OK)
        print_states(text, r, periods);
    pg_result_free(r);
    pg_result_free(periods);
    pg_result_free(about);
    free(key);
    return st;
}

static enum exit_code history_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    const struct history_options *o = opts;
    struct err err = {.status = ST_OK};
    enum status st = ST_OK;
    if (o->on + o->off + (nargs > 0) > 1)
        st = err_set(&err, ST_CONFIG, "", "give one of --on, --off and a tuple");
    if (st == ST_OK)
        st = ctl_pg(ctl, &err);
    if (st == ST_OK && (o->on || o->off))
        st = turn(ctl, o->on, &err);
    else if (st == ST_OK)
        st = nargs ? show_key(ctl, args[0], &err) : show_state(ctl, &err);
    return st == ST_OK ? EXIT_DONE : ctl_fail(ctl, &err);
}

static const struct option_spec history_specs[] = {
    {"on", OPTION_FLAG, offsetof(struct history_options, on), NULL, "switch it on, and record what is there", 0, 0, 0},
    {"off", OPTION_FLAG, offsetof(struct history_options, off), NULL, "switch it off; what was recorded stays", 0, 0,
     0},
    {0},
};

const struct command command_history = {
    .name = "history",
    .args = "[OBJECT#RELATION@SUBJECT]",
    .summary = "When a tuple was granted, by whom, when it took effect, when it ended",
    .details =
        "History is off until it is switched on by --on, as the owner of schema relata; then each change of a tuple "
        "is\n"
        "recorded when it commits. What was there before is recorded as such. Without arguments: whether it is on, "
        "and\n"
        "which times can be asked about. Services are not kept waiting. It is kept for the setting history_retention.\n"
        "Was it never on, the exit code is 3.\n"
        "Example: relatactl history 'doc:readme#viewer@user:anne'",
    .options = history_specs,
    .min_args = 0,
    .max_args = 1,
    .run = history_run,
};
