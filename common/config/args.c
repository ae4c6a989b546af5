#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/internal.h"

enum { OPT_CONFIG, OPT_SET, OPT_CHECK, OPT_PRINT, OPT_HELP, OPT_VERSION, OPT_COUNT };

static const struct {
    const char *name;
    enum { VALUE_NONE, VALUE_NEEDED, VALUE_MAY } value;
} options[OPT_COUNT] = {
    [OPT_CONFIG] = {"--config", VALUE_NEEDED},    [OPT_SET] = {"--set", VALUE_NEEDED},
    [OPT_CHECK] = {"--check-config", VALUE_NONE}, [OPT_PRINT] = {"--print-config", VALUE_NONE},
    [OPT_HELP] = {"--help", VALUE_MAY},           [OPT_VERSION] = {"--version", VALUE_NONE},
};

/* Which option `arg` is, and where its "=value" starts (NULL if it has none); OPT_COUNT if it is none of ours. */
static int find_option(const char *arg, const char **value)
{
    size_t len = strcspn(arg, "=");

    if (strcmp(arg, "-h") == 0)
        arg = "--help", len = 6;
    for (int i = 0; i < OPT_COUNT; i++) {
        if (strlen(options[i].name) == len && memcmp(options[i].name, arg, len) == 0) {
            *value = arg[len] == '=' ? arg + len + 1 : NULL;
            return i;
        }
    }
    return OPT_COUNT;
}

static enum status unknown_option(const struct cfg_program *prog, const char *arg, struct err *err)
{
    char name[64];

    snprintf(name, sizeof name, "%.*s", (int)strcspn(arg, "="), arg);
    for (int i = 0; i < OPT_COUNT; i++) {
        if (name_is_near(name, options[i].name))
            return err_set(err, ST_CONFIG, NULL, "unknown option %s: did you mean %s?", name, options[i].name);
    }
    /* --pg.dsn=x: likely a setting. */
    if (strncmp(name, "--", 2) == 0 && strchr(name, '.'))
        return err_set(err, ST_CONFIG, NULL, "unknown option %s: settings are given as --set section.key=value", name);
    for (const struct cfg_option *o = prog->options; o && o->name; o++) {
        if (name_is_near(name, o->name))
            return err_set(err, ST_CONFIG, NULL, "unknown option %s: did you mean %s?", name, o->name);
    }
    return err_set(err, ST_CONFIG, NULL, "unknown option %s: see %s --help", name, prog->name);
}

static enum status add_set(struct cfg_command *c, const char *text, struct err *err)
{
    c->sets[c->nsets] = strdup(text);
    if (!c->sets[c->nsets])
        return err_set(err, ST_NOMEM, NULL, "no memory for the command line");
    c->nsets++;
    return ST_OK;
}

static const struct cfg_option *find_short(const struct cfg_program *prog, const char *arg, const char **value)
{
    size_t len = strcspn(arg, "=");

    for (const struct cfg_option *o = prog->options; o && o->name; o++) {
        if (strlen(o->name) == len && memcmp(o->name, arg, len) == 0) {
            *value = arg[len] == '=' ? arg + len + 1 : NULL;
            return o;
        }
    }
    return NULL;
}

/* The setting that it is short for. */
static enum status take_short(struct cfg_command *c, const struct cfg_option *o, const char *value, int argc,
                              char **argv, int *i, struct err *err)
{
    struct buf text;
    enum status st;

    if (o->value && value)
        return err_set(err, ST_CONFIG, NULL, "%s takes no value", o->name);
    if (!o->value && !value) {
        if (*i + 1 >= argc)
            return err_set(err, ST_CONFIG, NULL, "%s needs a value: %s %s", o->name, o->name, o->placeholder);
        value = argv[++*i];
    }
    buf_init(&text, 1 << 20);
    buf_addf(&text, "%s.%s=%s", o->section, o->key, o->value ? o->value : value);
    st = buf_ok(&text) ? add_set(c, buf_str(&text), err) : err_set(err, ST_CONFIG, NULL, "%s: too long", o->name);
    buf_release(&text);
    return st;
}

static enum status apply(struct cfg_command *c, int opt, const char *value, struct err *err)
{
    switch (opt) {
    case OPT_CONFIG:
        if (c->file)
            return err_set(err, ST_CONFIG, NULL, "--config is given twice: %s and %s", c->file, value);
        c->file = value;
        break;
    case OPT_SET:
        return add_set(c, value, err);
    case OPT_CHECK:
        c->check = true;
        break;
    case OPT_PRINT:
        c->print = true;
        break;
    case OPT_VERSION:
        c->version = true;
        break;
    case OPT_HELP:
        c->help = value ? value : "";
        if (value && strcmp(value, "markdown") != 0 && strcmp(value, "metrics") != 0 && strcmp(value, "example") != 0)
            return err_set(err, ST_CONFIG, NULL,
                           "--help=%s: must be --help, --help=markdown, --help=metrics or --help=example", value);
        break;
    default:
        break;
    }
    return ST_OK;
}

/* One of our options at argv[*i]; *i is left at its last argument. */
static enum status take_option(struct cfg_command *c, int opt, const char *value, int argc, char **argv, int *i,
                               struct err *err)
{
    const char *name = options[opt].name;

    if (options[opt].value == VALUE_NONE && value)
        return err_set(err, ST_CONFIG, NULL, "%s takes no value", name);
    if (options[opt].value == VALUE_NEEDED && !value) {
        if (*i + 1 >= argc)
            return err_set(err, ST_CONFIG, NULL, "%s needs a value: %s %s", name, name,
                           opt == OPT_SET ? "section.key=value" : "FILE");
        value = argv[++*i];
    }
    if (options[opt].value == VALUE_NEEDED && *value == '\0')
        return err_set(err, ST_CONFIG, NULL, "%s needs a value that is not empty", name);
    return apply(c, opt, value, err);
}

static enum status walk(const struct cfg_program *prog, int argc, char **argv, struct cfg_command *c, struct err *err)
{
    bool rest = false, literal = false;
    int kept = 1;
    int i;

    /* What is not ours is moved to the front of argv, keeping its order. */
    for (i = 1; i < argc; i++) {
        const char *value = NULL;
        bool dashed = argv[i][0] == '-' && argv[i][1] != '\0' && !literal;
        int opt = dashed ? find_option(argv[i], &value) : OPT_COUNT;
        const struct cfg_option *short_for;
        enum status st;

        if (dashed && !rest && strcmp(argv[i], "--") == 0) {
            rest = literal = true;
            continue;
        }
        if (opt != OPT_COUNT && (!rest || opt == OPT_CONFIG || opt == OPT_SET)) {
            st = take_option(c, opt, value, argc, argv, &i, err);
            if (st != ST_OK)
                return st;
            continue;
        }
        short_for = dashed && !rest ? find_short(prog, argv[i], &value) : NULL;
        if (short_for) {
            st = take_short(c, short_for, value, argc, argv, &i, err);
            if (st != ST_OK)
                return st;
            continue;
        }
        if (dashed && !rest)
            return unknown_option(prog, argv[i], err);
        if (!prog->takes_args)
            return err_set(err, ST_CONFIG, NULL, "unexpected argument \"%s\": %s takes options only, see --help",
                           argv[i], prog->name);
        literal = literal || (dashed && strcmp(argv[i], "--") == 0);
        rest = true;
        argv[kept++] = argv[i];
    }
    c->rest = (struct cfg_args){kept - 1, argv + 1};
    argv[kept] = NULL;
    return ST_OK;
}

enum status command_parse(const struct cfg_program *prog, int argc, char **argv, struct cfg_command *out,
                          struct err *err)
{
    *out = (struct cfg_command){.sets = calloc((size_t)argc + 1, sizeof *out->sets)};
    if (!out->sets)
        return err_set(err, ST_NOMEM, NULL, "no memory for the command line");
    if (argc < 1)
        return ST_OK;
    return walk(prog, argc, argv, out, err);
}

void command_release(struct cfg_command *c)
{
    for (size_t i = 0; i < c->nsets; i++)
        free(c->sets[i]);
    free(c->sets);
    c->sets = NULL;
    c->nsets = 0;
}
