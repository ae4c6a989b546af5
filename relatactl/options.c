/* options.c - options of a command, by its table. */
#include <errno.h>
#include <stdlib.h>

#include "relatactl/ctl.h"

static const struct option_spec *find(const struct command *command, const char *name, size_t len)
{
    for (const struct option_spec *o = command->options; o && o->name; o++) {
        if (strlen(o->name) == len && strncmp(o->name, name, len) == 0)
            return o;
    }
    return NULL;
}

static enum status take_int(const struct option_spec *o, const char *text, int64_t *out, struct err *err)
{
    char *end = NULL;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || v < o->min || v > o->max)
        return err_set(err, ST_CONFIG, "", "--%s: \"%s\" is no whole number from %lld to %lld", o->name, text,
                       (long long)o->min, (long long)o->max);
    *out = v;
    return ST_OK;
}

static enum status take(const struct command *command, const struct option_spec *o, const char *text, char *options,
                        struct err *err)
{
    char *at = options + o->offset;
    if (o->kind == OPTION_FLAG) {
        if (text)
            return err_set(err, ST_CONFIG, "", "--%s takes no value", o->name);
        *(bool *)(void *)at = true;
        return ST_OK;
    }
    if (!text)
        return err_set(err, ST_CONFIG, "", "--%s needs a value: --%s %s (relatactl %s --help)", o->name, o->name,
                       o->value, command->name);
    if (o->kind == OPTION_INT)
        return take_int(o, text, (int64_t *)(void *)at, err);
    *(const char **)(void *)at = text;
    return ST_OK;
}

static void presets(const struct command *command, char *options)
{
    for (const struct option_spec *o = command->options; o && o->name; o++) {
        if (o->kind == OPTION_INT)
            *(int64_t *)(void *)(options + o->offset) = o->preset;
    }
}

static enum status check_count(const struct command *command, int nargs, char **args, struct err *err)
{
    if (nargs < command->min_args)
        return err_set(err, ST_CONFIG, "", "needs %s (relatactl %s --help)", command->args, command->name);
    if (nargs > command->max_args)
        return err_set(err, ST_CONFIG, "", "unexpected argument \"%s\" (relatactl %s --help)", args[command->max_args],
                       command->name);
    return ST_OK;
}

enum status options_parse(const struct command *command, int argc, char **argv, void *options, bool *json, bool *help,
                          int *nargs, char **args, struct err *err)
{
    bool only_args = false;
    presets(command, options);
    *nargs = 0;
    for (int i = 0; i < argc; i++) {
        char *arg = argv[i];
        if (only_args || arg[0] != '-' || !arg[1]) {
            args[(*nargs)++] = arg;
            continue;
        }
        if (strcmp(arg, "--") == 0) {
            only_args = true;
        } else if (strcmp(arg, "--json") == 0) {
            *json = true;
        } else if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            *help = true;
            return ST_OK;
        } else {
            const char *name = arg + (arg[1] == '-' ? 2 : 1);
            const char *equals = strchr(name, '=');
            const struct option_spec *o = find(command, name, equals ? (size_t)(equals - name) : strlen(name));
            if (!o || arg[1] != '-')
                return err_set(err, ST_CONFIG, "", "unknown option %s (relatactl %s --help)", arg, command->name);
            const char *value = equals ? equals + 1 : NULL;
            if (!value && o->kind != OPTION_FLAG && i + 1 < argc)
                value = argv[++i];
            enum status st = take(command, o, value, options, err);
            if (st != ST_OK)
                return st;
        }
    }
    return check_count(command, *nargs, args, err);
}

void options_help(const struct command *command)
{
    (void)printf("Usage: relatactl %s [OPTION]...%s%s\n\n%s.\n", command->name, *command->args ? " " : "",
                 command->args, command->summary);
    if (command->details && *command->details)
        (void)printf("\n%s\n", command->details);
    (void)printf("\nOptions:\n");
    for (const struct option_spec *o = command->options; o && o->name; o++) {
        char left[64];
        (void)snprintf(left, sizeof left, "--%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
        (void)printf("  %-24s %s", left, o->help);
        if (o->kind == OPTION_INT)
            (void)printf(" (%lld)", (long long)o->preset);
        (void)printf("\n");
    }
    (void)printf("  %-24s %s\n  %-24s %s\n", "--json", "print the result as one JSON document", "--help", "this text");
    (void)printf("  %-24s %s\n\nSettings: relatactl --help.\n\n%s", "--config, --set", "settings, as for every program",
                 exit_codes_text);
}
