#include "inventory-lister/callers/jwt.h"

#include <math.h>
#include <orcania.h>
#include <rhonabwy.h>
#include <stdlib.h>
#include <string.h>

#include "common/tuple/tuple.h"
#include "inventory-lister/callers/jwks.h"

#define BASE64URL "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
#define TRIES_WITHOUT_KID 4 /* keys that a token without a kid is tried with */

static const struct jwt_alg algs[] = {
    {"RS256", 1, R_JWA_ALG_RS256, "RSA", NULL},     {"RS384", 2, R_JWA_ALG_RS384, "RSA", NULL},
    {"RS512", 4, R_JWA_ALG_RS512, "RSA", NULL},     {"PS256", 8, R_JWA_ALG_PS256, "RSA", NULL},
    {"PS384", 16, R_JWA_ALG_PS384, "RSA", NULL},    {"PS512", 32, R_JWA_ALG_PS512, "RSA", NULL},
    {"ES256", 64, R_JWA_ALG_ES256, "EC", "P-256"},  {"ES384", 128, R_JWA_ALG_ES384, "EC", "P-384"},
    {"ES512", 256, R_JWA_ALG_ES512, "EC", "P-521"}, {"EdDSA", 512, R_JWA_ALG_EDDSA, "OKP", "Ed25519"},
};

static const struct jwt_alg *alg_of(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof algs / sizeof *algs; i++) {
        if (strlen(algs[i].name) == len && memcmp(algs[i].name, name, len) == 0)
            return &algs[i];
    }
    return NULL;
}

enum status jwt_algorithms_parse(const char *text, unsigned *out, struct err *err)
{
    *out = 0;
    for (;;) {
        size_t len = strcspn(text, ",");
        const struct jwt_alg *alg = alg_of(text, len);

        if (!alg)
            return err_set(err, ST_INVALID, NULL,
                           "\"%.*s\" is none of RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA",
                           (int)(len > 32 ? 32 : len), text);
        *out |= alg->bit;
        if (!text[len])
            return ST_OK;
        text += len + 1;
    }
}

static enum status invalid(struct err *err, const char *why)
{
    return err_set(err, ST_DENIED, "invalid_token", "%s", why);
}

/* ---- parts ---- */

/* Canonical: the bits behind the last whole byte are zero, so that one signature has one text. */
static bool is_base64url(struct bytes b)
{
    size_t rest = b.len % 4, last = 0;

    if (b.len == 0 || rest == 1)
        return false;
    for (size_t i = 0; i < b.len; i++) {
        const char *at = b.data[i] ? strchr(BASE64URL, b.data[i]) : NULL;

        if (!at)
            return false;
        last = (size_t)(at - BASE64URL);
    }
    return rest == 0 || (last & (rest == 2 ? 15 : 3)) == 0;
}

/* A JSON object in base64url; NULL if it is anything else. */
static json_t *decode_object(struct bytes part)
{
    struct _o_datum text = {0, NULL};
    json_t *json = NULL;

    if (is_base64url(part) && o_base64url_decode_alloc((const unsigned char *)part.data, part.len, &text) == 1)
        json = json_loadb((const char *)text.data, text.size, JSON_REJECT_DUPLICATES, NULL);
    o_free(text.data);
    if (json && !json_is_object(json)) {
        json_decref(json);
        json = NULL;
    }
    return json;
}

static enum status read_head(const json_t *json, struct jwt_head *out, struct err *err)
{
    static const char *const refused[] = {"crit", "b64", "zip", "enc"};
    const json_t *alg = json_object_get(json, "alg"), *kid = json_object_get(json, "kid");

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (json_object_get(json, refused[i]))
            return err_set(err, ST_DENIED, "invalid_token", "the token's header has \"%s\", which is not taken",
                           refused[i]);
    }
    out->alg = json_is_string(alg) ? alg_of(json_string_value(alg), json_string_length(alg)) : NULL;
    if (!out->alg)
        return invalid(err, "the token's algorithm is none of the asymmetric ones that are known");
    if (kid && (!json_is_string(kid) || json_string_length(kid) > JWT_KID_MAX))
        return invalid(err, "the token's key id is no text, or too long");
    if (kid) {
        out->has_kid = true;
        memcpy(out->kid, json_string_value(kid), json_string_length(kid) + 1);
    }
    return ST_OK;
}

enum status jwt_head_parse(struct bytes token, struct jwt_head *out, struct err *err)
{
    struct bytes parts[3] = {{token.data, 0}};
    enum status st;
    json_t *json;
    size_t n = 0;

    *out = (struct jwt_head){0};
    if (token.len > JWT_MAX)
        return invalid(err, "the token is too long");
    for (size_t i = 0; i < token.len; i++) {
        if (token.data[i] != '.') {
            parts[n].len++;
            continue;
        }
        if (++n == 3)
            return invalid(err, "the token has more than three parts: encrypted ones are not taken");
        parts[n] = (struct bytes){token.data + i + 1, 0};
    }
    if (n != 2 || !is_base64url(parts[1]) || !is_base64url(parts[2]))
        return invalid(err, "the token is not signed, or not of three parts in base64url");
    json = decode_object(parts[0]);
    if (!json)
        return invalid(err, "the token's header is no JSON object");
    st = read_head(json, out, err);
    json_decref(json);
    out->payload = parts[1];
    return st;
}

/* ---- claims ---- */

static bool number_of(const json_t *v, double *out)
{
    if (!json_is_number(v))
        return false;
    *out = json_number_value(v);
    return isfinite(*out);
}

static enum status check_times(const json_t *claims, const struct jwt_rules *rules, int64_t now_s, int64_t *until_s,
                               struct err *err)
{
    const json_t *nbf = json_object_get(claims, "nbf"), *iat = json_object_get(claims, "iat");
    double exp, from, now = (double)now_s, skew = (double)rules->skew_s;

    if (!number_of(json_object_get(claims, "exp"), &exp))
        return invalid(err, "the token has no exp");
    if (exp + skew <= now)
        return err_set(err, ST_DENIED, "expired_token", "the token has expired");
    if (nbf && (!number_of(nbf, &from) || from - skew > now))
        return invalid(err, "the token is not valid yet (nbf)");
    if (iat && (!number_of(iat, &from) || from - skew > now))
        return invalid(err, "the token was issued in the future (iat)");
    *until_s = exp + skew < 9e15 ? (int64_t)(exp + skew) : INT64_C(9000000000000000);
    return ST_OK;
}

static bool text_is(const json_t *v, const char *want)
{
    return json_is_string(v) && strcmp(json_string_value(v), want) == 0;
}

static bool audience_has(const json_t *aud, const char *want)
{
    size_t i;
    const json_t *one;

    if (!json_is_array(aud))
        return text_is(aud, want);
    json_array_foreach(aud, i, one)
    {
        if (text_is(one, want))
            return true;
    }
    return false;
}

/* Text, whole numbers and booleans; the rest cannot be compared with a column and is left out: then there is no claim.
 */
static bool keep_claims(struct caller_impl *c, json_t *claims)
{
    const char *name;
    json_t *v;

    json_object_foreach(claims, name, v)
    {
        struct bytes text = {json_is_true(v) ? "true" : "false", json_is_true(v) ? 4 : 5};
        char number[32];

        if (json_is_string(v)) {
            text = (struct bytes){json_string_value(v), json_string_length(v)};
        } else if (json_is_integer(v)) {
            snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
            text = (struct bytes){number, strlen(number)};
        } else if (!json_is_boolean(v)) {
            continue;
        }
        if (text.len > CALLER_CLAIM_BYTES_MAX || c->nclaims == CALLER_CLAIMS_MAX)
            continue;
        if (!caller_add_claim(c, (struct bytes){name, strlen(name)}, text))
            return false;
    }
    return true;
}

static enum status make_caller(json_t *claims, const struct jwt_rules *rules, struct caller_impl **out, struct err *err)
{
    const json_t *id = json_object_get(claims, rules->subject_claim);
    struct caller_impl *c = NULL;
    struct buf subject;
    enum status st = ST_OK;

    if (!json_is_string(id) || json_string_length(id) == 0)
        return err_set(err, ST_DENIED, "invalid_token", "the token has no %s", rules->subject_claim);
    buf_init(&subject, 3 * JWT_MAX);
    buf_addf(&subject, "%s:", rules->subject_type);
    tuple_encode_id((struct bytes){json_string_value(id), json_string_length(id)}, &subject);
    if (!buf_ok(&subject) || subject_check(buf_str(&subject), err) != ST_OK)
        st = err_set(err, ST_DENIED, "invalid_token", "the token's %s is too long for a subject", rules->subject_claim);
    if (st == ST_OK)
        c = caller_make(buf_str(&subject), buf_str(&subject), rules->rights);
    if (st == ST_OK && (!c || !keep_claims(c, claims)))
        st = err_set(err, ST_NOMEM, NULL, "no memory for a caller");
    buf_release(&subject);
    if (st != ST_OK) {
        caller_unref(c);
        return st;
    }
    *out = c;
    return ST_OK;
}

/* ---- the whole ---- */

/* rhonabwy gets no key but this one, and nothing remote. */
static bool signature_holds(const struct jwks_key *key, const struct jwt_alg *alg, struct bytes token)
{
    jwk_t *jwk = json_deep_copy(key->jwk);
    jws_t *jws = NULL;
    bool good =
        jwk && r_jws_init(&jws) == RHN_OK &&
        r_jws_advanced_compact_parsen(jws, token.data, token.len, R_PARSE_NONE, R_FLAG_IGNORE_REMOTE) == RHN_OK &&
        (int)r_jws_get_alg(jws) == alg->jwa && r_jws_verify_signature(jws, jwk, R_FLAG_IGNORE_REMOTE) == RHN_OK;

    r_jws_free(jws);
    r_jwk_free(jwk);
    return good;
}

static enum status check_signature(const struct jwks *keys, const struct jwt_head *head, struct bytes token,
                                   struct err *err)
{
    int tried = 0;

    for (size_t i = 0; keys && i < keys->len; i++) {
        const struct jwks_key *key = &keys->keys[i];

        if (!jwks_key_fits(key, head->alg) || (head->has_kid && strcmp(key->kid, head->kid) != 0))
            continue;
        if (signature_holds(key, head->alg, token))
            return ST_OK;
        if (++tried == TRIES_WITHOUT_KID)
            break;
    }
    if (tried == 0)
        return err_set(err, ST_NOT_FOUND, "invalid_token", "the token's key is not known");
    return invalid(err, "the token's signature does not hold");
}

enum status jwt_verify(const struct jwt_rules *rules, struct jwks *keys, struct bytes token, int64_t now_s,
                       struct caller_impl **out, int64_t *until_s, struct err *err)
{
    struct jwt_head head;
    enum status st = jwt_head_parse(token, &head, err);
    json_t *claims = NULL;

    *out = NULL;
    if (st != ST_OK)
        return st;
    if (!(head.alg->bit & rules->algorithms))
        return err_set(err, ST_DENIED, "invalid_token", "the token's algorithm %s is not allowed", head.alg->name);
    st = check_signature(keys, &head, token, err);
    if (st != ST_OK)
        return st;
    claims = decode_object(head.payload);
    if (!claims)
        return invalid(err, "the token's claims are no JSON object");
    st = check_times(claims, rules, now_s, until_s, err);
    if (st == ST_OK && !text_is(json_object_get(claims, "iss"), rules->issuer))
        st = invalid(err, "the token's issuer is another one");
    if (st == ST_OK && !audience_has(json_object_get(claims, "aud"), rules->audience))
        st = invalid(err, "the token is meant for another audience");
    if (st == ST_OK)
        st = make_caller(claims, rules, out, err);
    json_decref(claims);
    return st;
}
