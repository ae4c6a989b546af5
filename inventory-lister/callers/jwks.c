#include "inventory-lister/callers/jwks.h"

#include <rhonabwy.h>
#include <stdlib.h>
#include <string.h>

#define RSA_BITS_MIN 2048
#define RSA_BITS_MAX 8192 /* larger ones cost too much to check */

bool jwks_key_fits(const struct jwks_key *key, const struct jwt_alg *alg)
{
    const char *kty = json_string_value(json_object_get(key->jwk, "kty"));
    const char *crv = json_string_value(json_object_get(key->jwk, "crv"));

    return strcmp(kty, alg->kty) == 0 && (!alg->crv || (crv && strcmp(crv, alg->crv) == 0)) &&
           (!*key->alg || strcmp(key->alg, alg->name) == 0);
}

static const char *text_of(const json_t *key, const char *name)
{
    const char *s = json_string_value(json_object_get(key, name));

    return s ? s : "";
}

/* Made for signatures, as far as it says. */
static bool is_for_signatures(const json_t *key)
{
    const json_t *ops = json_object_get(key, "key_ops"), *op;
    const char *use = text_of(key, "use");
    size_t i;

    if (*use && strcmp(use, "sig") != 0)
        return false;
    if (!ops)
        return true;
    json_array_foreach(ops, i, op)
    {
        if (json_is_string(op) && strcmp(json_string_value(op), "verify") == 0)
            return true;
    }
    return false;
}

/* Only the public numbers: certificates and links to them (x5c, x5u) are never looked at, a private part is dropped. */
static json_t *public_part(const json_t *key)
{
    static const char *const members[] = {"kty", "n", "e", "crv", "x", "y"};
    json_t *part = json_object();

    for (size_t i = 0; part && i < sizeof members / sizeof *members; i++) {
        json_t *v = json_object_get(key, members[i]);

        if (v && json_object_set(part, members[i], v) != 0) {
            json_decref(part);
            return NULL;
        }
    }
    return part;
}

static bool is_usable(json_t *jwk)
{
    const int wanted = R_KEY_TYPE_RSA | R_KEY_TYPE_EC | R_KEY_TYPE_EDDSA;
    unsigned bits = 0;
    int type;

    if (r_jwk_is_valid(jwk) != RHN_OK)
        return false;
    type = r_jwk_key_type(jwk, &bits, R_FLAG_IGNORE_REMOTE);
    if (!(type & R_KEY_TYPE_PUBLIC) || !(type & wanted))
        return false;
    return !(type & R_KEY_TYPE_RSA) || (bits >= RSA_BITS_MIN && bits <= RSA_BITS_MAX);
}

static bool take_key(struct jwks *k, const json_t *key)
{
    struct jwks_key taken = {0};

    if (!json_is_object(key) || !is_for_signatures(key) || strcmp(text_of(key, "kty"), "oct") == 0)
        return false;
    taken.jwk = public_part(key);
    if (!taken.jwk || !is_usable(taken.jwk))
        goto refused;
    taken.kid = strdup(text_of(key, "kid"));
    taken.alg = strdup(text_of(key, "alg"));
    if (!taken.kid || !taken.alg)
        goto refused;
    k->keys[k->len++] = taken;
    return true;
refused:
    json_decref(taken.jwk);
    free(taken.kid);
    free(taken.alg);
    return false;
}

enum status jwks_parse(struct bytes json, struct jwks **out, size_t *skipped, struct err *err)
{
    json_error_t where;
    json_t *set = json_loadb(json.data, json.len, JSON_REJECT_DUPLICATES, &where), *keys, *key;
    struct jwks *k = NULL;
    enum status st = ST_OK;
    size_t i;

    *out = NULL;
    *skipped = 0;
    keys = json_object_get(set, "keys");
    if (!set) {
        st = err_set(err, ST_INVALID, NULL, "no JSON: line %d: %s", where.line, where.text);
    } else if (!json_is_array(keys)) {
        st = err_set(err, ST_INVALID, NULL, "no JWKS: it has no list \"keys\"");
    } else if (json_array_size(keys) > JWKS_MAX_KEYS) {
        st = err_set(err, ST_INVALID, NULL, "more than %d keys", JWKS_MAX_KEYS);
    } else {
        k = calloc(1, sizeof *k);
        if (!k)
            st = err_set(err, ST_NOMEM, NULL, "no memory for keys");
    }
    if (k) {
        atomic_init(&k->refs, 1);
        json_array_foreach(keys, i, key) *skipped += !take_key(k, key);
        if (k->len == 0)
            st = err_set(err, ST_INVALID, NULL,
                         "none of %zu keys can check signatures (RSA of %d bits and more, EC, Ed25519)",
                         json_array_size(keys), RSA_BITS_MIN);
    }
    json_decref(set);
    if (st != ST_OK) {
        jwks_unref(k);
        return st;
    }
    *out = k;
    return ST_OK;
}

struct jwks *jwks_ref(struct jwks *k)
{
    atomic_fetch_add(&k->refs, 1);
    return k;
}

void jwks_unref(struct jwks *k)
{
    if (!k || atomic_fetch_sub(&k->refs, 1) != 1)
        return;
    for (size_t i = 0; i < k->len; i++) {
        json_decref(k->keys[i].jwk);
        free(k->keys[i].kid);
        free(k->keys[i].alg);
    }
    free(k);
}

size_t jwks_count(const struct jwks *k)
{
    return k ? k->len : 0;
}
