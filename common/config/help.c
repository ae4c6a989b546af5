#include <string.h>

#include "common/config/internal.h"

#define HELP_WIDTH 100

static const char *const options_text =
    "Options:\n"
    "  --config FILE            read settings from an INI file\n"
    "  --set SECTION.KEY=VALUE  give one setting; may be repeated\n"
    "  --check-config           check all settings, print \"configuration ok\" and exit\n"
    "  --print-config           print the settings in force as such a file (secrets as ***) and exit\n"
    "  --help, -h               print this; --help=markdown and --help=metrics print reference tables,\n"
    "                           --help=example prints a configuration file\n"
    "  --version                print the version\n";

/* Words of `text` in lines of at most HELP_WIDTH columns, each indented. */
static void add_wrapped(struct buf *out, const char *text, size_t indent)
{
    size_t column = 0;

    while (*text) {
        size_t len = strcspn(text, " ");

        if (column > 0 && column + 1 + len > HELP_WIDTH) {
            buf_addc(out, '\n');
            column = 0;
        }
        if (column == 0) {
            buf_addf(out, "%*s", (int)indent, "");
            column = indent;
        } else {
            buf_addc(out, ' ');
            column++;
        }
        buf_add(out, text, len);
        column += len;
        text += len;
        while (*text == ' ')
            text++;
    }
    buf_addc(out, '\n');
}

/* "number, 1 to 100 rows", "choice: wal, poll". */
static void add_type(struct buf *out, const struct cfg_key *k)
{
    size_t before;

    buf_adds(out, value_type_name(k->type));
    buf_adds(out, k->type == CFG_ENUM ? ": " : ", ");
    before = out->len;
    value_domain(k, out);
    if (out->len == before && k->type != CFG_ENUM)
        out->len = before - 2; /* nothing to say: take the comma back */
    if (out->data)
        out->data[out->len] = '\0';
    if (k->unit)
        buf_addf(out, " %s", k->unit);
}

/* "--type TYPE, ": the option that is short for a setting. */
static void add_short(struct buf *out, const struct cfg_program *prog, const struct cfg_key *k)
{
    for (const struct cfg_option *o = prog->options; o && o->name; o++) {
        if (strcmp(o->section, k->section) == 0 && strcmp(o->key, k->key) == 0)
            buf_addf(out, "%s%s%s; ", o->name, o->placeholder ? " " : "", o->placeholder ? o->placeholder : "");
    }
}

static void add_key(struct buf *out, const struct cfg_program *prog, const struct cfg_key *k)
{
    struct buf line;

    buf_init(&line, 4096);
    if (k->type == CFG_MAP) {
        buf_addf(out, "  NAME = VALUE\n");
        add_wrapped(out, k->help, 6);
        return;
    }
    buf_addf(out, "  %s", k->key);
    if (!k->preset)
        buf_adds(out, " (required)\n");
    else if (k->type == CFG_SECRET || *k->preset == '\0')
        buf_adds(out, " =\n");
    else
        buf_addf(out, " = %s\n", k->preset);
    add_wrapped(out, k->help, 6);
    buf_addc(&line, '(');
    add_short(&line, prog, k);
    add_type(&line, k);
    buf_adds(&line, "; ");
    names_env(&line, k->section, k->key);
    if (k->type == CFG_SECRET)
        buf_addf(&line, "; or %s_file", k->key);
    buf_addc(&line, ')');
    add_wrapped(out, buf_str(&line), 6);
    buf_release(&line);
}

void help_text(const struct cfg_program *prog, struct buf *out)
{
    const char *section = "";

    buf_addf(out, "%s - %s\n\nUsage: %s [OPTION]...", prog->name, prog->summary, prog->name);
    if (prog->takes_args)
        buf_addf(out, " %s", prog->usage ? prog->usage : "[ARGUMENT]...");
    buf_addf(out, "\n\n%s\n", options_text);
    buf_adds(out,
             "Settings. Each has a default, which the file overrides, which the environment overrides, which --set\n"
             "overrides. A secret may also be named by <key>_file: a path whose first line is the value.\n");
    for (const struct cfg_key *k = prog->keys; k->section; k++) {
        if (strcmp(section, k->section) != 0)
            buf_addf(out, "\n[%s]\n", k->section);
        section = k->section;
        add_key(out, prog, k);
    }
    if (prog->details)
        buf_addf(out, "\n%s%s", prog->details, prog->details[strlen(prog->details) - 1] == '\n' ? "" : "\n");
}

/* Words of `text` in comment lines. */
static void add_comment(struct buf *out, const char *text)
{
    struct buf wrapped;

    buf_init(&wrapped, 1 << 16);
    add_wrapped(&wrapped, text, 0);
    for (char *line = (char *)wrapped.data, *end; line && *line; line = end + 1) {
        end = strchr(line, '\n');
        *end = '\0';
        buf_addf(out, "# %s\n", line);
    }
    buf_release(&wrapped);
}

/* The samples for this key, or of the whole section for a map. False if there is none. */
static bool add_samples(struct buf *out, const struct cfg_program *prog, const struct cfg_key *k)
{
    bool any = false;

    for (const struct cfg_sample *s = prog->samples; s && s->section; s++) {
        if (strcmp(s->section, k->section) != 0 || (k->type != CFG_MAP && strcmp(s->key, k->key) != 0))
            continue;
        buf_addf(out, "%s = %s\n", s->key, s->value);
        any = true;
    }
    return any;
}

static void add_example(struct buf *out, const struct cfg_program *prog, const struct cfg_key *k)
{
    struct buf type;

    buf_init(&type, 4096);
    buf_addf(&type, "%s (", k->help);
    if (!k->preset)
        buf_adds(&type, k->type == CFG_MAP ? "any number of properties, " : "required; ");
    add_type(&type, k);
    if (k->type == CFG_SECRET)
        buf_addf(&type, ", or %s_file", k->key);
    buf_addc(&type, ')');
    add_comment(out, buf_str(&type));
    buf_release(&type);
    if (add_samples(out, prog, k))
        return;
    if (k->type == CFG_MAP)
        buf_adds(out, "#name = value\n");
    else
        buf_addf(out, "#%s =%s%s\n", k->key, k->preset && *k->preset ? " " : "", k->preset ? k->preset : "");
}

void config_example(const struct cfg_program *prog, struct buf *out)
{
    const char *section = "";

    buf_addf(out, "# %s --config FILE: every setting, at its default; take the \"#\" off to change one.\n", prog->name);
    if (prog->samples)
        buf_adds(out, "# Lines without \"#\" are what it does not start without: make them yours.\n");
    for (const struct cfg_key *k = prog->keys; k->section; k++) {
        if (strcmp(section, k->section) != 0)
            buf_addf(out, "\n[%s]\n", k->section);
        section = k->section;
        add_example(out, prog, k);
    }
}

/* Text for a cell of a Markdown table. */
static void add_cell(struct buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|' || *text == '<' || *text == '*' || *text == '_')
            buf_addc(out, '\\');
        buf_addc(out, *text == '\n' ? ' ' : *text);
    }
}

static void add_row(struct buf *out, const struct cfg_key *k)
{
    struct buf type;

    buf_init(&type, 4096);
    add_type(&type, k);
    if (k->type == CFG_MAP)
        buf_adds(out, "| any name | ");
    else
        buf_addf(out, "| `%s` | ", k->key);
    add_cell(out, buf_str(&type));
    buf_adds(out, " | ");
    if (k->type == CFG_MAP)
        buf_adds(out, " | ");
    else if (!k->preset)
        buf_adds(out, "required | `");
    else if (*k->preset)
        buf_addf(out, "`%s` | `", k->preset);
    else
        buf_adds(out, "empty | `");
    if (k->type != CFG_MAP) {
        names_env(out, k->section, k->key);
        buf_addc(out, '`');
    }
    buf_adds(out, " | ");
    add_cell(out, k->help);
    buf_adds(out, " |\n");
    buf_release(&type);
}

void config_reference(const struct cfg_program *prog, struct buf *out)
{
    const char *section = "";
    size_t len = strlen(prog->summary);

    buf_addf(out, "## %s\n\n%s%s\n", prog->name, prog->summary, len > 0 && prog->summary[len - 1] == '.' ? "" : ".");
    for (const struct cfg_key *k = prog->keys; k->section; k++) {
        if (strcmp(section, k->section) != 0)
            buf_addf(out, "\n### [%s]\n\n| key | type | default | environment | meaning |\n|---|---|---|---|---|\n",
                     k->section);
        section = k->section;
        add_row(out, k);
    }
}
