/* callers_jwt_test.c - JWTs against keys from a file and from a URL: what is taken, what is refused, rotation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <orcania.h>
#include <pthread.h>
#include <rhonabwy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "inventory-lister/callers/jwks_fetch.h"
#include "inventory-lister/callers/jwt.h"
#include "tests/harness/lister_settings.h"
#include "tests/harness/raw_server.h"

struct pair {
    jwk_t *private, *public;
};

static struct pair rsa, other_rsa, ec, ed;
static char dir[] = "/tmp/callers_jwt_test.XXXXXX";

static struct bytes bytes_of(const char *s)
{
    return (struct bytes){s, strlen(s)};
}

static struct pair make_pair(int type, unsigned bits, const char *kid)
{
    struct pair p;

    assert_int_equal(r_jwk_init(&p.private), RHN_OK);
    assert_int_equal(r_jwk_init(&p.public), RHN_OK);
    assert_int_equal(r_jwk_generate_key_pair(p.private, p.public, type, bits, kid), RHN_OK);
    return p;
}

static void free_pair(struct pair *p)
{
    r_jwk_free(p->private);
    r_jwk_free(p->public);
}

/* Signed with the private key, header and claims as given; free() it. */
static char *sign(jwk_t *key, jwa_alg alg, const char *kid, const char *claims)
{
    jws_t *jws = NULL;
    char *token;

    assert_int_equal(r_jws_init(&jws), RHN_OK);
    assert_int_equal(r_jws_set_alg(jws, alg), RHN_OK);
    if (kid)
        assert_int_equal(r_jws_set_header_str_value(jws, "kid", kid), RHN_OK);
    assert_int_equal(r_jws_set_payload(jws, (const unsigned char *)claims, strlen(claims)), RHN_OK);
    token = r_jws_serialize(jws, key, 0);
    assert_non_null(token);
    r_jws_free(jws);
    return token;
}

/* Claims that are taken, at now = 1,000,000, with `more` ("" or ",\"a\":1"). */
#define NOW 1000000
#define CLAIMS "{\"iss\":\"https://id\",\"aud\":\"relata\",\"sub\":\"anne\",\"exp\":1000100"
#define GOOD CLAIMS "}"

static const struct jwt_rules rules = {1 | 8 | 64 | 512, "https://id", "relata", "sub", "user", RIGHT_LIST, 30};

static struct jwks *keys_of(size_t n, const struct pair *const *pairs)
{
    json_t *list = json_array(), *set = json_pack("{s:o}", "keys", list);
    struct jwks *keys = NULL;
    struct err err = {0};
    size_t skipped = 0;
    char *text;

    for (size_t i = 0; i < n; i++)
        json_array_append(list, pairs[i]->public);
    text = json_dumps(set, 0);
    if (jwks_parse(bytes_of(text), &keys, &skipped, &err) != ST_OK)
        fail_msg("%s", err.text);
    assert_int_equal(skipped, 0);
    free(text);
    json_decref(set);
    return keys;
}

static struct jwks *all_keys(void)
{
    static const struct pair *const pairs[] = {&rsa, &ec, &ed};

    return keys_of(3, pairs);
}

/* "user:anne", or "!code" of the refusal, or "?" if the key is not known. */
static const char *verify(struct jwks *keys, const char *token)
{
    static char out[600];
    struct caller_impl *c = NULL;
    struct err err = {0};
    int64_t until = 0;
    enum status st = jwt_verify(&rules, keys, bytes_of(token), NOW, &c, &until, &err);

    if (st == ST_OK) {
        snprintf(out, sizeof out, "%s", c->pub.subject);
        caller_unref(c);
    } else {
        assert_null(c);
        assert_true(st == ST_DENIED || st == ST_NOT_FOUND);
        assert_null(strstr(err.text, token));
        snprintf(out, sizeof out, "%s%s", st == ST_DENIED ? "!" : "?", st == ST_DENIED ? err.code : "");
    }
    return out;
}

static void expect(struct jwks *keys, char *token, const char *want)
{
    assert_string_equal(verify(keys, token), want);
    free(token);
}

static void test_algorithms(void **state)
{
    struct jwks *keys = all_keys();

    (void)state;
    expect(keys, sign(rsa.private, R_JWA_ALG_RS256, "rsa", GOOD), "user:anne");
    expect(keys, sign(rsa.private, R_JWA_ALG_PS256, "rsa", GOOD), "user:anne");
    expect(keys, sign(ec.private, R_JWA_ALG_ES256, "ec", GOOD), "user:anne");
    expect(keys, sign(ed.private, R_JWA_ALG_EDDSA, "ed", GOOD), "user:anne");
    expect(keys, sign(rsa.private, R_JWA_ALG_RS512, "rsa", GOOD), "!invalid_token"); /* not in the list */
    jwks_unref(keys);
}

static void test_key_ids(void **state)
{
    static const struct pair *const two[] = {&other_rsa, &rsa};
    struct jwks *keys = keys_of(2, two), *only_ec;
    static const struct pair *const one[] = {&ec};

    (void)state;
    expect(keys, sign(rsa.private, R_JWA_ALG_RS256, NULL, GOOD), "user:anne"); /* without: those that fit are tried */
    expect(keys, sign(rsa.private, R_JWA_ALG_RS256, "other", GOOD), "!invalid_token"); /* another key's id */
    expect(keys, sign(rsa.private, R_JWA_ALG_RS256, "new", GOOD), "?");
    expect(keys, sign(ec.private, R_JWA_ALG_ES256, "rsa", GOOD), "?"); /* the id's key is of another type */
    expect(NULL, sign(rsa.private, R_JWA_ALG_RS256, "rsa", GOOD), "?");
    only_ec = keys_of(1, one);
    expect(only_ec, sign(rsa.private, R_JWA_ALG_RS256, NULL, GOOD), "?");
    jwks_unref(only_ec);
    jwks_unref(keys);
}

static char *base64url(const char *text)
{
    size_t len = 0;
    char *out = calloc(1, strlen(text) * 2 + 8);

    assert_non_null(out);
    assert_int_equal(o_base64url_encode((const unsigned char *)text, strlen(text), (unsigned char *)out, &len), 1);
    out[len] = '\0';
    return out;
}

/* Any header over GOOD, with `signature` as it is. */
static char *crafted(const char *header, const char *signature)
{
    char *head = base64url(header), *claims = base64url(GOOD), *token = malloc(4096);

    assert_non_null(token);
    snprintf(token, 4096, "%s.%s.%s", head, claims, signature);
    free(head);
    free(claims);
    return token;
}

static void test_algorithm_confusion_is_refused(void **state)
{
    struct jwks *keys = all_keys();
    unsigned char pem[4096];
    size_t len = sizeof pem;
    jwk_t *secret = NULL;

    (void)state;
    expect(keys, crafted("{\"alg\":\"none\"}", ""), "!invalid_token");
    expect(keys, crafted("{\"alg\":\"none\",\"kid\":\"rsa\"}", "AAAA"), "!invalid_token");
    expect(keys, crafted("{\"alg\":\"None\"}", "AAAA"), "!invalid_token");
    expect(keys, crafted("{\"alg\":\"rs256\"}", "AAAA"), "!invalid_token");
    expect(keys, crafted("{\"kid\":\"rsa\"}", "AAAA"), "!invalid_token");
    expect(keys, crafted("{\"alg\":\"RS256\",\"alg\":\"none\"}", "AAAA"), "!invalid_token");
    expect(keys, crafted("{\"alg\":\"RS256\\u0000\"}", "AAAA"), "!invalid_token");
    expect(keys, crafted("{\"alg\":[\"RS256\"]}", "AAAA"), "!invalid_token");
    expect(keys, crafted("{\"alg\":\"RS256\",\"kid\":\"rsa\"}", "AAAA"), "!invalid_token");

    /* HMAC with the public key as its secret. */
    assert_int_equal(r_jwk_export_to_pem_der(rsa.public, R_FORMAT_PEM, pem, &len, 0), RHN_OK);
    assert_int_equal(r_jwk_init(&secret), RHN_OK);
    assert_int_equal(r_jwk_import_from_symmetric_key(secret, pem, len), RHN_OK);
    expect(keys, sign(secret, R_JWA_ALG_HS256, "rsa", GOOD), "!invalid_token");
    r_jwk_free(secret);
    jwks_unref(keys);
}

/* The token brings the key that signed it, in each of the ways. */
static void test_keys_from_the_token_are_ignored(void **state)
{
    struct pair own = make_pair(R_KEY_TYPE_RSA, 2048, "rsa"); /* the id of a key that is known */
    struct jwks *keys = all_keys();
    static const char *const ways[] = {"jku", "x5u"};
    jws_t *jws = NULL;
    char *token;

    (void)state;
    for (int way = 0; way < 3; way++) {
        assert_int_equal(r_jws_init(&jws), RHN_OK);
        r_jws_set_alg(jws, R_JWA_ALG_RS256);
        r_jws_set_payload(jws, (const unsigned char *)GOOD, strlen(GOOD));
        if (way == 2)
            r_jws_set_header_json_t_value(jws, "jwk", own.public);
        else
            r_jws_set_header_str_value(jws, ways[way], "http://127.0.0.1:1/keys");
        token = r_jws_serialize(jws, own.private, 0);
        assert_non_null(token);
        expect(keys, token, "!invalid_token");
        r_jws_free(jws);
    }
    jwks_unref(keys);
    free_pair(&own);
}

static void test_what_must_be_understood_is_refused(void **state)
{
    static const char *const members[] = {"\"crit\":[\"exp\"]", "\"b64\":false", "\"zip\":\"DEF\"",
                                          "\"enc\":\"A128GCM\"", "\"kid\":1"};
    struct jwks *keys = all_keys();
    char header[128];

    (void)state;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        snprintf(header, sizeof header, "{\"alg\":\"RS256\",%s}", members[i]);
        expect(keys, crafted(header, "AAAA"), "!invalid_token");
    }
    jwks_unref(keys);
}

static void test_claims(void **state)
{
    static const char *const cases[][2] = {
        {"{\"iss\":\"https://id\",\"aud\":\"relata\",\"sub\":\"anne\"}", "!invalid_token"}, /* exp is required */
        {"{\"iss\":\"https://id\",\"aud\":\"relata\",\"sub\":\"anne\",\"exp\":\"2000000\"}", "!invalid_token"},
        {"{\"iss\":\"https://id\",\"aud\":\"relata\",\"sub\":\"anne\",\"exp\":999971}", "user:anne"}, /* within skew */
        {"{\"iss\":\"https://id\",\"aud\":\"relata\",\"sub\":\"anne\",\"exp\":999970}", "!expired_token"},
        {"{\"iss\":\"https://id\",\"aud\":\"relata\",\"sub\":\"anne\",\"exp\":1e300}", "user:anne"},
        {"{\"iss\":\"https://id\",\"aud\":\"relata\",\"sub\":\"anne\",\"exp\":-1}", "!expired_token"},
        {CLAIMS ",\"nbf\":1000030}", "user:anne"},
        {CLAIMS ",\"nbf\":1000031}", "!invalid_token"},
        {CLAIMS ",\"nbf\":null}", "!invalid_token"},
        {CLAIMS ",\"iat\":1000031}", "!invalid_token"},
        {CLAIMS ",\"iat\":5}", "user:anne"},
        {CLAIMS ",\"sub\":\"bob\"}", "!invalid_token"}, /* twice */
        {"{\"iss\":\"https://id2\",\"aud\":\"relata\",\"sub\":\"anne\",\"exp\":1000100}", "!invalid_token"},
        {"{\"aud\":\"relata\",\"sub\":\"anne\",\"exp\":1000100}", "!invalid_token"},
        {"{\"iss\":\"https://id\",\"aud\":\"other\",\"sub\":\"anne\",\"exp\":1000100}", "!invalid_token"},
        {"{\"iss\":\"https://id\",\"sub\":\"anne\",\"exp\":1000100}", "!invalid_token"},
        {"{\"iss\":\"https://id\",\"aud\":[\"x\",\"relata\"],\"sub\":\"anne\",\"exp\":1000100}", "user:anne"},
        {"{\"iss\":\"https://id\",\"aud\":[],\"sub\":\"anne\",\"exp\":1000100}", "!invalid_token"},
        {"{\"iss\":\"https://id\",\"aud\":\"relata\",\"exp\":1000100}", "!invalid_token"},
        {"{\"iss\":\"https://id\",\"aud\":\"relata\",\"sub\":\"\",\"exp\":1000100}", "!invalid_token"},
        {"{\"iss\":\"https://id\",\"aud\":\"relata\",\"sub\":7,\"exp\":1000100}", "!invalid_token"},
        {"{\"iss\":\"https://id\",\"aud\":\"relata\",\"sub\":\"a\\u0000b\",\"exp\":1000100}", "!invalid_token"},
        {"{\"iss\":\"https://id\",\"aud\":\"relata\",\"sub\":\"*\",\"exp\":1000100}", "user:%2A"},
        {"{\"iss\":\"https://id\",\"aud\":\"relata\",\"sub\":\"team:1#member\",\"exp\":1000100}",
         "user:team%3A1%23member"},
        {"[]", "!invalid_token"},
        {"anne", "!invalid_token"},
    };
    struct jwks *keys = all_keys();

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *token = sign(ec.private, R_JWA_ALG_ES256, "ec", cases[i][0]);

        if (strcmp(verify(keys, token), cases[i][1]) != 0)
            fail_msg("%s: %s", cases[i][0], verify(keys, token));
        free(token);
    }
    jwks_unref(keys);
}

static void test_claims_for_columns(void **state)
{
    struct jwks *keys = all_keys();
    struct caller_impl *c = NULL;
    struct err err = {0};
    int64_t until = 0;
    char *token = sign(ec.private, R_JWA_ALG_ES256, "ec",
                       CLAIMS ",\"tenant\":\"t1\",\"n\":-7,\"ok\":true,\"list\":[\"t2\"],\"half\":0.5}");

    (void)state;
    assert_int_equal(jwt_verify(&rules, keys, bytes_of(token), NOW, &c, &until, &err), ST_OK);
    assert_string_equal(caller_claim(&c->pub, "tenant"), "t1");
    assert_string_equal(caller_claim(&c->pub, "n"), "-7");
    assert_string_equal(caller_claim(&c->pub, "ok"), "true");
    assert_null(caller_claim(&c->pub, "list"));
    assert_null(caller_claim(&c->pub, "half"));
    assert_int_equal(until, 1000130);
    assert_string_equal(c->pub.name, "user:anne");
    caller_unref(c);
    free(token);
    jwks_unref(keys);
}

static void test_changed_tokens_are_refused(void **state)
{
    struct jwks *keys = all_keys();
    char *token = sign(ec.private, R_JWA_ALG_ES256, "ec", GOOD), *dot = strrchr(token, '.');
    size_t len = strlen(token);

    (void)state;
    assert_string_equal(verify(keys, token), "user:anne");
    for (size_t i = 0; i < len; i += i < len - 20 ? 7 : 1) {
        char was = token[i];

        token[i] = was == 'A' ? 'B' : 'A';
        if (verify(keys, token)[0] == 'u')
            fail_msg("byte %zu may be changed", i);
        token[i] = was;
    }
    *dot = '\0';
    assert_string_equal(verify(keys, token), "!invalid_token");
    free(token);
    jwks_unref(keys);
}

static void test_unusable_keys_are_left_out(void **state)
{
    struct pair weak = make_pair(R_KEY_TYPE_RSA, 1024, "weak");
    json_t *list = json_array(), *set = json_pack("{s:o}", "keys", list), *enc = json_deep_copy(rsa.public);
    struct jwks *keys = NULL;
    struct err err = {0};
    size_t skipped = 0;
    char *text;

    (void)state;
    json_object_set_new(enc, "use", json_string("enc"));
    json_object_set_new(enc, "kid", json_string("enc"));
    json_array_append(list, weak.public);
    json_array_append_new(list, json_pack("{s:s,s:s,s:s}", "kty", "oct", "k", "c2VjcmV0", "kid", "oct"));
    json_array_append_new(list, json_pack("{s:s,s:s}", "kty", "RSA", "x5u", "http://127.0.0.1:1/cert"));
    json_array_append_new(list, json_string("rsa"));
    json_array_append_new(list, enc);
    text = json_dumps(set, 0);
    assert_int_equal(jwks_parse(bytes_of(text), &keys, &skipped, &err), ST_INVALID);
    assert_non_null(strstr(err.text, "none of 5 keys"));
    free(text);
    json_array_append(list, rsa.private); /* its private part is dropped */
    text = json_dumps(set, 0);
    assert_int_equal(jwks_parse(bytes_of(text), &keys, &skipped, &err), ST_OK);
    assert_int_equal(skipped, 5);
    assert_int_equal(jwks_count(keys), 1);
    free(text);
    jwks_unref(keys);
    assert_int_equal(jwks_parse(bytes_of("{\"keys\":{}}"), &keys, &skipped, &err), ST_INVALID);
    assert_int_equal(jwks_parse(bytes_of("<html>"), &keys, &skipped, &err), ST_INVALID);
    json_decref(set);
    free_pair(&weak);
}

/* ---- with callers_identify ---- */

static struct cfg_callers settings(void)
{
    static char issuer[] = "https://id", audience[] = "relata", algs[] = "RS256,ES256,EdDSA";
    struct cfg_callers cfg = callers_defaults();

    cfg.issuer = issuer;
    cfg.audience = audience;
    cfg.algorithms = algs;
    cfg.clock_skew_ms = 0;
    cfg.jwks_refresh_ms = 3600000;
    cfg.jwks_min_interval_ms = 50;
    return cfg;
}

/* Valid for an hour from the real now on. */
static char *fresh_token(const struct pair *p, const char *kid)
{
    char claims[256], *token, *header = malloc(4096);

    snprintf(claims, sizeof claims, "{\"iss\":\"https://id\",\"aud\":\"relata\",\"sub\":\"anne\",\"exp\":%lld}",
             (long long)time(NULL) + 3600);
    token = sign(p->private, R_JWA_ALG_RS256, kid, claims);
    assert_non_null(header);
    snprintf(header, 4096, "Bearer %s", token);
    free(token);
    return header;
}

static bool is_let_in(struct callers *c, const char *authorization)
{
    const struct caller *found = NULL;
    bool in = callers_identify(c, authorization, -1, &found, NULL) == ST_OK;

    if (in)
        assert_string_equal(found->subject, "user:anne");
    caller_release(found);
    return in;
}

static bool becomes(struct callers *c, const char *authorization, bool in)
{
    mono_us end = deadline_in_ms(20000);

    while (is_let_in(c, authorization) != in) {
        if (clock_mono_us() > end)
            return false;
        usleep(2000);
    }
    return true;
}

static char *set_text(const struct pair *p)
{
    json_t *set = json_pack("{s:[O]}", "keys", p->public);
    char *text = json_dumps(set, 0);

    json_decref(set);
    return text;
}

static void write_keys(const char *path, const struct pair *p)
{
    char fresh[160], *text = set_text(p);
    FILE *f;

    snprintf(fresh, sizeof fresh, "%s.new", path);
    f = fopen(fresh, "we");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(rename(fresh, path), 0);
    free(text);
}

static void test_keys_from_a_file_rotate(void **state)
{
    struct cfg_callers cfg = settings();
    char path[128], *first = fresh_token(&rsa, "rsa"), *second = fresh_token(&other_rsa, "other");
    struct callers *c = NULL;
    struct err err = {0};
    FILE *f;

    (void)state;
    snprintf(path, sizeof path, "%s/keys.json", dir);
    write_keys(path, &rsa);
    cfg.jwks_file = path;
    assert_int_equal(callers_new(&c, &cfg, &err), ST_OK);
    assert_true(is_let_in(c, first));
    assert_true(is_let_in(c, first)); /* from memory */
    assert_false(is_let_in(c, second));
    f = fopen(path, "we"); /* a fault keeps the former keys */
    assert_non_null(f);
    fputs("{", f);
    fclose(f);
    assert_true(is_let_in(c, first));
    write_keys(path, &other_rsa);
    assert_true(becomes(c, second, true));
    assert_false(is_let_in(c, first)); /* what was verified before is not trusted after its key is gone */
    callers_free(c);
    unlink(path);
    free(first);
    free(second);
}

struct key_server {
    pthread_mutex_t lock;
    const struct pair *served; /* NULL: 500 */
    bool huge, redirect;
};

static enum raw_next serve_keys(struct raw_peer *p, const struct raw_request *rq, void *arg)
{
    struct key_server *s = arg;
    char *text;

    (void)rq;
    pthread_mutex_lock(&s->lock);
    if (s->redirect) {
        raw_reply(p, 302, "Location: /elsewhere\r\n", "");
    } else if (s->huge) {
        text = calloc(1, JWKS_MAX_BYTES + 2);
        memset(text, ' ', JWKS_MAX_BYTES + 1);
        raw_reply(p, 200, "", text);
        free(text);
    } else if (s->served) {
        text = set_text(s->served);
        raw_reply(p, 200, "Content-Type: application/json\r\n", text);
        free(text);
    } else {
        raw_reply(p, 500, "", "");
    }
    pthread_mutex_unlock(&s->lock);
    return RAW_KEEP;
}

static void serve(struct key_server *s, const struct pair *p)
{
    pthread_mutex_lock(&s->lock);
    s->served = p;
    pthread_mutex_unlock(&s->lock);
}

static void test_keys_from_a_url_rotate(void **state)
{
    struct key_server keys = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct raw_options options = {.handler = serve_keys, .arg = &keys};
    struct raw_server *server = raw_server_start(&options);
    char url[128], *first = fresh_token(&rsa, "rsa"), *second = fresh_token(&other_rsa, "other");
    struct cfg_callers cfg = settings();
    struct callers *c = NULL;
    int before;

    (void)state;
    snprintf(url, sizeof url, "%s/keys", raw_server_url(server));
    cfg.jwks_url = url;
    assert_int_equal(callers_new(&c, &cfg, NULL), ST_OK); /* though no keys come yet */
    assert_false(is_let_in(c, first));
    serve(&keys, &rsa);
    assert_true(becomes(c, first, true));
    assert_false(is_let_in(c, second));
    serve(&keys, &other_rsa);
    assert_true(becomes(c, second, true)); /* an unknown kid makes it fetch */
    assert_false(is_let_in(c, first));
    serve(&keys, NULL);
    before = raw_server_requests(server);
    while (raw_server_requests(server) == before)
        assert_false(is_let_in(c, first));
    assert_true(is_let_in(c, second)); /* a failed fetch keeps the former keys */
    callers_free(c);
    raw_server_stop(server);
    free(first);
    free(second);
}

/* However many tokens of unknown keys come, the URL is asked once in the interval. */
static void test_unknown_keys_do_not_cause_many_fetches(void **state)
{
    struct key_server keys = {.lock = PTHREAD_MUTEX_INITIALIZER, .served = &rsa};
    struct raw_options options = {.handler = serve_keys, .arg = &keys};
    struct raw_server *server = raw_server_start(&options);
    char url[128], *known = fresh_token(&rsa, "rsa"), *unknown = fresh_token(&other_rsa, "other");
    struct cfg_callers cfg = settings();
    struct callers *c = NULL;

    (void)state;
    snprintf(url, sizeof url, "%s/keys", raw_server_url(server));
    cfg.jwks_url = url;
    cfg.jwks_min_interval_ms = 3600000;
    assert_int_equal(callers_new(&c, &cfg, NULL), ST_OK);
    assert_true(becomes(c, known, true));
    for (int i = 0; i < 1000; i++)
        assert_false(is_let_in(c, unknown));
    callers_free(c);
    assert_int_equal(raw_server_requests(server), 1);
    raw_server_stop(server);
    free(known);
    free(unknown);
}

static void test_fetches_are_bounded(void **state)
{
    struct key_server keys = {.lock = PTHREAD_MUTEX_INITIALIZER, .huge = true};
    struct raw_options options = {.handler = serve_keys, .arg = &keys};
    struct raw_server *server = raw_server_start(&options);
    struct jwks *got = NULL;
    struct err err = {0};
    atomic_bool stop = false;
    size_t skipped = 0;

    (void)state;
    assert_int_equal(jwks_fetch(raw_server_url(server), "", &stop, &got, &skipped, &err), ST_RETRY);
    assert_non_null(strstr(err.text, "larger than"));
    pthread_mutex_lock(&keys.lock);
    keys.huge = false;
    keys.redirect = true;
    pthread_mutex_unlock(&keys.lock);
    assert_int_equal(jwks_fetch(raw_server_url(server), "", &stop, &got, &skipped, &err), ST_RETRY);
    assert_non_null(strstr(err.text, "302"));
    assert_int_equal(raw_server_requests(server), 2);
    raw_server_stop(server);
}

static void test_settings_that_are_refused(void **state)
{
    static const struct {
        const char *issuer, *audience, *algorithms, *url, *rights, *type, *want;
    } cases[] = {
        {"", "relata", "RS256", "https://id/k", "list", "user", "issuer is empty"},
        {"https://id", "", "RS256", "https://id/k", "list", "user", "audience is empty"},
        {"i", "a", "HS256", "https://id/k", "list", "user", "algorithms: \"HS256\""},
        {"i", "a", "none", "https://id/k", "list", "user", "algorithms: \"none\""},
        {"i", "a", "", "https://id/k", "list", "user", "algorithms"},
        {"i", "a", "RS256", "http://id/k", "list", "user", "https"},
        {"i", "a", "RS256", "http://127.0.0.1.evil.example/k", "list", "user", "https"},
        {"i", "a", "RS256", "file:///etc/passwd", "list", "user", "https"},
        {"i", "a", "RS256", "https://u:p@id/k", "list", "user", "credentials"},
        {"i", "a", "RS256", "https://id/k", "root", "user", "jwt_rights"},
        {"i", "a", "RS256", "https://id/k", "list", "us er", "subject_type"},
        {"i", "a", "RS256", "https://id/k", "list", "", "subject_type"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cfg_callers cfg = settings();
        struct err err = {0};

        cfg.issuer = strdup(cases[i].issuer);
        cfg.audience = strdup(cases[i].audience);
        cfg.algorithms = strdup(cases[i].algorithms);
        cfg.jwks_url = strdup(cases[i].url);
        cfg.jwt_rights = strdup(cases[i].rights);
        cfg.subject_type = strdup(cases[i].type);
        if (callers_check(&cfg, &err) != ST_CONFIG || !strstr(err.text, cases[i].want))
            fail_msg("case %zu: %s", i, err.text);
        free(cfg.issuer);
        free(cfg.audience);
        free(cfg.algorithms);
        free(cfg.jwks_url);
        free(cfg.jwt_rights);
        free(cfg.subject_type);
    }
}

static int make_keys(void **state)
{
    (void)state;
    r_global_init();
    rsa = make_pair(R_KEY_TYPE_RSA, 2048, "rsa");
    other_rsa = make_pair(R_KEY_TYPE_RSA, 2048, "other");
    ec = make_pair(R_KEY_TYPE_EC, 256, "ec");
    ed = make_pair(R_KEY_TYPE_EDDSA, 256, "ed");
    return mkdtemp(dir) ? 0 : -1;
}

static int free_keys(void **state)
{
    (void)state;
    free_pair(&rsa);
    free_pair(&other_rsa);
    free_pair(&ec);
    free_pair(&ed);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_algorithms),
        cmocka_unit_test(test_key_ids),
        cmocka_unit_test(test_algorithm_confusion_is_refused),
        cmocka_unit_test(test_keys_from_the_token_are_ignored),
        cmocka_unit_test(test_what_must_be_understood_is_refused),
        cmocka_unit_test(test_claims),
        cmocka_unit_test(test_claims_for_columns),
        cmocka_unit_test(test_changed_tokens_are_refused),
        cmocka_unit_test(test_unusable_keys_are_left_out),
        cmocka_unit_test(test_keys_from_a_file_rotate),
        cmocka_unit_test(test_keys_from_a_url_rotate),
        cmocka_unit_test(test_unknown_keys_do_not_cause_many_fetches),
        cmocka_unit_test(test_fetches_are_bounded),
        cmocka_unit_test(test_settings_that_are_refused),
    };

    return cmocka_run_group_tests(tests, make_keys, free_keys);
}
