/* Answers of a store and of a token endpoint, and condition contexts: any bytes. */
#include <stdlib.h>
#include <string.h>

#include "common/store/batch_check_json.h"
#include "common/store/store_error.h"
#include "common/store/store_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was read as a page can be sent again, and its contexts mean what they meant. */
static void send_again(const struct store_tuples *t)
{
    struct buf out;

    buf_init(&out, 64u << 20);
    if (t->len > 0 && store_json_write(&out, "M", t->items, t->len, NULL, 0, NULL) != ST_OK)
        abort();
    for (size_t i = 0; i < t->len; i++)
        if (!store_context_equal(t->items[i].condition_context, t->items[i].condition_context))
            abort();
    buf_release(&out);
}

static void check_string(enum status st, char *s)
{
    if ((st == ST_OK) != (s != NULL))
        abort();
    free(s);
}

/* Only an item that was asked for can be allowed, and only with status ST_OK. */
static void check_batch(struct bytes body)
{
    struct store_check_item items[STORE_CHECK_MAX] = {{0}};
    struct store_batch b = {.items = items, .n = STORE_CHECK_MAX};
    struct err err;
    enum status st;

    items[1].status = ST_INVALID;
    st = store_json_batch_answer(body, &b, &err);
    if (items[1].allowed || items[1].status != ST_INVALID)
        abort();
    for (size_t i = 0; i < b.n; i++)
        if (items[i].allowed && (st != ST_OK || items[i].status != ST_OK || items[i].code[0]))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes body = {(const char *)data, size};
    struct store_tuples tuples;
    struct err err = {0};
    char *s, refusal[16], *text;
    int64_t seconds;
    enum status st;
    bool allowed;

    check_batch(body);
    st = store_json_tuples(body, &tuples, &s, &err);
    if (st == ST_OK)
        send_again(&tuples);
    store_tuples_free(&tuples);
    check_string(st, s);
    if (store_json_allowed(body, &allowed, &err) != ST_OK && allowed)
        abort();
    st = store_json_member(body, "id", &s, &err);
    check_string(st, s);
    if (store_json_first_model(body, &s, &err) == ST_OK)
        free(s);
    st = store_json_model_text(body, &s, &err);
    check_string(st, s);
    st = store_json_token(body, &s, &seconds, &err);
    check_string(st, s);
    store_json_token_refusal(body, refusal, sizeof(refusal));
    if (store_error_from_answer(400, body, 10, 0, &err) == ST_OK)
        abort();
    text = strndup((const char *)data, size);
    if (text && store_context_equal(text, text) && !store_context_equal(NULL, "{}"))
        abort();
    free(text);
    return 0;
}
