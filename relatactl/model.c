/* model.c - relatactl model: the authorization model in force. */
#include <stdlib.h>

#include "relatactl/commands.h"
#include "relatactl/identity.h"
#include "relatactl/model_file.h"

struct model_options {
    const char *file;
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
        st = err_set(&err, ST_NOT_FOUND, "", "no model is in force (relatactl model use MODEL_ID)");
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

static enum exit_code list_run(struct ctl *ctl, const void *opts, int nargs, char **args)
{
    (void)opts;
    (void)nargs;
    (void)args;
    struct err err = {.status = ST_OK};
    struct pin pin;
    char *latest = NULL;
    enum status st = pin_read(ctl, &pin, &err);
    if (st == ST_OK)
        st = ctl_store(ctl, pin.store_id, &err);
    if (st == ST_OK)
        st = store_latest_model(ctl->store_conn, &latest, ctl_store_deadline(ctl), &err);
    if (st != ST_OK)
        return ctl_fail(ctl, &err);
    bool newest = strcmp(latest, pin.model_id) == 0;
    if (ctl->json) {
        ctl_print_json(json_pack("{s:s, s:s, s:b}", "in_force", pin.model_id, "newest", latest, "in_force_is_newest",
                                 (int)newest));
    } else {
        (void)printf("%s  in force%s\n", pin.model_id, newest ? ", the store's newest" : "");
        if (!newest)
            (void)printf("%s  the store's newest\n", latest);
    }
    free(latest);
    return EXIT_DONE;
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
    .summary = "Show which model is in force and which is the store's newest",
    .details = "",
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
