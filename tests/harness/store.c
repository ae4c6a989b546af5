/* store.c - a fresh store with a model for each test. */
#include "tests/harness/internal.h"

#define CALL_MS 15000

#define SUBJECTS                                                                                                       \
    "{\"directly_related_user_types\":[{\"type\":\"user\"},{\"type\":\"user\",\"wildcard\":{}},"                       \
    "{\"type\":\"team\",\"relation\":\"member\"},{\"type\":\"user\",\"condition\":\"in_hours\"}]}"
#define ONLY(type) "{\"directly_related_user_types\":[{\"type\":\"" type "\"}]}"
#define THIS "{\"this\":{}}"
#define OR(rest) "{\"union\":{\"child\":[" THIS "," rest "]}}"
#define ALSO(r) "{\"computedUserset\":{\"relation\":\"" r "\"}}"
#define FROM_PARENT(r)                                                                                                 \
    "{\"tupleToUserset\":{\"tupleset\":{\"relation\":\"parent\"},\"computedUserset\":{\"relation\":\"" r "\"}}}"
#define LEVEL(type, relations, metadata)                                                                               \
    "{\"type\":\"" type "\",\"relations\":{\"parent\":" THIS ",\"owner\":" THIS ",\"editor\":" OR(                     \
        ALSO("owner") "," FROM_PARENT("editor")) ",\"viewer\":" OR(ALSO("editor") "," FROM_PARENT("viewer")) relations \
        "},\"metadata\":{\"relations\":{\"parent\":" ONLY("folder") ",\"owner\":" SUBJECTS ",\"editor\":" SUBJECTS     \
                                                                    ",\"viewer\":" SUBJECTS metadata "}}}"
#define INT_PARAMETER(name) "\"" name "\":{\"type_name\":\"TYPE_NAME_INT\"}"
#define TEAM                                                                                                           \
    "{\"type\":\"team\",\"relations\":{\"member\":" THIS "},\"metadata\":{\"relations\":{\"member\":"                  \
    "{\"directly_related_user_types\":[{\"type\":\"user\"},{\"type\":\"team\",\"relation\":\"member\"}]}}}}"
#define IN_HOURS                                                                                                       \
    "\"in_hours\":{\"name\":\"in_hours\",\"expression\":\"hour >= from && hour < "                                     \
    "until\",\"parameters\":{" INT_PARAMETER("hour") "," INT_PARAMETER("from") "," INT_PARAMETER("until") "}}"

const char harness_model[] =
    "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"}," TEAM "," LEVEL("folder", "", "") "," LEVEL(
        "doc", ",\"blocked\":" THIS, ",\"blocked\":" ONLY("user")) "],\"conditions\":{" IN_HOURS "}}";

/* The settings every test starts from. */
static void settings(struct harness *h)
{
    struct cfg_store *c = &h->private->store_cfg;
    /* Strings are only read; cfg_store owns them where they come from a configuration. */
    char *none = (char *)(uintptr_t) "";

    *c = (struct cfg_store){.url = (char *)(uintptr_t)h->store_url,
                            .name = (char *)(uintptr_t)h->store_name,
                            .token = none,
                            .oidc_token_url = none,
                            .oidc_client_id = none,
                            .oidc_client_secret = none,
                            .oidc_audience = none,
                            .oidc_scope = none,
                            .ca_file = none,
                            .cert_file = none,
                            .key_file = none,
                            .connect_timeout_ms = harness_ms(2000),
                            .request_timeout_ms = harness_ms(10000),
                            .late_window_ms = 4000};
    h->store_cfg = c;
}

void harness_store_open(struct harness *h)
{
    struct err err;

    settings(h);
    if (store_new(&h->store, h->store_cfg, &err) != ST_OK ||
        store_conn_new(&h->store_conn, h->store, "", &err) != ST_OK)
        fail_msg("store %s: %s", h->store_url, err.text);
    harness_store_new(h, NULL, &h->store_id, &h->model_id);
    if (store_conn_use(h->store_conn, h->store_id, &err) != ST_OK)
        fail_msg("store %s: %s", h->store_url, err.text);
}

void harness_store_close(struct harness *h)
{
    store_conn_free(h->store_conn);
    store_free(h->store);
    h->store_conn = NULL;
    h->store = NULL;
}

static const char *keep(struct harness *h, char *s)
{
    const char *kept = harness_strf(h, "%s", s);

    free(s);
    return kept;
}

static const char *model_into(struct harness *h, struct store_conn *c, const char *json)
{
    char *id = NULL;
    struct err err;

    if (store_write_model(c, json, &id, deadline_in_ms(harness_ms(CALL_MS)), &err) != ST_OK)
        fail_msg("writing a model to %s: %s %s", h->store_url, err.code, err.text);
    return keep(h, id);
}

const char *harness_model_write(struct harness *h, const char *model_json)
{
    return model_into(h, h->store_conn, model_json);
}

void harness_store_new(struct harness *h, const char *model, const char **store_id, const char **model_id)
{
    struct store_conn *c = NULL;
    char *id = NULL;
    const char *kept, *model_kept;
    struct err err;

    if (store_conn_new(&c, h->store, "", &err) != ST_OK ||
        store_create(c, h->id, &id, deadline_in_ms(harness_ms(CALL_MS)), &err) != ST_OK)
        fail_msg("creating a store at %s: %s %s", h->store_url, err.code, err.text);
    kept = keep(h, id);
    if (store_conn_use(c, kept, &err) != ST_OK)
        fail_msg("%s", err.text);
    model_kept = model_into(h, c, model != NULL ? model : harness_model);
    store_conn_free(c);
    if (store_id != NULL)
        *store_id = kept;
    if (model_id != NULL)
        *model_id = model_kept;
}
