/* trace.c - relatactl trace: everything that is known about one tuple, from ledger to store. */
#include <stdlib.h>

#include "relatactl/commands.h"
#include "relatactl/identity.h"

#define AGE(column) "round(extract(epoch FROM clock_timestamp() - " column ")::numeric, 3)"
#define SAME(t) t ".store = $1 AND " t ".object = $2 AND " t ".relation = $3 AND " t ".subject = $4"

/* clang-format off */
static const char trace_sql[] =
    "SELECT jsonb_build_object("
    "'ledger', (SELECT jsonb_build_object('present', t.present, 'version', t.version, "
        "'changed_at', " CTL_WHEN("t.changed_at") ", 'condition_name', t.condition_name, "
        "'condition_context', t.condition_context) FROM relata.tuple t WHERE " SAME("t") "), "
    "'pending', coalesce((SELECT jsonb_agg(jsonb_build_object('id', o.id, 'op', o.op, 'actor', o.actor, "
        "'xid', o.xid::text, 'created_at', " CTL_WHEN("o.created_at") ", 'age_seconds', " AGE("o.created_at") ", "
        "'headers', o.headers) ORDER BY o.id) FROM relata.outbox o "
        "WHERE o.key = relata.key_hash($2, $3, $4) AND " SAME("o") "), '[]'), "
    "'intents', coalesce((SELECT jsonb_agg(jsonb_build_object('id', i.id, 'writer', i.writer, "
        "'writer_name', w.name, 'sent_at', " CTL_WHEN("i.sent_at") ", 'age_seconds', " AGE("i.sent_at") ", "
        "'tuples', cardinality(i.objects)) ORDER BY i.id) "
        "FROM relata.inflight i LEFT JOIN relata.writer w ON w.id = i.writer WHERE i.store = $1 AND EXISTS "
        "(SELECT FROM unnest(i.objects, i.relations, i.subjects) AS u (o, r, s) "
        "WHERE u.o = $2 AND u.r = $3 AND u.s = $4)), '[]'), "
    "'dead_letters', coalesce((SELECT jsonb_agg(jsonb_build_object('id', d.id, 'op', d.op, "
        "'outbox_id', d.outbox_id, 'code', d.code, 'reason', d.reason, 'attempts', d.attempts, "
        "'model_id', d.model_id, 'parked_at', " CTL_WHEN("d.parked_at") ", 'closed_at', " CTL_WHEN("d.closed_at") ", "
        "'closed_how', d.closed_how) ORDER BY d.id) FROM relata.dead_letter d WHERE " SAME("d") "), '[]'), "
    "'probe', (SELECT jsonb_build_object('version', p.version, 'applied_at', " CTL_WHEN("p.applied_at") ") "
        "FROM relata.probe p WHERE " SAME("p") " ORDER BY p.applied_at DESC LIMIT 1))";
/* clang-format on */

static enum status ask_database(struct ctl *ctl, const struct tuple_key *key, json_t **doc, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(ctl->settings.store.name), pg_p_text(key->object),
                                      pg_p_text(key->relation), pg_p_text(key->subject)};
    struct pg_result *r = NULL;
    enum status st = pg_query(ctl->pg, NULL, trace_sql, params, 4, ctl_deadline(ctl), &r, err);
    if (st != ST_OK)
        return st;
    *doc = json_loadb(pg_text(r, 0, 0), pg_len(r, 0, 0), 0, NULL);
    pg_result_free(r);
    return *doc ? ST_OK : err_set(err, ST_FATAL, "", "the database's answer cannot be read");
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *s = json_string_value(json_object_get(object, name));
    return s ? s : "";
}

/* Is the store that answers still the one that was pinned? One key that differs is for the verdict to tell; a store
 * that holds none of several is another one, or was wiped. */
static enum status check_identity(struct ctl *ctl, struct pin *pin, struct err *err)
{
    struct probes probes = {0};
    enum status st = pin_connect(ctl, pin, err);
    if (st == ST_OK)
        st = probes_check(ctl, &probes, err);
    if (st == ST_OK && probes.differ > 1 && probes.agree == 0)
        st = probes_refuse(&probes, pin->store_id, err);
    probes_release(&probes);
    return st;
}

/* Adds "held": what the store has. */
static enum status ask_store(struct ctl *ctl, const struct tuple_key *key, json_t *doc, bool *agrees, struct err *err)
{
    struct pin pin;
    struct store_tuples held = {0};
    bool found = false;
    enum status st = check_identity(ctl, &pin, err);
    if (st == ST_OK)
        st = store_read_tuple(ctl->store_conn, key, &found, &held, ctl_store_deadline(ctl), err);
    if (st != ST_OK)
        return st;
    const json_t *ledger = json_object_get(doc, "ledger");
    const char *name = found && held.items[0].condition_name ? held.items[0].condition_name : "";
    const char *context = found ? held.items[0].condition_context : NULL;
    json_t *value =
        json_pack("{s:s, s:b, s:s*, s:o*}", "store_id", pin.store_id, "present", (int)found, "condition_name",
                  *name ? name : NULL, "condition_context", context ? json_loads(context, 0, NULL) : NULL);
    (void)json_object_set_new(doc, "held", value);
    *agrees = found == json_is_true(json_object_get(ledger, "present"));
    if (found && *agrees) {
        char *wanted = json_dumps(json_object_get(ledger, "condition_context"), JSON_ENCODE_ANY);
        bool none = !wanted || strcmp(wanted, "null") == 0;
        *agrees =
            strcmp(name, text_of(ledger, "condition_name")) == 0 && store_context_equal(context, none ? NULL : wanted);
        free(wanted);
    }
    store_tuples_free(&held);
    return ST_OK;
}

static bool is_parked(const json_t *doc)
{
    size_t i;
    json_t *letter;
    json_array_foreach(json_object_get(doc, "dead_letters"), i, letter)
    {
        if (json_is_null(json_object_get(letter, "closed_at")))
            return true;
    }
    return false;
}

static const char *verdict_of(const json_t *doc, const struct err *store_err, bool agrees, bool settled)
{
    if (store_err->status == ST_MISSING)
        return "no store";
    if (strcmp(store_err->code, CTL_REFUSED) == 0)
        return "other store";
    if (store_err->status != ST_OK)
        return "unknown";
    if (json_array_size(json_object_get(doc, "pending")) > 0)
        return "pending";
    if (agrees)
        return "agree";
    if (is_parked(doc))
        return "parked";
    if (!settled || json_array_size(json_object_get(doc, "intents")) > 0)
        return "changing";
    return "differ";
}

/* ---- for people ---- */

static void print_condition(const json_t *of)
{
    if (*text_of(of, "condition_name")) {
        char *context = json_dumps(json_object_get(of, "condition_context"), JSON_ENCODE_ANY);
        (void)printf(", condition %s %s", text_of(of, "condition_name"), context ? context : "");
        free(context);
    }
    (void)printf("\n");
}

static void print_state(const char *label, const json_t *of)
{
    if (!json_is_object(of)) {
        (void)printf("%-9s knows nothing of it\n", label);
        return;
    }
    (void)printf("%-9s %s", label, json_is_true(json_object_get(of, "present")) ? "present" : "absent");
    if (json_object_get(of, "version"))
        (void)printf(", version %lld, changed %s", (long long)json_integer_value(json_object_get(of, "version")),
                     text_of(of, "changed_at"));
    print_condition(of);
}

static void print_list(const char *label, const json_t *list, const char *const *fields)
{
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item)
    {
        (void)printf("%-9s", label);
        for (size_t f = 0; fields[f]; f++) {
            const json_t *value = json_object_get(item, fields[f]);
            char *text = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
            if (value && !json_is_null(value))
                (void)printf(" %s=%s", fields[f], text ? text : json_string_value(value));
            free(text);
        }
        (void)printf("\n");
    }
}

static void print_text(const json_t *doc, const struct err *store_err)
{
    (void)printf("%-9s %s in store \"%s\"\n", "tuple", text_of(doc, "key"), text_of(doc, "store"));
    print_state("ledger", json_object_get(doc, "ledger"));
    print_list("pending", json_object_get(doc, "pending"),
               (const char *const[]){"op", "id", "created_at", "age_seconds", "actor", "xid", "headers", NULL});
    print_list("intent", json_object_get(doc, "intents"),
               (const char *const[]){"writer", "writer_name", "sent_at", "age_seconds", "tuples", NULL});
    print_list(
        "dead", json_object_get(doc, "dead_letters"),
        (const char *const[]){"id", "op", "code", "attempts", "parked_at", "closed_how", "closed_at", "reason", NULL});
    if (json_is_object(json_object_get(doc, "probe")))
        (void)printf("%-9s version %lld at %s\n", "applied",
                     (long long)json_integer_value(json_object_get(json_object_get(doc, "probe"), "version")),
                     text_of(json_object_get(doc, "probe"), "applied_at"));
    if (json_object_get(doc, "held"))
        print_state("store", json_object_get(doc, "held"));
    else
        (void)printf("%-9s %s%s\n", "store",
                     exit_of(store_err) == EXIT_UNSAFE ? "" : "could not be asked: ", store_err->text);
    (void)printf("%-9s %s\n", "verdict", text_of(doc, "verdict"));
}

/* ---- the command ---- */

static enum status trace(struct ctl *ctl, const struct tuple_key *key, json_t **doc, struct err *store_err,
                         struct err *err)
{
    json_t *again = NULL;
    bool agrees = false, settled = true;
    enum status st = ctl_pg(ctl, err);
    if (st == ST_OK)
        st = ask_database(ctl, key, doc, err);
    if (st != ST_OK)
        return st;
    enum status asked = ask_store(ctl, key, *doc, &agrees, store_err);
    if (asked == ST_OK && !agrees) { /* it may have changed between the two questions */
        st = ask_database(ctl, key, &again, err);
        settled = st == ST_OK && json_equal(json_object_get(*doc, "ledger"), json_object_get(again, "ledger")) &&
                  json_array_size(json_object_get(again, "pending")) == 0;
        json_decref(again);
    }
    (void)json_object_set_new(*doc, "verdict", json_string(verdict_of(*doc, store_err, agrees, settled)));
    return st;
}

static enum exit_code trace_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    (void)opts;
    (void)nargs;
    struct err err = {.status = ST_OK}, store_err = {.status = ST_OK};
    struct tuple_key *key = NULL;
    json_t *doc = NULL;
    enum status st = tuple_key_parse(args[0], &key, &err);
    if (st == ST_INVALID)
        err.status = ST_CONFIG;
    if (st == ST_OK)
        st = trace(ctl, key, &doc, &store_err, &err);
    enum exit_code code = EXIT_DONE;
    if (st != ST_OK) {
        code = ctl_fail(ctl, &err);
    } else {
        (void)json_object_set_new(doc, "key", json_string(args[0]));
        (void)json_object_set_new(doc, "store", json_string(ctl->settings.store.name));
        if (store_err.status != ST_OK) {
            (void)json_object_set_new(doc, "store_error", json_string(store_err.text));
            code = exit_of(&store_err);
        } else if (strcmp(text_of(doc, "verdict"), "differ") == 0) {
            code = EXIT_FAILED;
        }
        if (ctl->json)
            ctl_print_json(json_incref(doc));
        else
            print_text(doc, &store_err);
    }
    json_decref(doc);
    free(key);
    return code;
}

const struct command command_trace = {
    .name = "trace",
    .args = "OBJECT#RELATION@SUBJECT",
    .summary = "Follow one tuple from the ledger to the store",
    .details =
        "Shows the ledger's row, pending changes, Writes under way, dead letters, and what the store holds now. The\n"
        "verdict is one of: agree; pending (a change waits); changing (a Write is under way); parked (the store\n"
        "refused it); differ (at rest and yet different: exit code 1); no store (none is pinned, or it is gone: 3);\n"
        "other store (it holds nothing of what was last applied: wiped, restored or swapped: 3); unknown (the store\n"
        "could not be asked: 4).\n"
        "Example: relatactl trace 'doc:readme#viewer@user:anne'",
    .min_args = 1,
    .max_args = 1,
    .run = trace_run,
};
