#include "authz-store/http/keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "common/base/file.h"
#include "common/base/log.h"

#define KEYS_MAX 64
#define KEY_MIN 8
#define KEY_MAX 1000

typedef unsigned char digest[SHA256_DIGEST_LENGTH];

struct keys {
    const char *path;
    struct stat seen;
    pthread_rwlock_t lock; /* guards the following */
    digest digests[KEYS_MAX];
    size_t n;
};

static enum status read_keys(const char *path, const char *text, digest *out, size_t *n, struct err *err)
{
    *n = 0;
    for (int line = 1; *text; line++) {
        size_t len = strcspn(text, "\r\n");
        if (len > 0) {
            if (len < KEY_MIN || len > KEY_MAX)
                return err_set(err, ST_CONFIG, NULL, "http.keys_file %s, line %d: a key has %d to %d bytes", path, line,
                               KEY_MIN, KEY_MAX);
            if (*n == KEYS_MAX)
                return err_set(err, ST_CONFIG, NULL, "http.keys_file %s: more than %d keys", path, KEYS_MAX);
            SHA256((const unsigned char *)text, len, out[(*n)++]);
        }
        text += len;
        text += strspn(text, "\r");
        text += *text == '\n';
    }
    return *n > 0 ? ST_OK : err_set(err, ST_CONFIG, NULL, "http.keys_file %s: there is no key in it", path);
}

static enum status load(struct keys *k, struct err *err)
{
    struct buf text;
    digest digests[KEYS_MAX];
    size_t n = 0;
    buf_init(&text, KEYS_MAX * (KEY_MAX + 2));
    enum status st = file_read(k->path, text.max, &text, &k->seen, err);
    if (st == ST_OK)
        st = read_keys(k->path, buf_str(&text), digests, &n, err);
    if (st == ST_OK) {
        pthread_rwlock_wrlock(&k->lock);
        memcpy(k->digests, digests, sizeof digests[0] * n);
        k->n = n;
        pthread_rwlock_unlock(&k->lock);
    }
    if (text.data)
        explicit_bzero(text.data, text.len);
    buf_release(&text);
    return st;
}

enum status keys_new(struct keys **out, const char *path, struct err *err)
{
    struct keys *k = calloc(1, sizeof *k);
    *out = NULL;
    if (!k)
        return err_set(err, ST_NOMEM, NULL, "no memory for keys");
    k->path = path;
    pthread_rwlock_init(&k->lock, NULL);
    enum status st = path[0] ? load(k, err) : ST_OK;
    if (st != ST_OK) {
        keys_free(k);
        return st;
    }
    *out = k;
    return ST_OK;
}

void keys_free(struct keys *k)
{
    if (!k)
        return;
    pthread_rwlock_destroy(&k->lock);
    free(k);
}

const char *keys_refuse(struct keys *k, const char *authorization)
{
    digest given;
    int right = 0;
    if (!k->path[0])
        return NULL;
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
        return "bearer_token_missing";
    SHA256((const unsigned char *)authorization + 7, strlen(authorization + 7), given);
    pthread_rwlock_rdlock(&k->lock);
    for (size_t i = 0; i < k->n; i++)
        right |= CRYPTO_memcmp(given, k->digests[i], sizeof given) == 0;
    pthread_rwlock_unlock(&k->lock);
    return right ? NULL : "unauthenticated";
}

void keys_look(struct keys *k)
{
    struct stat now;
    struct err err = {0};
    if (!k->path[0])
        return;
    file_look(k->path, &now);
    if (file_same(&now, &k->seen))
        return;
    k->seen = now;
    if (load(k, &err) == ST_OK)
        log_info("keys read again", "file", k->path, NULL);
    else
        log_err(LOG_LVL_ERROR, "keys not read again, the former ones stay", &err, NULL);
}
