/*
 * engine_check_test.c - decisions: random models and tuples against brute force, stored and contextual; cycles, depth,
 * conditions, statuses by hand.
 */
#include "engine/engine.h"
#include "tests/harness/harness.h"
#include "tests/model/rebac.h"

static struct engine_text text(const char *s)
{
    return (struct engine_text){s, strlen(s)};
}

static struct engine_tuple tuple(const char *object, const char *relation, const char *subject)
{
    return (struct engine_tuple){.object = text(object), .relation = text(relation), .subject = text(subject)};
}

/* ---- random ---- */

struct run {
    struct rebac *r;
    struct model *m;
    struct engine *e;
    struct engine_reader *reader;
    struct rules *rules;
    struct engine_limits limits;
    struct rebac_truth truth;
    bool cycles;      /* in the tuples */
    bool by_wildcard; /* some tuple is for all of a type */
    long decisions, by_cycle;
};

static void show(const struct run *run, const struct engine_check *q, bool want)
{
    print_error("%s\n", rebac_json(run->r));
    for (int i = 0; i < rebac_tuples(run->r); i++)
        if (rebac_tuple(run->r, i).present)
            print_error("%s#%s@%s\n", rebac_tuple(run->r, i).object, rebac_tuple(run->r, i).relation,
                        rebac_tuple(run->r, i).subject);
    fail_msg("%.*s#%.*s@%.*s is %s; status %d, allowed %d (%s)", (int)q->object.len, q->object.s, (int)q->relation.len,
             q->relation.s, (int)q->subject.len, q->subject.s, want ? "true" : "false", (int)q->status, q->allowed,
             engine_reason(run->reader));
}

/* Every decision of the universe in one call, and some of them alone. */
static void check_all(struct run *run, uint64_t *rng)
{
    static struct engine_check q[REBAC_TYPES * REBAC_RELATIONS * REBAC_OBJECTS * REBAC_SUBJECTS];
    static bool want[sizeof q / sizeof q[0]];
    size_t n = 0;
    for (int s = 0; s < rebac_subjects(run->r); s++)
        for (int type = 1; type < REBAC_TYPES; type++)
            for (int k = 0; k < REBAC_RELATIONS; k++)
                for (int o = 0; rebac_has(run->r, type, k) && o < rebac_objects(type); o++) {
                    want[n] = run->truth.allowed[type][k][o] >> s & 1;
                    q[n++] = (struct engine_check){.subject = text(rebac_subject(run->r, s)),
                                                   .relation = text(rebac_relation(k)),
                                                   .object = text(rebac_object(type, o))};
                }
    engine_begin(run->reader);
    assert_int_equal(engine_checks(run->reader, run->rules, &run->limits, q, n), ENGINE_OK);
    for (size_t i = 0; i < n; i++)
        if (q[i].status == ENGINE_OK && q[i].allowed == want[i])
            continue;
        else if (q[i].status == ENGINE_OK && run->cycles && want[i])
            run->by_cycle++; /* an exclusion whose subtracted side ran into a cycle is no, as OpenFGA's */
        else
            show(run, &q[i], want[i]);
    for (int i = 0; i < 20; i++) {
        struct engine_check *one = &q[rebac_random(rng, n)];
        bool before = one->allowed;
        assert_int_equal(engine_checks(run->reader, run->rules, &run->limits, one, 1), ENGINE_OK);
        assert_int_equal(one->status, ENGINE_OK);
        assert_int_equal(one->allowed, before);
    }
    engine_end(run->reader);
    run->decisions += (long)n;
}

struct names {
    struct run *run;
    bool seen[REBAC_SUBJECTS]; /* by the number that `index` gives */
    int (*index)(struct run *run, const char *name);
};

static bool take(void *arg, struct engine_text name)
{
    struct names *n = arg;
    char text[128];
    snprintf(text, sizeof text, "%.*s", (int)name.len, name.s);
    int i = n->index(n->run, text);
    if (i < 0 || n->seen[i])
        fail_msg("%s is listed twice, or is none", text);
    n->seen[i] = true;
    return true;
}

static int subject_index(struct run *run, const char *name)
{
    for (int s = 0; s < rebac_subjects(run->r); s++)
        if (strcmp(rebac_subject(run->r, s), name) == 0)
            return s;
    return -1;
}

static int object_index(struct run *run, const char *name)
{
    (void)run;
    return strchr(name, ':')[1] - '0';
}

/* What is listed is what checks say. */
static void list_all(struct run *run)
{
    engine_begin(run->reader);
    for (int type = 1; type < REBAC_TYPES; type++)
        for (int k = 0; k < REBAC_RELATIONS; k++) {
            if (!rebac_has(run->r, type, k))
                continue;
            struct engine_text relation = text(rebac_relation(k));
            for (int s = 0; s < rebac_subjects(run->r); s++) {
                struct names found = {.run = run, .index = object_index};
                struct engine_text subject = text(rebac_subject(run->r, s));
                assert_int_equal(engine_list_objects(run->reader, run->rules, &run->limits, subject, relation,
                                                     text(rebac_type(type)), take, &found),
                                 ENGINE_OK);
                for (int o = 0; o < rebac_objects(type); o++) {
                    struct engine_check q = {
                        .subject = subject, .relation = relation, .object = text(rebac_object(type, o))};
                    engine_checks(run->reader, run->rules, &run->limits, &q, 1);
                    if (q.allowed != found.seen[o])
                        show(run, &q, !q.allowed);
                }
            }
            for (int o = 0; o < rebac_objects(type); o++)
                for (int s = 0; s < rebac_subjects(run->r); s++) {
                    struct names found = {.run = run, .index = subject_index};
                    const char *like = rebac_subject(run->r, s), *hash = strchr(like, '#');
                    struct engine_text filter = {like, strcspn(like, ":")};
                    assert_int_equal(engine_list_users(run->reader, run->rules, &run->limits,
                                                       text(rebac_object(type, o)), relation, filter,
                                                       hash ? text(hash + 1) : text(""), take, &found),
                                     ENGINE_OK);
                    struct engine_check q = {
                        .subject = text(like), .relation = relation, .object = text(rebac_object(type, o))};
                    engine_checks(run->reader, run->rules, &run->limits, &q, 1);
                    /* Who is one of all by a wildcard alone is not named. */
                    char all[64];
                    snprintf(all, sizeof all, "%.*s:*", (int)filter.len, filter.s);
                    int wildcard = hash ? -1 : subject_index(run, all);
                    if (found.seen[s] ? !q.allowed : q.allowed && (wildcard < 0 || !run->by_wildcard))
                        show(run, &q, !q.allowed);
                }
        }
    engine_end(run->reader);
}

/* Type and number: objects in an order, so that tuples can be chosen which form no cycle. */
static int rank(const char *object)
{
    int type = 0;
    while (strncmp(rebac_type(type), object, strlen(rebac_type(type))) != 0)
        type++;
    return type * 10 + (strchr(object, ':')[1] - '0');
}

static void test_random_models_say_what_brute_force_says(void **state)
{
    (void)state;
    uint64_t rng = harness_seed() | 1;
    long decisions = 0, by_cycle = 0;
    for (int i = harness_soak(3000); i > 0;) {
        struct run run = {.r = rebac_new(&rng), .cycles = i % 2};
        struct model_err err;
        if (!model_valid(rebac_json(run.r), strlen(rebac_json(run.r)), &err)) {
            rebac_free(run.r);
            continue;
        }
        i--;
        run.e = engine_new();
        static struct engine_change changes[REBAC_TUPLES];
        static struct engine_tuple contextual[REBAC_TUPLES];
        size_t n = 0, nc = 0;
        if (!model_parse(&run.m, rebac_json(run.r), strlen(rebac_json(run.r)), &err))
            fail_msg("%s", err.text);
        run.rules = rules_new(run.e, run.m);
        run.reader = engine_reader_new(run.e);
        assert_non_null(run.rules);
        uint64_t share = 1 + rebac_random(&rng, 40), own = i % 3 ? 0 : rebac_random(&rng, 101);
        for (int t = 0; t < rebac_tuples(run.r); t++) {
            struct rebac_tuple x = rebac_tuple(run.r, t);
            rebac_set(run.r, t, rebac_random(&rng, 100) < share && (run.cycles || rank(x.subject) < rank(x.object)));
            x = rebac_tuple(run.r, t);
            run.by_wildcard |= x.present && strchr(x.subject, '*');
            if (x.present && rebac_random(&rng, 100) < own)
                contextual[nc++] = tuple(x.object, x.relation, x.subject);
            else if (x.present)
                changes[n++].tuple = tuple(x.object, x.relation, x.subject);
        }
        if (n)
            assert_int_equal(engine_apply(run.e, changes, n, 1), ENGINE_OK);
        run.limits = (struct engine_limits){.contextual = contextual, .ncontextual = nc};
        rebac_evaluate(run.r, &run.truth);
        check_all(&run, &rng);
        if (i % 8 == 0)
            list_all(&run);
        decisions += run.decisions;
        by_cycle += run.by_cycle;
        engine_reader_free(run.reader);
        rules_free(run.rules);
        engine_free(run.e);
        model_free(run.m);
        rebac_free(run.r);
    }
    print_message("%ld decisions, %ld no by a cycle\n", decisions, by_cycle);
    assert_true(decisions > 100000);
    assert_true(by_cycle < decisions / 50);
}

/* ---- by hand ---- */

static const char by_hand[] =
    "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},"
    "{\"type\":\"team\",\"relations\":{\"member\":{\"this\":{}}},\"metadata\":{\"relations\":{\"member\":{"
    "\"directly_related_user_types\":[{\"type\":\"user\"},{\"type\":\"team\",\"relation\":\"member\"},{\"type\":"
    "\"team\",\"relation\":\"member\","
    "\"condition\":\"at_work\"}]}}}},"
    "{\"type\":\"doc\",\"relations\":{"
    "\"viewer\":{\"difference\":{\"base\":{\"this\":{}},\"subtract\":{\"computedUserset\":{\"relation\":\"blocked\"}}}}"
    ","
    "\"blocked\":{\"this\":{}},\"parent\":{\"this\":{}},"
    "\"seen\":{\"union\":{\"child\":[{\"computedUserset\":{\"relation\":\"viewer\"}},{\"tupleToUserset\":{\"tupleset\":"
    "{"
    "\"relation\":\"parent\"},\"computedUserset\":{\"relation\":\"seen\"}}}]}}},"
    "\"metadata\":{\"relations\":{"
    "\"viewer\":{\"directly_related_user_types\":[{\"type\":\"user\"},{\"type\":\"user\",\"wildcard\":{}},{\"type\":"
    "\"team\",\"relation\":\"member\"},{\"type\":\"user\",\"condition\":\"at_work\"}]},"
    "\"blocked\":{\"directly_related_user_types\":[{\"type\":\"user\"},{\"type\":\"team\",\"relation\":\"member\"},"
    "{\"type\":\"user\",\"condition\":\"at_work\"}]},"
    "\"parent\":{\"directly_related_user_types\":[{\"type\":\"doc\"}]}}}}],"
    "\"conditions\":{\"at_work\":{\"name\":\"at_work\",\"expression\":\"x == 1\",\"parameters\":{\"x\":{\"type_name\":"
    "\"TYPE_NAME_INT\"}}}}}";

struct hand {
    struct model *m;
    struct engine *e;
    struct rules *rules;
    struct engine_reader *reader;
    uint64_t revision;
    struct engine_limits limits;
};

static int open_hand(void **state)
{
    struct hand *h = calloc(1, sizeof *h);
    struct model_err err;
    assert_non_null(h);
    if (!model_parse(&h->m, by_hand, strlen(by_hand), &err))
        fail_msg("%s", err.text);
    h->e = engine_new();
    h->rules = rules_new(h->e, h->m);
    h->reader = engine_reader_new(h->e);
    assert_non_null(h->rules);
    *state = h;
    return 0;
}

static int close_hand(void **state)
{
    struct hand *h = *state;
    engine_reader_free(h->reader);
    rules_free(h->rules);
    engine_free(h->e);
    model_free(h->m);
    free(h);
    return 0;
}

static void put(struct hand *h, const char *object, const char *relation, const char *subject, const char *condition)
{
    struct engine_change c = {.tuple = tuple(object, relation, subject)};
    if (condition)
        c.tuple.condition = text(condition);
    assert_int_equal(engine_apply(h->e, &c, 1, ++h->revision), ENGINE_OK);
}

static struct engine_check check(struct hand *h, const char *object, const char *relation, const char *subject)
{
    struct engine_check q = {.subject = text(subject), .relation = text(relation), .object = text(object)};
    engine_begin(h->reader);
    engine_checks(h->reader, h->rules, &h->limits, &q, 1);
    engine_end(h->reader);
    return q;
}

static void expect(struct hand *h, const char *object, const char *relation, const char *subject, bool allowed)
{
    struct engine_check q = check(h, object, relation, subject);
    if (q.status != ENGINE_OK || q.allowed != allowed)
        fail_msg("%s#%s@%s: status %d, allowed %d: %s", object, relation, subject, (int)q.status, q.allowed,
                 engine_reason(h->reader));
}

static void expect_status(struct hand *h, const char *object, const char *relation, const char *subject,
                          enum engine_status status, const char *reason)
{
    struct engine_check q = check(h, object, relation, subject);
    assert_int_equal(q.status, status);
    assert_false(q.allowed);
    if (!strstr(engine_reason(h->reader), reason))
        fail_msg("\"%s\" is not in \"%s\"", reason, engine_reason(h->reader));
}

static void test_cycles_in_data(void **state)
{
    struct hand *h = *state;
    put(h, "team:a", "member", "team:b#member", NULL);
    put(h, "team:b", "member", "team:a#member", NULL);
    put(h, "team:b", "member", "user:anne", NULL);
    put(h, "doc:1", "viewer", "team:a#member", NULL);
    expect(h, "doc:1", "viewer", "user:anne", true);
    expect(h, "doc:1", "viewer", "user:bob", false);
    expect(h, "team:a", "member", "team:b#member", true);
    expect(h, "team:a", "member", "team:a#member", true);
    put(h, "doc:1", "parent", "doc:2", NULL);
    put(h, "doc:2", "parent", "doc:1", NULL);
    expect(h, "doc:2", "seen", "user:anne", true);
    expect(h, "doc:2", "seen", "user:bob", false);
    /* OpenFGA: an exclusion is no if the way through what it subtracts ran into a cycle. */
    put(h, "doc:3", "viewer", "user:bob", NULL);
    expect(h, "doc:3", "viewer", "user:bob", true);
    put(h, "doc:3", "blocked", "team:a#member", NULL);
    expect(h, "doc:3", "viewer", "user:bob", false);
    expect(h, "doc:3", "viewer", "user:anne", false);
}

/* Whether there is a cycle at all can depend on a condition, and so an exclusion; not who is in a union. */
static void test_cycles_by_way_of_conditions(void **state)
{
    struct hand *h = *state;
    put(h, "team:a", "member", "team:a#member", "at_work");
    put(h, "team:b", "member", "team:a#member", NULL);
    put(h, "doc:1", "viewer", "user:bob", NULL);
    put(h, "doc:1", "blocked", "team:b#member", NULL);
    expect(h, "team:b", "member", "user:bob", false);
    expect_status(h, "doc:1", "viewer", "user:bob", ENGINE_CONDITIONAL, "at_work");
    /* Asked with others of the same subject, whatever is remembered of them: as alone. */
    struct engine_check q[3];
    for (int i = 0; i < 3; i++)
        q[i] = (struct engine_check){.subject = text("user:bob"),
                                     .relation = text(i == 1 ? "viewer" : "member"),
                                     .object = text(i == 1 ? "doc:1" : "team:b")};
    engine_begin(h->reader);
    engine_checks(h->reader, h->rules, NULL, q, 3);
    engine_end(h->reader);
    assert_int_equal(q[0].status, ENGINE_OK);
    assert_int_equal(q[1].status, ENGINE_CONDITIONAL);
    assert_int_equal(q[2].status, ENGINE_OK);
}

static void test_depth(void **state)
{
    struct hand *h = *state;
    for (int i = 0; i < 40; i++) {
        char object[16], parent[16];
        snprintf(object, sizeof object, "doc:%d", i);
        snprintf(parent, sizeof parent, "doc:%d", i + 1);
        put(h, object, "parent", parent, NULL);
    }
    put(h, "doc:24", "viewer", "user:anne", NULL);
    expect(h, "doc:0", "seen", "user:anne", true);
    expect(h, "doc:16", "seen", "user:bob", false);
    expect_status(h, "doc:0", "seen", "user:bob", ENGINE_TOO_DEEP, "doc:0");
    put(h, "doc:25", "viewer", "user:carl", NULL);
    expect_status(h, "doc:0", "seen", "user:carl", ENGINE_TOO_DEEP, "doc:0");
    expect(h, "doc:1", "seen", "user:carl", true);
    h->limits.depth = 26;
    expect(h, "doc:0", "seen", "user:carl", true);
    h->limits.depth = 0;
    /* In one batch the near ones must not lend what they know to the far ones, nor the other way round. */
    struct engine_check q[40];
    for (int i = 0; i < 40; i++) {
        static char objects[40][16];
        snprintf(objects[i], sizeof objects[i], "doc:%d", i % 2 ? i : 38 - i);
        q[i] =
            (struct engine_check){.subject = text("user:carl"), .relation = text("seen"), .object = text(objects[i])};
    }
    engine_begin(h->reader);
    assert_int_equal(engine_checks(h->reader, h->rules, NULL, q, 40), ENGINE_OK);
    engine_end(h->reader);
    for (int i = 0; i < 40; i++) {
        int at = (int)strtol(q[i].object.s + 4, NULL, 10);
        enum engine_status want = at == 0 || (at > 25 && 40 - at >= 25) ? ENGINE_TOO_DEEP : ENGINE_OK;
        if (at > 0 && at <= 25)
            assert_true(q[i].allowed);
        assert_int_equal(q[i].status, want);
    }
}

/* 20 documents in each other, 1,800 relations computed from each other twice on each: more than a stack holds. */
static void test_endless_rewrites_end(void **state)
{
    (void)state;
    enum { RELATIONS = 1800 };
    static char json[1 << 19];
    struct model_err err;
    size_t n = (size_t)snprintf(json, sizeof json,
                                "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"doc\",\"relations\":{"
                                "\"p\":{\"this\":{}},\"r0\":{\"tupleToUserset\":{\"tupleset\":{\"relation\":\"p\"},"
                                "\"computedUserset\":{\"relation\":\"r%d\"}}}",
                                RELATIONS);
    for (int i = 1; i <= RELATIONS; i++)
        n += (size_t)snprintf(json + n, sizeof json - n,
                              ",\"r%d\":{\"union\":{\"child\":[{\"computedUserset\":{\"relation\":\"r%d\"}},{"
                              "\"computedUserset\":{\"relation\":\"p\"}}]}}",
                              i, i - 1);
    snprintf(json + n, sizeof json - n,
             "},\"metadata\":{\"relations\":{\"p\":{\"directly_related_user_types\":[{\"type\":\"doc\"}]}}}}]}");
    struct hand h = {.e = engine_new()};
    if (!model_parse(&h.m, json, strlen(json), &err))
        fail_msg("%s", err.text);
    h.rules = rules_new(h.e, h.m);
    h.reader = engine_reader_new(h.e);
    for (int i = 0; i < 20; i++) {
        char object[16], parent[16], relation[16];
        snprintf(object, sizeof object, "doc:%d", i);
        snprintf(parent, sizeof parent, "doc:%d", i + 1);
        snprintf(relation, sizeof relation, "r%d", RELATIONS);
        put(&h, object, "p", parent, NULL);
        if (i == 0)
            expect(&h, object, relation, "doc:1", true);
    }
    expect_status(&h, "doc:0", "r1800", "doc:other", ENGINE_TOO_DEEP, "doc:0");
    engine_reader_free(h.reader);
    rules_free(h.rules);
    engine_free(h.e);
    model_free(h.m);
}

static void test_conditions(void **state)
{
    struct hand *h = *state;
    put(h, "doc:1", "viewer", "user:anne", "at_work");
    put(h, "doc:1", "viewer", "user:bob", NULL);
    expect_status(h, "doc:1", "viewer", "user:anne", ENGINE_CONDITIONAL, "at_work");
    expect(h, "doc:1", "viewer", "user:bob", true);
    expect(h, "doc:1", "viewer", "user:carl", false);
    put(h, "doc:1", "blocked", "user:bob", "at_work");
    expect_status(h, "doc:1", "viewer", "user:bob", ENGINE_CONDITIONAL, "at_work");
    put(h, "doc:1", "blocked", "user:carl", "at_work"); /* no viewer anyway */
    expect(h, "doc:1", "viewer", "user:carl", false);
    put(h, "doc:1", "viewer", "user:dora", "other"); /* the model does not know it: the tuple counts for nothing */
    expect(h, "doc:1", "viewer", "user:dora", false);
    put(h, "doc:2", "viewer", "user:anne", "at_work");
    put(h, "doc:2", "viewer", "user:*", NULL);
    expect(h, "doc:2", "viewer", "user:anne", true);
}

static void test_what_the_model_does_not_take_counts_for_nothing(void **state)
{
    struct hand *h = *state;
    put(h, "doc:1", "viewer", "doc:2", NULL);
    put(h, "doc:1", "blocked", "user:*", NULL);
    put(h, "doc:1", "viewer", "user:anne", NULL);
    put(h, "doc:1", "parent", "doc:*", NULL);
    put(h, "doc:1", "parent", "team:a#member", NULL);
    put(h, "doc:1", "nonsense", "user:anne", NULL);
    expect(h, "doc:1", "viewer", "doc:2", false);
    expect(h, "doc:1", "viewer", "user:anne", true);
    expect(h, "doc:1", "seen", "user:bob", false);
}

static void test_usersets_and_wildcards_as_subjects(void **state)
{
    struct hand *h = *state;
    put(h, "doc:1", "viewer", "team:a#member", NULL);
    put(h, "team:a", "member", "team:b#member", NULL);
    expect(h, "doc:1", "viewer", "team:a#member", true);
    expect(h, "doc:1", "viewer", "team:b#member", true);
    expect(h, "doc:1", "viewer", "team:c#member", false);
    expect(h, "doc:1", "seen", "doc:1#viewer", true);
    expect(h, "doc:77", "seen", "doc:77#viewer", true); /* no tuple names it */
    expect(h, "doc:78", "seen", "doc:77#viewer", false);
    expect(h, "doc:77", "viewer", "doc:77#viewer", true);
    put(h, "doc:2", "viewer", "user:*", NULL);
    expect(h, "doc:2", "viewer", "user:*", true);
    expect(h, "doc:2", "viewer", "user:nobody", true);
    expect(h, "doc:1", "viewer", "user:*", false);
}

static void test_many_usersets(void **state)
{
    struct hand *h = *state;
    for (int i = 0; i < 300; i++) {
        char team[32], of[32];
        snprintf(team, sizeof team, "team:%d", i);
        snprintf(of, sizeof of, "team:%d#member", i);
        put(h, "doc:1", "viewer", of, NULL);
        put(h, team, "member", i % 2 ? "user:odd" : "user:even", NULL);
    }
    put(h, "team:out", "member", "user:out", NULL);
    expect(h, "doc:1", "viewer", "user:odd", true);
    expect(h, "doc:1", "viewer", "user:out", false);
    put(h, "team:299", "member", "user:out", NULL);
    expect(h, "doc:1", "viewer", "user:out", true);
}

static void test_contextual_tuples(void **state)
{
    struct hand *h = *state;
    const struct engine_tuple own[] = {tuple("doc:new", "viewer", "team:new#member"),
                                       tuple("team:new", "member", "user:new"), tuple("doc:1", "viewer", "user:anne"),
                                       tuple("doc:1", "viewer", "user:anne")};
    put(h, "doc:1", "viewer", "user:bob", NULL);
    h->limits = (struct engine_limits){.contextual = own, .ncontextual = 4};
    expect(h, "doc:new", "viewer", "user:new", true);
    expect(h, "doc:1", "viewer", "user:anne", true);
    expect(h, "doc:1", "viewer", "user:bob", true);
    expect(h, "doc:1", "viewer", "user:new", false);
    h->limits = (struct engine_limits){0};
    expect(h, "doc:1", "viewer", "user:anne", false);
    const struct engine_tuple bad = tuple("doc:1", "viewer", "doc:2");
    h->limits = (struct engine_limits){.contextual = &bad, .ncontextual = 1};
    expect_status(h, "doc:1", "viewer", "user:bob", ENGINE_BAD_TUPLE, "doc:1");
    /* It hides the stored one of the same key. */
    struct engine_tuple hides = tuple("doc:1", "viewer", "user:bob");
    hides.condition = text("at_work");
    h->limits = (struct engine_limits){.contextual = &hides, .ncontextual = 1};
    expect_status(h, "doc:1", "viewer", "user:bob", ENGINE_CONDITIONAL, "at_work");
}

static bool stop_now(void *arg)
{
    ++*(int *)arg;
    return true;
}

static void test_statuses(void **state)
{
    struct hand *h = *state;
    int asked = 0;
    expect_status(h, "nothing:1", "viewer", "user:anne", ENGINE_NO_TYPE, "nothing");
    expect_status(h, "doc:1", "nothing", "user:anne", ENGINE_NO_RELATION, "nothing");
    expect_status(h, "doc:1", "viewer", "nothing:1", ENGINE_NO_TYPE, "nothing");
    expect_status(h, "doc:1", "viewer", "team:1#nothing", ENGINE_NO_TYPE, "team:1#nothing");
    for (int i = 0; i < 600; i++) {
        char of[32];
        snprintf(of, sizeof of, "team:%d#member", i);
        put(h, "doc:1", "viewer", of, NULL);
    }
    h->limits = (struct engine_limits){.stop = stop_now, .arg = &asked};
    struct engine_check q[2];
    for (int i = 0; i < 2; i++)
        q[i] = (struct engine_check){
            .subject = text(i ? "user:b" : "team:x#member"), .relation = text("viewer"), .object = text("doc:1")};
    engine_begin(h->reader);
    assert_int_equal(engine_checks(h->reader, h->rules, &h->limits, q, 2), ENGINE_STOPPED);
    engine_end(h->reader);
    assert_int_equal(asked, 1);
    assert_int_equal(q[0].status, ENGINE_STOPPED);
    assert_int_equal(q[1].status, ENGINE_STOPPED);
    h->limits = (struct engine_limits){0};
    expect(h, "doc:1", "viewer", "team:1#member", true);
}

#define HAND(f) cmocka_unit_test_setup_teardown(f, open_hand, close_hand)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_models_say_what_brute_force_says),
        HAND(test_cycles_in_data),
        HAND(test_cycles_by_way_of_conditions),
        HAND(test_depth),
        cmocka_unit_test(test_endless_rewrites_end),
        HAND(test_conditions),
        HAND(test_what_the_model_does_not_take_counts_for_nothing),
        HAND(test_usersets_and_wildcards_as_subjects),
        HAND(test_many_usersets),
        HAND(test_contextual_tuples),
        HAND(test_statuses),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
