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
        print(line);
    }
    end = json_pack("{s:s, s:s, s:s, s:f}", "type", "summary", "state", o->state, "why", o->why, "seconds", o->seconds);
    (void)json_object_set_new(end, "counts", report_counts(o));
    (void)json_object_set_new(end, "sources", report_sources(o->comparison));
    print(end);
}

/* ---- Prometheus ---- */

static void metric(FILE *f, const char *name, const char *help, const struct settings *cfg, double v)
{
    (void)fprintf(f, "# HELP relata_audit_%s %s\n# TYPE relata_audit_%s gauge\nrelata_audit_%s{store=\"%s\"} %.15g\n",
                  name, help, name, name, cfg->store.name, v);
}

static void write_metrics(FILE *f, const struct settings *cfg, const struct outcome *o)
{
    const struct comparison *c = o->comparison;
    const struct findings *x = o->findings;
    int64_t n[CAUSES] = {0}, excess = 0;

    for (size_t i = 0; i < x->len; i++) {
        n[x->items[i].cause]++;
        excess += x->items[i].excess;
    }
    metric(f, "last_run_timestamp_seconds", "when the last audit ended", cfg, (double)time(NULL));
    metric(f, "complete", "1 if the last audit could be completed", cfg, strcmp(o->state, "incomplete") != 0);
    metric(f, "refused", "1 if a cap kept it from repairing", cfg, strcmp(o->state, "refused") == 0);
    metric(f, "duration_seconds", "how long it took", cfg, o->seconds);
    metric(f, "candidates", "differences between snapshots", cfg, (double)x->candidates);
    metric(f, "in_flight", "differences whose changes were still pending", cfg, (double)x->in_flight);
    metric(f, "excess", "findings by which somebody may do what nobody granted", cfg, (double)excess);
    metric(f, "repaired", "findings whose repair was enqueued", cfg, (double)o->repairs->done);
    metric(f, "repairs_failed", "findings whose repair was asked for and not enqueued", cfg,
           o->repair ? (double)(o->repairs->wanted - o->repairs->done) : 0);
    (void)fprintf(f, "# HELP relata_audit_findings confirmed differences\n# TYPE relata_audit_findings gauge\n");
    for (int i = 0; i < CAUSES; i++)
        (void)fprintf(f, "relata_audit_findings{store=\"%s\",cause=\"%s\"} %lld\n", cfg->store.name,
                      cause_name((enum cause)i), (long long)n[i]);
    (void)fprintf(f,
                  "# HELP relata_audit_tuples tuples that are judged\n# TYPE relata_audit_tuples gauge\n"
                  "relata_audit_tuples{store=\"%s\",side=\"expected\"} %lld\n"
                  "relata_audit_tuples{store=\"%s\",side=\"ledger\"} %lld\n"
                  "relata_audit_tuples{store=\"%s\",side=\"observed\"} %lld\n",
                  cfg->store.name, (long long)c->expected, cfg->store.name, (long long)c->ledger, cfg->store.name,
                  (long long)c->observed);
}

enum status report_textfile(const struct settings *cfg, const struct outcome *o, struct err *err)
{
    struct buf temporary;
    FILE *f;
    bool fine;

    if (!*cfg->textfile)
        return ST_OK;
    buf_init(&temporary, 1 << 16);
    buf_addf(&temporary, "%s.new", cfg->textfile);
    f = fopen(buf_str(&temporary), "w");
    if (f)
        write_metrics(f, cfg, o);
    fine = f && !ferror(f);
    if (f && fclose(f) != 0)
        fine = false;
    fine = fine && rename(buf_str(&temporary), cfg->textfile) == 0;
    if (!fine) {
        (void)err_set(err, ST_CONFIG, NULL, "audit.textfile: %s cannot be written: %s", cfg->textfile, strerror(errno));
        (void)unlink(buf_str(&temporary));
    }
    buf_release(&temporary);
    return fine ? ST_OK : ST_CONFIG;
}
