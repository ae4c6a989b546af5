#include "common/config/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/utf8.h"
#include "common/config/internal.h"

#define OUTPUT_MAX (4U * 1024 * 1024)

static enum status no_memory(struct err *err)
{
    return err_set(err, ST_NOMEM, NULL, "no memory for the configuration");
}

static enum status loader_init(struct cfg_loader *l, const struct cfg_program *prog, struct err *err)
{
    *l = (struct cfg_loader){.prog = prog};
    while (prog->keys[l->nkeys].section)
        l->nkeys++;
    l->slots = calloc(l->nkeys ? l->nkeys : 1, sizeof *l->slots);
    if (!l->slots)
        return no_memory(err);
    l->nslots = l->nkeys;
    for (size_t i = 0; i < l->nkeys; i++) {
        l->slots[i].key = i;
        if (prog->keys[i].preset && !(l->slots[i].text = strdup(prog->keys[i].preset)))
            return no_memory(err);
    }
    return ST_OK;
}

static void loader_release(struct cfg_loader *l)
{
    for (size_t i = 0; i < l->nslots; i++) {
        free(l->slots[i].name);
        free(l->slots[i].text);
        free(l->slots[i].where);
    }
    free(l->slots);
    *l = (struct cfg_loader){0};
}

/* The slot of an ordinary key; *from_path if it was named as <key>_file. NULL if there is none. */
static struct cfg_slot *find_slot(struct cfg_loader *l, const char *section, const char *key, bool *from_path)
{
    size_t len = strlen(key);

    for (size_t i = 0; i < l->nkeys; i++) {
        const struct cfg_key *k = &l->prog->keys[i];
        size_t klen = strlen(k->key);

        if (k->type == CFG_MAP || strcmp(k->section, section) != 0)
            continue;
        *from_path = k->type == CFG_SECRET && len == klen + 5 && memcmp(k->key, key, klen) == 0 &&
                     strcmp(key + klen, "_file") == 0;
        if (*from_path || strcmp(k->key, key) == 0)
            return &l->slots[i];
    }
    return NULL;
}

static struct cfg_slot *find_map_slot(struct cfg_loader *l, const struct cfg_key *map, const char *name)
{
    size_t key = (size_t)(map - l->prog->keys);
    struct cfg_slot *more;

    for (size_t i = l->nkeys; l->slots && i < l->nslots; i++) {
        if (l->slots[i].key == key && strcmp(l->slots[i].name, name) == 0)
            return &l->slots[i];
    }
    more = realloc(l->slots, (l->nslots + 1) * sizeof *more);
    if (!more)
        return NULL;
    l->slots = more;
    more[l->nslots] = (struct cfg_slot){.key = key, .name = strdup(name)};
    if (!more[l->nslots].name)
        return NULL;
    return &more[l->nslots++];
}

static enum status unknown_name(const struct cfg_program *prog, const char *section, const char *key, const char *where,
                                struct err *err)
{
    const char *near = names_nearest_section(prog, section);
    struct buf hint;

    buf_init(&hint, 800);
    if (names_section_known(prog, section)) {
        names_hint(&hint, prog, section, key);
        err_set(err, ST_CONFIG, NULL, "%s: unknown key \"%s\" in section [%s]%s", where, key, section, buf_str(&hint));
    } else if (near) {
        err_set(err, ST_CONFIG, NULL, "%s: unknown section [%s]: did you mean [%s]?", where, section, near);
    } else {
        const char *last = "";

        for (const struct cfg_key *k = prog->keys; k->section; k++) {
            if (strcmp(last, k->section) != 0)
                buf_addf(&hint, "%s[%s]", hint.len ? ", " : "", k->section);
            last = k->section;
        }
        err_set(err, ST_CONFIG, NULL, "%s: unknown section [%s]: %s knows %s", where, section, prog->name,
                buf_str(&hint));
    }
    buf_release(&hint);
    return ST_CONFIG;
}

static bool name_is_free_key(const char *name)
{
    for (const char *p = name; *p; p++) {
        if ((unsigned char)*p <= ' ' || *p == 0x7F)
            return false;
    }
    return *name != '\0';
}

static enum status check_value(const struct cfg_key *k, const struct cfg_slot *slot, const char *key, const char *text,
                               const char *where, struct err *err)
{
    union cfg_value scratch;
    struct err why = {0};
    struct buf shown;
    enum status st = ST_OK;

    if (!slot->from_path)
        st = value_parse(k, text, &scratch, &why);
    if (st == ST_OK)
        return ST_OK;
    buf_init(&shown, 4 * CFG_LINE_MAX);
    value_redact(text, &shown);
    if (shown.len > 100) {
        buf_reserve(&shown, 4);
        shown.len = 100;
        buf_adds(&shown, "...");
    }
    err_set(err, st, NULL, "%s: %s.%s = \"%s\": %s", where, k->section, key, buf_str(&shown), why.text);
    buf_release(&shown);
    return st;
}

enum status loader_assign(struct cfg_loader *l, const char *section, const char *key, const char *text,
                          enum cfg_origin origin, const char *where, struct err *err)
{
    const struct cfg_key *map = names_map_of(l->prog, section);
    bool from_path = false;
    struct cfg_slot *slot = find_slot(l, section, key, &from_path);
    char *copy = NULL, *place = NULL;
    enum status st;

    if (!slot && map) {
        if (!name_is_free_key(key))
            return err_set(err, ST_CONFIG, NULL, "%s: \"%s\" is no name of a property of [%s]", where, key, section);
        slot = find_map_slot(l, map, key);
        if (!slot)
            return no_memory(err);
    }
    if (!slot)
        return unknown_name(l->prog, section, key, where, err);
    if (slot->origin == origin && origin != CFG_FROM_SET && slot->where)
        return err_set(err, ST_CONFIG, NULL, "%s: %s.%s is given twice: also %s", where, section, key, slot->where);
    /* Not shown: it may be a secret, and is no text. A path may be of any bytes. */
    if (!from_path && !utf8_valid(text, strlen(text)))
        return err_set(err, ST_CONFIG, NULL, "%s: the value of %s.%s is not UTF-8", where, section, key);
    slot->from_path = from_path;
    st = check_value(&l->prog->keys[slot->key], slot, key, text, where, err);
    if (st != ST_OK)
        return st;
    copy = strdup(text);
    place = strdup(where);
    if (!copy || !place) {
        free(copy);
        free(place);
        return no_memory(err);
    }
    free(slot->text);
    free(slot->where);
    slot->text = copy;
    slot->where = place;
    slot->origin = origin;
    return ST_OK;
}

static enum status take_set(struct cfg_loader *l, const char *text, struct err *err)
{
    const char *equals = strchr(text, '=');
    const char *dot = strchr(text, '.');
    struct buf section, key;
    enum status st;

    if (!equals || !dot || dot > equals || dot == text || dot + 1 == equals)
        return err_set(err, ST_CONFIG, NULL, "--set %.*s: must be section.key=value", (int)strcspn(text, "="), text);
    buf_init(&section, 4096);
    buf_init(&key, 4096);
    buf_add(&section, text, (size_t)(dot - text));
    buf_add(&key, dot + 1, (size_t)(equals - dot - 1));
    if (buf_ok(&section) && buf_ok(&key))
        st = loader_assign(l, buf_str(&section), buf_str(&key), equals + 1, CFG_FROM_SET, "--set", err);
    else
        st = err_set(err, ST_CONFIG, NULL, "--set: the name before \"=\" is too long");
    buf_release(&section);
    buf_release(&key);
    return st;
}

static enum status check_required(const struct cfg_loader *l, struct err *err)
{
    for (size_t i = 0; i < l->nkeys; i++) {
        const struct cfg_key *k = &l->prog->keys[i];
        struct buf env;

        if (k->preset || k->type == CFG_MAP || (l->slots[i].text && *l->slots[i].text))
            continue;
        buf_init(&env, 512);
        names_env(&env, k->section, k->key);
        err_set(err, ST_CONFIG, NULL,
                "%s.%s is required: give it in the file ([%s] %s = ...), by %s or --set %s.%s=...", k->section, k->key,
                k->section, k->key, buf_str(&env), k->section, k->key);
        buf_release(&env);
        return ST_CONFIG;
    }
    return ST_OK;
}

static enum status store_string(const struct cfg_slot *slot, const struct cfg_key *k, char **out, struct err *err)
{
    enum status st;

    if (!slot->from_path) {
        *out = strdup(slot->text);
        return *out ? ST_OK : no_memory(err);
    }
    st = secret_read(slot->text, out, err);
    if (st != ST_OK)
        err_prefix(err, "%s: %s.%s_file", slot->where, k->section, k->key);
    return st;
}

static enum status store_map(const struct cfg_loader *l, size_t key, struct cfg_map *map, struct err *err)
{
    map->items = calloc(l->nslots - l->nkeys + 1, sizeof *map->items);
    if (!map->items)
        return no_memory(err);
    for (size_t i = l->nkeys; i < l->nslots; i++) {
        struct cfg_map_item *item = &map->items[map->len];

        if (l->slots[i].key != key || !l->slots[i].text)
            continue;
        map->len++;
        item->key = strdup(l->slots[i].name);
        item->value = strdup(l->slots[i].text);
        item->origin = strdup(l->slots[i].where);
        if (!item->key || !item->value || !item->origin)
            return no_memory(err);
    }
    return ST_OK;
}

static enum status store_value(const struct cfg_loader *l, size_t i, char *settings, struct err *err)
{
    const struct cfg_key *k = &l->prog->keys[i];
    char *at = settings + k->offset;
    union cfg_value v = {0};
    enum status st;

    if (k->type == CFG_MAP)
        return store_map(l, i, (struct cfg_map *)(void *)at, err);
    if (k->type == CFG_STRING || k->type == CFG_SECRET)
        return store_string(&l->slots[i], k, (char **)(void *)at, err);
    st = value_parse(k, l->slots[i].text, &v, err);
    if (st != ST_OK)
        return err_prefix(err, "default of %s.%s", k->section, k->key);
    if (k->type == CFG_BOOL)
        memcpy(at, &v.b, sizeof v.b);
    else if (k->type == CFG_ENUM)
        memcpy(at, &v.choice, sizeof v.choice);
    else
        memcpy(at, &v.i, sizeof v.i);
    return ST_OK;
}

static enum status write_out(const struct buf *text, struct err *err)
{
    if (!buf_ok(text))
        return no_memory(err);
    if (fwrite(buf_str(text), 1, text->len, stdout) != text->len || fflush(stdout) != 0)
        return err_set(err, ST_CONFIG, NULL, "cannot write to standard output");
    return ST_OK;
}

static enum status serve_text(const struct cfg_program *prog, const struct cfg_command *c, struct err *err)
{
    struct buf text;
    enum status st;

    buf_init(&text, OUTPUT_MAX);
    if (c->version)
        buf_addf(&text, "%s %s\n", prog->name, RELATA_VERSION);
    else if (strcmp(c->help, "markdown") == 0)
        config_reference(prog, &text);
    else if (strcmp(c->help, "example") == 0)
        config_example(prog, &text);
    else if (*c->help == '\0')
        help_text(prog, &text);
    else if (prog->metrics) {
        buf_addf(&text, "## %s\n\n", prog->name);
        prog->metrics(&text);
    }
    st = write_out(&text, err);
    buf_release(&text);
    return st;
}

static enum status load_sources(struct cfg_loader *l, const struct cfg_command *c, char *settings, struct err *err)
{
    enum status st = ST_OK;

    if (c->file)
        st = loader_read_file(l, c->file, err);
    if (st == ST_OK)
        st = loader_read_environ(l, environ, err);
    for (size_t i = 0; i < c->nsets && st == ST_OK; i++)
        st = take_set(l, c->sets[i], err);
    if (st == ST_OK)
        st = check_required(l, err);
    for (size_t i = 0; i < l->nkeys && st == ST_OK; i++)
        st = store_value(l, i, settings, err);
    if (st == ST_OK && l->prog->validate)
        st = l->prog->validate(settings, err);
    return st;
}

enum status config_load_args(const struct cfg_program *prog, int argc, char **argv, void *settings,
                             struct cfg_args *args, enum cfg_action *action, struct err *err)
{
    struct cfg_command c = {0};
    struct cfg_loader l = {0};
    struct buf text = {.max = OUTPUT_MAX};
    bool loaded = false;
    enum status st = command_parse(prog, argc, argv, &c, err);

    *action = CFG_EXIT;
    if (st != ST_OK)
        goto cleanup;
    if (c.help || c.version) {
        st = serve_text(prog, &c, err);
        goto cleanup;
    }
    loaded = true;
    st = loader_init(&l, prog, err);
    if (st == ST_OK)
        st = load_sources(&l, &c, settings, err);
    if (st != ST_OK)
        goto cleanup;
    if (c.print)
        print_settings(&l, &text);
    else if (c.check)
        buf_adds(&text, "configuration ok\n");
    else
        *action = CFG_RUN;
    st = write_out(&text, err);
    if (args)
        *args = c.rest;
cleanup:
    if (loaded && (st != ST_OK || *action == CFG_EXIT))
        config_release(prog, settings);
    buf_release(&text);
    loader_release(&l);
    command_release(&c);
    return st;
}

enum status config_load(const struct cfg_program *prog, int argc, char **argv, void *settings, enum cfg_action *action,
                        struct err *err)
{
    return config_load_args(prog, argc, argv, settings, NULL, action, err);
}

void config_release(const struct cfg_program *prog, void *settings)
{
    for (const struct cfg_key *k = prog->keys; k->section; k++) {
        char *at = (char *)settings + k->offset;

        if (k->type == CFG_STRING || k->type == CFG_SECRET) {
            char **s = (char **)(void *)at;

            free(*s);
            *s = NULL;
        } else if (k->type == CFG_MAP) {
            struct cfg_map *map = (struct cfg_map *)(void *)at;

            for (size_t i = 0; i < map->len; i++) {
                free(map->items[i].key);
                free(map->items[i].value);
                free(map->items[i].origin);
            }
            free(map->items);
            *map = (struct cfg_map){0};
        }
    }
}
