/* store_models.c - the list of a store's models. */
#include <stdlib.h>
#include <string.h>

#include "common/store/store_internal.h"
#include "common/store/store_json.h"

/* Models are returned whole, up to 256 KB each by the server's default: a page must fit into STORE_ANSWER_MAX. */
#define MODELS_PAGE 10

enum status store_models(struct store_conn *c, const char *token, struct store_model_info **out, size_t *n, char **next,
                         mono_us deadline, struct err *err)
{
    char *escaped = curl_easy_escape(NULL, token, 0);
    enum status st = store_call_need_store(c, err);

    *out = NULL;
    *next = NULL;
    *n = 0;
    if (st == ST_OK && !escaped)
        st = err_set(err, ST_NOMEM, NULL, "no memory for a request");
    store_call_path(c, "/authorization-models");
    buf_addf(&c->path, "?page_size=%d%s%s", MODELS_PAGE, *token ? "&continuation_token=" : "", escaped ? escaped : "");
    curl_free(escaped);
    if (st == ST_OK)
        st = store_call(c, STORE_GET, NULL, deadline, err);
    if (st == ST_OK)
        st = store_json_models(store_call_answer(c), out, n, next, err);
    if (st == ST_OK && **next && strcmp(*next, token) == 0) {
        st =
            err_set(err, ST_FATAL, NULL, "the store gives the same continuation token again; reading on would not end");
        free(*out);
        free(*next);
        *out = NULL;
        *next = NULL;
        *n = 0;
    }
    return store_call_told(c, "ReadAuthorizationModels", st, err);
}
