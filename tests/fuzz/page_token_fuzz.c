/* Page tokens: any bytes as a token; and positions made of the bytes (values between newlines, "\N" is NULL) there and
 * back. */
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "inventory-lister/pages/page_token.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct token_keys *keys(void)
{
    static struct token_keys *k;

    if (!k) {
        log_init("fuzz", LOG_LVL_ERROR, LOG_FMT_LOGFMT);
        if (token_keys_new(&k, NULL, 3600000, NULL) != ST_OK)
            abort();
    }
    return k;
}

static void take_values(char *text, struct position *p)
{
    while (p->n < POSITION_MAX) {
        char *newline = strchr(text, '\n');

        if (newline)
            *newline = '\0';
        p->values[p->n++] = strcmp(text, "\\N") == 0 ? NULL : text;
        if (!newline)
            return;
        text = newline + 1;
    }
}

static void check_same(const struct position *a, const struct position *b)
{
    if (a->n != b->n)
        abort();
    for (size_t i = 0; i < a->n; i++) {
        if (!a->values[i] != !b->values[i] || (a->values[i] && strcmp(a->values[i], b->values[i]) != 0))
            abort();
    }
}

static void there_and_back(char *text)
{
    struct bytes question = {"question", 8};
    struct position p = {0}, back;
    struct buf token;
    enum status st;

    take_values(text, &p);
    buf_init(&token, 20000);
    st = token_seal(keys(), question, &p, &token, NULL);
    if (st == ST_OK) {
        if (token_open(keys(), question, buf_str(&token), p.n, &back, NULL) != ST_OK)
            abort();
        check_same(&p, &back);
        position_free(&back);
        question.len--;
        if (token_open(keys(), question, buf_str(&token), p.n, &back, NULL) != ST_INVALID)
            abort();
    } else if (st != ST_TOO_BIG) {
        abort();
    }
    buf_release(&token);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    struct position p;

    if (!text)
        abort();
    memcpy(text, data, size);
    text[size] = '\0';
    if (token_open(keys(), (struct bytes){"q", 1}, text, 1, &p, NULL) != ST_INVALID)
        abort();
    there_and_back(text);
    free(text);
    return 0;
}
