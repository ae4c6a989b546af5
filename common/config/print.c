#include <string.h>

#include "common/config/internal.h"

/* Whether a file could hold this text as it is: the same traps as in file.c. */
static bool fits_file(const char *text)
{
    size_t len = strlen(text);

    if (len > CFG_LINE_MAX - 200 || text[0] == ' ' || (len > 0 && text[len - 1] == ' '))
        return false;
    if (strstr(text, " ;") || strstr(text, "\t;") || text[0] == ';' ||
        (len >= 2 && text[0] == '"' && text[len - 1] == '"'))
        return false;
    for (const char *p = text; *p; p++) {
        if ((unsigned char)*p < ' ' || *p == 0x7F)
            return false;
    }
    return true;
}

static void print_slot(const struct cfg_key *k, const struct cfg_slot *slot, struct buf *out)
{
    const char *name = slot->name ? slot->name : k->key;
    bool secret = (k->type == CFG_SECRET && !slot->from_path) || (slot->name && value_name_is_secret(slot->name));
    const char *text = slot->text ? slot->text : "";

    if (slot->where)
        buf_addf(out, "# from %s\n", slot->where);
    if (!secret && !fits_file(text))
        buf_adds(out, "# (cannot be written in a file: use --set or the environment)\n# ");
    buf_addf(out, "%s%s =%s", name, slot->from_path ? "_file" : "", *text ? " " : "");
    if (secret && *text)
        buf_adds(out, "***");
    else
        value_redact(text, out);
    buf_addc(out, '\n');
}

void print_settings(const struct cfg_loader *l, struct buf *out)
{
    const char *section = "";

    buf_addf(out, "# settings of %s %s\n", l->prog->name, RELATA_VERSION);
    for (size_t i = 0; i < l->nkeys; i++) {
        const struct cfg_key *k = &l->prog->keys[i];

        if (strcmp(section, k->section) != 0)
            buf_addf(out, "\n[%s]\n", k->section);
        section = k->section;
        if (k->type != CFG_MAP)
            print_slot(k, &l->slots[i], out);
        for (size_t m = l->nkeys; m < l->nslots; m++) {
            if (l->slots[m].key == i)
                print_slot(k, &l->slots[m], out);
        }
    }
}
