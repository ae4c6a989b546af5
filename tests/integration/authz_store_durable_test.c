/* authz_store_durable_test.c - changes, pages and restarts of authz-store's stores on a real Postgres. */
#include <unistd.h>

#include "tests/integration/authz_store_helpers.h"

struct world {
    struct harness *h;
    struct cfg_stores cfg;
    struct stores *s;
    struct served *store;
};

static void begin(struct world *w, void **state)
{
    w->h = *state;
    authz_migrate(w->h);
    w->cfg = authz_settings(w->h->dsn, "one", 1000);
    w->s = authz_start(&w->cfg);
    authz_ready(w->s);
    w->store = authz_store_new(w->s, "s");
}

static void end(struct world *w)
{
    stores_put(w->store);
    authz_stop(w->s);
    authz_settings_free(&w->cfg);
    assert_authz_tables(w->h);
}

static struct engine_change conditional(bool remove, const char *object, const char *condition, const char *context)
{
    struct engine_change c = authz_change(remove, object, "viewer", "user:a");

    c.tuple.condition = authz_text(condition);
    c.tuple.context = authz_text(context);
    return c;
}

static enum status write_with(struct world *w, struct engine_change *changes, size_t n, bool ignore, struct job *job)
{
    *job = (struct job){.kind = JOB_WRITE,
                        .store = w->store,
                        .changes = changes,
                        .nchanges = n,
                        .ignore_duplicate = ignore,
                        .ignore_missing = ignore};
    return authz_do(w->s, job);
}

static void test_a_write_is_whole_or_not_at_all(void **state)
{
    static struct world w;
    struct job job;
    begin(&w, state);
    struct engine_change one[] = {authz_change(false, "doc:1", "viewer", "user:a"),
                                  authz_change(false, "doc:2", "viewer", "user:a")};
    struct engine_change two[] = {authz_change(false, "doc:3", "viewer", "user:a"),
                                  authz_change(false, "doc:2", "viewer", "user:a")};
    struct engine_change gone[] = {authz_change(true, "doc:1", "viewer", "user:a"),
                                   authz_change(true, "doc:9", "viewer", "user:a")};

    assert_int_equal(write_with(&w, one, 2, false, &job), ST_OK);
    assert_true(authz_has(w.store, "doc:1", "user:a") && authz_has(w.store, "doc:2", "user:a"));
    assert_int_equal(write_with(&w, two, 2, false, &job), ST_CONFLICT);
    assert_int_equal(job.conflict, 1);
    assert_false(job.other_condition);
    assert_false(authz_has(w.store, "doc:3", "user:a"));
    assert_int_equal(write_with(&w, gone, 2, false, &job), ST_CONFLICT);
    assert_int_equal(job.conflict, 1);
    assert_true(authz_has(w.store, "doc:1", "user:a"));
    /* Ignored ones leave no change behind. */
    assert_int_equal(write_with(&w, two, 2, true, &job), ST_OK);
    assert_int_equal(write_with(&w, gone, 2, true, &job), ST_OK);
    assert_false(authz_has(w.store, "doc:1", "user:a"));
    assert_true(authz_has(w.store, "doc:3", "user:a"));
    assert_int_equal(harness_sql_int(w.h, "SELECT count(*) FROM relata_store.change"), 4);
    end(&w);
}

static void test_conditions_are_told_apart_by_meaning(void **state)
{
    static struct world w;
    struct job job;
    begin(&w, state);
    struct engine_change first = conditional(false, "doc:1", "c", "{\"a\":1,\"b\":[2.5]}");
    struct engine_change same = conditional(false, "doc:1", "c", "{\"b\":[2.5],\"a\":1.0}");
    struct engine_change other = conditional(false, "doc:1", "c", "{\"a\":2}");
    struct engine_change none = authz_change(false, "doc:1", "viewer", "user:a");
    struct engine_change empty = conditional(false, "doc:2", "c", ""), braces = conditional(false, "doc:2", "c", "{}");

    assert_int_equal(write_with(&w, &first, 1, false, &job), ST_OK);
    assert_int_equal(write_with(&w, &same, 1, true, &job), ST_OK);
    assert_int_equal(write_with(&w, &other, 1, true, &job), ST_CONFLICT);
    assert_true(job.other_condition);
    assert_int_equal(write_with(&w, &none, 1, true, &job), ST_CONFLICT);
    assert_true(job.other_condition);
    assert_int_equal(write_with(&w, &empty, 1, true, &job), ST_OK);
    assert_int_equal(write_with(&w, &braces, 1, true, &job), ST_OK);
    assert_int_equal(harness_sql_int(w.h, "SELECT count(*) FROM relata_store.change"), 2);
    end(&w);
}

/* ---- many at once ---- */

#define ACTORS 8
#define KEYS 12

struct actor {
    struct world *w;
    pthread_t thread;
    unsigned seed;
    int accepted, changed;
};

static void *act(void *arg)
{
    struct actor *a = arg;
    char object[KEYS][16];
    struct engine_change changes[4];

    for (int i = 0; i < KEYS; i++)
        (void)snprintf(object[i], sizeof object[i], "doc:%d", i);
    for (int round = 0; round < 150; round++) {
        size_t n = 1 + (unsigned)rand_r(&a->seed) % 4, first = (unsigned)rand_r(&a->seed) % KEYS;
        for (size_t i = 0; i < n; i++)
            changes[i] = authz_change(rand_r(&a->seed) & 1, object[(first + i) % KEYS], "viewer", "user:a");
        struct job job;
        enum status st = write_with(a->w, changes, n, false, &job);
        if (st == ST_OK) {
            a->accepted++;
            a->changed += (int)n;
        } else if (st != ST_CONFLICT) {
            a->accepted = -100000;
        }
    }
    return NULL;
}

/* However writes on the same keys meet in a group: each is decided as if it were alone, in the order of the changelog.
 */
static void test_writes_that_meet_are_decided_one_after_the_other(void **state)
{
    static struct world w;
    struct actor actors[ACTORS];
    int changed = 0;
    begin(&w, state);
    for (int i = 0; i < ACTORS; i++) {
        actors[i] = (struct actor){.w = &w, .seed = (unsigned)harness_seed() + (unsigned)i};
        assert_int_equal(pthread_create(&actors[i].thread, NULL, act, &actors[i]), 0);
    }
    for (int i = 0; i < ACTORS; i++) {
        pthread_join(actors[i].thread, NULL);
        assert_true(actors[i].accepted > 0);
        changed += actors[i].changed;
    }
    assert_int_equal(harness_sql_int(w.h, "SELECT count(*) FROM relata_store.change"), changed);
    assert_int_equal(engine_size(w.store->engine).tuples,
                     harness_sql_int(w.h, "SELECT count(*) FROM relata_store.tuple"));
    for (int i = 0; i < KEYS; i++) {
        const char *object = harness_strf(w.h, "doc:%d", i);
        assert_int_equal(
            authz_has(w.store, object, "user:a"),
            harness_sql_int(w.h,
                            harness_strf(w.h, "SELECT count(*) FROM relata_store.tuple WHERE object = '%s'", object)));
    }
    end(&w);
}

struct watcher {
    struct world *w;
    pthread_t thread;
    atomic_bool *stop;
    int halves, seen;
};

/* Both tuples are always written and removed together. */
static void *watch(void *arg)
{
    struct watcher *a = arg;
    struct engine_reader *r = served_reader(a->w->store);
    struct engine_text condition, context;
    const struct engine_change x = authz_change(false, "doc:x", "viewer", "user:a");
    const struct engine_change y = authz_change(false, "doc:y", "viewer", "user:b");
    uint64_t last = 0;

    while (!atomic_load(a->stop)) {
        uint64_t revision = engine_begin(r);
        a->halves += engine_find(r, &x.tuple, &condition, &context) != engine_find(r, &y.tuple, &condition, &context);
        a->halves += revision < last;
        a->seen += revision != last;
        last = revision;
        engine_end(r);
    }
    return NULL;
}

static void test_readers_see_whole_writes(void **state)
{
    static struct world w;
    struct watcher watchers[3];
    atomic_bool stop = false;
    struct job job;
    begin(&w, state);
    for (int i = 0; i < 3; i++) {
        watchers[i] = (struct watcher){.w = &w, .stop = &stop};
        assert_int_equal(pthread_create(&watchers[i].thread, NULL, watch, &watchers[i]), 0);
    }
    for (int i = 0; i < 300; i++) {
        bool remove = i & 1;
        struct engine_change both[] = {authz_change(remove, "doc:x", "viewer", "user:a"),
                                       authz_change(remove, "doc:y", "viewer", "user:b")};
        assert_int_equal(write_with(&w, both, 2, false, &job), ST_OK);
        assert_int_equal(authz_has(w.store, "doc:x", "user:a"), !remove); /* written is visible */
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++) {
        pthread_join(watchers[i].thread, NULL);
        assert_int_equal(watchers[i].halves, 0);
        assert_true(watchers[i].seen > 1);
    }
    end(&w);
}

/* ---- pages ---- */

/* All pages; the number of items; the last token in *token. */
static size_t walk(struct world *w, struct job *job, json_t **all)
{
    char *token = strdup("");
    size_t pages = 0;

    *all = json_array();
    for (;;) {
        job->token = token;
        assert_job_ok(w->s, job);
        assert_true(json_array_size(job->result) <= job->page_size);
        bool end = !*job->next_token || json_array_size(job->result) == 0;
        json_array_extend(*all, job->result);
        json_decref(job->result);
        free(token);
        token = job->next_token;
        if (end || ++pages > 100)
            break;
    }
    free(token);
    assert_true(pages < 100);
    return json_array_size(*all);
}

static void put_many(struct world *w, const char *type, int n)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(authz_write(w->s, w->store, harness_strf(w->h, "%s:%d", type, i), i % 2 ? "user:a" : "user:*"),
                         ST_OK);
}

static void test_read_by_pages(void **state)
{
    static struct world w;
    json_t *all;
    begin(&w, state);
    put_many(&w, "doc", 25);
    put_many(&w, "folder", 4);
    struct job job = {.kind = JOB_READ, .store = w.store, .page_size = 7};
    assert_int_equal(walk(&w, &job, &all), 29);
    for (size_t i = 1; i < 29; i++) {
        const char *a =
            json_string_value(json_object_get(json_object_get(json_array_get(all, i - 1), "key"), "object"));
        const char *b = json_string_value(json_object_get(json_object_get(json_array_get(all, i), "key"), "object"));
        assert_true(strcmp(a, b) < 0);
    }
    json_decref(all);
    job.object = authz_text("doc:");
    assert_int_equal(walk(&w, &job, &all), 25);
    json_decref(all);
    job.subject = authz_text("user:a");
    assert_int_equal(walk(&w, &job, &all), 12);
    json_decref(all);
    job.object = authz_text("doc:3");
    job.relation = authz_text("viewer");
    assert_int_equal(walk(&w, &job, &all), 1);
    json_decref(all);
    job.relation = authz_text("editor");
    assert_int_equal(walk(&w, &job, &all), 0);
    json_decref(all);
    end(&w);
}

static void test_tokens_of_others_are_refused(void **state)
{
    static struct world w;
    begin(&w, state);
    put_many(&w, "doc", 3);
    struct served *other = authz_store_new(w.s, "other");
    struct job job = {.kind = JOB_READ, .store = w.store, .page_size = 1};
    assert_job_ok(w.s, &job);
    char *token = job.next_token;
    json_decref(job.result);
    assert_true(strlen(token) > 20);
    assert_null(strstr(token, "doc"));
    for (size_t i = 0; i < strlen(token); i++) {
        char *bad = strdup(token);
        bad[i] = bad[i] == 'A' ? 'B' : 'A';
        job = (struct job){.kind = JOB_READ, .store = w.store, .page_size = 1, .token = bad};
        assert_int_equal(authz_do(w.s, &job), ST_INVALID);
        assert_string_equal(job.err.code, "token");
        free(bad);
    }
    static const char *const bad[] = {"x", "====", "AAAA", "not base64 at all!!!", "\xc3\xa4\xc3\xa4"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        job = (struct job){.kind = JOB_READ, .store = w.store, .page_size = 1, .token = bad[i]};
        assert_int_equal(authz_do(w.s, &job), ST_INVALID);
        job.kind = JOB_READ_CHANGES;
        assert_int_equal(authz_do(w.s, &job), ST_INVALID);
    }
    job = (struct job){.kind = JOB_READ, .store = other, .page_size = 1, .token = token};
    assert_int_equal(authz_do(w.s, &job), ST_INVALID);
    job = (struct job){.kind = JOB_READ_CHANGES, .store = w.store, .page_size = 1, .token = token};
    assert_int_equal(authz_do(w.s, &job), ST_INVALID);
    free(token);
    stores_put(other);
    end(&w);
}

static void test_read_changes(void **state)
{
    static struct world w;
    json_t *all;
    begin(&w, state);
    put_many(&w, "doc", 10);
    put_many(&w, "folder", 5);
    int64_t middle = clock_wall_us();
    assert_int_equal(authz_write(w.s, w.store, "!doc:1", "user:a"), ST_OK);
    struct job job = {.kind = JOB_READ_CHANGES, .store = w.store, .page_size = 4};
    assert_int_equal(walk(&w, &job, &all), 16);
    assert_string_equal(json_string_value(json_object_get(json_array_get(all, 15), "operation")),
                        "TUPLE_OPERATION_DELETE");
    json_decref(all);
    job.type = "folder";
    assert_int_equal(walk(&w, &job, &all), 5);
    json_decref(all);
    job.type = NULL;
    job.start_us = middle;
    assert_int_equal(walk(&w, &job, &all), 1);
    json_decref(all);
    /* The end keeps its token, which goes on with what comes; another type's is refused. */
    job = (struct job){.kind = JOB_READ_CHANGES, .store = w.store, .page_size = 100};
    assert_job_ok(w.s, &job);
    json_decref(job.result);
    char *token = job.next_token;
    job = (struct job){.kind = JOB_READ_CHANGES, .store = w.store, .page_size = 100, .token = token};
    assert_job_ok(w.s, &job);
    assert_int_equal(json_array_size(job.result), 0);
    assert_string_equal(job.next_token, token);
    json_decref(job.result);
    free(job.next_token);
    assert_int_equal(authz_write(w.s, w.store, "doc:new", "user:a"), ST_OK);
    job = (struct job){.kind = JOB_READ_CHANGES, .store = w.store, .page_size = 100, .token = token};
    assert_job_ok(w.s, &job);
    assert_int_equal(json_array_size(job.result), 1);
    json_decref(job.result);
    free(job.next_token);
    job = (struct job){.kind = JOB_READ_CHANGES, .store = w.store, .page_size = 100, .token = token, .type = "doc"};
    assert_int_equal(authz_do(w.s, &job), ST_INVALID);
    assert_string_equal(job.err.code, "token_type");
    free(token);
    end(&w);
}

/* ---- models, assertions, stores, restarts ---- */

static const char *put_model(struct world *w, struct served *store)
{
    struct model_err why;
    struct job job = {.kind = JOB_WRITE_MODEL, .store = store, .json = json_loads(authz_model, 0, NULL)};

    assert_true(model_parse(&job.model, authz_model, strlen(authz_model), &why));
    assert_job_ok(w->s, &job);
    json_decref(job.json);
    assert_null(job.model);
    return harness_strf(w->h, "%s", job.id);
}

static void test_a_restart_finds_everything(void **state)
{
    static struct world w;
    const char *models[5];
    begin(&w, state);
    put_many(&w, "doc", 40);
    assert_int_equal(authz_write(w.s, w.store, "!doc:4", "user:*"), ST_OK);
    struct engine_change c = conditional(false, "doc:c", "c", "{\"a\":\"tab\\t \\\\ \\u0000\"}");
    struct job job;
    assert_int_equal(write_with(&w, &c, 1, false, &job), ST_OK);
    for (int i = 0; i < 5; i++) {
        models[i] = put_model(&w, w.store);
        assert_true(i == 0 || strcmp(models[i - 1], models[i]) < 0);
    }
    json_t *assertions = json_pack("[{s:b}]", "expectation", 1);
    job = (struct job){.kind = JOB_WRITE_ASSERTIONS, .store = w.store, .name = models[1], .json = assertions};
    assert_job_ok(w.s, &job);
    struct served *doomed = authz_store_new(w.s, "doomed");
    assert_int_equal(authz_write(w.s, doomed, "doc:1", "user:a"), ST_OK);
    job = (struct job){.kind = JOB_DELETE_STORE, .store = doomed};
    assert_job_ok(w.s, &job);
    assert_null(stores_get(w.s, doomed->id));
    assert_int_equal(authz_write(w.s, doomed, "doc:2", "user:a"), ST_NOT_FOUND);
    assert_true(authz_has(doomed, "doc:1", "user:a")); /* while it is pinned */
    stores_put(doomed);

    uint64_t revision = engine_revision(w.store->engine);
    const char *id = harness_strf(w.h, "%s", w.store->id);
    stores_put(w.store);
    authz_stop(w.s);
    w.s = authz_start(&w.cfg);
    authz_ready(w.s);
    w.store = stores_get(w.s, id);
    assert_non_null(w.store);
    assert_string_equal(w.store->name, "s");
    assert_true(engine_revision(w.store->engine) >= revision);
    assert_int_equal(engine_size(w.store->engine).tuples, 40);
    assert_false(authz_has(w.store, "doc:4", "user:*"));
    assert_true(authz_has(w.store, "doc:5", "user:a"));
    assert_int_equal(write_with(&w, &c, 1, true, &job), ST_OK); /* the same condition and context */
    assert_string_equal(served_model(w.store, NULL)->id, models[4]);
    assert_non_null(served_model(w.store, models[2]));
    assert_null(served_model(w.store, id));
    const struct served_model *list[5];
    assert_int_equal(served_models(w.store, models[3], list, 5), 3);
    assert_string_equal(list[0]->id, models[2]);
    json_t *read = served_assertions(w.store, models[1]);
    assert_true(json_equal(read, assertions));
    json_decref(read);
    json_decref(assertions);
    assert_null(served_assertions(w.store, models[2]));
    struct served *all[4];
    assert_int_equal(stores_list(w.s, NULL, NULL, all, 4), 1);
    stores_put(all[0]);
    assert_int_equal(authz_write(w.s, w.store, "doc:after", "user:a"), ST_OK);
    assert_sql_eventually(w.h,
                          "SELECT count(*) FROM relata_store.tuple t JOIN relata_store.store s ON s.id = t.store "
                          "WHERE s.deleted_at IS NOT NULL",
                          "0", WAIT_MS);
    assert_sql_eventually(w.h, "SELECT bool_and(swept) FROM relata_store.store WHERE deleted_at IS NOT NULL", "t",
                          WAIT_MS);
    end(&w);
}

/* Every write of `object` fails in Postgres with this SQLSTATE. */
static void refuse_in_postgres(struct world *w, const char *object, const char *sqlstate)
{
    harness_sqlf(
        w->h,
        "CREATE OR REPLACE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.object "
        "LIKE '%s' THEN RAISE EXCEPTION 'not today' USING ERRCODE = '%s'; END IF; RETURN NEW; END $$; "
        "CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON relata_store.change FOR EACH ROW EXECUTE FUNCTION "
        "public.refuse()",
        object, sqlstate);
}

/* One of many that meet in a group is what Postgres will not have: the others are committed. */
static void test_what_postgres_refuses_is_refused_alone(void **state)
{
    static struct world w;
    struct job jobs[12];
    struct authz_wait waits[12];
    struct engine_change changes[12];
    begin(&w, state);
    refuse_in_postgres(&w, "doc:bad%%", "22023");
    harness_sql(w.h, "BEGIN; SELECT 1 FROM relata_store.leader FOR UPDATE"); /* so that they gather */
    for (int i = 0; i < 12; i++) {
        changes[i] = authz_change(false, harness_strf(w.h, i % 5 ? "doc:%d" : "doc:bad%d", i), "viewer", "user:a");
        jobs[i] = (struct job){.kind = JOB_WRITE, .store = w.store, .changes = &changes[i], .nchanges = 1};
        authz_submit(w.s, &jobs[i], &waits[i]);
    }
    harness_sql(w.h, "ROLLBACK");
    for (int i = 0; i < 12; i++)
        assert_int_equal(authz_await(&jobs[i], &waits[i]), i % 5 ? ST_OK : ST_INVALID);
    assert_int_equal(harness_sql_int(w.h, "SELECT count(*) FROM relata_store.tuple"), 9);
    assert_int_equal(engine_size(w.store->engine).tuples, 9);
    end(&w);
}

/* The disk is full, and is not any more. */
static void test_postgres_has_no_room_for_a_while(void **state)
{
    static struct world w;
    begin(&w, state);
    refuse_in_postgres(&w, "doc:%%", "53100");
    assert_int_equal(authz_write(w.s, w.store, "doc:1", "user:a"), ST_RETRY);
    assert_false(authz_has(w.store, "doc:1", "user:a"));
    authz_ready(w.s); /* decisions go on */
    harness_sql(w.h, "DROP TRIGGER refuse ON relata_store.change");
    assert_int_equal(authz_write(w.s, w.store, "doc:1", "user:a"), ST_OK);
    assert_true(authz_has(w.store, "doc:1", "user:a"));
    end(&w);
}

static void test_bounds_of_the_queue(void **state)
{
    static struct world w;
    struct job jobs[8];
    struct authz_wait waits[8];
    struct engine_change changes[8];
    int throttled = 0, late = 0;
    begin(&w, state);
    stores_put(w.store);
    authz_stop(w.s);
    w.cfg.queue = 2;
    w.s = authz_start(&w.cfg);
    authz_ready(w.s);
    struct served *found[1];
    assert_int_equal(stores_list(w.s, NULL, "s", found, 1), 1);
    w.store = found[0];
    harness_sql(w.h, "BEGIN; SELECT 1 FROM relata_store.leader FOR UPDATE"); /* the writer waits */
    for (int i = 0; i < 8; i++) {
        changes[i] = authz_change(false, harness_strf(w.h, "doc:%d", i), "viewer", "user:a");
        jobs[i] = (struct job){.kind = JOB_WRITE,
                               .store = w.store,
                               .changes = &changes[i],
                               .nchanges = 1,
                               .deadline = deadline_in_ms(200)};
        authz_submit(w.s, &jobs[i], &waits[i]);
        usleep(20000);
    }
    usleep(300000);
    harness_sql(w.h, "ROLLBACK");
    for (int i = 0; i < 8; i++) {
        enum status st = authz_await(&jobs[i], &waits[i]);
        throttled += st == ST_THROTTLED;
        late += st == ST_DEADLINE;
        assert_int_equal(authz_has(w.store, harness_strf(w.h, "doc:%d", i), "user:a"), st == ST_OK);
    }
    assert_true(throttled >= 4);
    assert_true(late >= 1);
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_a_write_is_whole_or_not_at_all, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_conditions_are_told_apart_by_meaning, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_writes_that_meet_are_decided_one_after_the_other, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_readers_see_whole_writes, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_read_by_pages, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_tokens_of_others_are_refused, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_read_changes, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_a_restart_finds_everything, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_what_postgres_refuses_is_refused_alone, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_postgres_has_no_room_for_a_while, HARNESS_EMPTY_DB),
        HARNESS_TEST(test_bounds_of_the_queue, HARNESS_EMPTY_DB),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
