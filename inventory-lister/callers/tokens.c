#include "inventory-lister/callers/tokens.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/hex.h"

struct token {
    uint8_t hash[TOKEN_HASH_BYTES];
    struct caller_impl *caller;
    int line;
};

struct tokens {
    struct token *items; /* sorted by hash */
    size_t len, cap;
};

/* ---- lines ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* Cuts the first word off. */
static struct bytes next_word(struct bytes *rest)
{
    struct bytes word;

    while (rest->len > 0 && is_blank(*rest->data))
        rest->data++, rest->len--;
    word = (struct bytes){rest->data, 0};
    while (rest->len > 0 && !is_blank(*rest->data))
        rest->data++, rest->len--, word.len++;
    return word;
}

static bool grow(struct tokens *t)
{
    size_t cap = t->cap ? t->cap * 2 : 16;
    struct token *more;

    if (t->len < t->cap)
        return true;
    more = realloc(t->items, cap * sizeof *more);
    if (!more)
        return false;
    t->items = more;
    t->cap = cap;
    return true;
}

static enum status take_line(struct tokens *t, struct bytes line, int number, struct err *err)
{
    struct bytes rest = line, name = next_word(&rest), hex;
    struct token token = {.line = number};
    enum status st;

    if (name.len == 0 || *name.data == '#')
        return ST_OK;
    if (line.len > TOKEN_LINE_MAX)
        return err_set(err, ST_INVALID, NULL, "line %d is longer than %d bytes", number, TOKEN_LINE_MAX);
    hex = next_word(&rest);
    if (!hex_decode(hex, token.hash, TOKEN_HASH_BYTES))
        return err_set(err, ST_INVALID, NULL,
                       "line %d: the second word must be the token's SHA-256 in 64 hex digits, never the token itself",
                       number);
    if (!grow(t))
        return err_set(err, ST_NOMEM, NULL, "no memory for callers");
    st = caller_parse(name, rest, &token.caller, err);
    if (st != ST_OK)
        return err_prefix(err, "line %d", number);
    t->items[t->len++] = token;
    return ST_OK;
}

static int token_cmp(const void *a, const void *b)
{
    return memcmp(((const struct token *)a)->hash, ((const struct token *)b)->hash, TOKEN_HASH_BYTES);
}

static enum status sort(struct tokens *t, struct err *err)
{
    if (t->len > 1)
        qsort(t->items, t->len, sizeof *t->items, token_cmp);
    for (size_t i = 1; i < t->len; i++) {
        const struct token *a = &t->items[i - 1], *b = &t->items[i];

        if (token_cmp(a, b) == 0)
            return err_set(err, ST_INVALID, NULL, "lines %d and %d have the same token",
                           a->line < b->line ? a->line : b->line, a->line < b->line ? b->line : a->line);
    }
    return ST_OK;
}

enum status tokens_parse(struct bytes text, struct tokens **out, struct err *err)
{
    struct tokens *t = calloc(1, sizeof *t);
    enum status st = ST_OK;
    int number = 0;

    *out = NULL;
    if (!t)
        return err_set(err, ST_NOMEM, NULL, "no memory for callers");
    while (text.len > 0 && st == ST_OK) {
        const char *end = memchr(text.data, '\n', text.len);
        struct bytes line = {text.data, end ? (size_t)(end - text.data) : text.len};
        size_t used = line.len + (end != NULL);

        if (line.len > 0 && line.data[line.len - 1] == '\r')
            line.len--;
        st = take_line(t, line, ++number, err);
        text.data += used;
        text.len -= used;
    }
    if (st == ST_OK)
        st = sort(t, err);
    if (st != ST_OK) {
        tokens_free(t);
        return st;
    }
    *out = t;
    return ST_OK;
}

enum status tokens_load(const char *path, struct tokens **out, struct stat *seen, struct err *err)
{
    struct bytes text;
    struct buf content;
    enum status st;

    *out = NULL;
    buf_init(&content, TOKEN_FILE_MAX + 1);
    st = file_read(path, TOKEN_FILE_MAX, &content, seen, err);
    if (st == ST_OK && (seen->st_mode & 0777 & ~0640))
        st = err_set(err, ST_CONFIG, NULL, "%s has mode %04o: others could read it; chmod 0640 or less", path,
                     (unsigned)(seen->st_mode & 0777));
    text = (struct bytes){buf_str(&content), content.len};
    if (st == ST_OK && tokens_parse(text, out, err) != ST_OK) {
        err_prefix(err, "%s", path);
        st = ST_CONFIG;
        if (err)
            err->status = st;
    }
    buf_release(&content);
    return st;
}

void tokens_free(struct tokens *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->len; i++)
        caller_unref(t->items[i].caller);
    free(t->items);
    free(t);
}

size_t tokens_count(const struct tokens *t)
{
    return t ? t->len : 0;
}

/* By the first 8 bytes, which a guesser cannot steer towards a wanted digest; then all of them in constant time. */
struct caller_impl *tokens_find(const struct tokens *t, const uint8_t hash[TOKEN_HASH_BYTES])
{
    size_t low = 0, high = t ? t->len : 0;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (memcmp(t->items[mid].hash, hash, 8) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    for (; t && low < t->len && memcmp(t->items[low].hash, hash, 8) == 0; low++) {
        if (CRYPTO_memcmp(t->items[low].hash, hash, TOKEN_HASH_BYTES) == 0)
            return t->items[low].caller;
    }
    return NULL;
}
