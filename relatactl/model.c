/* model.c - relatactl model: the authorization model in force. */
#include <stdlib.h>

#include "relatactl/commands.h"
#include "relatactl/identity.h"
#include "relatactl/model_file.h"

#define YEAR_9999_MS INT64_C(253402300799999)

struct model_options {
    const char *file;
    int64_t limit;
};

static enum exit_code show_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    (void)opts;
    struct err err = {.status = ST_OK};
    struct pin pin;
    char *json = NULL;
    enum status st = pin_read(ctl, &pin, &err);
    if (st == ST_OK)
        st = ctl_store(ctl, pin.store_id, &err);
    const char *id = nargs ? args[0] : pin.model_id;
    if (st == ST_OK && !*id)
        st = err_set(&err, ST_MISSING, "", "no model is in force (relatactl model use MODEL_ID)");
    if (st == ST_OK)
        st = store_model(ctl->store_conn, id, &json, ctl_store_deadline(ctl), &err);
    json_t *doc = st == ST_OK ? json_loads(json, 0, NULL) : NULL;
    free(json);
    if (st == ST_OK && !doc)
        st = err_set(&err, ST_FATAL, "", "the store's answer for model %s cannot be read", id);
    if (st != ST_OK)
        return ctl_fail(ctl, &err);
    ctl_print_json(doc); /* a model is JSON, with --json or not */
    return EXIT_DONE;
}

/* Ids are ULIDs: the first ten of their characters are the time, in milliseconds, five bits each. */
static const char *created_at(const char *id, char out[static CLOCK_TEXT_MAX])
{
    static const char digits[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    int64_t ms = 0;
    for (int i = 0; i < 10; i++) {
        const char *d = id[i] ? strchr(digits, id[i]) : NULL;
        if (!d)
            return NULL;
        ms = ms * 32 + (d - digits);
    }
    if (ms > YEAR_9999_MS)
        return NULL;
    clock_text(ms * 1000, 3, out);
    return out;
}

/* Up to `limit` models into `rows`, and the newest; *more if there are others. */
static enum status read_models(struct ctl *ctl, const char *in_force, int64_t limit, json_t *rows, bool *more,
                               struct err *err)
{
    char *token = strdup(""), at[CLOCK_TEXT_MAX];
    enum status st = token ? ST_OK : err_set(err, ST_NOMEM, "", "no memory");
    do {
        struct store_model_info *page = NULL;
        char *next = NULL;
        size_t n = 0;
        if (st == ST_OK)
            st = store_models(ctl->store_conn, token, &page, &n, &next, ctl_store_deadline(ctl), err);
        *more = st == ST_OK && *next;
        for (size_t i = 0; i < n; i++) {
            if ((int64_t)json_array_size(rows) == limit) {
                *more = true;
                break;
            }
            (void)json_array_append_new(rows, json_pack("{s:s, s:s?, s:s, s:i, s:b, s:b}", "model_id", page[i].id,
                                                        "created_at", created_at(page[i].id, at), "schema_version",
                                                        page[i].schema, "types", (int)page[i].types, "in_force",
                                                        (int)(strcmp(page[i].id, in_force) == 0), "newest",
                                                        (int)(json_array_size(rows) == 0)));
        }
        free(page);
        free(token);
        token = next;
    } while (st == ST_OK && *token && (int64_t)json_array_size(rows) < limit);
    free(token);
    return st;
}

static void print_models(const json_t *rows)
{
    struct table *t = table_new(5, (const char *const[]){"MODEL", "CREATED", "SCHEMA", "TYPES", "STATE"});
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        bool in_force = json_is_true(json_object_get(row, "in_force")), newest = i == 0;
        char types[24];
        (void)snprintf(types, sizeof types, "%lld", (long long)json_integer_value(json_object_get(row, "types")));
        table_add(t, (const char *const[]){json_string_value(json_object_get(row, "model_id")),
                                           json_string_value(json_object_get(row, "created_at")),
                                           json_string_value(json_object_get(row, "schema_version")), types,
                                           in_force && newest ? "in force, newest"
                                           : in_force         ? "in force"
                                           : newest           ? "newest"
                                                              : ""});
    }
    table_print(t);
}

static enum exit_code list_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    (void)nargs;
    (void)args;
    const struct model_options *o = opts;
    struct err err = {.status = ST_OK};
    struct pin pin;
    json_t *rows = json_array();
    bool more = false;
    enum exit_code code = EXIT_DONE;
    enum status st = pin_connect(ctl, &pin, &err); /* the list of a store that is gone would be empty */
    if (st == ST_OK)
        st = read_models(ctl, pin.model_id, o->limit, rows, &more, &err);
    if (st != ST_OK) {
        code = ctl_fail(ctl, &err);
    } else if (ctl->json) {
        const char *newest = json_string_value(json_object_get(json_array_get(rows, 0), "model_id"));
        ctl_print_json(json_pack("{s:s, s:s?, s:b, s:O, s:b}", "in_force", pin.model_id, "newest", newest,
                                 "in_force_is_newest", (int)(newest && strcmp(newest, pin.model_id) == 0), "models",
                                 rows, "more", (int)more));
    } else {
        print_models(rows);
    }
    if (st == ST_OK && more)
        (void)fprintf(stderr, "the newest %zu are shown (--limit)\n", json_array_size(rows));
    json_decref(rows);
    return code;
}

/* Id of the model to use: written from the file, or the one named, which must exist. */
static enum status model_to_use(struct ctl *ctl, const struct model_options *o, int nargs, char **args,
                                char id[static ID_MAX], struct err *err)
{
    char *json = NULL, *written = NULL;
    enum status st;
    if (o->file) {
        st = model_file_read(o->file, &json, err);
        if (st == ST_OK)
            st = store_write_model(ctl->store_conn, json, &written, ctl_store_deadline(ctl), err);
        if (st != ST_OK && st != ST_CONFIG)
            err_prefix(err, "%s", o->file);
        (void)snprintf(id, ID_MAX, "%s", written ? written : "");
    } else {
        st = store_model(ctl->store_conn, args[nargs - 1], &json, ctl_store_deadline(ctl), err);
        (void)snprintf(id, ID_MAX, "%s", args[nargs - 1]);
    }
    free(json);
    free(written);
    return st;
}

static enum exit_code use_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    const struct model_options *o = opts;
    struct err err = {.status = ST_OK};
    struct pin before, after;
    char id[ID_MAX] = "";
    enum status st = ST_OK;
    if ((o->file != NULL) == (nargs > 0))
        st = err_set(&err, ST_CONFIG, "", "give a MODEL_ID, or --file FILE with a new model");
    if (st == ST_OK)
        st = pin_read(ctl, &before, &err);
    if (st == ST_OK)
        st = ctl_store(ctl, before.store_id, &err);
    if (st == ST_OK)
        st = model_to_use(ctl, o, nargs, args, id, &err);
    if (st == ST_OK)
        st = pin_write(ctl, before.store_id, id, &after, &err);
    if (st != ST_OK)
        return ctl_fail(ctl, &err);
    if (ctl->json)
        ctl_print_json(json_pack("{s:s, s:s, s:s, s:I}", "store", ctl->settings.store.name, "model_id", after.model_id,
                                 "model_id_before", before.model_id, "generation", (json_int_t)after.generation));
    else
        (void)printf("model %s is in force%s%s\n", after.model_id, *before.model_id ? ", before it was " : "",
                     before.model_id);
    return EXIT_DONE;
}

static const struct option_spec use_specs[] = {
    {"file", OPTION_TEXT, offsetof(struct model_options, file), "FILE",
     "write this model (JSON) to the store first, and use it", 0, 0, 0},
    {0},
};

static const struct option_spec list_specs[] = {
    {"limit", OPTION_INT, offsetof(struct model_options, limit), "N", "show at most so many", 100, 1, 1000000},
    {0},
};

const struct command command_model_show = {
    .name = "model show",
    .args = "[MODEL_ID]",
    .summary = "Print the model in force, or another one, as JSON",
    .details = "",
    .max_args = 1,
    .run = show_run,
};
const struct command command_model_list = {
    .name = "model list",
    .args = "",
    .summary = "List the store's models, the newest first, and which is in force",
    .details = "",
    .options = list_specs,
    .run = list_run,
};
const struct command command_model_use = {
    .name = "model use",
    .args = "[MODEL_ID]",
    .summary = "Put a model in force: writers send it with every call",
    .details = "The model must exist in the store. Parked changes are tried again with it. Examples:\n"
               "  relatactl model use 01HVMMBCMGZNT3SED4Z17ECXCA\n"
               "  relatactl model use --file model.json\n"
               "A model in the DSL is turned into JSON by: fga model transform --file model.fga",
    .options = use_specs,
    .max_args = 1,
    .run = use_run,
};
