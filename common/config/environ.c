#include <stdio.h>
#include <string.h>

#include "common/config/internal.h"

/* Written to build/run/env for people and scripts; where they are no keys they mean nothing to a program. */
static const char *const not_settings[] = {
    "RELATA_PG_DSN",
    "RELATA_STORE_URL",
    "RELATA_STORE_ID",
    "RELATA_MODEL_ID",
    "RELATA_NATS_URL",
    "RELATA_KAFKA_BROKERS",
    "RELATA_OUTBOX_RELAY_URL",
    "RELATA_TUPLE_WRITER_URL",
    "RELATA_RELATACTL_URL",
    "RELATA_INVENTORY_LISTER_URL",
    "RELATA_LISTER_URL",
    "RELATA_LISTER_TOKEN",
    "RELATA_DRIFT_CHECKER_URL",
    "RELATA_AUTHZ_STORE_URL",
};

static bool is_ignored(const char *name)
{
    for (size_t i = 0; i < sizeof not_settings / sizeof not_settings[0]; i++) {
        if (strcmp(name, not_settings[i]) == 0)
            return true;
    }
    return false;
}

static bool names(const char *variable, const char *section, const char *key, const char *suffix)
{
    struct buf b;
    bool equal;

    buf_init(&b, 512);
    names_env(&b, section, key);
    buf_adds(&b, suffix);
    equal = strcmp(buf_str(&b), variable) == 0;
    buf_release(&b);
    return equal;
}

static bool begins_with_section(const char *variable, const char *section, const char **rest)
{
    struct buf b;
    bool begins;

    buf_init(&b, 512);
    names_env(&b, section, NULL);
    begins = strncmp(variable, buf_str(&b), b.len) == 0;
    *rest = variable + (begins ? b.len : 0);
    buf_release(&b);
    return begins;
}

static enum status unknown(const struct cfg_program *prog, const char *variable, const char *section, const char *rest,
                           struct err *err)
{
    const struct cfg_key *map = names_map_of(prog, section);
    struct buf hint;

    buf_init(&hint, 800);
    for (const struct cfg_key *k = prog->keys; k->section; k++) {
        struct buf known;

        buf_init(&known, 512);
        if (k->type != CFG_MAP && strcmp(k->section, section) == 0)
            names_env(&known, k->section, k->key);
        if (known.len > 0 && hint.len == 0 && name_is_near(rest, buf_str(&known) + (rest - variable)))
            buf_addf(&hint, ": did you mean %s?", buf_str(&known));
        buf_release(&known);
    }
    if (hint.len == 0 && map)
        buf_addf(&hint, ": properties that are passed through come from the file or --set '%s.name=value'", section);
    else if (hint.len == 0)
        names_hint(&hint, prog, section, rest);
    err_set(err, ST_CONFIG, NULL, "environment: %s names no key of section [%s]%s", variable, section, buf_str(&hint));
    buf_release(&hint);
    return ST_CONFIG;
}

static enum status take(struct cfg_loader *l, const char *variable, const char *value, struct err *err)
{
    const struct cfg_program *prog = l->prog;
    const char *rest;

    for (const struct cfg_key *k = prog->keys; k->section; k++) {
        char file_key[128];

        if (k->type == CFG_MAP)
            continue;
        if (names(variable, k->section, k->key, ""))
            return loader_assign(l, k->section, k->key, value, CFG_FROM_ENV, variable, err);
        if (k->type == CFG_SECRET && names(variable, k->section, k->key, "_FILE")) {
            snprintf(file_key, sizeof file_key, "%s_file", k->key);
            return loader_assign(l, k->section, file_key, value, CFG_FROM_ENV, variable, err);
        }
    }
    if (is_ignored(variable))
        return ST_OK;
    for (const struct cfg_key *k = prog->keys; k->section; k++) {
        if (begins_with_section(variable, k->section, &rest))
            return unknown(prog, variable, k->section, rest, err);
    }
    return ST_OK;
}

enum status loader_read_environ(struct cfg_loader *l, char *const *env, struct err *err)
{
    for (; *env; env++) {
        const char *equals = strchr(*env, '=');
        char variable[256];
        enum status st;

        /* An empty value counts as unset: `RELATA_PG_DSN= program` would silently take the file's value away. */
        if (strncmp(*env, "RELATA_", 7) != 0 || !equals || !equals[1] || (size_t)(equals - *env) >= sizeof variable)
            continue;
        memcpy(variable, *env, (size_t)(equals - *env));
        variable[equals - *env] = '\0';
        st = take(l, variable, equals + 1, err);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}
