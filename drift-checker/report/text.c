/* text.c - an audit for people. */
#include <stdio.h>
#include <string.h>

#include "common/cli/progress.h"
#include "common/pg/pg.h"
#include "drift-checker/report/report.h"

#define SHOWN 50

static const char *grouped(int64_t n, char out[static 32])
{
    char digits[32];
    size_t len, at = 0;

    (void)snprintf(digits, sizeof digits, "%lld", (long long)n);
    len = strlen(digits);
    for (size_t i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0 && digits[i - 1] != '-')
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

static void line(const char *name, int64_t n, const char *unit, const char *rest)
{
    char text[32];

    (void)printf("  %-10s %12s %s%s\n", name, grouped(n, text), unit, rest);
}

static void print_sides(const struct settings *cfg, const struct comparison *c)
{
    char a[32], b[32], rest[128];
    int64_t nulls = 0;

    for (size_t i = 0; i < c->sources.len; i++)
        nulls += c->sources.items[i].nulls;
    (void)snprintf(rest, sizeof rest, ", from %zu source%s", c->sources.len, c->sources.len == 1 ? "" : "s");
    /* Two rows can stand for one tuple; only a merge tells. */
    line("expected", c->expected, c->buckets ? "rows" : "tuples",
         c->sources.len ? rest : ": no source says what is expected");
    line("ledger", c->ledger, "tuples", "");
    line("store", c->observed, "tuples",
         c->pages   ? ", read by its API"
         : c->authz ? ", read from authz-store's table"
                    : ", read from OpenFGA's table");
    if (c->not_owned_ledger || c->not_owned_observed)
        (void)printf(
            "  not judged: pairs that this database does not own have %s tuples in the ledger, %s in the store\n",
            grouped(c->not_owned_ledger, a), grouped(c->not_owned_observed, b));
    if (*cfg->skip)
        (void)printf("  skipped (audit.skip = %s): %s tuples in the ledger, %s in the store\n", cfg->skip,
                     grouped(c->skipped_ledger, a), grouped(c->skipped_observed, b));
    if (c->unresolvable)
        (void)printf("  unresolvable: %s objects, of which a source has rows without object, relation or subject (%s); "
                     "nothing of theirs is called an orphan\n",
                     grouped(c->unresolvable, a), grouped(nulls, b));
    if (c->buckets)
        (void)printf("  compared by sums of %s buckets, %s differed; %s rows were read and merged\n",
                     grouped(c->buckets, a), grouped(c->buckets_differ, b), grouped(c->streamed, rest));
}

/* Other people's text: control bytes would be taken by the terminal. */
static void put(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        (void)putchar((unsigned char)text[i] < ' ' || text[i] == 127 ? '?' : text[i]);
}

static void puts_safe(const char *text)
{
    put(text, strlen(text));
}

/* "user:anne", "everybody in team:x#member", "every user". */
static void print_who(const char *subject)
{
    const char *colon = strchr(subject, ':');

    if (strchr(subject, '#'))
        (void)printf("everybody in ");
    if (colon && strcmp(colon, ":*") == 0) {
        (void)printf("every ");
        put(subject, (size_t)(colon - subject));
    } else {
        puts_safe(subject);
    }
}

static const char *condition_or(const struct holding *h)
{
    return h->condition ? h->condition : h->present ? "no condition" : "no such tuple";
}

static void print_finding(const struct finding *f)
{
    const char *verb = f->excess ? "can be" : f->deletes ? "is" : "should be";
    struct buf command;

    (void)printf("  ");
    print_who(f->key->subject);
    (void)printf(" %s ", verb);
    puts_safe(f->key->relation);
    (void)printf(" of ");
    puts_safe(f->key->object);
    (void)printf(": ");
    switch (f->cause) {
    case CAUSE_NEVER_EMITTED:
        (void)printf("the inventory says so, and no change ever did");
        break;
    case CAUSE_LOST:
        (void)printf("the ledger says so, and the store does not have it");
        break;
    case CAUSE_PARKED:
        (void)printf("its change is parked: ");
        puts_safe(f->reason ? f->reason : "");
        break;
    case CAUSE_OUT_OF_BAND:
        (void)printf("the store has it, and the ledger does not");
        break;
    case CAUSE_ORPHAN:
        (void)printf("%s, and nothing in the inventory stands for it",
                     f->observed.present ? "ledger and store have it" : "the ledger has it");
        break;
    case CAUSE_CONDITION_MISMATCH:
        (void)printf("%s%s%sledger %s, store %s", f->judged_expected ? "expected " : "",
                     f->judged_expected ? condition_or(&f->expected) : "", f->judged_expected ? ", " : "",
                     condition_or(&f->ledger), condition_or(&f->observed));
        if (f->ledger.condition && f->observed.condition && strcmp(f->ledger.condition, f->observed.condition) == 0)
            (void)printf(": their parameters are not the same");
        break;
    case CAUSE_INVALID_IN_MODEL:
    default:
        (void)printf("the model in force knows no such tuple; checks ignore it");
        break;
    }
    (void)printf("\n      %s, first seen %s%s%s\n", cause_name(f->cause), f->first_seen,
                 f->repaired ? "; repaired, token " : "", f->repaired ? f->token : "");
    if (f->repaired)
        return;
    if (f->action == ACTION_NONE) {
        (void)printf("      no repair: %s\n", f->expected.present
                                                  ? "the inventory stands for it; either it is wrong or the model is"
                                                  : "its change is parked; another model may allow it");
        return;
    }
    buf_init(&command, 1 << 12);
    report_repair(f, &command);
    (void)printf("      repair: ");
    puts_safe(buf_str(&command));
    (void)putchar('\n');
    buf_release(&command);
}

static void print_findings(const struct findings *f, bool excess, const char *title)
{
    size_t n = 0, shown = 0;

    for (size_t i = 0; i < f->len; i++)
        n += f->items[i].excess == excess;
    if (!n)
        return;
    (void)printf("\n%s (%zu)\n", title, n);
    for (size_t i = 0; i < f->len && shown < SHOWN; i++) {
        if (f->items[i].excess == excess) {
            print_finding(&f->items[i]);
            shown++;
        }
    }
    if (n > shown)
        (void)printf("  and %zu more: --json, or table relata.audit_finding\n", n - shown);
}

static void print_renamed(const struct pg_result *r)
{
    for (int i = 0; r && i < pg_rows(r); i++) {
        if (i == 0)
            (void)printf("\nRenamed, it seems: what one object has too many is what another lacks\n");
        (void)printf("  %s -> %s (%s tuples)\n", pg_text(r, i, 0), pg_text(r, i, 1), pg_text(r, i, 2));
    }
}

static void print_end(const struct outcome *o)
{
    const struct findings *f = o->findings;
    char a[32], b[32], c[32], d[32];

    (void)printf("\ncandidates %s, in flight %s, agreed on a second look %s, confirmed %s", grouped(f->candidates, a),
                 grouped(f->in_flight, b), grouped(f->vanished, c), grouped((int64_t)f->len, d));
    if (o->repair)
        (void)printf(", repaired %s, failed %s", grouped(o->repairs->done, a),
                     grouped(o->repairs->wanted - o->repairs->done, b));
    (void)printf("\n%s%s: run %lld, %.1f s\n", o->state, o->repair && o->repairs->done ? ", repaired" : "",
                 (long long)o->run->id, o->seconds);
    if (*o->why)
        (void)printf("%s\n", o->why);
}

void report_text(const struct settings *cfg, const struct outcome *o, const struct pg_result *renamed)
{
    (void)printf("Audit of store \"%s\" (%s, model %s), %s%s, begun %s\n", cfg->store.name, o->run->store_id,
                 o->run->model_id, *o->run->scope ? o->run->scope : "everything",
                 o->comparison->by_tuple ? ", tuple by tuple" : "", o->run->started_at);
    print_sides(cfg, o->comparison);
    print_findings(o->findings, true, "ACCESS THAT SHOULD NOT BE");
    print_findings(o->findings, false, "Access that is missing, and what else differs");
    if (o->findings->more)
        (void)printf("  and more: only audit.max_findings (%lld) differences were followed up\n",
                     (long long)cfg->max_findings);
    print_renamed(renamed);
    print_end(o);
}

/* ---- how far it is ---- */

static struct progress progress;

void report_progress(void *settings, const char *what, int64_t done, int64_t total)
{
    const struct settings *cfg = settings;

    if (!cfg->progress)
        return;
    if (!progress.what || strcmp(progress.what, what) != 0 || progress.total != total) {
        progress_end(&progress);
        progress_start(&progress, what, "tuples", total, 0);
        if (progress.terminal) /* it may take a while until there is anything to count */
            (void)fprintf(stderr, "\r%s ..\033[K", what);
    }
    progress_set(&progress, done);
}

void report_progress_end(void)
{
    if (progress.what && progress.terminal && !progress.done && !progress.total)
        (void)fprintf(stderr, "\r\033[K");
    progress_end(&progress);
}
