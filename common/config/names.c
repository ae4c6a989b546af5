#include <ctype.h>
#include <string.h>

#include "common/config/internal.h"

#define NAME_MAX_LEN 64

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;

    return m < c ? m : c;
}

/* Edits (insert, delete, replace, swap of neighbours) between two short names; a large number if one is long. */
static size_t distance(const char *a, const char *b)
{
    size_t la = strlen(a), lb = strlen(b);
    size_t d[NAME_MAX_LEN + 1][NAME_MAX_LEN + 1];

    if (la > NAME_MAX_LEN || lb > NAME_MAX_LEN)
        return NAME_MAX_LEN;
    for (size_t i = 0; i <= la; i++)
        d[i][0] = i;
    for (size_t j = 0; j <= lb; j++)
        d[0][j] = j;
    for (size_t i = 1; i <= la; i++) {
        for (size_t j = 1; j <= lb; j++) {
            size_t differs = tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[j - 1]);

            d[i][j] = min3(d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + differs);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < d[i][j])
                d[i][j] = d[i - 2][j - 2] + 1;
        }
    }
    return d[la][lb];
}

static size_t tolerance(const char *given)
{
    size_t len = strlen(given);

    return len <= 3 ? 1 : len <= 7 ? 2 : 3;
}

bool name_is_near(const char *given, const char *known)
{
    size_t d = distance(given, known);

    return d <= tolerance(given) && d < strlen(known);
}

const char *names_nearest_section(const struct cfg_program *prog, const char *given)
{
    const char *best = NULL;
    size_t best_d = SIZE_MAX;

    for (const struct cfg_key *k = prog->keys; k->section; k++) {
        size_t d = distance(given, k->section);

        if (name_is_near(given, k->section) && d < best_d) {
            best = k->section;
            best_d = d;
        }
    }
    return best;
}

const char *names_nearest_key(const struct cfg_program *prog, const char *section, const char *given)
{
    const char *best = NULL;
    size_t best_d = SIZE_MAX;

    for (const struct cfg_key *k = prog->keys; k->section; k++) {
        size_t d;

        if (strcmp(k->section, section) != 0 || k->type == CFG_MAP || !name_is_near(given, k->key))
            continue;
        d = distance(given, k->key);
        if (d < best_d) {
            best = k->key;
            best_d = d;
        }
    }
    return best;
}

bool names_section_known(const struct cfg_program *prog, const char *section)
{
    for (const struct cfg_key *k = prog->keys; k->section; k++) {
        if (strcmp(k->section, section) == 0)
            return true;
    }
    return false;
}

const struct cfg_key *names_map_of(const struct cfg_program *prog, const char *section)
{
    for (const struct cfg_key *k = prog->keys; k->section; k++) {
        if (k->type == CFG_MAP && strcmp(k->section, section) == 0)
            return k;
    }
    return NULL;
}

static void add_env_part(struct buf *out, const char *s)
{
    for (; *s; s++)
        buf_addc(out, *s == '-' || *s == '.' ? '_' : (char)toupper((unsigned char)*s));
}

void names_env(struct buf *out, const char *section, const char *key)
{
    buf_adds(out, "RELATA_");
    add_env_part(out, section);
    buf_addc(out, '_');
    if (key)
        add_env_part(out, key);
}

/* The section that has this very key, if it is not in the one where it was written. */
static const char *section_with_key(const struct cfg_program *prog, const char *given)
{
    for (const struct cfg_key *k = prog->keys; k->section; k++) {
        if (k->type != CFG_MAP && strcmp(k->key, given) == 0)
            return k->section;
    }
    return NULL;
}

void names_hint(struct buf *out, const struct cfg_program *prog, const char *section, const char *given)
{
    const char *near = names_nearest_key(prog, section, given);
    const char *elsewhere = section_with_key(prog, given);
    const char *comma = "";

    if (near) {
        buf_addf(out, ": did you mean \"%s\"?", near);
        return;
    }
    if (elsewhere) {
        buf_addf(out, ": did you mean section [%s]?", elsewhere);
        return;
    }
    buf_adds(out, ": known keys: ");
    for (const struct cfg_key *k = prog->keys; k->section; k++) {
        if (strcmp(k->section, section) == 0 && k->type != CFG_MAP) {
            buf_addf(out, "%s%s", comma, k->key);
            comma = ", ";
        }
    }
}
