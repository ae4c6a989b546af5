/*
 * options.c - [nats] settings as options of nats.c.
 */
#include <curl/curl.h>
#include <limits.h>
#include <unistd.h>

#include "common/events/internal.h"

#define MAX_SERVERS 16

enum status events_err(struct err *err, enum status st, natsStatus s, const char *what)
{
    const char *last = nats_GetLastError(NULL);
    return err_set(err, st, natsStatus_GetText(s), "%s: %s%s%s", what, natsStatus_GetText(s), last && *last ? ": " : "",
                   last ? last : "");
}

static enum status need_file(const char *key, const char *path, struct err *err)
{
    if (*path && access(path, R_OK) != 0)
        return err_set(err, ST_CONFIG, NULL, "nats.%s \"%s\" cannot be read: %m", key, path);
    return ST_OK;
}

/* One server: [nats|tls://][user[:password]@|token@]host[:port]. The library would take any text, and only never
 * connect.
 */
static enum status check_server(const char *url, struct err *err)
{
    char *scheme = NULL, *host = NULL;
    struct buf text;
    CURLU *u = curl_url();
    buf_init(&text, 4096);
    buf_addf(&text, "%s%s", strstr(url, "://") ? "" : "nats://", url);
    bool good = u && buf_ok(&text) &&
                curl_url_set(u, CURLUPART_URL, buf_str(&text), CURLU_NON_SUPPORT_SCHEME) == CURLUE_OK &&
                curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
                (strcmp(scheme, "nats") == 0 || strcmp(scheme, "tls") == 0) &&
                curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK && *host;
    curl_free(scheme);
    curl_free(host);
    curl_url_cleanup(u);
    buf_release(&text);
    if (good)
        return ST_OK;
    const char *at = strrchr(url, '@'); /* what is before it may be a password */
    return err_set(err, ST_CONFIG, NULL,
                   "nats.url: \"%s%s\" is no address of a NATS server; give nats://host:port or tls://host:port",
                   at ? "***" : "", at ? at : url);
}

static enum status set_servers(natsOptions *opts, const struct cfg_nats *cfg, struct err *err)
{
    char *copy = strdup(cfg->url);
    if (!copy)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    const char *list[MAX_SERVERS];
    int n = 0;
    enum status st = ST_OK;
    char *save = NULL;
    for (char *s = strtok_r(copy, ", ", &save); s && st == ST_OK; s = strtok_r(NULL, ", ", &save)) {
        if (n == MAX_SERVERS)
            st = err_set(err, ST_CONFIG, NULL, "nats.url names more than %d servers", MAX_SERVERS);
        else
            st = check_server(list[n++] = s, err);
    }
    if (st == ST_OK && n == 0)
        st = err_set(err, ST_CONFIG, NULL, "nats.url \"%s\" names no server", cfg->url);
    if (st == ST_OK) {
        natsStatus s = natsOptions_SetServers(opts, list, n);
        if (s != NATS_OK)
            st = events_err(err, ST_CONFIG, s, "nats.url");
    }
    free(copy);
    return st;
}

static enum status set_auth(natsOptions *opts, const struct cfg_nats *cfg, struct err *err)
{
    natsStatus s = NATS_OK;
    if (*cfg->user)
        s = natsOptions_SetUserInfo(opts, cfg->user, cfg->password);
    if (s == NATS_OK && *cfg->token)
        s = natsOptions_SetToken(opts, cfg->token);
    if (s == NATS_OK && *cfg->credentials_file)
        s = natsOptions_SetUserCredentialsFromFiles(opts, cfg->credentials_file, NULL);
    if (s != NATS_OK)
        return events_err(err, ST_CONFIG, s, "NATS credentials");
    if (*cfg->nkey_seed_file) {
        char key[NKEY_TEXT_MAX];
        enum status st = nkey_public(cfg->nkey_seed_file, key, err);
        if (st != ST_OK)
            return st;
        s = natsOptions_SetNKeyFromSeed(opts, key, cfg->nkey_seed_file);
        if (s != NATS_OK)
            return events_err(err, ST_CONFIG, s, "nats.nkey_seed_file");
    }
    return ST_OK;
}

static enum status set_tls(natsOptions *opts, const struct cfg_nats *cfg, struct err *err)
{
    natsStatus s = NATS_OK;
    if (!*cfg->cert_file != !*cfg->key_file)
        return err_set(err, ST_CONFIG, NULL, "nats.cert_file and nats.key_file go together");
    if (*cfg->ca_file || *cfg->cert_file)
        s = natsOptions_SetSecure(opts, true);
    if (s == NATS_OK && *cfg->ca_file)
        s = natsOptions_LoadCATrustedCertificates(opts, cfg->ca_file);
    if (s == NATS_OK && *cfg->cert_file)
        s = natsOptions_LoadCertificatesChain(opts, cfg->cert_file, cfg->key_file);
    return s == NATS_OK ? ST_OK : events_err(err, ST_CONFIG, s, "NATS TLS files");
}

static enum status check_files(const struct cfg_nats *cfg, struct err *err)
{
    const struct {
        const char *key, *path;
    } files[] = {{"credentials_file", cfg->credentials_file},
                 {"nkey_seed_file", cfg->nkey_seed_file},
                 {"ca_file", cfg->ca_file},
                 {"cert_file", cfg->cert_file},
                 {"key_file", cfg->key_file}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        enum status st = need_file(files[i].key, files[i].path, err);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

enum status events_options(natsOptions **out, const struct cfg_nats *cfg, const char *name, struct err *err)
{
    natsOptions *opts = NULL;
    *out = NULL;
    enum status st = check_files(cfg, err);
    if (st != ST_OK)
        return st;
    natsStatus s = natsOptions_Create(&opts);
    if (s == NATS_OK)
        s = natsOptions_SetName(opts, name);
    if (s == NATS_OK)
        s = natsOptions_SetMaxReconnect(opts, INT_MAX);
    if (s == NATS_OK)
        s = natsOptions_SetReconnectWait(opts, 250);
    if (s == NATS_OK)
        s = natsOptions_SetReconnectJitter(opts, 250, 250);
    if (s == NATS_OK)
        s = natsOptions_SetTimeout(opts, EVENTS_CONNECT_TIMEOUT_MS);
    if (s == NATS_OK)
        s = natsOptions_SetPingInterval(opts, 5000);
    if (s == NATS_OK)
        s = natsOptions_SetMaxPingsOut(opts, 2);
    /* A server that stops reading must not hold a publisher. */
    if (s == NATS_OK)
        s = natsOptions_SetWriteDeadline(opts, EVENTS_WRITE_DEADLINE_MS);
    if (s != NATS_OK)
        st = events_err(err, ST_NOMEM, s, "NATS options");
    if (st == ST_OK)
        st = set_servers(opts, cfg, err);
    if (st == ST_OK)
        st = set_auth(opts, cfg, err);
    if (st == ST_OK)
        st = set_tls(opts, cfg, err);
    if (st != ST_OK) {
        natsOptions_Destroy(opts);
        return st;
    }
    *out = opts;
    return ST_OK;
}

enum status events_check(const struct cfg_nats *cfg, struct err *err)
{
    natsOptions *opts = NULL;
    enum status st = *cfg->url ? events_options(&opts, cfg, "relata", err) : ST_OK;
    natsOptions_Destroy(opts);
    return st;
}
