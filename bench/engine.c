/*
 * bench-engine - the engine in process: memory, loading, checks on the deep Inari model, alone and beside a writer.
 *
 * No server. Prints one JSON object; times in microseconds.
 */
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/config/config.h"
#include "engine/engine.h"

struct settings {
    int scale, rounds;
    char *model;
};

static const struct cfg_key keys[] = {
    {"bench", "scale", CFG_INT, offsetof(struct settings, scale), "10", 1, 100000, NULL, NULL,
     "of the Inari inventory"},
    {"bench", "rounds", CFG_INT, offsetof(struct settings, rounds), "20000", 1, 100000000, NULL, NULL,
     "checks to measure"},
    {"bench", "model", CFG_STRING, offsetof(struct settings, model), "demo/model-deep.json", 0, 0, NULL, NULL,
     "file with the authorization model"},
    {0},
};
static const struct cfg_program program = {
    .name = "bench-engine",
    .summary = "measures the engine in process",
    .keys = keys,
};

struct bench {
    struct settings cfg;
    struct model *model;
    struct engine *engine;
    struct rules *rules;
    int instances;
    uint64_t rng;
    uint64_t tuples;
    enum engine_status st;
};

static unsigned dice(struct bench *b, unsigned n)
{
    b->rng ^= b->rng << 13;
    b->rng ^= b->rng >> 7;
    b->rng ^= b->rng << 17;
    return (unsigned)(b->rng >> 11) % n;
}

/* ---- the inventory ---- */

static struct engine_text text(const char *s)
{
    return (struct engine_text){s, strlen(s)};
}

static void put(struct bench *b, const char *object, const char *relation, const char *subject)
{
    struct engine_tuple t = {.object = text(object), .relation = text(relation), .subject = text(subject)};
    enum engine_status st = engine_load(b->engine, &t, 1);
    b->tuples++;
    if (st != ENGINE_OK)
        b->st = st;
}

static const char *const teams[] = {"admins", "platform", "network", "storage", "apps"};

#define NAME(var, ...)                                                                                                 \
    char var[96];                                                                                                      \
    snprintf(var, sizeof var, __VA_ARGS__)

static void put_organization(struct bench *b, int o)
{
    static const char *const granted[] = {"editor", "operator", "operator", "viewer", "viewer"};
    NAME(organization, "organization:org-%02d", o);
    NAME(prod, "tenant:org-%02d-prod", o);
    for (int p = 0; p < 26; p++) {
        NAME(user, "user:user-%d", o * 26 + p);
        NAME(team, "team:org-%02d-%s", o, teams[p < 2 ? 0 : 1 + (p - 2) / 6]);
        put(b, team, "member", user);
    }
    for (int t = 0; t < 5; t++) {
        NAME(members, "team:org-%02d-%s#member", o, teams[t]);
        put(b, t == 2 || t == 3 ? prod : organization, granted[t], members);
    }
    for (int t = 0; t < 2; t++) {
        NAME(tenant, "tenant:org-%02d-%s", o, t ? "test" : "prod");
        put(b, tenant, "parent", organization);
        for (int z = 0; z < 2; z++) {
            NAME(zone, "tenant_zone:org-%02d-%s-%s", o, t ? "test" : "prod", z ? "us" : "eu");
            put(b, zone, "parent", tenant);
        }
    }
}

static void load(struct bench *b)
{
    int clusters = 100 * b->cfg.scale, items = 25 * clusters;
    b->instances = 5000 * b->cfg.scale;
    for (int o = 0; o < 20; o++)
        put_organization(b, o);
    for (int c = 0; c < clusters; c++) {
        NAME(cluster, "cluster:%d", c);
        NAME(tenant, "tenant:org-%02d-%s", c / 2 % 20, c % 2 ? "test" : "prod");
        NAME(account, "cloud_account:%d", c);
        put(b, cluster, "parent", tenant);
        put(b, account, "parent", cluster);
    }
    for (int i = 0; i < items; i++) {
        NAME(item, "catalog_item:%d", i);
        NAME(account, "cloud_account:%d", i / 25);
        put(b, item, "parent", account);
    }
    for (int i = 0; i < b->instances; i++) {
        NAME(instance, "resource_instance:ri-%07d", i);
        NAME(item, "catalog_item:%d", i % items);
        NAME(owner, "team:org-%02d-%s#member", i % items / 25 / 2 % 20, teams[1 + i % 4]);
        put(b, instance, "parent", item);
        put(b, instance, "editor", owner);
    }
}

static long resident_kib(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long pages = 0;
    if (f) {
        if (fscanf(f, "%*s %ld", &pages) != 1)
            pages = 0;
        fclose(f);
    }
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* ---- measuring ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void percentiles(json_t *out, const char *name, double *us, size_t n)
{
    qsort(us, n, sizeof *us, by_value);
    json_object_set_new(out, name, json_pack("{s:f, s:f}", "p50", us[n / 2], "p99", us[n - 1 - (n - 1) / 100]));
}

struct ask {
    char user[32], objects[50][48];
    struct engine_check checks[50];
};

static void choose(struct bench *b, struct ask *a, int n)
{
    snprintf(a->user, sizeof a->user, "user:user-%u", dice(b, 520));
    for (int i = 0; i < n; i++) {
        snprintf(a->objects[i], sizeof a->objects[i], "resource_instance:ri-%07u", dice(b, (unsigned)b->instances));
        a->checks[i] =
            (struct engine_check){.subject = text(a->user), .relation = text("viewer"), .object = text(a->objects[i])};
    }
}

static double seconds_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void measure(struct bench *b, json_t *out, const char *name, int n, int rounds)
{
    struct engine_reader *r = engine_reader_new(b->engine);
    double *us = calloc((size_t)rounds, sizeof *us);
    struct ask *a = malloc(sizeof *a);
    for (int i = 0; r && us && a && i < rounds; i++) {
        choose(b, a, n);
        double began = seconds_now();
        engine_begin(r);
        enum engine_status st = engine_checks(r, b->rules, NULL, a->checks, (size_t)n);
        engine_end(r);
        us[i] = (seconds_now() - began) * 1e6;
        if (st != ENGINE_OK)
            b->st = st;
    }
    if (us)
        percentiles(out, name, us, (size_t)rounds);
    free(us);
    free(a);
    engine_reader_free(r);
}

/* 5,000 tuples a second in batches of 50: instances get another owner, and back. */
struct writer {
    struct bench *b;
    atomic_bool stop;
    uint64_t applied;
    double slowest_us;
};

static void *write_on(void *arg)
{
    struct writer *w = arg;
    double next = seconds_now();
    for (uint64_t batch = 0; !atomic_load(&w->stop); batch++) {
        struct engine_change c[50];
        char objects[50][48];
        for (int i = 0; i < 50; i++) {
            snprintf(objects[i], sizeof objects[i], "resource_instance:ri-%07u",
                     (unsigned)((batch / 2 * 50 + (unsigned)i) * 7919 % (unsigned)w->b->instances));
            c[i] = (struct engine_change){.tuple = {.object = text(objects[i]),
                                                    .relation = text("operator"),
                                                    .subject = text("team:org-03-apps#member")},
                                          .remove = batch % 2};
        }
        double began = seconds_now();
        enum engine_status st = engine_apply(w->b->engine, c, 50, engine_revision(w->b->engine) + 1);
        double us = (seconds_now() - began) * 1e6;
        if (st != ENGINE_OK)
            w->b->st = st;
        if (us > w->slowest_us)
            w->slowest_us = us;
        w->applied += 50;
        next += 0.01;
        if (next > seconds_now())
            usleep((useconds_t)((next - seconds_now()) * 1e6));
    }
    return NULL;
}

static void beside_writer(struct bench *b, json_t *out)
{
    struct writer w = {.b = b};
    pthread_t t;
    double began = seconds_now();
    if (pthread_create(&t, NULL, write_on, &w) != 0)
        return;
    measure(b, out, "check_while_writing_us", 1, b->cfg.rounds);
    atomic_store(&w.stop, true);
    pthread_join(t, NULL);
    json_object_set_new(out, "applied_per_second", json_real((double)w.applied / (seconds_now() - began)));
    json_object_set_new(out, "slowest_batch_us", json_real(w.slowest_us));
}

static bool read_model(struct bench *b)
{
    struct buf text_of_model;
    struct err err;
    struct model_err why;
    buf_init(&text_of_model, 4 << 20);
    bool ok = file_read(b->cfg.model, 4 << 20, &text_of_model, NULL, &err) == ST_OK;
    if (!ok)
        log_error(err.text, NULL);
    else if (!(ok = model_parse(&b->model, buf_str(&text_of_model), text_of_model.len, &why)))
        log_error(why.text, NULL);
    buf_release(&text_of_model);
    return ok;
}

static void run(struct bench *b, json_t *out)
{
    long before = resident_kib();
    double began = seconds_now();
    load(b);
    double collected = seconds_now();
    if (b->st == ENGINE_OK)
        b->st = engine_load_end(b->engine, 1);
    double loaded = seconds_now();
    struct engine_size size = engine_size(b->engine);
    b->rules = rules_new(b->engine, b->model);
    json_object_update_new(out, json_pack("{s:I, s:f, s:f, s:f, s:f}", "tuples", (json_int_t)size.tuples,
                                          "bytes_a_tuple", (double)size.bytes / (double)size.tuples, "resident_mib",
                                          (double)(resident_kib() - before) / 1024, "collect_seconds",
                                          collected - began, "load_end_seconds", loaded - collected));
    if (b->st != ENGINE_OK || !b->rules)
        return;
    measure(b, out, "warm_up", 1, 2000);
    measure(b, out, "check_us", 1, b->cfg.rounds);
    measure(b, out, "batch_of_50_us", 50, b->cfg.rounds / 10 + 1);
    beside_writer(b, out);
}

int main(int argc, char **argv)
{
    static struct bench b = {.rng = 88172645463325252u};
    struct err err = {0};
    enum cfg_action action;
    if (config_load(&program, argc, argv, &b.cfg, &action, &err) != ST_OK) {
        fprintf(stderr, "bench-engine: %s\n", err.text);
        return EXIT_USAGE;
    }
    log_init(program.name, LOG_LVL_WARN, LOG_FMT_LOGFMT);
    json_t *out = json_object();
    b.engine = engine_new();
    bool ok = action != CFG_RUN || (out && b.engine && read_model(&b));
    if (ok && action == CFG_RUN)
        run(&b, out);
    rules_free(b.rules);
    engine_free(b.engine);
    model_free(b.model);
    ok &= b.st == ENGINE_OK;
    if (ok && action == CFG_RUN) {
        json_dumpf(out, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(4));
        puts("");
    }
    json_decref(out);
    config_release(&program, &b.cfg);
    return ok ? EXIT_DONE : EXIT_FAILED;
}
