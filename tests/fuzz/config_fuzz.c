/* Configuration: any bytes as the file, and as --set options (lines behind a line "--"). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/config/config.h"

#define SETS_MAX 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct settings {
    char *text, *secret;
    int64_t n, ms, bytes;
    bool b;
    int choice;
    struct cfg_map map;
};

static const struct cfg_key keys[] = {
    {"a", "text", CFG_STRING, offsetof(struct settings, text), "preset", 0, 0, NULL, NULL, "t"},
    {"a", "secret", CFG_SECRET, offsetof(struct settings, secret), "", 0, 0, NULL, NULL, "s"},
    {"a", "n", CFG_INT, offsetof(struct settings, n), "5", -10, 10, NULL, NULL, "n"},
    {"b", "ms", CFG_DURATION, offsetof(struct settings, ms), "1s", 0, 0, NULL, NULL, "d"},
    {"b", "bytes", CFG_SIZE, offsetof(struct settings, bytes), "1KiB", 0, 0, NULL, NULL, "z"},
    {"b", "b", CFG_BOOL, offsetof(struct settings, b), "no", 0, 0, NULL, NULL, "b"},
    {"b", "choice", CFG_ENUM, offsetof(struct settings, choice), "x", 0, 0, "x|y|zz", NULL, "c"},
    {"m", "*", CFG_MAP, offsetof(struct settings, map), NULL, 0, 0, NULL, NULL, "m"},
    {0},
};
static const struct cfg_program program = {.name = "fuzz", .summary = "f", .keys = keys};

static void check_settings(const struct settings *s)
{
    if (!s->text || !s->secret || s->n < -10 || s->n > 10 || s->ms < 0 || s->bytes < 0)
        abort();
    if (s->choice < 0 || s->choice > 2)
        abort();
    for (size_t i = 0; i < s->map.len; i++) {
        if (!s->map.items[i].key[0] || !s->map.items[i].value)
            abort();
    }
}

/* Splits what is behind "\n--\n" into lines, each a --set. The secret's file must not be chosen by the input. */
static int add_sets(char *text, char **argv, int argc)
{
    char *save = NULL;

    for (char *line = strtok_r(text, "\n", &save); line && argc < SETS_MAX * 2; line = strtok_r(NULL, "\n", &save)) {
        static char option[] = "--set";

        argv[argc++] = option;
        argv[argc++] = line;
    }
    return argc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char name[] = "fuzz", option[] = "--config";
    const uint8_t *cut = memmem(data, size, "\n--\n", 4);
    size_t file_len = cut ? (size_t)(cut - data) : size;
    char path[64], *argv[SETS_MAX * 2 + 8] = {name, option, path};
    char *sets = cut ? strndup((const char *)cut + 4, size - file_len - 4) : NULL;
    struct settings s = {0};
    enum cfg_action action;
    struct err err = {0};
    int argc = 3, fd = -1;

    if (memmem(data, size, "secret_file", 11))
        goto cleanup;
    fd = memfd_create("config", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, file_len) != (ssize_t)file_len || lseek(fd, 0, SEEK_SET) != 0)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (sets)
        argc = add_sets(sets, argv, argc);
    if (config_load(&program, argc, argv, &s, &action, &err) == ST_OK) {
        if (action != CFG_RUN)
            abort();
        check_settings(&s);
    } else if (!err.text[0] || strchr(err.text, '\n') || s.text || s.map.items) {
        abort();
    }
    config_release(&program, &s);
cleanup:
    if (fd >= 0)
        close(fd);
    free(sets);
    return 0;
}
