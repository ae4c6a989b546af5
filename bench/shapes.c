/*
 * bench-shapes - how the cost of decisions in process grows: with depth, with fan-out, with the size of the store; and
 * the data of a drive with agents (workload W4) at medium size.
 *
 * No server. Prints one JSON object; times in microseconds.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/config/config.h"
#include "engine/engine.h"

struct settings {
    int files, rounds;
};

static const struct cfg_key keys[] = {
    {"bench", "files", CFG_INT, offsetof(struct settings, files), "1000000", 1000, 100000000, NULL, NULL,
     "in the largest tree of folders; a tenth and a hundredth are measured too"},
    {"bench", "rounds", CFG_INT, offsetof(struct settings, rounds), "20000", 100, 100000000, NULL, NULL,
     "decisions of each kind"},
    {0},
};
static const struct cfg_program program = {
    .name = "bench-shapes",
    .summary = "measures how decisions in process grow with what they rest on",
    .keys = keys,
};

#define OF(types) "{\"directly_related_user_types\":[" types "]}"
#define T(type) "{\"type\":\"" type "\"}"
#define ALL(type) "{\"type\":\"" type "\",\"wildcard\":{}}"
#define US(type, relation) "{\"type\":\"" type "\",\"relation\":\"" relation "\"}"
#define COMPUTED(relation) "{\"computedUserset\":{\"relation\":\"" relation "\"}}"
#define FROM(relation)                                                                                                 \
    "{\"tupleToUserset\":{\"tupleset\":{\"relation\":\"parent\"},\"computedUserset\":{\"relation\":\"" relation "\"}}" \
    "}"
#define UNION(...) "{\"union\":{\"child\":[{\"this\":{}}," __VA_ARGS__ "]}}"
#define WHO T("user") "," US("group", "member")

/* Groups in groups; folders whose editors and viewers carry down; documents with owners, and blocked users. */
/* clang-format off */
static const char drive[] =
    "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},"

    "{\"type\":\"group\",\"relations\":{\"member\":{\"this\":{}}},\"metadata\":{\"relations\":{"
    "\"member\":" OF(WHO) "}}},"

    "{\"type\":\"folder\",\"relations\":{\"parent\":{\"this\":{}},"
    "\"editor\":" UNION(FROM("editor")) ","
    "\"viewer\":" UNION(COMPUTED("editor") "," FROM("viewer"))
    "},\"metadata\":{\"relations\":{"
    "\"parent\":" OF(T("folder")) ",\"editor\":" OF(WHO) ",\"viewer\":" OF(WHO "," ALL("user")) "}}},"

    "{\"type\":\"document\",\"relations\":{"
    "\"parent\":{\"this\":{}},\"owner\":{\"this\":{}},\"blocked\":{\"this\":{}},"
    "\"editor\":" UNION(COMPUTED("owner") "," FROM("editor")) ","
    "\"viewer\":{\"difference\":{"
    "\"base\":" UNION(COMPUTED("editor") "," FROM("viewer")) ",\"subtract\":" COMPUTED("blocked") "}}"
    "},\"metadata\":{\"relations\":{"
    "\"parent\":" OF(T("folder")) ",\"owner\":" OF(T("user")) ",\"blocked\":" OF(T("user")) ","
    "\"editor\":" OF(WHO) ",\"viewer\":" OF(WHO "," ALL("user")) "}}}]}";
/* clang-format on */

/* ---- a store ---- */

struct store {
    struct model *model;
    struct engine *engine;
    struct rules *rules;
    struct engine_reader *reader;
    uint64_t rng;
};

static struct engine_text text(const char *s)
{
    return (struct engine_text){s, strlen(s)};
}

static unsigned dice(struct store *s, unsigned n)
{
    s->rng ^= s->rng << 13;
    s->rng ^= s->rng >> 7;
    s->rng ^= s->rng << 17;
    return (unsigned)(s->rng >> 11) % n;
}

static bool require(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "bench-shapes: %s\n", what);
        exit(EXIT_FAILED);
    }
    return ok;
}

static void begin_store(struct store *s)
{
    struct model_err err;
    *s = (struct store){.rng = 88172645463325252u, .engine = engine_new()};
    require(model_parse(&s->model, drive, strlen(drive), &err), "the model is refused");
    require(s->engine != NULL, "no memory");
}

static void put(struct store *s, const char *object, const char *relation, const char *subject)
{
    struct engine_tuple t = {.object = text(object), .relation = text(relation), .subject = text(subject)};
    require(engine_load(s->engine, &t, 1) == ENGINE_OK, "no memory");
}

static void loaded(struct store *s)
{
    require(engine_load_end(s->engine, 1) == ENGINE_OK, "no memory");
    s->rules = rules_new(s->engine, s->model);
    s->reader = engine_reader_new(s->engine);
    require(s->rules && s->reader, "no memory");
}

static void end_store(struct store *s)
{
    engine_reader_free(s->reader);
    rules_free(s->rules);
    engine_free(s->engine);
    model_free(s->model);
}

#define NAME(var, ...)                                                                                                 \
    char var[64];                                                                                                      \
    snprintf(var, sizeof var, __VA_ARGS__)

/* ---- measuring ---- */

static double now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static json_t *percentiles(double *us, size_t n)
{
    qsort(us, n, sizeof *us, by_value);
    return json_pack("{s:f, s:f}", "p50", us[n / 2], "p99", us[n - 1 - (n - 1) / 100]);
}

/* What is asked in a round: fills the names. */
struct question {
    char object[64], subject[64];
};
typedef void ask(struct store *s, struct question *q);

/* Checks of one relation; `want`: what each must say, -1 for either. */
static json_t *checks(struct store *s, int rounds, const char *relation, ask *next, int want)
{
    double *us = calloc((size_t)rounds + 1, sizeof *us);
    require(us != NULL, "no memory");
    for (int i = -rounds / 10; i < rounds; i++) {
        struct question q;
        next(s, &q);
        struct engine_check c = {.subject = text(q.subject), .relation = text(relation), .object = text(q.object)};
        double began = now_us();
        engine_begin(s->reader);
        engine_checks(s->reader, s->rules, NULL, &c, 1);
        engine_end(s->reader);
        if (i >= 0)
            us[i] = now_us() - began;
        require(c.status == ENGINE_OK && (want < 0 || c.allowed == (want > 0)), q.object);
    }
    json_t *out = percentiles(us, (size_t)rounds);
    free(us);
    return out;
}

static bool count(void *arg, struct engine_text name)
{
    (void)name;
    ++*(size_t *)arg;
    return true;
}

static json_t *lists(struct store *s, int rounds, bool users, size_t want)
{
    double *us = calloc((size_t)rounds + 1, sizeof *us);
    require(us != NULL, "no memory");
    for (int i = 0; i < rounds; i++) {
        size_t n = 0;
        double began = now_us();
        engine_begin(s->reader);
        enum engine_status st = users ? engine_list_users(s->reader, s->rules, NULL, text("document:busy"),
                                                          text("viewer"), text("user"), text(""), count, &n)
                                      : engine_list_objects(s->reader, s->rules, NULL, text("user:reader"),
                                                            text("viewer"), text("document"), count, &n);
        engine_end(s->reader);
        us[i] = now_us() - began;
        require(st == ENGINE_OK && n == want, "a list is not what it should be");
    }
    json_t *out = percentiles(us, (size_t)rounds);
    free(us);
    return out;
}

/* ---- W4, medium ---- */

enum { USERS = 10000, GROUPS = 1000, FOLDERS = 4000, DOCUMENTS = 30000 };

static void put_drive(struct store *s)
{
    for (int u = 0; u < USERS; u++) {
        NAME(group, "group:%d", u % GROUPS);
        NAME(user, "user:%d", u);
        put(s, group, "member", user);
    }
    /* Three deep: 900 groups in 90, those in 10. */
    for (int g = 10; g < GROUPS; g++) {
        NAME(above, "group:%d", g / 10);
        NAME(members, "group:%d#member", g);
        put(s, above, "member", members);
    }
    /* Four deep, eight in each. */
    for (int f = 0; f < FOLDERS; f++) {
        NAME(folder, "folder:%d", f);
        NAME(parent, "folder:%d", f / 8);
        NAME(members, "group:%d#member", (int)dice(s, GROUPS));
        if (f >= 8)
            put(s, folder, "parent", parent);
        put(s, folder, f % 4 ? "viewer" : "editor", members);
    }
    for (int d = 0; d < DOCUMENTS; d++) {
        NAME(document, "document:%d", d);
        NAME(folder, "folder:%d", d % FOLDERS);
        NAME(owner, "user:%d", d % USERS);
        NAME(viewer, "user:%u", dice(s, USERS));
        put(s, document, "parent", folder);
        put(s, document, "owner", owner);
        put(s, document, "viewer", viewer);
        if (d % 10 == 0) {
            NAME(blocked, "user:%d", (d + 1) % USERS);
            put(s, document, "blocked", blocked);
            put(s, document, "viewer", blocked);
        }
        if (d % 100 == 5)
            put(s, document, "viewer", "user:*");
    }
    /* With the 300 that are for all, 1,000 for one reader. */
    for (int d = 0; d < 700; d++) {
        NAME(document, "document:shelf-%d", d);
        put(s, document, "parent", "folder:shelf");
    }
    put(s, "folder:shelf", "viewer", "user:reader");
    put(s, "document:deep-0", "viewer", "group:5#member");
    put(s, "document:busy", "owner", "user:0");
    for (int u = 1; u < 186; u++) {
        NAME(user, "user:%d", u);
        put(s, "group:busy", "member", user);
    }
    put(s, "document:busy", "viewer", "group:busy#member");
}

static void say(struct question *q, const char *object, unsigned o, const char *subject, unsigned u)
{
    snprintf(q->object, sizeof q->object, "%s%u", object, o);
    snprintf(q->subject, sizeof q->subject, "%s%u", subject, u);
}

static void owner(struct store *s, struct question *q)
{
    unsigned d = dice(s, DOCUMENTS);
    say(q, "document:", d, "user:", d % USERS);
}

/* group:5 holds group:50, that holds group:500, that holds user:500. */
static void groups(struct store *s, struct question *q)
{
    say(q, "document:deep-", 0, "user:", 500 + 10 * dice(s, 10) + 1000 * dice(s, 10));
}

static void stranger(struct store *s, struct question *q)
{
    unsigned d = dice(s, DOCUMENTS);
    say(q, "document:", d - d % 100 + 1, "user:stranger-", 0);
}

static void anyone(struct store *s, struct question *q)
{
    say(q, "document:", dice(s, DOCUMENTS), "user:", dice(s, USERS));
}

static void blocked(struct store *s, struct question *q)
{
    unsigned d = dice(s, DOCUMENTS) / 10 * 10;
    say(q, "document:", d, "user:", (d + 1) % USERS);
}

static json_t *agents(int rounds)
{
    struct store s;
    json_t *out = json_object();
    begin_store(&s);
    put_drive(&s);
    loaded(&s);
    struct engine_size size = engine_size(s.engine);
    json_object_set_new(out, "tuples", json_integer((json_int_t)size.tuples));
    json_object_set_new(out, "owner", checks(&s, rounds, "owner", owner, 1));
    json_object_set_new(out, "owner_is_editor", checks(&s, rounds, "editor", owner, 1));
    json_object_set_new(out, "three_levels_of_groups", checks(&s, rounds, "viewer", groups, 1));
    json_object_set_new(out, "any_user_any_document", checks(&s, rounds, "viewer", anyone, -1));
    json_object_set_new(out, "denied", checks(&s, rounds, "viewer", stranger, 0));
    json_object_set_new(out, "blocked", checks(&s, rounds, "viewer", blocked, 0));
    json_object_set_new(out, "list_objects_1000", lists(&s, rounds / 20 + 1, false, 1000));
    json_object_set_new(out, "list_users_186", lists(&s, rounds / 20 + 1, true, 186));
    end_store(&s);
    return out;
}

/* ---- growth ---- */

#define LEVELS 20
static struct {
    unsigned files, folders;
} tree;

static void in_tree(struct store *s, struct question *q)
{
    say(q, "document:", dice(s, tree.files), "user:", dice(s, 1000));
}

/* A tree of 20 levels, each 1.5 times as wide as the one above; 20 files a folder; 25 grants for each of 1,000 users.
 */
static json_t *of_size(unsigned files, int rounds)
{
    struct store s;
    unsigned first[LEVELS + 1] = {0};
    double width = 1, sum = 0;
    for (int l = 0; l < LEVELS; l++, width *= 1.5)
        sum += width;
    tree.files = files;
    width = files / 20.0 / sum;
    for (int l = 0; l < LEVELS; l++, width *= 1.5)
        first[l + 1] = first[l] + (width < 1 ? 1 : (unsigned)width);
    tree.folders = first[LEVELS];
    begin_store(&s);
    for (int l = 1; l < LEVELS; l++)
        for (unsigned f = first[l]; f < first[l + 1]; f++) {
            NAME(folder, "folder:%u", f);
            NAME(parent, "folder:%u", first[l - 1] + dice(&s, first[l] - first[l - 1]));
            put(&s, folder, "parent", parent);
        }
    for (unsigned f = 0; f < files; f++) {
        NAME(file, "document:%u", f);
        NAME(folder, "folder:%u", f % tree.folders);
        put(&s, file, "parent", folder);
    }
    for (unsigned g = 0; g < 25000; g++) {
        NAME(folder, "folder:%u", dice(&s, tree.folders));
        NAME(user, "user:%u", g % 1000);
        put(&s, folder, "viewer", user);
    }
    double began = now_us();
    loaded(&s);
    double took = now_us() - began;
    struct engine_size size = engine_size(s.engine);
    json_t *out = json_pack("{s:I, s:f, s:f, s:o}", "tuples", (json_int_t)size.tuples, "bytes_a_tuple",
                            (double)size.bytes / (double)size.tuples, "load_end_ms", took / 1000, "viewer",
                            checks(&s, rounds, "viewer", in_tree, -1));
    end_store(&s);
    return out;
}

static unsigned level;

static void at_level(struct store *s, struct question *q)
{
    (void)s;
    say(q, "document:", level, "user:", 1);
}

static json_t *of_depth(int rounds)
{
    struct store s;
    json_t *out = json_object();
    begin_store(&s);
    for (unsigned l = 0; l <= LEVELS; l++) {
        NAME(folder, "folder:%u", l);
        NAME(below, "folder:%u", l + 1);
        NAME(document, "document:%u", l);
        put(&s, below, "parent", folder);
        put(&s, document, "parent", folder);
    }
    put(&s, "folder:0", "viewer", "user:1");
    loaded(&s);
    for (level = 0; level <= LEVELS; level = level ? level * 2 : 1) {
        NAME(key, "%u", level + 1);
        json_object_set_new(out, key, checks(&s, rounds, "viewer", at_level, 1));
    }
    end_store(&s);
    return out;
}

/* A document granted to so many groups, asked about one who is in none of them, and in 10 others. */
static json_t *of_fan_out(int rounds)
{
    json_t *out = json_object();
    for (unsigned n = 10; n <= 100000; n *= 10) {
        struct store s;
        begin_store(&s);
        for (unsigned g = 0; g < n; g++) {
            NAME(members, "group:%u#member", g);
            put(&s, "document:1", "viewer", members);
        }
        for (unsigned g = 0; g < 10; g++) {
            NAME(group, "group:other-%u", g);
            put(&s, group, "member", "user:1");
        }
        loaded(&s);
        level = 1;
        NAME(key, "%u", n);
        json_object_set_new(out, key, checks(&s, n > 1000 ? 100 : rounds / 10 + 1, "viewer", at_level, 0));
        end_store(&s);
    }
    return out;
}

int main(int argc, char **argv)
{
    struct settings cfg;
    struct err err = {0};
    enum cfg_action action;
    if (config_load(&program, argc, argv, &cfg, &action, &err) != ST_OK) {
        fprintf(stderr, "bench-shapes: %s\n", err.text);
        return EXIT_USAGE;
    }
    log_init(program.name, LOG_LVL_WARN, LOG_FMT_LOGFMT);
    if (action == CFG_RUN) {
        json_t *out = json_object(), *sizes = json_object();
        json_object_set_new(out, "agents", agents(cfg.rounds));
        json_object_set_new(out, "by_levels", of_depth(cfg.rounds));
        json_object_set_new(out, "by_groups", of_fan_out(cfg.rounds));
        for (int files = cfg.files / 100; files <= cfg.files; files *= 10) {
            NAME(key, "%d", files);
            json_object_set_new(sizes, key, of_size((unsigned)files, cfg.rounds));
        }
        json_object_set_new(out, "by_files", sizes);
        json_dumpf(out, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(4));
        puts("");
        json_decref(out);
    }
    config_release(&program, &cfg);
    return EXIT_DONE;
}
