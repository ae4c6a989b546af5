/* dead_letters.c - relatactl dead-letters: changes that were parked because the store refused them for good. */
#include <errno.h>
#include <stdlib.h>

#include "common/cli/progress.h"
#include "relatactl/commands.h"

#define BATCH_SQL "500"

struct dead_letter_options {
    const char *store, *code, *note;
    bool all, yes;
    int64_t limit, wait_s;
};

/* Parameters $1..$3: ids (NULL = any), store, code. */
#define CHOSEN                                                                                                         \
    "($1::bigint[] IS NULL OR id = ANY ($1)) AND ($2::text IS NULL OR store = $2) AND ($3::text IS NULL OR code = $3)"
/* The row as JSON, with times in the form of all output. */
#define DOCUMENT                                                                                                       \
    "to_jsonb(d) || jsonb_build_object('created_at', " CTL_WHEN("d.created_at") ", 'parked_at', " CTL_WHEN(            \
        "d.parked_at") ", 'closed_at', " CTL_WHEN("d.closed_at") ")"
#define KEY "object || '#' || relation || '@' || subject"

struct choice {
    struct buf ids;
    struct pg_param params[3];
};

static void choice_release(struct choice *c)
{
    buf_release(&c->ids);
}

static enum status choice_init(struct choice *c, const struct dead_letter_options *o, int nargs, char **args,
                               struct err *err)
{
    *c = (struct choice){.params = {{0}, pg_p_text(o->store), pg_p_text(o->code)}};
    buf_init(&c->ids, 1 << 20);
    pg_array_begin(&c->ids);
    for (int i = 0; i < nargs; i++) {
        char *end = NULL;
        errno = 0;
        long long id = strtoll(args[i], &end, 10);
        if (errno || end == args[i] || *end || id < 1)
            return err_set(err, ST_CONFIG, "",
                           "\"%s\" is no id of a dead letter (relatactl dead-letters list shows them)", args[i]);
        pg_array_add_int(&c->ids, id);
    }
    pg_array_end(&c->ids);
    if (nargs)
        c->params[0] = pg_p_buf(&c->ids);
    return ST_OK;
}

/* replay and drop: ids or --all, not both, not neither; every id must be open. */
static enum status choice_open(struct ctl *ctl, struct choice *c, const struct dead_letter_options *o, int nargs,
                               char **args, struct err *err)
{
    struct pg_result *r = NULL;
    enum status st = choice_init(c, o, nargs, args, err);
    if (st == ST_OK && (nargs > 0) == o->all)
        st = err_set(err, ST_CONFIG, "", "give ids, or --all (with --store or --code to narrow it)");
    if (st == ST_OK)
        st = ctl_pg(ctl, err);
    if (st == ST_OK && nargs)
        st = pg_query(
            ctl->pg, NULL,
            "SELECT u.id FROM unnest($1::bigint[]) AS u (id) WHERE NOT EXISTS (SELECT FROM relata.dead_letter d "
            "WHERE d.id = u.id AND d.closed_at IS NULL AND ($2::text IS NULL OR d.store = $2) AND ($3::text IS "
            "NULL OR d.code = $3)) LIMIT 1",
            c->params, 3, ctl_deadline(ctl), &r, err);
    if (st == ST_OK && r && pg_rows(r))
        st = err_set(err, ST_NOT_FOUND, "", "no open dead letter %s; nothing was done", pg_text(r, 0, 0));
    pg_result_free(r);
    return st;
}

static json_t *documents(const struct pg_result *r, int col)
{
    json_t *list = json_array();
    for (int i = 0; i < pg_rows(r); i++)
        (void)json_array_append_new(list, json_loadb(pg_text(r, i, col), pg_len(r, i, col), 0, NULL));
    return list;
}

/* ---- list, show ---- */

static void print_list(const struct pg_result *r)
{
    struct table *t = table_new(7, (const char *const[]){"ID", "STORE", "PARKED", "TRIES", "CODE", "TUPLE", "REASON"});
    for (int i = 0; i < pg_rows(r); i++) {
        char age[48], seconds[32];
        (void)snprintf(age, sizeof age, "%s%s%s", age_text(pg_double(r, i, 3), seconds), pg_is_null(r, i, 7) ? "" : " ",
                       pg_text(r, i, 7));
        table_add(t, (const char *const[]){pg_text(r, i, 0), pg_text(r, i, 1), age, pg_text(r, i, 4), pg_text(r, i, 5),
                                           pg_text(r, i, 2), pg_text(r, i, 6)});
    }
    table_print(t);
}

static enum exit_code list_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    const struct dead_letter_options *o = opts;
    struct err err = {.status = ST_OK};
    struct choice c;
    struct pg_result *r = NULL;
    char limit[24];
    enum exit_code code = EXIT_DONE;
    enum status st = choice_init(&c, o, nargs, args, &err);
    const struct pg_param params[] = {c.params[0], c.params[1], c.params[2], pg_p_text(o->all ? "t" : "f"),
                                      pg_p_int(o->limit, limit)};
    if (st == ST_OK)
        st = ctl_pg(ctl, &err);
    if (st == ST_OK)
        st = pg_query(ctl->pg, NULL,
                      "SELECT id, store, " KEY
                      ", extract(epoch FROM clock_timestamp() - parked_at), attempts, code, reason, "
                      "closed_how, " DOCUMENT ", count(*) OVER () FROM relata.dead_letter d WHERE " CHOSEN
                      " AND ($4::boolean OR closed_at IS NULL) ORDER BY id LIMIT $5",
                      params, 5, ctl_deadline(ctl), &r, &err);
    if (st != ST_OK)
        code = ctl_fail(ctl, &err);
    else if (ctl->json)
        ctl_print_json(documents(r, 8));
    else if (pg_rows(r) == 0)
        (void)printf("nothing is parked\n");
    else
        print_list(r);
    if (st == ST_OK && pg_rows(r) && pg_int(r, 0, 9) > pg_rows(r))
        (void)fprintf(stderr, "%d of %lld shown (--limit)\n", pg_rows(r), (long long)pg_int(r, 0, 9));
    pg_result_free(r);
    choice_release(&c);
    return code;
}

static void print_document(json_t *doc)
{
    const char *key;
    json_t *value;
    struct table *t = table_new(2, (const char *const[]){"FIELD", "VALUE"});
    json_object_foreach(doc, key, value)
    {
        char *text = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
        if (!json_is_null(value))
            table_add(t, (const char *const[]){key, text ? text : json_string_value(value)});
        free(text);
    }
    table_print(t);
}

static enum exit_code show_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    struct err err = {.status = ST_OK};
    struct choice c;
    struct pg_result *r = NULL;
    enum exit_code code = EXIT_DONE;
    enum status st = choice_init(&c, opts, nargs, args, &err);
    if (st == ST_OK)
        st = ctl_pg(ctl, &err);
    if (st == ST_OK)
        st = pg_query(
            ctl->pg, NULL,
            "SELECT " DOCUMENT " || jsonb_build_object('ledger', (SELECT to_jsonb(t) - '{store,object,relation,"
            "subject}'::text[] || jsonb_build_object('changed_at', " CTL_WHEN(
                "t.changed_at") ") FROM relata.tuple t WHERE t.store = d.store AND t.object = d.object AND t.relation "
                                "= d.relation AND t.subject = d.subject)) FROM relata.dead_letter d WHERE " CHOSEN
                                " ORDER BY id",
            c.params, 3, ctl_deadline(ctl), &r, &err);
    if (st == ST_OK && pg_rows(r) == 0)
        st = err_set(&err, ST_NOT_FOUND, "", "no dead letter %s", args[0]);
    if (st != ST_OK) {
        code = ctl_fail(ctl, &err);
    } else {
        json_t *list = documents(r, 0);
        if (ctl->json)
            ctl_print_json(json_incref(json_array_get(list, 0)));
        else
            print_document(json_array_get(list, 0));
        json_decref(list);
    }
    pg_result_free(r);
    choice_release(&c);
    return code;
}

/* ---- replay ---- */

/* Closing the row and enqueueing the current state are one statement. The insert into the outbox wakes a sleeping
 * reader, as every other does. What is parked again meanwhile has an id above $4: its turn does not come again. */
static const char replay_sql[] =
    "WITH picked AS MATERIALIZED (SELECT id, store, object, relation, subject FROM relata.dead_letter WHERE closed_at "
    "IS "
    "NULL AND id <= $4 AND " CHOSEN " ORDER BY store, object, relation, subject LIMIT " BATCH_SQL " FOR UPDATE), "
    "closed AS (UPDATE relata.dead_letter d SET closed_at = clock_timestamp(), closed_how = 'replayed' FROM picked p "
    "WHERE d.id = p.id RETURNING d.id) "
    "SELECT p.id, relata.touch_tuple(p.object, p.relation, p.subject, p.store, 'relatactl') FROM picked p";

static enum status newest_id(struct ctl *ctl, int64_t *id, struct err *err)
{
    struct pg_result *r = NULL;
    enum status st =
        pg_query(ctl->pg, NULL, "SELECT max(id) FROM relata.dead_letter", NULL, 0, ctl_deadline(ctl), &r, err);
    *id = st == ST_OK ? pg_int(r, 0, 0) : 0;
    pg_result_free(r);
    return st;
}

static enum status replay_all(struct ctl *ctl, const struct choice *c, struct buf *ids, int64_t *n, struct err *err)
{
    int rows = 1;
    int64_t newest = 0;
    char scratch[24];
    enum status found = newest_id(ctl, &newest, err);
    if (found != ST_OK)
        return found;
    const struct pg_param params[] = {c->params[0], c->params[1], c->params[2], pg_p_int(newest, scratch)};
    while (rows > 0) {
        struct pg_result *r = NULL;
        enum status st = ST_RETRY;
        for (int tries = 0; tries < 5 && st == ST_RETRY; tries++) {
            if (tries && stop_sleep_until(deadline_in_ms(backoff_ms((unsigned)tries, 50, 1000))) == ST_STOPPED)
                return err_set(err, ST_STOPPED, "", "interrupted after %lld", (long long)*n);
            st = pg_query(ctl->pg, NULL, replay_sql, params, 4, ctl_deadline(ctl), &r, err);
        }
        if (st != ST_OK) /* a lost answer: rows that are closed will not be picked again */
            return st;
        rows = pg_rows(r);
        for (int i = 0; i < rows; i++)
            pg_array_add_int(ids, pg_int(r, i, 0));
        *n += rows;
        pg_result_free(r);
        if (stop_requested() && rows)
            return err_set(err, ST_STOPPED, "", "interrupted after %lld", (long long)*n);
    }
    return ST_OK;
}

/* What became of them: still pending, parked again, or applied. */
static const char fate_sql[] =
    "SELECT count(*) FILTER (WHERE pending), count(*) FILTER (WHERE NOT pending AND parked) FROM (SELECT "
    "EXISTS (SELECT FROM relata.outbox o WHERE o.key = relata.key_hash(d.object, d.relation, d.subject) AND o.store = "
    "d.store AND o.object = d.object AND o.relation = d.relation AND o.subject = d.subject) AS pending, "
    "EXISTS (SELECT FROM relata.dead_letter e WHERE e.closed_at IS NULL AND e.store = d.store AND e.object = d.object "
    "AND "
    "e.relation = d.relation AND e.subject = d.subject) AS parked "
    "FROM relata.dead_letter d WHERE d.id = ANY ($1::bigint[])) AS x";

static enum status await_fate(struct ctl *ctl, const struct buf *ids, int64_t wait_s, int64_t *pending, int64_t *parked,
                              struct err *err)
{
    mono_us deadline = deadline_in_ms(wait_s * 1000);
    for (unsigned i = 0;; i++) {
        struct pg_result *r = NULL;
        const struct pg_param params[] = {pg_p_buf(ids)};
        enum status st = pg_query(ctl->pg, NULL, fate_sql, params, 1, ctl_deadline(ctl), &r, err);
        if (st != ST_OK)
            return st;
        *pending = pg_int(r, 0, 0);
        *parked = pg_int(r, 0, 1);
        pg_result_free(r);
        if (*pending == 0 || clock_mono_us() >= deadline)
            return ST_OK;
        if (stop_sleep_until(deadline_in_ms(backoff_ms(i, 20, 500))) == ST_STOPPED)
            return ST_OK;
    }
}

static enum exit_code replay_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    const struct dead_letter_options *o = opts;
    struct err err = {.status = ST_OK};
    struct choice c;
    struct buf ids;
    int64_t n = 0, pending = 0, parked = 0;
    enum exit_code code = EXIT_DONE;
    buf_init(&ids, 64 << 20);
    pg_array_begin(&ids);
    enum status st = choice_open(ctl, &c, o, nargs, args, &err);
    if (st == ST_OK)
        st = replay_all(ctl, &c, &ids, &n, &err);
    pg_array_end(&ids);
    if (st == ST_OK && n)
        st = await_fate(ctl, &ids, o->wait_s, &pending, &parked, &err);
    if (st != ST_OK) {
        code = ctl_fail(ctl, &err);
    } else if (ctl->json) {
        ctl_print_json(json_pack("{s:I, s:I, s:I, s:I}", "replayed", (json_int_t)n, "applied",
                                 (json_int_t)(n - pending - parked), "parked_again", (json_int_t)parked, "pending",
                                 (json_int_t)pending));
    } else {
        (void)printf("%lld replayed: %lld applied, %lld parked again, %lld pending%s\n", (long long)n,
                     (long long)(n - pending - parked), (long long)parked, (long long)pending,
                     pending ? " (relatactl lag follows them)" : "");
    }
    choice_release(&c);
    buf_release(&ids);
    return code;
}

/* ---- drop ---- */

static const char drop_sql[] =
    "UPDATE relata.dead_letter d SET closed_at = clock_timestamp(), closed_how = 'dropped', "
    "reason = reason || ' [dropped by ' || session_user || coalesce(': ' || $4::text, '') || ']' "
    "WHERE closed_at IS NULL AND " CHOSEN " RETURNING id, store, " KEY ", (SELECT t.present FROM relata.tuple t WHERE "
    "t.store = d.store AND t.object = d.object AND t.relation = d.relation AND t.subject = d.subject)";
static const char would_drop_sql[] =
    "SELECT id, store, " KEY
    ", (SELECT t.present FROM relata.tuple t WHERE t.store = d.store AND t.object = d.object AND "
    "t.relation = d.relation AND t.subject = d.subject) FROM relata.dead_letter d WHERE closed_at IS NULL AND " CHOSEN
    " AND ($4::text IS NULL OR true) ORDER BY id";
static const char *const drop_names[] = {"id", "store", "tuple", "ledger_present"};

static void print_dropped(const struct pg_result *r, bool done)
{
    for (int i = 0; i < pg_rows(r); i++)
        (void)printf("%s %s: %s (the ledger says %s, the store refused it)\n", done ? "dropped" : "would drop",
                     pg_text(r, i, 0), pg_text(r, i, 2), pg_bool(r, i, 3) ? "present" : "absent");
    if (pg_rows(r) == 0)
        (void)printf("nothing to drop\n");
    else if (done)
        (void)printf("%d dropped. Ledger and store differ in these until their services change them.\n", pg_rows(r));
}

static enum exit_code drop_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    const struct dead_letter_options *o = opts;
    struct err err = {.status = ST_OK};
    struct choice c;
    struct pg_result *r = NULL;
    enum exit_code code = EXIT_DONE;
    enum status st = choice_open(ctl, &c, o, nargs, args, &err);
    const struct pg_param params[] = {c.params[0], c.params[1], c.params[2], pg_p_text(o->note)};
    if (st == ST_OK)
        st = pg_query(ctl->pg, NULL, o->yes ? drop_sql : would_drop_sql, params, 4, ctl_deadline(ctl), &r, &err);
    if (st != ST_OK) {
        code = ctl_fail(ctl, &err);
    } else {
        if (ctl->json)
            ctl_print_json(
                json_pack("{s:b, s:o}", "dropped", (int)o->yes, "rows", json_of_rows(r, drop_names, "issb")));
        else
            print_dropped(r, o->yes);
        if (!o->yes) {
            (void)fprintf(stderr, "relatactl dead-letters drop: nothing was dropped; give --yes to drop\n");
            code = EXIT_USAGE;
        }
    }
    pg_result_free(r);
    choice_release(&c);
    return code;
}

#define AT(member) offsetof(struct dead_letter_options, member)
#define STORE_SPEC                                                                                                     \
    {                                                                                                                  \
        "store", OPTION_TEXT, AT(store), "NAME", "only of this store", 0, 0, 0                                         \
    }
#define CODE_SPEC                                                                                                      \
    {                                                                                                                  \
        "code", OPTION_TEXT, AT(code), "CODE", "only those refused with this code", 0, 0, 0                            \
    }
static const struct option_spec list_specs[] = {
    STORE_SPEC,
    CODE_SPEC,
    {"all", OPTION_FLAG, AT(all), NULL, "closed ones too", 0, 0, 0},
    {"limit", OPTION_INT, AT(limit), "N", "show at most so many, the oldest first", 100, 1, 1000000},
    {0},
};
static const struct option_spec show_specs[] = {{0}};
static const struct option_spec replay_specs[] = {
    {"all", OPTION_FLAG, AT(all), NULL, "all that are open", 0, 0, 0},
    STORE_SPEC,
    CODE_SPEC,
    {"wait", OPTION_INT, AT(wait_s), "SECONDS", "wait so long for the outcome", 0, 0, 86400},
    {0},
};
static const struct option_spec drop_specs[] = {
    {"all", OPTION_FLAG, AT(all), NULL, "all that are open", 0, 0, 0},
    STORE_SPEC,
    CODE_SPEC,
    {"note", OPTION_TEXT, AT(note), "TEXT", "why: kept with the row", 0, 0, 0},
    {"yes", OPTION_FLAG, AT(yes), NULL, "really drop them; without it they are only shown", 0, 0, 0},
    {0},
};

const struct command command_dead_letters_list = {
    .name = "dead-letters list",
    .args = "",
    .summary = "List parked changes",
    .details =
        "A change is parked when the store refuses its tuple for good, for instance because the model does not know\n"
        "the relation. Everything else goes on. It is tried again when another model is put in force, and closed\n"
        "when a newer change of the same tuple is applied.",
    .options = list_specs,
    .run = list_run,
};
const struct command command_dead_letters_show = {
    .name = "dead-letters show",
    .args = "ID",
    .summary = "Show everything about one parked change",
    .details = "With what the ledger says about its tuple now.",
    .options = show_specs,
    .min_args = 1,
    .max_args = 1,
    .run = show_run,
};
const struct command command_dead_letters_replay = {
    .name = "dead-letters replay",
    .args = "[ID]...",
    .summary = "Try parked changes again",
    .details = "Enqueues the current state of each tuple (never the old operation) and closes the dead letter as\n"
               "\"replayed\", in one transaction. Readers of the outbox are woken at once. Examples:\n"
               "  relatactl dead-letters replay 17 18 --wait 10\n"
               "  relatactl dead-letters replay --all --code validation_error",
    .options = replay_specs,
    .max_args = 10000,
    .run = replay_run,
};
const struct command command_dead_letters_drop = {
    .name = "dead-letters drop",
    .args = "[ID]...",
    .summary = "Give parked changes up",
    .details =
        "Closes them as \"dropped\", with who did it and --note. Ledger and store keep differing in these tuples: the\n"
        "ledger says what the services wanted. The rows stay for the time of setting dead_letter_retention.",
    .options = drop_specs,
    .max_args = 10000,
    .run = drop_run,
};
