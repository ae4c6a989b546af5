/* main.c - relatactl: operate Relata from a shell. Finds the command, its settings and its options, and runs it. */
#include <unistd.h>

#include "common/base/log.h"
#include "common/pg/settings.h"
#include "relatactl/commands.h"

static const struct cfg_key keys[] = {
    CFG_PG_KEYS(struct settings, pg.dsn, pg.statement_timeout_ms),
    CFG_STORE_KEYS(struct settings, store),
    CFG_NATS_KEYS(struct settings, nats),
    CFG_LOG_KEYS(struct settings, log),
    {0},
};

static enum status validate(const void *settings, struct err *err)
{
    const struct settings *s = settings;
    enum status st = pg_dsn_check(s->pg.dsn, err);
    if (st == ST_OK)
        st = store_check_settings(&s->store, err);
    return st == ST_OK ? events_check(&s->nats, err) : st;
}

static const struct command *const commands[] = {
    &command_migrate,
    &command_lag,
    &command_trace,
    &command_history,
    &command_who_could,
    &command_events,
    &command_dead_letters_list,
    &command_dead_letters_show,
    &command_dead_letters_replay,
    &command_dead_letters_drop,
    &command_store_pin,
    &command_store_show,
    &command_store_verify,
    &command_store_own,
    &command_store_disown,
    &command_model_show,
    &command_model_list,
    &command_model_use,
    &command_seed,
    &command_adopt,
};
#define NCOMMANDS (sizeof commands / sizeof *commands)

#define WORDS_MAX 2

/* The command whose words `args` begins with, and how many they are. */
static const struct command *find_command(const struct cfg_args *args, int *words)
{
    for (size_t i = 0; i < NCOMMANDS; i++) {
        const char *name = commands[i]->name;
        const char *space = strchr(name, ' ');
        size_t first = space ? (size_t)(space - name) : strlen(name);
        if (args->argc < 1 || strlen(args->argv[0]) != first || strncmp(args->argv[0], name, first) != 0)
            continue;
        if (!space) {
            *words = 1;
            return commands[i];
        }
        if (args->argc >= 2 && strcmp(args->argv[1], space + 1) == 0) {
            *words = 2;
            return commands[i];
        }
    }
    return NULL;
}

/* Lines for the commands whose name begins with `prefix`; how many they are. */
static int list_commands(const char *prefix, struct buf *out)
{
    int n = 0;
    size_t len = strlen(prefix);
    for (size_t i = 0; i < NCOMMANDS; i++) {
        if (strncmp(commands[i]->name, prefix, len) != 0 || (len && commands[i]->name[len] != ' '))
            continue;
        buf_addf(out, "  %-20s %s\n", commands[i]->name, commands[i]->summary);
        n++;
    }
    return n;
}

/* No such command: shows what there is under the first word, or says what to type. */
static enum exit_code no_command(const struct cfg_args *args)
{
    struct buf list;
    enum exit_code code = EXIT_USAGE;
    buf_init(&list, 1 << 16);
    const char *first = args->argc ? args->argv[0] : "";
    int n = *first ? list_commands(first, &list) : 0;
    const char *second = args->argc > 1 ? args->argv[1] : "";
    if (n && strcmp(second, "--help") == 0) {
        (void)printf("Commands:\n%s\nrelatactl %s COMMAND --help tells more.\n", buf_str(&list), first);
        code = EXIT_DONE;
    } else if (n) {
        (void)fprintf(stderr, "relatactl %s: %s%s%s\n%s", first, *second ? "no command \"" : "which command?", second,
                      *second ? "\"; there are" : "", buf_str(&list));
    } else if (*first) {
        (void)fprintf(stderr, "relatactl: no command \"%s\" (relatactl --help lists them)\n", first);
    } else {
        (void)fprintf(stderr, "relatactl: which command? (relatactl --help lists them)\n");
    }
    buf_release(&list);
    return code;
}

static enum exit_code run_command(struct ctl *ctl, const struct cfg_args *args)
{
    int words = 0, nargs = 0;
    bool help = false;
    struct err err = {.status = ST_OK};
    _Alignas(max_align_t) char options[OPTIONS_MAX_SIZE] = {0};
    ctl->command = find_command(args, &words);
    if (!ctl->command)
        return no_command(args);
    char **rest = args->argv + words; /* arguments are gathered at its front: never ahead of what is read */
    if (options_parse(ctl->command, args->argc - words, rest, options, &ctl->json, &help, &nargs, rest, &err) != ST_OK)
        return ctl_fail(ctl, &err);
    if (help) {
        options_help(ctl->command);
        return EXIT_DONE;
    }
    enum exit_code code = ctl->command->run(ctl, options, nargs, rest);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        (void)fprintf(stderr, "relatactl: cannot write to standard output\n");
        return code == EXIT_DONE ? EXIT_FAILED : code;
    }
    return code;
}

int main(int argc, char **argv)
{
    static struct ctl ctl;
    struct buf details;
    struct cfg_args args = {0};
    enum cfg_action action = CFG_RUN;
    struct err err = {.status = ST_OK};
    enum exit_code code = EXIT_DONE;

    stop_init();
    buf_init(&details, 1 << 16);
    buf_adds(&details, "Commands:\n");
    (void)list_commands("", &details);
    buf_adds(&details, "\nrelatactl COMMAND --help tells more. Every command has --json.\n\n");
    buf_adds(&details, exit_codes_text);
    const struct cfg_program program = {.name = "relatactl",
                                        .summary = "operates Relata: schema, lag, parked changes, stores, models",
                                        .keys = keys,
                                        .details = buf_str(&details),
                                        .validate = validate,
                                        .takes_args = true,
                                        .usage = "COMMAND [ARGUMENT]..."};
    if (config_load_args(&program, argc, argv, &ctl.settings, &args, &action, &err) != ST_OK) {
        (void)fprintf(stderr, "relatactl: %s\n", err.text);
        code = EXIT_USAGE;
    } else if (action == CFG_RUN) {
        log_init("relatactl", (enum log_level)ctl.settings.log.level, (enum log_format)ctl.settings.log.format);
        code = run_command(&ctl, &args);
    }
    pg_close(ctl.pg);
    store_conn_free(ctl.store_conn);
    store_free(ctl.store);
    config_release(&program, &ctl.settings);
    buf_release(&details);
    return (int)code;
}
