/*
 * track_cases_test.c - what services did wrong with tuples of their rows elsewhere, done with tracked tables here: from
 * the row to the store.
 */
#include "tests/integration/writer_helpers.h"

/* The tuples of relation `relation` in the store, sorted: "object@subject object@subject". */
static const char *held(struct harness *h, const char *relation)
{
    assert_converged(h, CONVERGE_MS);
    return harness_sql_text(
        h, harness_strf(h,
                        "SELECT coalesce(string_agg(object || '@' || subject, ' ' ORDER BY object, subject), '')"
                        " FROM relata.tuple WHERE present AND relation = '%s'",
                        relation));
}

static int stored(struct harness *h)
{
    struct tuple_set *s = tuple_set_store(h);
    int n = (int)tuple_set_len(s);
    tuple_set_free(s);
    return n;
}

static struct proc *world(struct harness *h, const char *sql)
{
    harness_sql(h, "SET search_path TO public, pg_catalog");
    harness_sql(h, sql);
    struct proc *w = writer_start(h, NULL);
    proc_ready_wait(w, WAIT_MS);
    return w;
}

static const char notes_sql[] =
    "CREATE TABLE public.note (id text PRIMARY KEY, owner text, role text, state text NOT NULL DEFAULT 'live',"
    " deleted_at timestamptz, UNIQUE (owner, role));"
    "SELECT relata.track('public.note', '[{\"object\": \"doc:{id}\", \"relation\": \"viewer\","
    " \"subject\": \"user:{owner}\", \"when\": \"deleted_at is null and state = ''live''\"}]')";

static void test_R19_a_refused_row_leaves_no_tuple(void **state)
{
    struct harness *h = *state;
    struct proc *w = world(h, notes_sql);
    struct err err;
    harness_sql(h, "INSERT INTO public.note VALUES ('1', 'anne', 'a')");
    assert_int_equal(pg_exec(h->pg, "INSERT INTO public.note VALUES ('2', 'bob', 'b'), ('3', 'anne', 'a')",
                             deadline_in_ms(WAIT_MS), &err),
                     ST_INVALID);
    assert_string_equal(err.code, "23505");
    assert_string_equal(held(h, "viewer"), "doc:1@user:anne");
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.tuple"), 1);
    proc_stop(w);
}

static void test_R20_an_edited_role_leaves_nothing_of_the_old_one(void **state)
{
    struct harness *h = *state;
    struct proc *w =
        world(h, "CREATE TABLE public.grants (doc text, who text, role text, PRIMARY KEY (doc, who));"
                 "SELECT relata.track('public.grants', '[{\"object\": \"doc:{doc}\", \"relation\": \"{role}\","
                 " \"subject\": \"user:{who}\"}]')");
    harness_sql(h, "INSERT INTO public.grants VALUES ('1', 'u1', 'owner')");
    assert_string_equal(held(h, "owner"), "doc:1@user:u1");
    harness_sql(h, "UPDATE public.grants SET role = 'viewer'");
    assert_string_equal(held(h, "owner"), "");
    assert_string_equal(held(h, "viewer"), "doc:1@user:u1");
    harness_sql(h, "DELETE FROM public.grants");
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.tuple WHERE present"), 0);
    proc_stop(w);
}

static void test_R22_create_then_delete_leaves_nothing(void **state)
{
    struct harness *h = *state;
    struct proc *w =
        world(h, "CREATE TABLE public.team (id text PRIMARY KEY, members text[]);"
                 "CREATE TABLE public.member (team text REFERENCES public.team ON DELETE CASCADE, who text);"
                 "SELECT relata.track('public.member', '[{\"object\": \"team:{team}\", \"relation\": \"member\","
                 " \"subject\": \"user:{who}\"}]')");
    harness_sql(h, "INSERT INTO public.team VALUES ('g1');"
                   "INSERT INTO public.member SELECT 'g1', 'u' || i FROM generate_series(1, 5) i");
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(stored(h), 5);
    harness_sql(h, "DELETE FROM public.team");
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(stored(h), 0);
    proc_stop(w);
}

static void test_R23_a_change_of_state_that_grants_is_published(void **state)
{
    struct harness *h = *state;
    struct proc *w = world(h, notes_sql);
    harness_sql(h, "INSERT INTO public.note (id, owner, state) VALUES ('1', 'anne', 'invited')");
    assert_string_equal(held(h, "viewer"), "");
    harness_sql(h, "UPDATE public.note SET state = 'live'");
    assert_string_equal(held(h, "viewer"), "doc:1@user:anne");
    proc_stop(w);
}

static void test_R26_cascaded_deletes_revoke_for_each_child(void **state)
{
    struct harness *h = *state;
    struct proc *w = world(
        h, "CREATE TABLE public.parent (id text PRIMARY KEY);"
           "CREATE TABLE public.child (id text PRIMARY KEY, parent text REFERENCES public.parent ON DELETE CASCADE,"
           " owner text);"
           "SELECT relata.track('public.child', '[{\"object\": \"doc:{id}\", \"relation\": \"owner\", \"subject\":"
           " \"user:{owner}\"}, {\"object\": \"doc:{id}\", \"relation\": \"parent\", \"subject\":"
           " \"folder:{parent}\"}]');"
           "INSERT INTO public.parent VALUES ('p'), ('q');"
           "INSERT INTO public.child SELECT 'c' || i, CASE WHEN i < 4 THEN 'p' ELSE 'q' END, 'u' || i"
           " FROM generate_series(1, 4) i");
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(stored(h), 8);
    harness_sql(h, "DELETE FROM public.parent WHERE id = 'p'");
    assert_string_equal(held(h, "owner"), "doc:c4@user:u4");
    assert_int_equal(stored(h), 2);
    proc_stop(w);
}

static void test_R28_a_purge_of_working_relations_keeps_the_governing_one(void **state)
{
    struct harness *h = *state;
    struct proc *w =
        world(h, "CREATE TABLE public.calendar (id text PRIMARY KEY, admin text);"
                 "CREATE TABLE public.worker (calendar text, who text, role text);"
                 "SELECT relata.track('public.calendar', '[{\"object\": \"doc:{id}\", \"relation\": \"owner\","
                 " \"subject\": \"user:{admin}\"}]');"
                 "SELECT relata.track('public.worker', '[{\"object\": \"doc:{calendar}\", \"relation\": \"{role}\","
                 " \"subject\": \"user:{who}\"}]');"
                 "INSERT INTO public.calendar VALUES ('c1', 'boss');"
                 "INSERT INTO public.worker VALUES ('c1', 'u1', 'editor'), ('c1', 'u2', 'viewer')");
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(stored(h), 3);
    harness_sql(h, "DELETE FROM public.worker WHERE calendar = 'c1'");
    assert_string_equal(held(h, "owner"), "doc:c1@user:boss");
    assert_int_equal(stored(h), 1);
    proc_stop(w);
}

static void test_R29_soft_delete_late_grant_and_restore(void **state)
{
    struct harness *h = *state;
    struct proc *w = world(h, notes_sql);
    harness_sql(h, "INSERT INTO public.note (id, owner) VALUES ('1', 'anne')");
    assert_string_equal(held(h, "viewer"), "doc:1@user:anne");
    harness_sql(h, "UPDATE public.note SET deleted_at = now()");
    assert_string_equal(held(h, "viewer"), "");
    harness_sql(h, "UPDATE public.note SET owner = 'bob'"); /* late, for a row that is deleted */
    assert_string_equal(held(h, "viewer"), "");
    harness_sql(h, "UPDATE public.note SET deleted_at = NULL");
    assert_string_equal(held(h, "viewer"), "doc:1@user:bob");
    proc_stop(w);
}

static void test_W32_ids_with_reserved_characters_stay_apart(void **state)
{
    struct harness *h = *state;
    struct proc *w = world(h, notes_sql);
    harness_sql(
        h, "INSERT INTO public.note (id, owner) VALUES ('a:b', 'x'), ('a#b', 'x2'), ('a b', 'x3'), ('a%3Ab', 'x4')");
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(stored(h), 4);
    assert_string_equal(harness_sql_text(h, "SELECT string_agg(relata.decode_id(substr(object, 5)), '|' ORDER BY"
                                            " relata.decode_id(substr(object, 5)) COLLATE \"C\") FROM relata.tuple"),
                        "a b|a#b|a%3Ab|a:b");
    harness_sql(h, "DELETE FROM public.note WHERE id = 'a:b'");
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(stored(h), 3);
    assert_string_equal(
        harness_sql_text(h, "SELECT relata.decode_id(substr(object, 5)) FROM relata.tuple WHERE NOT present"), "a:b");
    proc_stop(w);
}

static void test_W34_a_hostile_id_cannot_change_what_the_tuple_means(void **state)
{
    struct harness *h = *state;
    struct proc *w = world(h, notes_sql);
    harness_sql(h, "INSERT INTO public.note (id, owner) VALUES ('7#viewer@user:u9', 'u1#member')");
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(stored(h), 1);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.tuple WHERE strpos(subject, '#') > 0"
                                        " OR subject = 'user:u9' OR object = 'doc:7'"),
                     0);
    proc_stop(w);
}

static void test_W37_a_star_as_an_id_is_no_wildcard(void **state)
{
    struct harness *h = *state;
    struct proc *w = world(h, notes_sql);
    harness_sql(h, "INSERT INTO public.note (id, owner) VALUES ('*', 'anne'), ('2', '*')");
    assert_converged(h, CONVERGE_MS);
    assert_int_equal(stored(h), 2);
    assert_false(store_has(h, "doc:2", "viewer", "user:*"));
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter"), 0);
    proc_stop(w);
}

static void test_W50_exactly_this_value_whatever_was_there(void **state)
{
    struct harness *h = *state;
    struct proc *w = world(h, "SELECT 1");
    grant_tuple(h, "doc:1", "parent", "folder:d0");
    assert_converged(h, CONVERGE_MS);
    /* The service believes that d1 is there; taking away what is not there is no error, and d0 is in the ledger to be
     * seen. */
    harness_sql(h, "BEGIN; SELECT relata.delete_tuple('doc:1', 'parent', 'folder:d1');"
                   "SELECT relata.write_tuple('doc:1', 'parent', 'folder:d2'); COMMIT");
    assert_string_equal(held(h, "parent"), "doc:1@folder:d0 doc:1@folder:d2");
    /* With a tracked column there is only ever one. */
    harness_sql(h, "CREATE TABLE public.doc (id text PRIMARY KEY, folder text);"
                   "SELECT relata.track('public.doc', '[{\"object\": \"doc:{id}\", \"relation\": \"parent\","
                   " \"subject\": \"folder:{folder}\"}]');"
                   "INSERT INTO public.doc VALUES ('2', 'd0'); UPDATE public.doc SET folder = 'd1';"
                   "UPDATE public.doc SET folder = 'd2'");
    assert_string_equal(held(h, "parent"), "doc:1@folder:d0 doc:1@folder:d2 doc:2@folder:d2");
    proc_stop(w);
}

static void test_S11_purged_and_granted_again_is_allowed(void **state)
{
    struct harness *h = *state;
    struct proc *w = world(h, "SELECT 1");
    struct err err;
    bool allowed = false;
    grant_tuple(h, "doc:1", "viewer", "user:anne");
    assert_converged(h, CONVERGE_MS);
    harness_sql(h, "SELECT relata.delete_object('doc:1')");
    assert_converged(h, CONVERGE_MS);
    assert_false(store_has(h, "doc:1", "viewer", "user:anne"));
    grant_tuple(h, "doc:1", "viewer", "user:anne");
    assert_converged(h, CONVERGE_MS);
    /* The deletion is repeated for late grants; this one came after it, and stays. */
    assert_sql_eventually(h, "SELECT count(*) FROM relata.request WHERE done_at IS NULL", "0", CONVERGE_MS);
    assert_converged(h, CONVERGE_MS);
    const struct tuple_key key = {"doc:1", "viewer", "user:anne"};
    assert_int_equal(
        store_check(h->store_conn, h->model_id, &key, true, &allowed, deadline_in_ms(harness_ms(10000)), &err), ST_OK);
    assert_true(allowed);
    proc_stop(w);
}

#define PARTS (HARNESS_DB | HARNESS_STORE)

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_R19_a_refused_row_leaves_no_tuple, PARTS),
        HARNESS_TEST(test_R20_an_edited_role_leaves_nothing_of_the_old_one, PARTS),
        HARNESS_TEST(test_R22_create_then_delete_leaves_nothing, PARTS),
        HARNESS_TEST(test_R23_a_change_of_state_that_grants_is_published, PARTS),
        HARNESS_TEST(test_R26_cascaded_deletes_revoke_for_each_child, PARTS),
        HARNESS_TEST(test_R28_a_purge_of_working_relations_keeps_the_governing_one, PARTS),
        HARNESS_TEST(test_R29_soft_delete_late_grant_and_restore, PARTS),
        HARNESS_TEST(test_W32_ids_with_reserved_characters_stay_apart, PARTS),
        HARNESS_TEST(test_W34_a_hostile_id_cannot_change_what_the_tuple_means, PARTS),
        HARNESS_TEST(test_W37_a_star_as_an_id_is_no_wildcard, PARTS),
        HARNESS_TEST(test_W50_exactly_this_value_whatever_was_there, PARTS),
        HARNESS_TEST(test_S11_purged_and_granted_again_is_allowed, PARTS),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
