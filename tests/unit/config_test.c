/* config_test.c - sources, types, and the text of every refusal. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/config/config.h"

struct settings {
    char *dsn;
    int64_t timeout_ms, batch, limit;
    bool tls;
    int mode;
    char *name, *token;
    struct cfg_map kafka;
    struct cfg_log log;
};

static const struct cfg_key keys[] = {
    {"pg", "dsn", CFG_SECRET, offsetof(struct settings, dsn), NULL, 0, 0, NULL, NULL, "where the database is"},
    {"pg", "statement_timeout", CFG_DURATION, offsetof(struct settings, timeout_ms), "5s", 10, 3600000, NULL, NULL,
     "longest time of one statement"},
    {"relay", "mode", CFG_ENUM, offsetof(struct settings, mode), "wal", 0, 0, "wal|poll", NULL, "how to read"},
    {"relay", "batch", CFG_INT, offsetof(struct settings, batch), "100", 1, 1000, NULL, "rows", "rows at once"},
    {"relay", "limit", CFG_SIZE, offsetof(struct settings, limit), "8MiB", 0, 0, NULL, NULL, "memory"},
    {"relay", "tls", CFG_BOOL, offsetof(struct settings, tls), "no", 0, 0, NULL, NULL, "whether to use TLS"},
    {"my-store", "name", CFG_STRING, offsetof(struct settings, name), "default", 0, 0, NULL, NULL, "a name"},
    {"my-store", "token", CFG_SECRET, offsetof(struct settings, token), "", 0, 0, NULL, NULL, "a token"},
    {"kafka", "*", CFG_MAP, offsetof(struct settings, kafka), NULL, 0, 0, NULL, NULL, "librdkafka's"},
    CFG_LOG_KEYS(struct settings, log),
    {0},
};

static enum status no_poll_with_big_batch(const void *settings, struct err *err)
{
    const struct settings *s = settings;

    if (s->mode == 1 && s->batch > 500)
        return err_set(err, ST_CONFIG, NULL, "relay.batch must be at most 500 with relay.mode = poll");
    return ST_OK;
}

static void print_metrics(struct buf *out)
{
    buf_adds(out, "| metric |\n");
}

static const struct cfg_program daemon_program = {.name = "trial",
                                                  .summary = "tries the configuration",
                                                  .keys = keys,
                                                  .validate = no_poll_with_big_batch,
                                                  .metrics = print_metrics};
static const struct cfg_program tool_program = {.name = "tool",
                                                .summary = "has subcommands",
                                                .keys = keys,
                                                .details = "Exit codes: 0, 2.",
                                                .takes_args = true,
                                                .usage = "COMMAND [ARGUMENT]..."};

static char file_path[] = "/tmp/relata-config-test-XXXXXX";
static struct settings got;
static struct err err;
static enum cfg_action action;
static struct cfg_args rest;

#define ARGS_MAX 16

/* The program's arguments are the strings up to NULL. */
static enum status load(const struct cfg_program *prog, ...)
{
    static char text[ARGS_MAX][8192];
    static char *argv[ARGS_MAX + 1];
    int argc = 0;
    va_list ap;

    config_release(&daemon_program, &got);
    memset(&got, 0, sizeof got);
    err = (struct err){0};
    va_start(ap, prog);
    for (const char *arg = prog->name; arg; arg = va_arg(ap, const char *)) {
        assert_true(argc < ARGS_MAX && strlen(arg) < sizeof text[0]);
        argv[argc] = text[argc];
        memcpy(text[argc++], arg, strlen(arg) + 1);
    }
    va_end(ap);
    argv[argc] = NULL;
    return config_load_args(prog, argc, argv, &got, &rest, &action, &err);
}

/* What the call prints on standard output. */
static int saved_fd;
static FILE *sink;
static struct buf printed;

static void capture(void)
{
    fflush(stdout);
    sink = tmpfile();
    assert_non_null(sink);
    saved_fd = dup(STDOUT_FILENO);
    dup2(fileno(sink), STDOUT_FILENO);
}

static const char *captured(void)
{
    char chunk[4096];
    size_t n;

    fflush(stdout);
    dup2(saved_fd, STDOUT_FILENO);
    close(saved_fd);
    rewind(sink);
    printed.max = 1 << 20;
    buf_clear(&printed);
    while ((n = fread(chunk, 1, sizeof chunk, sink)) > 0)
        buf_add(&printed, chunk, n);
    fclose(sink);
    return buf_str(&printed);
}

static void write_file(const char *text, size_t len)
{
    FILE *f = fopen(file_path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    fclose(f);
}

static enum status load_text(const char *text)
{
    write_file(text, strlen(text));
    return load(&daemon_program, "--config", file_path, NULL);
}

/* The error says "FILE:LINE: <text>" (line 0: FILE only is not named so, the text is all). */
static void assert_error(int line, const char *text)
{
    char wanted[2048];

    if (line > 0)
        snprintf(wanted, sizeof wanted, "%s:%d: %s", file_path, line, text);
    else
        snprintf(wanted, sizeof wanted, "%s", text);
    assert_string_equal(err.text, wanted);
    assert_int_equal(err.status, ST_CONFIG);
    assert_null(got.dsn); /* nothing is left to free */
    assert_null(got.name);
}

/* ---- sources ---- */

static void test_defaults_and_required(void **state)
{
    (void)state;
    assert_int_equal(load(&daemon_program, NULL), ST_CONFIG);
    assert_error(0, "pg.dsn is required: give it in the file ([pg] dsn = ...), by RELATA_PG_DSN or --set pg.dsn=...");
    assert_int_equal(load(&daemon_program, "--set", "pg.dsn=", NULL), ST_CONFIG);
    assert_int_equal(load(&daemon_program, "--set", "pg.dsn=host=db", NULL), ST_OK);
    assert_int_equal(action, CFG_RUN);
    assert_string_equal(got.dsn, "host=db");
    assert_int_equal(got.timeout_ms, 5000);
    assert_int_equal(got.batch, 100);
    assert_int_equal(got.limit, 8 << 20);
    assert_false(got.tls);
    assert_int_equal(got.mode, 0);
    assert_string_equal(got.name, "default");
    assert_string_equal(got.token, "");
    assert_int_equal(got.kafka.len, 0);
    assert_int_equal(got.log.level, 1);
}

static void test_each_source_overrides_the_weaker(void **state)
{
    char origin[4200];

    (void)state;
    assert_int_equal(load_text("# a comment\n; another\n\n[pg]\ndsn = from file\nstatement_timeout=1s\r\n"
                               "[relay]\n  mode = poll\n[kafka]\nbootstrap.servers = a:1,b:2\n[pg]\n\n"),
                     ST_OK);
    assert_string_equal(got.dsn, "from file");
    assert_int_equal(got.timeout_ms, 1000);
    assert_int_equal(got.mode, 1);
    assert_int_equal(got.kafka.len, 1);
    assert_string_equal(got.kafka.items[0].key, "bootstrap.servers");
    assert_string_equal(got.kafka.items[0].value, "a:1,b:2");
    snprintf(origin, sizeof origin, "%s:10", file_path);
    assert_string_equal(got.kafka.items[0].origin, origin);

    setenv("RELATA_PG_STATEMENT_TIMEOUT", "2s", 1);
    setenv("RELATA_PG_DSN", "from environment", 1);
    assert_int_equal(load(&daemon_program, "--set", "pg.dsn=first", "--config", file_path, "--set=pg.dsn=last", "--set",
                          "kafka.bootstrap.servers=c:3", "--set", "kafka.acks=all", NULL),
                     ST_OK);
    assert_string_equal(got.dsn, "last");
    assert_int_equal(got.timeout_ms, 2000);
    assert_int_equal(got.kafka.len, 2);
    assert_string_equal(got.kafka.items[0].value, "c:3");
    assert_string_equal(got.kafka.items[0].origin, "--set");
    assert_string_equal(got.kafka.items[1].key, "acks");
}

static void test_environment_names(void **state)
{
    (void)state;
    setenv("RELATA_PG_DSN", "x", 1);
    setenv("RELATA_MY_STORE_NAME", "from environment", 1); /* [my-store] name */
    setenv("RELATA_WRITER_LANES", "8", 1);                 /* another program's */
    setenv("RELATA_SOAK", "1", 1);
    setenv("RELATA_KAFKA_BROKERS", "b:1", 1); /* of build/run/env */
    setenv("RELATA_STORE_ID", "01", 1);
    setenv("RELATA_RELAY_MODE", "", 1); /* empty: as if unset, even where it could be no value, or no key */
    setenv("RELATA_RELAY_BATHC", "", 1);
    assert_int_equal(load(&daemon_program, NULL), ST_OK);
    assert_string_equal(got.name, "from environment");

    setenv("RELATA_RELAY_BATHC", "8", 1);
    assert_int_equal(load(&daemon_program, NULL), ST_CONFIG);
    assert_error(0,
                 "environment: RELATA_RELAY_BATHC names no key of section [relay]: did you mean RELATA_RELAY_BATCH?");
    unsetenv("RELATA_RELAY_BATHC");
    setenv("RELATA_RELAY_SOMETHING", "8", 1);
    assert_int_equal(load(&daemon_program, NULL), ST_CONFIG);
    assert_error(0,
                 "environment: RELATA_RELAY_SOMETHING names no key of section [relay]: known keys: mode, batch, limit, "
                 "tls");
    unsetenv("RELATA_RELAY_SOMETHING");
    setenv("RELATA_KAFKA_ACKS", "all", 1);
    assert_int_equal(load(&daemon_program, NULL), ST_CONFIG);
    assert_error(0,
                 "environment: RELATA_KAFKA_ACKS names no key of section [kafka]: properties that are passed through "
                 "come from the file or --set 'kafka.name=value'");
    unsetenv("RELATA_KAFKA_ACKS");
    setenv("RELATA_RELAY_BATCH", "many", 1);
    assert_int_equal(load(&daemon_program, NULL), ST_CONFIG);
    assert_error(0, "RELATA_RELAY_BATCH: relay.batch = \"many\": must be a whole number");
    setenv("RELATA_PG_DSN", "host=\xff", 1);
    assert_int_equal(load(&daemon_program, NULL), ST_CONFIG);
    assert_error(0, "RELATA_PG_DSN: the value of pg.dsn is not UTF-8");
    unsetenv("RELATA_PG_DSN");
}

static void test_secret_files(void **state)
{
    char secret[] = "/tmp/relata-config-secret-XXXXXX";
    char option[200], wanted[400];
    int fd = mkstemp(secret);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "s3cret\r\nsecond line\n", 21), 21);
    setenv("RELATA_PG_DSN", "x", 1);
    snprintf(option, sizeof option, "my-store.token_file=%s", secret);
    assert_int_equal(load(&daemon_program, "--set", option, NULL), ST_OK);
    assert_string_equal(got.token, "s3cret");
    setenv("RELATA_MY_STORE_TOKEN_FILE", secret, 1);
    assert_int_equal(load(&daemon_program, NULL), ST_OK);
    assert_string_equal(got.token, "s3cret");

    setenv("RELATA_MY_STORE_TOKEN", "other", 1);
    assert_int_equal(load(&daemon_program, NULL), ST_CONFIG);
    assert_non_null(strstr(err.text, "is given twice: also RELATA_MY_STORE_TOKEN"));
    unsetenv("RELATA_MY_STORE_TOKEN");

    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(load(&daemon_program, NULL), ST_CONFIG);
    snprintf(wanted, sizeof wanted, "RELATA_MY_STORE_TOKEN_FILE: my-store.token_file: the first line of %s is empty",
             secret);
    assert_error(0, wanted);
    assert_int_equal(pwrite(fd, "a\0b\n", 4, 0), 4);
    assert_int_equal(load(&daemon_program, NULL), ST_CONFIG);
    assert_non_null(strstr(err.text, "holds a NUL byte"));
    unlink(secret);
    assert_int_equal(load(&daemon_program, NULL), ST_CONFIG);
    snprintf(wanted, sizeof wanted, "RELATA_MY_STORE_TOKEN_FILE: my-store.token_file: cannot open %s: %s", secret,
             strerror(ENOENT));
    assert_error(0, wanted);
    close(fd);
    /* A stronger source replaces the file, which is then not read. */
    write_file("[pg]\ndsn_file = /nonexistent\n", 28);
    unsetenv("RELATA_MY_STORE_TOKEN_FILE");
    assert_int_equal(load(&daemon_program, "--config", file_path, NULL), ST_OK);
    assert_string_equal(got.dsn, "x");
}

/* ---- the file's traps ---- */

static void test_refused_files(void **state)
{
    static const struct {
        const char *text;
        int line;
        const char *error;
    } cases[] = {
        {"[pg]\ndsn = x\n[rellay]\nmode = wal\n", 4, "unknown section [rellay]: did you mean [relay]?"},
        {"[something]\nmode = wal\n", 2,
         "unknown section [something]: trial knows [pg], [relay], [my-store], [kafka], [log]"},
        {"[relay]\nmdoe = wal\n", 2, "unknown key \"mdoe\" in section [relay]: did you mean \"mode\"?"},
        {"[relay]\nMODE = wal\n", 2, "unknown key \"MODE\" in section [relay]: did you mean \"mode\"?"},
        {"[relay]\nlevel = info\n", 2, "unknown key \"level\" in section [relay]: did you mean section [log]?"},
        {"[relay]\nsomething = 1\n", 2,
         "unknown key \"something\" in section [relay]: known keys: mode, batch, limit, tls"},
        {"[relay]\ntls_file = x\n", 2,
         "unknown key \"tls_file\" in section [relay]: known keys: mode, batch, limit, tls"},
        {"mode = wal\n", 1, "a key before the first [section]"},
        {"[relay]\nmode = wal ; comment\n", 2,
         "the value holds \" ;\": put a comment in a line of its own, and such a value in --set or the environment"},
        {"[relay]\nmode = ;wal\n", 2,
         "the value holds \" ;\": put a comment in a line of its own, and such a value in --set or the environment"},
        {"[relay]\nmode =\t;wal\n", 2,
         "the value holds \" ;\": put a comment in a line of its own, and such a value in --set or the environment"},
        {"[relay]\nmode = \"wal\"\n", 2, "the value is in quotes, which would become part of it: take them off"},
        {"[relay]\nmode = wal\nbatch = 3\nmode = poll\n", 4, "relay.mode is given twice: also FILE:2"},
        {"[kafka]\nacks = all\n[kafka]\nacks = 1\n", 4, "kafka.acks is given twice: also FILE:2"},
        {"[pg]\ndsn = x\ndsn_file = y\n", 3, "pg.dsn_file is given twice: also FILE:2"},
        {"[relay\nmode = wal\n", 1, "a section needs a closing \"]\""},
        {"[relay] # mine\nmode = wal\n", 1, "text after the section's \"]\": put it in a line of its own"},
        {"[relay] mode = wal\n", 1, "text after the section's \"]\": put it in a line of its own"},
        {"[0123456789012345678901234567890123456789012345678]\n", 1, "the section's name is longer than 48 bytes"},
        {"[relay]\nmode\n", 2, "the line is neither [section], key = value nor a comment"},
        {"[relay]\n= wal\n", 2, "the key before \"=\" is missing"},
        {"[relay]\n  = wal\n", 2, "the key before \"=\" is missing"},
        {"[relay]\nmode = wal\n   and more\n", 3, "the line is neither [section], key = value nor a comment"},
        {"[kafka]\nbootstrap.servers localhost:9092\n", 2,
         "\"bootstrap.servers localhost\" is no name of a property of [kafka]"},
        {"\xEF\xBB\xBF[relay]\n", 1, "the file starts with a byte order mark: save it as UTF-8 without one"},
        {"\xFF\xFE[", 1, "the file is UTF-16: save it as UTF-8"},
        {"[relay]\nmode = w\x01al\n", 2, "the line holds a control byte"},
        {"[relay]\nmode = wal\rbatch = 3\n", 2, "the line holds a control byte"},
        {"[relay]\nmode = wall\n", 2, "relay.mode = \"wall\": must be one of: wal, poll"},
        {"[relay]\nmode =\n", 2, "relay.mode = \"\": must be one of: wal, poll"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf wanted;
        const char *file = strstr(cases[i].error, "FILE");

        buf_init(&wanted, 4096);
        buf_add(&wanted, cases[i].error, file ? (size_t)(file - cases[i].error) : strlen(cases[i].error));
        if (file)
            buf_addf(&wanted, "%s%s", file_path, file + 4);
        assert_int_equal(load_text(cases[i].text), ST_CONFIG);
        assert_error(cases[i].line, buf_str(&wanted));
        buf_release(&wanted);
    }
}

static void test_nul_and_long_lines(void **state)
{
    static char text[10000];
    char wanted[200];
    size_t head = strlen("[pg]\ndsn = ");

    (void)state;
    write_file("[pg]\ndsn = a\0b\n", 16);
    assert_int_equal(load(&daemon_program, "--config", file_path, NULL), ST_CONFIG);
    assert_error(2, "the line holds a NUL byte: is this a text file?");

    /* A line as long as is allowed is read whole, without a newline at its end too. */
    memset(text, 'x', sizeof text);
    memcpy(text, "[pg]\ndsn = ", head);
    write_file(text, 5 + 4096);
    assert_int_equal(load(&daemon_program, "--config", file_path, NULL), ST_OK);
    assert_int_equal(strlen(got.dsn), 4096 - 6);
    text[5 + 4096] = '\n';
    write_file(text, 5 + 4096 + 1);
    assert_int_equal(load(&daemon_program, "--config", file_path, NULL), ST_OK);
    assert_int_equal(strlen(got.dsn), 4096 - 6);
    text[5 + 4096] = 'x';
    write_file(text, 5 + 4097);
    assert_int_equal(load(&daemon_program, "--config", file_path, NULL), ST_CONFIG);
    snprintf(wanted, sizeof wanted, "the line has 4097 bytes, more than 4096: use --set or the environment");
    assert_error(2, wanted);
}

static void test_unreadable_files(void **state)
{
    char wanted[300];

    (void)state;
    assert_int_equal(load(&daemon_program, "--config", "/nonexistent/x.ini", NULL), ST_CONFIG);
    snprintf(wanted, sizeof wanted, "cannot open /nonexistent/x.ini: %s", strerror(ENOENT));
    assert_error(0, wanted);
    assert_int_equal(load(&daemon_program, "--config", "/tmp", NULL), ST_CONFIG);
    snprintf(wanted, sizeof wanted, "cannot read /tmp: %s", strerror(EISDIR));
    assert_error(0, wanted);
    assert_int_equal(load(&daemon_program, "--config", "/dev/zero", NULL), ST_CONFIG);
    assert_error(0, "/dev/zero is larger than 1048576 bytes: is it the right file?");
}

static void test_values_that_only_look_odd_are_kept(void **state)
{
    (void)state;
    assert_int_equal(load_text("[pg]\ndsn = host=db;port=1 # not a comment = x: \"y\" [z]\n[kafka]\nssl.ca = C:\\x;y\n"
                               "  sasl.mechanism   =   PLAIN  \n"),
                     ST_OK);
    assert_string_equal(got.dsn, "host=db;port=1 # not a comment = x: \"y\" [z]");
    assert_string_equal(got.kafka.items[0].value, "C:\\x;y");
    assert_string_equal(got.kafka.items[1].key, "sasl.mechanism");
    assert_string_equal(got.kafka.items[1].value, "PLAIN");
    setenv("RELATA_PG_DSN", " a ;b ", 1);
    assert_int_equal(load(&daemon_program, NULL), ST_OK);
    assert_string_equal(got.dsn, " a ;b ");
}

/* ---- types ---- */

static void test_typed_values(void **state)
{
    static const struct {
        const char *set;
        const char *error; /* NULL = taken */
        int64_t value;
    } cases[] = {
        {"relay.batch=1", NULL, 1},
        {"relay.batch=1000", NULL, 1000},
        {"relay.batch=0", "must be from 1 to 1000 rows", 0},
        {"relay.batch=1001", "must be from 1 to 1000 rows", 0},
        {"relay.batch=-5", "must be from 1 to 1000 rows", 0},
        {"relay.batch=1.5", "must be a whole number", 0},
        {"relay.batch=0x10", "must be a whole number", 0},
        {"relay.batch= 5", "must be a whole number", 0},
        {"relay.batch=5 ", "must be a whole number", 0},
        {"relay.batch=+5", "must be a whole number", 0},
        {"relay.batch=-", "must be a whole number", 0},
        {"relay.batch=", "must be a whole number", 0},
        {"relay.batch=99999999999999999999", "must be a whole number", 0},
        {"pg.statement_timeout=250ms", NULL, 250},
        {"pg.statement_timeout=5 s", NULL, 5000},
        {"pg.statement_timeout=2min", NULL, 120000},
        {"pg.statement_timeout=1h", NULL, 3600000},
        {"pg.statement_timeout=9ms", "must be from 10ms to 1h", 0},
        {"pg.statement_timeout=7d", "must be from 10ms to 1h", 0},
        {"pg.statement_timeout=0", "must be from 10ms to 1h", 0},
        {"pg.statement_timeout=5", "must be a whole number and a unit: ms, s, min, h or d (250ms, 5s)", 0},
        {"pg.statement_timeout=5m", "must be a whole number and a unit: ms, s, min, h or d (250ms, 5s)", 0},
        {"pg.statement_timeout=1.5s", "must be a whole number and a unit: ms, s, min, h or d (250ms, 5s)", 0},
        {"pg.statement_timeout=-1s", "must be a whole number and a unit: ms, s, min, h or d (250ms, 5s)", 0},
        {"pg.statement_timeout=9223372036854775807d", "is too large", 0},
        {"relay.limit=0", NULL, 0},
        {"relay.limit=4096", NULL, 4096},
        {"relay.limit=64KiB", NULL, 65536},
        {"relay.limit=2GiB", NULL, 2147483648},
        {"relay.limit=1TiB", NULL, 1099511627776},
        {"relay.limit=10B", NULL, 10},
        {"relay.limit=8MB", "must be a whole number of bytes, or one with KiB, MiB, GiB or TiB (64KiB)", 0},
        {"relay.limit=8000000TiB", NULL, 8000000LL << 40},
        {"relay.limit=9999999999TiB", "is too large", 0},
        {"relay.tls=TRUE", NULL, 1},
        {"relay.tls=yes", NULL, 1},
        {"relay.tls=on", NULL, 1},
        {"relay.tls=1", NULL, 1},
        {"relay.tls=Off", NULL, 0},
        {"relay.tls=false", NULL, 0},
        {"relay.tls=no", NULL, 0},
        {"relay.tls=0", NULL, 0},
        {"relay.tls=maybe", "must be true or false", 0},
        {"relay.tls=2", "must be true or false", 0},
        {"relay.mode=poll", NULL, 1},
        {"relay.mode=Poll", "must be one of: wal, poll", 0},
        {"relay.mode=wal|poll", "must be one of: wal, poll", 0},
    };

    (void)state;
    setenv("RELATA_PG_DSN", "x", 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *equals = strchr(cases[i].set, '=');
        enum status st = load(&daemon_program, "--set", cases[i].set, NULL);
        char wanted[300];

        if (cases[i].error) {
            assert_int_equal(st, ST_CONFIG);
            snprintf(wanted, sizeof wanted, "--set: %.*s = \"%s\": %s", (int)(equals - cases[i].set), cases[i].set,
                     equals + 1, cases[i].error);
            assert_error(0, wanted);
            continue;
        }
        assert_int_equal(st, ST_OK);
        if (strncmp(cases[i].set, "relay.b", 7) == 0)
            assert_true(got.batch == cases[i].value);
        else if (strncmp(cases[i].set, "pg", 2) == 0)
            assert_true(got.timeout_ms == cases[i].value);
        else if (strncmp(cases[i].set, "relay.l", 7) == 0)
            assert_true(got.limit == cases[i].value);
        else if (strncmp(cases[i].set, "relay.t", 7) == 0)
            assert_int_equal(got.tls, cases[i].value);
        else
            assert_int_equal(got.mode, cases[i].value);
    }
}

static void test_checks_that_span_keys(void **state)
{
    (void)state;
    setenv("RELATA_PG_DSN", "x", 1);
    assert_int_equal(load(&daemon_program, "--set", "relay.mode=poll", "--set", "relay.batch=501", NULL), ST_CONFIG);
    assert_error(0, "relay.batch must be at most 500 with relay.mode = poll");
}

/* A refused value never shows a secret, nor a password in a URL. */
static void test_errors_keep_secrets(void **state)
{
    static const struct cfg_key numeric[] = {
        {"a", "n", CFG_INT, 0, "1", 0, 0, NULL, NULL, "a number"},
        {0},
    };
    static const struct cfg_program prog = {.name = "p", .summary = "s", .keys = numeric};
    char arg0[] = "p", arg1[] = "--set", arg2[] = "a.n=http://user:hush@host/";
    char *argv[] = {arg0, arg1, arg2, NULL};
    int64_t n = 0;

    (void)state;
    err = (struct err){0};
    assert_int_equal(config_load(&prog, 3, argv, &n, &action, &err), ST_CONFIG);
    assert_string_equal(err.text, "--set: a.n = \"http://user:***@host/\": must be a whole number");
}

/* ---- command line ---- */

static void test_refused_options(void **state)
{
    static const struct {
        const char *args[4];
        const char *error;
    } cases[] = {
        {{"--confg", "x"}, "unknown option --confg: did you mean --config?"},
        {{"--checkconfig"}, "unknown option --checkconfig: did you mean --check-config?"},
        {{"--something"}, "unknown option --something: see trial --help"},
        {{"-x"}, "unknown option -x: see trial --help"},
        {{"--pg.dsn=hush"}, "unknown option --pg.dsn: settings are given as --set section.key=value"},
        {{"--config"}, "--config needs a value: --config FILE"},
        {{"--config="}, "--config needs a value that is not empty"},
        {{"--set"}, "--set needs a value: --set section.key=value"},
        {{"--config=a", "--config", "b"}, "--config is given twice: a and b"},
        {{"--check-config=yes"}, "--check-config takes no value"},
        {{"--help=html"}, "--help=html: must be --help, --help=markdown, --help=metrics or --help=example"},
        {{"--set", "pgdsn=x"}, "--set pgdsn: must be section.key=value"},
        {{"--set", "pg.dsn"}, "--set pg.dsn: must be section.key=value"},
        {{"--set", ".dsn=x"}, "--set .dsn: must be section.key=value"},
        {{"--set", "pg.=x"}, "--set pg.: must be section.key=value"},
        {{"--set", "dsn=a.b"}, "--set dsn: must be section.key=value"},
        {{"--set", "log.levl=x"}, "--set: unknown key \"levl\" in section [log]: did you mean \"level\"?"},
        {{"extra"}, "unexpected argument \"extra\": trial takes options only, see --help"},
        {{"--", "--config"}, "unexpected argument \"--config\": trial takes options only, see --help"},
        {{"-"}, "unexpected argument \"-\": trial takes options only, see --help"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const *a = cases[i].args;

        assert_int_equal(load(&daemon_program, a[0], a[1], a[2], a[3], NULL), ST_CONFIG);
        assert_error(0, cases[i].error);
    }
}

static void assert_rest(const char *joined)
{
    struct buf b;

    buf_init(&b, 1000);
    for (int i = 0; i < rest.argc; i++)
        buf_addf(&b, "%s%s", i ? " " : "", rest.argv[i]);
    assert_string_equal(buf_str(&b), joined);
    assert_null(rest.argv[rest.argc]);
    buf_release(&b);
}

static void test_subcommands_get_the_rest(void **state)
{
    (void)state;
    setenv("RELATA_PG_DSN", "x", 1);
    assert_int_equal(load(&tool_program, NULL), ST_OK);
    assert_int_equal(rest.argc, 0);
    assert_int_equal(
        load(&tool_program, "--set", "log.level=debug", "lag", "--json", "--set=pg.dsn=y", "-v", "a", NULL), ST_OK);
    assert_rest("lag --json -v a");
    assert_string_equal(got.dsn, "y");
    assert_int_equal(got.log.level, 0);
    assert_int_equal(load(&tool_program, "trace", "--help", "--", "--set", "--config", NULL), ST_OK);
    assert_rest("trace --help -- --set --config");
    assert_int_equal(load(&tool_program, "--", "--set", "x", NULL), ST_OK);
    assert_rest("--set x");
    assert_int_equal(load(&tool_program, "--json", "lag", NULL), ST_CONFIG);
    assert_error(0, "unknown option --json: see tool --help");
}

/* ---- what is printed ---- */

static void test_version_help_and_check(void **state)
{
    const char *text;

    (void)state;
    capture();
    assert_int_equal(load(&daemon_program, "--version", NULL), ST_OK);
    assert_string_equal(captured(), "trial " RELATA_VERSION "\n");
    assert_int_equal(action, CFG_EXIT);

    capture();
    assert_int_equal(load(&tool_program, "-h", NULL), ST_OK);
    text = captured();
    assert_memory_equal(text, "tool - has subcommands\n\nUsage: tool [OPTION]... COMMAND [ARGUMENT]...\n", 70);
    assert_non_null(strstr(text,
                           "\n[relay]\n  mode = wal\n      how to read\n      (choice: wal, poll; "
                           "RELATA_RELAY_MODE)\n  batch = 100\n      rows at once\n      (number, 1 to 1000 rows; "
                           "RELATA_RELAY_BATCH)\n"));
    assert_non_null(strstr(text, "  dsn (required)\n      where the database is\n      (secret; RELATA_PG_DSN; or "
                                 "dsn_file)\n"));
    assert_non_null(strstr(text, "\nExit codes: 0, 2.\n"));
    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        assert_true(strcspn(line, "\n") <= 100);

    capture();
    assert_int_equal(load(&daemon_program, "--check-config", "--set", "pg.dsn=x", NULL), ST_OK);
    assert_string_equal(captured(), "configuration ok\n");
    assert_int_equal(action, CFG_EXIT);
    assert_null(got.dsn);
    capture();
    assert_int_equal(load(&daemon_program, "--check-config", NULL), ST_CONFIG);
    assert_string_equal(captured(), "");
}

static void test_reference(void **state)
{
    const char *text;

    (void)state;
    capture();
    assert_int_equal(load(&daemon_program, "--help=markdown", NULL), ST_OK);
    text = captured();
    assert_memory_equal(text, "## trial\n", 9);
    assert_non_null(strstr(text,
                           "\n### [relay]\n\n| key | type | default | environment | meaning |\n|---|---|---|---|---|\n"
                           "| `mode` | choice: wal, poll | `wal` | `RELATA_RELAY_MODE` | how to read |\n"));
    assert_non_null(strstr(text, "| `dsn` | secret | required | `RELATA_PG_DSN` | where the database is |\n"));
    assert_non_null(strstr(text, "| any name | passed through |  |  | librdkafka's |\n"));
    capture();
    assert_int_equal(load(&daemon_program, "--help=metrics", NULL), ST_OK);
    assert_string_equal(captured(), "## trial\n\n| metric |\n");
}

/* What is printed is a file that gives the same settings, but for secrets. */
static void test_print_config_reads_back(void **state)
{
    char *copy;

    (void)state;
    setenv("RELATA_PG_DSN", "password=hush", 1);
    setenv("RELATA_MY_STORE_NAME", "http://user:hush@host:1/x", 1);
    capture();
    assert_int_equal(load(&daemon_program, "--print-config", "--set", "relay.limit=64KiB", "--set",
                          "kafka.sasl.password=hush", "--set", "kafka.client.id=me", "--set", "kafka.odd=a ;b", NULL),
                     ST_OK);
    copy = strdup(captured());
    assert_non_null(copy);
    assert_int_equal(action, CFG_EXIT);
    assert_null(strstr(copy, "hush"));
    assert_non_null(strstr(copy, "[pg]\n# from RELATA_PG_DSN\ndsn = ***\nstatement_timeout = 5s\n"));
    assert_non_null(strstr(copy, "# from --set\nlimit = 64KiB\n"));
    assert_non_null(strstr(copy, "name = http://user:***@host:1/x\n"));
    assert_non_null(strstr(copy, "sasl.password = ***\n"));
    assert_non_null(strstr(copy, "# odd = a ;b\n"));
    assert_non_null(strstr(copy, "token =\n"));

    unsetenv("RELATA_PG_DSN");
    unsetenv("RELATA_MY_STORE_NAME");
    assert_int_equal(load_text(copy), ST_OK);
    assert_string_equal(got.dsn, "***");
    assert_int_equal(got.limit, 65536);
    assert_string_equal(got.kafka.items[1].key, "client.id");
    free(copy);
}

static int before_each(void **state)
{
    (void)state;
    for (char **e = environ; *e;) {
        char name[256];

        if (strncmp(*e, "RELATA_", 7) == 0 && strcspn(*e, "=") < sizeof name) {
            snprintf(name, sizeof name, "%.*s", (int)strcspn(*e, "="), *e);
            unsetenv(name);
            e = environ;
        } else {
            e++;
        }
    }
    return 0;
}

static int begin(void **state)
{
    int fd = mkstemp(file_path);

    (void)state;
    if (fd < 0)
        return -1;
    close(fd);
    return 0;
}

static int end(void **state)
{
    (void)state;
    config_release(&daemon_program, &got);
    config_release(&daemon_program, &got); /* again is harmless */
    buf_release(&printed);
    return unlink(file_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_defaults_and_required, before_each),
        cmocka_unit_test_setup(test_each_source_overrides_the_weaker, before_each),
        cmocka_unit_test_setup(test_environment_names, before_each),
        cmocka_unit_test_setup(test_secret_files, before_each),
        cmocka_unit_test_setup(test_refused_files, before_each),
        cmocka_unit_test_setup(test_nul_and_long_lines, before_each),
        cmocka_unit_test_setup(test_unreadable_files, before_each),
        cmocka_unit_test_setup(test_values_that_only_look_odd_are_kept, before_each),
        cmocka_unit_test_setup(test_typed_values, before_each),
        cmocka_unit_test_setup(test_checks_that_span_keys, before_each),
        cmocka_unit_test_setup(test_errors_keep_secrets, before_each),
        cmocka_unit_test_setup(test_refused_options, before_each),
        cmocka_unit_test_setup(test_subcommands_get_the_rest, before_each),
        cmocka_unit_test_setup(test_version_help_and_check, before_each),
        cmocka_unit_test_setup(test_reference, before_each),
        cmocka_unit_test_setup(test_print_config_reads_back, before_each),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
