/* token.c - page tokens: base64url of 16 bytes of HMAC-SHA256 (RFC 2104) and the text; the key is the schema's. */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>

#include "authz-store/stores/internal.h"

#define MAC 16

/* Over scope, NUL, text. */
static bool mac(const struct stores *s, const char *scope, const char *text, size_t len, unsigned char out[MAC])
{
    unsigned char full[EVP_MAX_MD_SIZE];
    unsigned full_len = 0;
    struct buf b;

    buf_init(&b, 65536);
    buf_add(&b, scope, strlen(scope) + 1);
    buf_add(&b, text, len);
    bool ok = buf_ok(&b) && HMAC(EVP_sha256(), s->token_key, (int)strlen(s->token_key), (unsigned char *)b.data, b.len,
                                 full, &full_len);
    buf_release(&b);
    if (ok)
        memcpy(out, full, MAC);
    return ok;
}

static void swap(char *text, const char *from, const char *to)
{
    for (; *text; text++) {
        const char *at = strchr(from, *text);
        if (at)
            *text = to[at - from];
    }
}

char *stores_seal(struct stores *s, const char *scope, const char *text)
{
    size_t len = strlen(text);
    unsigned char *raw = malloc(MAC + len + 1);
    char *out = malloc((MAC + len + 2) / 3 * 4 + 1);

    if (!raw || !out || !mac(s, scope, text, len, raw)) {
        free(raw);
        free(out);
        return NULL;
    }
    memcpy(raw + MAC, text, len);
    int n = EVP_EncodeBlock((unsigned char *)out, raw, (int)(MAC + len));
    free(raw);
    out[n] = '\0';
    swap(out, "+/", "-_");
    return out;
}

char *stores_unseal(struct stores *s, const char *scope, const char *token)
{
    size_t len = strlen(token), pad = 0;
    char *copy = len % 4 == 0 && len >= 4 && len < 32768 && !strpbrk(token, "+/ \t\r\n") ? strdup(token) : NULL;
    unsigned char *raw = copy ? malloc(len / 4 * 3 + 1) : NULL, wanted[MAC];
    char *text = NULL;

    if (raw) {
        swap(copy, "-_", "+/");
        pad = (size_t)(copy[len - 1] == '=') + (size_t)(copy[len - 2] == '=');
        int n = EVP_DecodeBlock(raw, (unsigned char *)copy, (int)len);
        size_t size = n < 0 ? 0 : (size_t)n - pad;
        if (size >= MAC) {
            raw[size] = '\0';
            text = strdup((char *)raw + MAC);
            /* A text with NUL in it is none of ours; the bits that the last digit does not need must be 0. */
            char *again = NULL;
            bool ok = text && strlen(text) == size - MAC && mac(s, scope, text, size - MAC, wanted) &&
                      CRYPTO_memcmp(raw, wanted, MAC) == 0 && (again = stores_seal(s, scope, text)) &&
                      strcmp(again, token) == 0;
            free(again);
            if (!ok) {
                free(text);
                text = NULL;
            }
        }
    }
    free(raw);
    free(copy);
    return text;
}
