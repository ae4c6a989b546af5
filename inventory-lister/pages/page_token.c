/*
 * page_token.c - see page_token.h.
 *
 * Raw bytes: key id (2), nonce (12), ciphertext, tag (16). The key id is not secret: the first bytes of a hash of the
 * key. Additional data: key id, then the question. Inside: version (1), issue time (8, milliseconds, big endian),
 * number of values (1), each value's length + 1 (4; 0 = NULL) and bytes, then zeros up to the size.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hex.h"
#include "common/base/log.h"
#include "inventory-lister/pages/page_token.h"

#define KEY_LEN 32
#define ID_LEN 2
#define NONCE_LEN 12
#define TAG_LEN 16
#define HEAD_LEN (ID_LEN + NONCE_LEN)
#define INNER_HEAD 10 /* version, time, number of values */
#define VERSION 1
#define KEYS_MAX 2
#define FILE_MAX 4094
#define SKEW_MS 60000 /* of other servers' clocks: a token from the future beyond this is none */

static const size_t sizes[] = {512, 2048, 8192};

struct token_key {
    unsigned char bytes[KEY_LEN];
    unsigned char id[ID_LEN];
};

struct token_keys {
    char *path;         /* NULL = made at start */
    EVP_CIPHER *cipher; /* looked up once: a lookup takes longer than sealing */
    int64_t lifetime_ms;
    pthread_mutex_t lock;
    /* Under the lock. */
    struct token_key keys[KEYS_MAX];
    size_t n;
    struct stat seen;
};

void position_free(struct position *p)
{
    for (size_t i = 0; i < POSITION_MAX; i++)
        free(p->values[i]);
    *p = (struct position){0};
}

/* ---- keys ---- */

static enum status key_id(struct token_key *k, struct err *err)
{
    static const char label[] = "relata page token key";
    unsigned char input[sizeof label + KEY_LEN], digest[EVP_MAX_MD_SIZE];
    int ok;

    memcpy(input, label, sizeof label);
    memcpy(input + sizeof label, k->bytes, KEY_LEN);
    ok = EVP_Digest(input, sizeof input, digest, NULL, EVP_sha256(), NULL);
    OPENSSL_cleanse(input, sizeof input);
    if (ok != 1)
        return err_set(err, ST_FATAL, NULL, "libcrypto has no SHA-256");
    memcpy(k->id, digest, ID_LEN);
    return ST_OK;
}

/* Lines of 64 hex digits; blank lines are left out. */
static enum status keys_parse(const char *path, const char *text, struct token_key *keys, size_t *n, struct err *err)
{
    for (int line = 1; *text; line++) {
        size_t len = strcspn(text, "\n"), trimmed = len;
        enum status st;

        while (trimmed > 0 && strchr(" \t\r", text[trimmed - 1]))
            trimmed--;
        if (trimmed > 0) {
            if (*n == KEYS_MAX)
                return err_set(err, ST_CONFIG, NULL, "%s:%d: more than two keys", path, line);
            if (!hex_decode((struct bytes){text, trimmed}, keys[*n].bytes, KEY_LEN))
                return err_set(err, ST_CONFIG, NULL, "%s:%d: not 64 hex digits: make one by `openssl rand -hex 32`",
                               path, line);
            st = key_id(&keys[(*n)++], err);
            if (st != ST_OK)
                return st;
        }
        text += len + (text[len] == '\n');
    }
    if (*n == 0)
        return err_set(err, ST_CONFIG, NULL, "%s holds no key: make one by `openssl rand -hex 32`", path);
    return ST_OK;
}

static enum status read_text(const char *path, struct buf *out, struct stat *seen, struct err *err)
{
    enum status st = file_read(path, FILE_MAX, out, seen, err);

    if (st == ST_OK && memchr(buf_str(out), '\0', out->len))
        st = err_set(err, ST_CONFIG, NULL, "%s holds a NUL byte", path);
    return st;
}

static enum status keys_load(struct token_keys *k, struct err *err)
{
    struct token_key keys[KEYS_MAX];
    struct stat seen = {0};
    struct buf text;
    size_t n = 0;
    enum status st;

    buf_init(&text, FILE_MAX);
    st = read_text(k->path, &text, &seen, err);
    if (st == ST_OK)
        st = keys_parse(k->path, buf_str(&text), keys, &n, err);
    if (st == ST_OK) {
        pthread_mutex_lock(&k->lock);
        memcpy(k->keys, keys, sizeof keys);
        k->n = n;
        k->seen = seen;
        pthread_mutex_unlock(&k->lock);
    }
    if (text.data)
        OPENSSL_cleanse(text.data, text.len);
    buf_release(&text);
    OPENSSL_cleanse(keys, sizeof keys);
    return st;
}

static enum status key_random(struct token_keys *k, struct err *err)
{
    if (RAND_bytes(k->keys[0].bytes, KEY_LEN) != 1)
        return err_set(err, ST_FATAL, NULL, "no random bytes for a page token key");
    k->n = 1;
    log_warn("no file of page token keys: the tokens of this process end with it, and no other server opens them",
             NULL);
    return key_id(&k->keys[0], err);
}

enum status token_keys_new(struct token_keys **out, const char *path, int64_t lifetime_ms, struct err *err)
{
    struct token_keys *k = calloc(1, sizeof *k);
    enum status st;

    *out = NULL;
    if (!k)
        return err_set(err, ST_NOMEM, NULL, "no memory for page token keys");
    pthread_mutex_init(&k->lock, NULL);
    k->lifetime_ms = lifetime_ms;
    k->cipher = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
    if (!k->cipher) {
        st = err_set(err, ST_FATAL, NULL, "libcrypto has no AES-256-GCM");
    } else if (path && *path) {
        k->path = strdup(path);
        st = k->path ? keys_load(k, err) : err_set(err, ST_NOMEM, NULL, "no memory for page token keys");
    } else {
        st = key_random(k, err);
    }
    if (st == ST_OK)
        *out = k;
    else
        token_keys_free(k);
    return st;
}

void token_keys_free(struct token_keys *k)
{
    if (!k)
        return;
    OPENSSL_cleanse(k->keys, sizeof k->keys);
    pthread_mutex_destroy(&k->lock);
    EVP_CIPHER_free(k->cipher);
    free(k->path);
    free(k);
}

enum status token_keys_refresh(struct token_keys *k, struct err *err)
{
    struct stat now;
    bool same;

    if (!k->path)
        return ST_OK;
    file_look(k->path, &now); /* if it is gone, reading it says so */
    pthread_mutex_lock(&k->lock);
    same = file_same(&now, &k->seen);
    pthread_mutex_unlock(&k->lock);
    return same ? ST_OK : keys_load(k, err);
}

static void key_first(struct token_keys *k, struct token_key *out)
{
    pthread_mutex_lock(&k->lock);
    *out = k->keys[0];
    pthread_mutex_unlock(&k->lock);
}

/* The n-th key with this id: two keys may have the same. */
static bool key_with_id(struct token_keys *k, const unsigned char *id, size_t nth, struct token_key *out)
{
    bool found = false;

    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < k->n && !found; i++) {
        if (memcmp(k->keys[i].id, id, ID_LEN) == 0 && nth-- == 0) {
            *out = k->keys[i];
            found = true;
        }
    }
    pthread_mutex_unlock(&k->lock);
    return found;
}

/* ---- base64url without padding, its one canonical form ---- */

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static void base64url(const unsigned char *data, size_t len, struct buf *out)
{
    for (size_t i = 0; i < len; i += 3) {
        unsigned v = (unsigned)data[i] << 16 | (i + 1 < len ? (unsigned)data[i + 1] << 8 : 0) |
                     (i + 2 < len ? (unsigned)data[i + 2] : 0);
        int chars = i + 2 < len ? 4 : (int)(len - i) + 1;

        for (int c = 0; c < chars; c++)
            buf_addc(out, alphabet[v >> (18 - 6 * c) & 63]);
    }
}

/* The number of bytes, 0 if the text is none or longer than `max`. */
static size_t unbase64url(const char *text, unsigned char *out, size_t max)
{
    size_t len = strnlen(text, 4 * (max / 3 + 2)), n = 0;
    unsigned v = 0, bits = 0;

    if (len % 4 == 1)
        return 0;
    for (size_t i = 0; i < len; i++) {
        const char *at = memchr(alphabet, text[i], 64);

        if (!at)
            return 0;
        v = v << 6 | (unsigned)(at - alphabet);
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            if (n == max)
                return 0;
            out[n++] = (unsigned char)(v >> bits);
        }
        v &= (1U << bits) - 1;
    }
    return text[len] == '\0' && v == 0 ? n : 0;
}

/* ---- what is inside ---- */

static void put_number(unsigned char **at, uint64_t v, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--)
        *(*at)++ = (unsigned char)(v >> (8 * i));
}

static uint64_t get_number(const unsigned char **at, int bytes)
{
    uint64_t v = 0;

    for (int i = 0; i < bytes; i++)
        v = v << 8 | *(*at)++;
    return v;
}

/* Fills `out` (zeroed) and returns the padded size; 0 if the values are too long. */
static size_t inner_write(const struct position *p, unsigned char *out)
{
    unsigned char *at = out;
    size_t values = 0, len = INNER_HEAD;

    for (size_t i = 0; i < p->n; i++)
        values += p->values[i] ? strlen(p->values[i]) : 0;
    len += values + 4 * p->n;
    if (values > TOKEN_VALUES_MAX)
        return 0;
    put_number(&at, VERSION, 1);
    put_number(&at, (uint64_t)(clock_wall_us() / 1000), 8);
    put_number(&at, p->n, 1);
    for (size_t i = 0; i < p->n; i++) {
        size_t n = p->values[i] ? strlen(p->values[i]) : 0;

        put_number(&at, p->values[i] ? n + 1 : 0, 4);
        if (n > 0)
            memcpy(at, p->values[i], n);
        at += n;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (len <= sizes[i])
            return sizes[i];
    }
    return 0;
}

static bool inner_value(const unsigned char **at, const unsigned char *end, char **out)
{
    uint64_t n;

    if (end - *at < 4)
        return false;
    n = get_number(at, 4);
    if (n == 0)
        return true;
    n--;
    if (n > (uint64_t)(end - *at) || memchr(*at, '\0', n))
        return false;
    *out = strndup((const char *)*at, n);
    *at += n;
    return *out != NULL;
}

static bool inner_read(const unsigned char *in, size_t len, int64_t lifetime_ms, size_t n, struct position *out)
{
    const unsigned char *at = in, *end = in + len;
    int64_t age;

    if (get_number(&at, 1) != VERSION)
        return false;
    age = clock_wall_us() / 1000 - (int64_t)get_number(&at, 8);
    if (age > lifetime_ms || age < -SKEW_MS || get_number(&at, 1) != n)
        return false;
    out->n = n;
    for (size_t i = 0; i < n; i++) {
        if (!inner_value(&at, end, &out->values[i]))
            return false;
    }
    return true;
}

/* ---- sealing and opening ---- */

static bool gcm_seal(const EVP_CIPHER *cipher, const struct token_key *key, struct bytes question,
                     const unsigned char *plain, size_t len, unsigned char *raw)
{
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    int n;
    bool ok = ctx && RAND_bytes(raw + ID_LEN, NONCE_LEN) == 1 &&
              EVP_EncryptInit_ex2(ctx, cipher, key->bytes, raw + ID_LEN, NULL) == 1 &&
              EVP_EncryptUpdate(ctx, NULL, &n, key->id, ID_LEN) == 1 &&
              EVP_EncryptUpdate(ctx, NULL, &n, (const unsigned char *)question.data, (int)question.len) == 1 &&
              EVP_EncryptUpdate(ctx, raw + HEAD_LEN, &n, plain, (int)len) == 1 &&
              EVP_EncryptFinal_ex(ctx, raw + HEAD_LEN + n, &n) == 1 &&
              EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG, TAG_LEN, raw + HEAD_LEN + len) == 1;

    memcpy(raw, key->id, ID_LEN);
    EVP_CIPHER_CTX_free(ctx);
    return ok;
}

static bool gcm_open(const EVP_CIPHER *cipher, const struct token_key *key, struct bytes question, unsigned char *raw,
                     size_t len, unsigned char *plain)
{
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    int n, last;
    bool ok = ctx && EVP_DecryptInit_ex2(ctx, cipher, key->bytes, raw + ID_LEN, NULL) == 1 &&
              EVP_DecryptUpdate(ctx, NULL, &n, raw, ID_LEN) == 1 &&
              EVP_DecryptUpdate(ctx, NULL, &n, (const unsigned char *)question.data, (int)question.len) == 1 &&
              EVP_DecryptUpdate(ctx, plain, &n, raw + HEAD_LEN, (int)len) == 1 &&
              EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG, TAG_LEN, raw + HEAD_LEN + len) == 1 &&
              EVP_DecryptFinal_ex(ctx, plain + n, &last) == 1;

    EVP_CIPHER_CTX_free(ctx);
    return ok;
}

enum status token_seal(struct token_keys *k, struct bytes question, const struct position *at, struct buf *out,
                       struct err *err)
{
    unsigned char plain[8192] = {0}, raw[HEAD_LEN + sizeof plain + TAG_LEN];
    size_t len = inner_write(at, plain);
    struct token_key key;
    bool ok;

    if (len == 0)
        return err_set(err, ST_TOO_BIG, NULL,
                       "the sort values of a row have more than %d bytes: no page can go on there", TOKEN_VALUES_MAX);
    key_first(k, &key);
    ok = gcm_seal(k->cipher, &key, question, plain, len, raw);
    OPENSSL_cleanse(&key, sizeof key);
    if (!ok)
        return err_set(err, ST_FATAL, NULL, "libcrypto could not seal a page token");
    base64url(raw, HEAD_LEN + len + TAG_LEN, out);
    return buf_ok(out) ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory for a page token");
}

static bool is_size(size_t len)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (len == sizes[i])
            return true;
    }
    return false;
}

enum status token_open(struct token_keys *k, struct bytes question, const char *token, size_t n, struct position *out,
                       struct err *err)
{
    unsigned char raw[HEAD_LEN + 8192 + TAG_LEN], plain[8192];
    size_t len = unbase64url(token, raw, sizeof raw);
    struct token_key key = {0};
    bool ok = false;

    *out = (struct position){0};
    if (len > HEAD_LEN + TAG_LEN && is_size(len - HEAD_LEN - TAG_LEN) && n <= POSITION_MAX) {
        len -= HEAD_LEN + TAG_LEN;
        for (size_t i = 0; !ok && key_with_id(k, raw, i, &key); i++)
            ok = gcm_open(k->cipher, &key, question, raw, len, plain);
        ok = ok && inner_read(plain, len, k->lifetime_ms, n, out);
    }
    OPENSSL_cleanse(&key, sizeof key);
    if (ok)
        return ST_OK;
    position_free(out);
    return err_set(
        err, ST_INVALID, NULL,
        "the page token does not fit this request: it was made for another one, is damaged, or too old; begin "
        "at the first page");
}
