/* machine.c - an audit for programs: JSON lines, and a text file for Prometheus' node exporter. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "drift-checker/report/report.h"

json_t *report_sources(const struct comparison *c)
{
    json_t *v = json_object();

    for (size_t i = 0; i < c->sources.len; i++)
        (void)json_object_set_new(v, c->sources.items[i].name, json_integer(c->sources.items[i].tuples));
    return v;
}

static void put(json_t *v, const char *name, int64_t n)
{
    (void)json_object_set_new(v, name, json_integer(n));
}

json_t *report_counts(const struct outcome *o)
{
    const struct comparison *c = o->comparison;
    const struct findings *f = o->findings;
    json_t *v = json_object(), *causes = json_object(), *pairs = json_array();
    int64_t n[CAUSES] = {0}, excess = 0;

    put(v, "expected", c->expected);
    put(v, "ledger", c->ledger);
    put(v, "observed", c->observed);
    put(v, "not_owned_ledger", c->not_owned_ledger);
    put(v, "not_owned_observed", c->not_owned_observed);
    put(v, "skipped_ledger", c->skipped_ledger);
    put(v, "skipped_observed", c->skipped_observed);
    put(v, "unresolvable", c->unresolvable);
    put(v, "buckets_differ", c->buckets_differ);
    put(v, "streamed", c->streamed);
    put(v, "candidates", f->candidates);
    put(v, "in_flight", f->in_flight);
    put(v, "vanished", f->vanished);
    put(v, "confirmed", (int64_t)f->len);
    put(v, "repairs_wanted", o->repair ? o->repairs->wanted : 0);
    put(v, "repaired", o->repairs->done);
    for (size_t i = 0; i < f->len; i++) {
        n[f->items[i].cause]++;
        excess += f->items[i].excess;
    }
    for (int i = 0; i < CAUSES; i++)
        put(causes, cause_name((enum cause)i), n[i]);
    put(v, "excess", excess);
    (void)json_object_set_new(v, "causes", causes);
    for (char **p = c->known_pairs; p && *p; p++)
        (void)json_array_append_new(pairs, json_string(*p));
    (void)json_object_set_new(v, "expected_pairs", pairs);
    return v;
}

static void print(json_t *line)
{
    (void)json_dumpf(line, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER);
    (void)putchar('\n');
    json_decref(line);
}

static json_t *condition_json(const struct holding *h)
{
    json_t *v = json_pack("{s:b}", "present", h->present);

    if (h->condition)
        (void)json_object_set_new(v, "condition", json_string(h->condition));
    return v;
}

void report_repair(const struct finding *f, struct buf *out)
{
    const char *at = f->key->object;

    buf_adds(out, "drift-checker --repair --object ");
    if (at[strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_:./@+=,-")] == '\0') {
        buf_adds(out, at);
        return;
    }
    buf_addc(out, '\'');
    for (; *at; at++) {
        if (*at == '\'')
            buf_adds(out, "'\\''");
        else
            buf_addc(out, *at);
    }
    buf_addc(out, '\'');
}

static json_t *repair_json(const struct finding *f)
{
    struct buf command;
    json_t *v;

    buf_init(&command, 1 << 12);
    report_repair(f, &command);
    v = json_string(buf_str(&command));
    buf_release(&command);
    return v;
}

void report_json(const struct settings *cfg, const struct outcome *o)
{
    const struct findings *f = o->findings;
    json_t *end;

    print(json_pack("{s:s, s:I, s:s, s:s, s:s, s:s, s:s, s:b}", "type", "run", "run", (json_int_t)o->run->id, "store",
                    cfg->store.name, "store_id", o->run->store_id, "model_id", o->run->model_id, "scope", o->run->scope,
                    "started_at", o->run->started_at, "by_tuple", o->comparison->by_tuple));
    for (size_t i = 0; i < f->len; i++) {
        const struct finding *x = &f->items[i];
        json_t *line = json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:s, s:s, s:b}", "type", "finding", "cause",
                                 cause_name(x->cause), "object", x->key->object, "relation", x->key->relation,
                                 "subject", x->key->subject, "excess", x->excess, "action", action_name(x->action),
                                 "first_seen", x->first_seen, "repaired", x->repaired);

        if (x->judged_expected)
            (void)json_object_set_new(line, "expected", condition_json(&x->expected));
        (void)json_object_set_new(line, "ledger", condition_json(&x->ledger));
        (void)json_object_set_new(line, "observed", condition_json(&x->observed));
        if (x->reason)
            (void)json_object_set_new(line, "reason", json_string(x->reason));
        if (x->repaired)
            (void)json_object_set_new(line, "token", json_string(x->token));
        else if (x->action != ACTION_NONE)
            (void)json_object_set_new(line, "repair", repair_json(x));
        print(line);
    }
    end = json_pack("{s:s, s:s, s:s, s:f}", "type", "summary", "state", o->state, "why", o->why, "seconds", o->seconds);
    (void)json_object_set_new(end, "counts", report_counts(o));
    (void)json_object_set_new(end, "sources", report_sources(o->comparison));
    print(end);
}

/* ---- Prometheus ---- */

/* A label's value, as Prometheus wants it. */
static const char *label(const char *text, struct buf *out)
{
    for (; *text; text++) {
        if (*text == '\n')
            buf_adds(out, "\\n");
        else
            buf_addf(out, "%s%c", *text == '"' || *text == '\\' ? "\\" : "", *text);
    }
    return buf_str(out);
}

static void family(FILE *f, const char *name, const char *help)
{
    (void)fprintf(f, "# HELP relata_audit_%s %s\n# TYPE relata_audit_%s gauge\n", name, help, name);
}

static void metric(FILE *f, const char *name, const char *help, const char *store, double v)
{
    family(f, name, help);
    (void)fprintf(f, "relata_audit_%s{store=\"%s\"} %.15g\n", name, store, v);
}

static void write_metrics(FILE *f, const char *store, const struct outcome *o)
{
    const struct findings *x = o->findings;
    const struct {
        const char *name;
        int64_t n;
    } sides[] = {{"expected", o->comparison->expected},
                 {"ledger", o->comparison->ledger},
                 {"observed", o->comparison->observed}};
    int64_t n[CAUSES] = {0}, excess = 0;

    metric(f, "last_run_timestamp_seconds", "When the last audit ended.", store, (double)time(NULL));
    metric(f, "complete", "1 if the last audit could be completed.", store, strcmp(o->state, "incomplete") != 0);
    metric(f, "refused", "1 if a cap, or what moved, kept it from repairing.", store, strcmp(o->state, "refused") == 0);
    metric(f, "duration_seconds", "How long it took.", store, o->seconds);
    if (strcmp(o->state, "incomplete") == 0)
        return; /* no number is better than one that looks like all is well */
    for (size_t i = 0; i < x->len; i++) {
        n[x->items[i].cause]++;
        excess += x->items[i].excess;
    }
    metric(f, "candidates", "Differences between the snapshots.", store, (double)x->candidates);
    metric(f, "in_flight", "Differences whose changes were still pending.", store, (double)x->in_flight);
    metric(f, "excess", "Findings by which somebody may do what nobody granted.", store, (double)excess);
    metric(f, "repaired", "Findings whose repair was enqueued.", store, (double)o->repairs->done);
    metric(f, "repairs_failed", "Findings whose repair was asked for and not enqueued.", store,
           o->repair ? (double)(o->repairs->wanted - o->repairs->done) : 0);
    family(f, "findings", "Confirmed differences.");
    for (int i = 0; i < CAUSES; i++)
        (void)fprintf(f, "relata_audit_findings{store=\"%s\",cause=\"%s\"} %lld\n", store, cause_name((enum cause)i),
                      (long long)n[i]);
    family(f, "tuples", "Tuples that are judged.");
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        (void)fprintf(f, "relata_audit_tuples{store=\"%s\",side=\"%s\"} %lld\n", store, sides[i].name,
                      (long long)sides[i].n);
}

enum status report_textfile(const struct settings *cfg, const struct outcome *o, struct err *err)
{
    struct buf temporary, store;
    FILE *f;
    bool fine;

    if (!*cfg->textfile)
        return ST_OK;
    buf_init(&temporary, 1 << 16);
    buf_addf(&temporary, "%s.new", cfg->textfile);
    f = fopen(buf_str(&temporary), "w");
    buf_init(&store, 1 << 12);
    if (f)
        write_metrics(f, label(cfg->store.name, &store), o);
    fine = f && !ferror(f);
    if (f && fclose(f) != 0)
        fine = false;
    fine = fine && rename(buf_str(&temporary), cfg->textfile) == 0;
    if (!fine) {
        (void)err_set(err, ST_CONFIG, NULL, "audit.textfile: %s cannot be written: %s", cfg->textfile, strerror(errno));
        (void)unlink(buf_str(&temporary));
    }
    buf_release(&temporary);
    buf_release(&store);
    return fine ? ST_OK : ST_CONFIG;
}
