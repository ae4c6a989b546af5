#include "inventory-lister/callers/callers.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <rhonabwy.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/wait.h"
#include "inventory-lister/callers/internal.h"
#include "inventory-lister/callers/jwks_fetch.h"

#define BEARER_MAX JWT_MAX
#define BEARER_CHARS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/="

/* ---- metrics ---- */

#define IDENTIFIED(label)                                                                                              \
    METRIC_INIT(METRIC_COUNTER, "relata_lister_callers_identified_total", "Requests whose caller was told.", label)
#define REFUSED(label)                                                                                                 \
    METRIC_INIT(METRIC_COUNTER, "relata_lister_callers_refused_total", "Requests whose caller was not let in.", label)

static struct metric by_token = IDENTIFIED("by=\"token\"");
static struct metric by_jwt = IDENTIFIED("by=\"jwt\"");
static struct metric by_peer = IDENTIFIED("by=\"peer\"");
static struct metric by_nothing = IDENTIFIED("by=\"anonymous\"");
static struct metric no_token = REFUSED("reason=\"missing_token\"");
static struct metric bad_token = REFUSED("reason=\"invalid_token\"");
static struct metric old_token = REFUSED("reason=\"expired_token\"");
static struct metric unknown_key = REFUSED("reason=\"unknown_key\"");

void callers_metrics_register(void)
{
    static struct metric *const all[] = {
        &by_token,  &by_jwt,    &by_peer,     &by_nothing,       &no_token,
        &bad_token, &old_token, &unknown_key, &callers_reloaded, &callers_reload_failed};

    metric_register_all(all, sizeof all / sizeof *all);
}

/* ---- settings ---- */

static enum status config_fault(struct err *err, const char *setting)
{
    err_prefix(err, "%s", setting);
    if (err)
        err->status = ST_CONFIG;
    return ST_CONFIG;
}

static bool has_jwks(const struct cfg_callers *cfg)
{
    return cfg->jwks_file[0] || cfg->jwks_url[0];
}

static enum status make_rules(const struct cfg_callers *cfg, struct jwt_rules *out, struct err *err)
{
    char subject[128];

    *out = (struct jwt_rules){.issuer = cfg->issuer,
                              .audience = cfg->audience,
                              .subject_claim = cfg->subject_claim,
                              .subject_type = cfg->subject_type,
                              .skew_s = (cfg->clock_skew_ms + 999) / 1000};
    if (!has_jwks(cfg))
        return ST_OK;
    if (cfg->jwks_file[0] && cfg->jwks_url[0])
        return err_set(err, ST_CONFIG, NULL, "callers.jwks_file and callers.jwks_url are both set; give one");
    if (!cfg->issuer[0] || !cfg->audience[0])
        return err_set(err, ST_CONFIG, NULL,
                       "callers.%s is empty: without it a token made for others would be taken here",
                       cfg->issuer[0] ? "audience" : "issuer");
    if (!cfg->subject_claim[0])
        return err_set(err, ST_CONFIG, NULL, "callers.subject_claim is empty; \"sub\" is usual");
    snprintf(subject, sizeof subject, "%s:x", cfg->subject_type);
    if (strlen(cfg->subject_type) > 100 || subject_check(subject, err) != ST_OK)
        return err_set(err, ST_CONFIG, NULL, "callers.subject_type = \"%.100s\" is no type of a model",
                       cfg->subject_type);
    if (jwt_algorithms_parse(cfg->algorithms, &out->algorithms, err) != ST_OK)
        return config_fault(err, "callers.algorithms");
    if (rights_parse((struct bytes){cfg->jwt_rights, strlen(cfg->jwt_rights)}, &out->rights, err) != ST_OK)
        return config_fault(err, "callers.jwt_rights");
    if (cfg->jwks_url[0] && jwks_url_check(cfg->jwks_url, err) != ST_OK)
        return ST_CONFIG;
    return cfg->jwks_ca_file[0] ? jwks_ca_check(cfg->jwks_ca_file, err) : ST_OK;
}

static enum status take_peer(struct callers *c, const struct cfg_map_item *item, struct err *err)
{
    struct bytes rest = {item->value, strlen(item->value)}, name = {item->value, strcspn(item->value, " \t")};
    struct peer *p = &c->peers[c->npeers];
    char *end = NULL;

    if (strncmp(item->key, "uid.", 4) != 0 || !item->key[4] || item->key[4 + strspn(item->key + 4, "0123456789")] ||
        strlen(item->key) > 14)
        return err_set(err, ST_CONFIG, NULL, "%s: peers.%.64s: the keys here are uid.<number>", item->origin,
                       item->key);
    p->uid = strtol(item->key + 4, &end, 10);
    rest.data += name.len;
    rest.len -= name.len;
    if (caller_parse(name, rest, &p->caller, err) != ST_OK) {
        err_prefix(err, "%s: peers.%s", item->origin, item->key);
        if (err)
            err->status = ST_CONFIG;
        return ST_CONFIG;
    }
    c->npeers++;
    return ST_OK;
}

static enum status take_peers(struct callers *c, struct err *err)
{
    enum status st = ST_OK;

    if (c->cfg->peers.len == 0)
        return ST_OK;
    c->peers = calloc(c->cfg->peers.len, sizeof *c->peers);
    if (!c->peers)
        return err_set(err, ST_NOMEM, NULL, "no memory for callers");
    for (size_t i = 0; i < c->cfg->peers.len && st == ST_OK; i++)
        st = take_peer(c, &c->cfg->peers.items[i], err);
    return st;
}

/* ---- making ---- */

static void init_library(void)
{
    r_global_init();
}

static enum status fill(struct callers *c, struct err *err)
{
    const struct cfg_callers *cfg = c->cfg;
    enum status st = make_rules(cfg, &c->rules, err);

    if (st == ST_OK)
        st = take_peers(c, err);
    if (st == ST_OK)
        st = keeper_load(c, err);
    if (st == ST_OK && cfg->anonymous) {
        c->anonymous = caller_make("anonymous", "", RIGHTS_ALL);
        if (!c->anonymous)
            st = err_set(err, ST_NOMEM, NULL, "no memory for callers");
    }
    if (st == ST_OK && !cfg->anonymous && !cfg->tokens_file[0] && !has_jwks(cfg) && c->npeers == 0)
        st = err_set(err, ST_CONFIG, NULL,
                     "nobody could call: set callers.tokens_file, callers.jwks_file or jwks_url, [peers], or "
                     "callers.anonymous (loopback only)");
    return st;
}

static enum status make(struct callers **out, const struct cfg_callers *cfg, struct err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct callers *c = calloc(1, sizeof *c);
    enum status st;

    *out = NULL;
    if (!c)
        return err_set(err, ST_NOMEM, NULL, "no memory for callers");
    pthread_once(&once, init_library);
    c->cfg = cfg;
    pthread_mutex_init(&c->lock, NULL);
    wait_cond_init(&c->wake);
    c->sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    st = c->sha256 ? fill(c, err) : err_set(err, ST_FATAL, NULL, "libcrypto has no SHA-256");
    if (st != ST_OK) {
        callers_free(c);
        return st;
    }
    *out = c;
    return ST_OK;
}

enum status callers_check(const struct cfg_callers *cfg, struct err *err)
{
    struct callers *c = NULL;
    enum status st = make(&c, cfg, err);

    callers_free(c);
    return st;
}

enum status callers_new(struct callers **out, const struct cfg_callers *cfg, struct err *err)
{
    enum status st = make(out, cfg, err);

    if (st != ST_OK || (!cfg->tokens_file[0] && !has_jwks(cfg)))
        return st;
    st = keeper_start(*out, err);
    if (st != ST_OK) {
        callers_free(*out);
        *out = NULL;
    }
    return st;
}

void callers_free(struct callers *c)
{
    if (!c)
        return;
    keeper_stop(c);
    for (size_t i = 0; i < SEEN_SLOTS; i++)
        caller_unref(c->seen[i].caller);
    for (size_t i = 0; i < c->npeers; i++)
        caller_unref(c->peers[i].caller);
    free(c->peers);
    caller_unref(c->anonymous);
    tokens_free(c->tokens);
    jwks_unref(c->jwks);
    EVP_MD_free(c->sha256);
    pthread_cond_destroy(&c->wake);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

bool callers_anonymous(const struct callers *c)
{
    return c->anonymous != NULL;
}

/* ---- identifying ---- */

static struct seen *slot_of(struct callers *c, const uint8_t hash[TOKEN_HASH_BYTES])
{
    return &c->seen[(hash[0] << 8 | hash[1]) % SEEN_SLOTS];
}

/* Looks where no verification is needed: the token file, and JWTs seen before. */
static struct caller_impl *find_known(struct callers *c, const uint8_t hash[TOKEN_HASH_BYTES], int64_t now_s,
                                      struct jwks **keys, uint64_t *generation)
{
    struct caller_impl *found;
    struct seen *s;

    pthread_mutex_lock(&c->lock);
    found = tokens_find(c->tokens, hash);
    if (found) {
        metric_add(&by_token, 1);
    } else {
        s = slot_of(c, hash);
        if (s->caller && now_s < s->until_s && CRYPTO_memcmp(s->hash, hash, TOKEN_HASH_BYTES) == 0) {
            found = s->caller;
            metric_add(&by_jwt, 1);
        }
    }
    if (found)
        caller_ref(found);
    *keys = c->jwks ? jwks_ref(c->jwks) : NULL;
    *generation = c->jwks_generation;
    pthread_mutex_unlock(&c->lock);
    return found;
}

static void remember(struct callers *c, const uint8_t hash[TOKEN_HASH_BYTES], struct caller_impl *caller,
                     int64_t until_s, uint64_t generation)
{
    struct caller_impl *former = NULL;

    pthread_mutex_lock(&c->lock);
    if (generation == c->jwks_generation) {
        struct seen *s = slot_of(c, hash);

        former = s->caller;
        memcpy(s->hash, hash, TOKEN_HASH_BYTES);
        s->caller = caller_ref(caller);
        s->until_s = until_s;
    }
    pthread_mutex_unlock(&c->lock);
    caller_unref(former);
}

static enum status refuse(struct err *err, struct metric *m, const char *code, const char *why)
{
    metric_add(m, 1);
    return err_set(err, ST_DENIED, code, "%s", why);
}

static enum status identify_jwt(struct callers *c, struct bytes token, const uint8_t hash[TOKEN_HASH_BYTES],
                                int64_t now_s, struct jwks *keys, uint64_t generation, struct caller_impl **out,
                                struct err *err)
{
    struct err own;
    int64_t until_s = 0;
    enum status st;

    if (!err)
        err = &own;
    st = jwt_verify(&c->rules, keys, token, now_s, out, &until_s, err);
    if (st == ST_OK) {
        metric_add(&by_jwt, 1);
        remember(c, hash, *out, until_s, generation);
        return ST_OK;
    }
    if (st == ST_NOT_FOUND) {
        keeper_want_keys(c);
        return refuse(err, &unknown_key, "invalid_token", "the token's key is not known");
    }
    if (st == ST_DENIED)
        metric_add(strcmp(err->code, "expired_token") == 0 ? &old_token : &bad_token, 1);
    return st;
}

static enum status identify_bearer(struct callers *c, struct bytes token, struct caller_impl **out, struct err *err)
{
    uint8_t hash[TOKEN_HASH_BYTES];
    int64_t now_s = clock_wall_us() / 1000000;
    struct jwks *keys = NULL;
    uint64_t generation = 0;
    enum status st = ST_OK;

    if (EVP_Digest(token.data, token.len, hash, NULL, c->sha256, NULL) != 1)
        return refuse(err, &bad_token, "invalid_token", "the token could not be hashed");
    *out = find_known(c, hash, now_s, &keys, &generation);
    if (!*out && has_jwks(c->cfg) && memchr(token.data, '.', token.len))
        st = identify_jwt(c, token, hash, now_s, keys, generation, out, err);
    else if (!*out)
        st = refuse(err, &bad_token, "invalid_token", "the token is not known");
    jwks_unref(keys);
    return st;
}

/* "Bearer TOKEN"; *is_bearer tells whether it is of that scheme at all. */
static bool bearer_of(const char *authorization, struct bytes *out, bool *is_bearer)
{
    const char *p = authorization;

    *is_bearer = strncasecmp(p, "Bearer", 6) == 0 && (p[6] == ' ' || !p[6]);
    if (!*is_bearer)
        return false;
    p += 6;
    while (*p == ' ')
        p++;
    *out = (struct bytes){p, strspn(p, BEARER_CHARS)};
    p += out->len;
    while (*p == ' ')
        p++;
    return !*p && out->len > 0 && out->len <= BEARER_MAX;
}

static struct caller_impl *peer_of(const struct callers *c, long uid)
{
    for (size_t i = 0; i < c->npeers; i++) {
        if (c->peers[i].uid == uid)
            return c->peers[i].caller;
    }
    return NULL;
}

enum status callers_identify(struct callers *c, const char *authorization, long peer_uid, const struct caller **out,
                             struct err *err)
{
    struct caller_impl *found = NULL;
    struct bytes token = {NULL, 0};
    enum status st = ST_OK;
    bool is_bearer = false;

    *out = NULL;
    if (authorization && bearer_of(authorization, &token, &is_bearer)) {
        st = identify_bearer(c, token, &found, err);
    } else if (authorization) {
        st = is_bearer ? refuse(err, &bad_token, "invalid_token", "the bearer token is malformed")
                       : refuse(err, &no_token, "missing_token", "only bearer tokens are taken");
    } else if (peer_uid >= 0 && (found = peer_of(c, peer_uid))) {
        metric_add(&by_peer, 1);
        caller_ref(found);
    } else if (c->anonymous) {
        metric_add(&by_nothing, 1);
        found = caller_ref(c->anonymous);
    } else {
        st = refuse(err, &no_token, "missing_token", "a bearer token is needed");
    }
    if (st == ST_OK)
        *out = &found->pub;
    return st;
}
