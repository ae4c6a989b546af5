/*
 * hints_test.c - the table of hints: one entry a key, revocations first, transactions together, nothing lost.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tuple-writer/batch.h"

struct released {
    int entries, refs;
};

static void on_release(void *arg, struct offset_ref *refs, bool revoke)
{
    struct released *r = arg;
    (void)revoke;
    r->entries++;
    while (refs) {
        struct offset_ref *next = refs->next;
        free(refs);
        refs = next;
        r->refs++;
    }
}

struct fixture {
    struct hint_table t;
    struct released released;
};

static void open_table(struct fixture *f)
{
    memset(&f->released, 0, sizeof f->released);
    assert_true(hint_table_init(&f->t, on_release, &f->released));
}

static enum hint_result offer(struct fixture *f, const char *object, const char *subject, int64_t id, uint64_t xid,
                              bool revoke)
{
    struct hint h = {.key = {object, "viewer", subject}, .id = id, .xid = xid, .revoke = revoke};
    return hint_table_offer(&f->t, &h);
}

static struct offset_ref *ref_of(void *part)
{
    struct offset_ref *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->part = part;
    return r;
}

static size_t done_all(struct fixture *f, struct entry **entries, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hint_table_done(&f->t, entries[i]);
    return n;
}

static void test_a_key_stands_in_one_place(void **state)
{
    struct fixture f;
    struct entry *out[10];
    (void)state;
    open_table(&f);
    assert_int_equal(offer(&f, "doc:1", "user:a", 1, 1, false), HINT_ADDED);
    assert_int_equal(offer(&f, "doc:1", "user:a", 5, 2, false), HINT_MERGED);
    assert_int_equal(offer(&f, "doc:1", "user:a", 3, 2, false), HINT_MERGED);
    assert_int_equal(hint_table_take(&f.t, out, 10), 1);
    assert_int_equal(out[0]->hint_id, 5);
    /* News while it is taken is noted; it is in no queue. */
    assert_int_equal(offer(&f, "doc:1", "user:a", 9, 3, false), HINT_MERGED);
    assert_false(hint_table_queued(&f.t));
    assert_int_equal(out[0]->hint_id, 9);
    hint_table_requeue(&f.t, out[0]);
    assert_int_equal(hint_table_take(&f.t, out, 10), 1);
    done_all(&f, out, 1);
    assert_int_equal(f.t.len, 0);
    assert_int_equal(f.released.entries, 1);
    hint_table_release(&f.t);
}

static void test_W40_keys_differ_in_every_part(void **state)
{
    struct fixture f;
    (void)state;
    open_table(&f);
    assert_int_equal(offer(&f, "doc:1", "user:a", 1, 1, false), HINT_ADDED);
    assert_int_equal(offer(&f, "doc:2", "user:a", 2, 1, false), HINT_ADDED);
    assert_int_equal(offer(&f, "doc:1", "user:b", 3, 1, false), HINT_ADDED);
    struct hint other = {.key = {"doc:1", "editor", "user:a"}, .id = 4};
    assert_int_equal(hint_table_offer(&f.t, &other), HINT_ADDED);
    assert_int_equal(f.t.len, 4);
    hint_table_release(&f.t);
}

static void test_R16_revocations_go_first_but_not_alone(void **state)
{
    struct fixture f;
    struct entry *out[100];
    char name[32];
    size_t revokes = 0;
    (void)state;
    open_table(&f);
    for (int i = 0; i < 500; i++) {
        snprintf(name, sizeof name, "doc:%d", i);
        offer(&f, name, "user:a", i + 1, (uint64_t)i + 1, i >= 250);
    }
    assert_int_equal(hint_table_take(&f.t, out, 100), 100); /* their own turn .. */
    for (int i = 0; i < 100; i++)
        assert_true(out[i]->revoke);
    assert_int_equal(out[0]->hint_id, 251); /* each kind in its order */
    done_all(&f, out, 100);
    assert_int_equal(hint_table_take(&f.t, out, 100), 100); /* .. and everybody's */
    for (int i = 0; i < 100; i++)
        revokes += out[i]->revoke;
    assert_int_equal(revokes, 75);
    assert_int_equal(out[75]->hint_id, 1);
    done_all(&f, out, 100);
    size_t n, total = 200;
    while ((n = hint_table_take(&f.t, out, 100)) > 0)
        total += done_all(&f, out, n);
    assert_int_equal(total, 500);
    hint_table_release(&f.t);
}

static void test_a_grant_that_turns_into_a_revocation_moves_ahead(void **state)
{
    struct fixture f;
    struct entry *out[2];
    (void)state;
    open_table(&f);
    offer(&f, "doc:1", "user:a", 1, 1, false);
    offer(&f, "doc:2", "user:a", 2, 2, false);
    offer(&f, "doc:3", "user:a", 3, 3, false);
    offer(&f, "doc:3", "user:a", 4, 4, true);
    assert_int_equal(hint_table_take(&f.t, out, 1), 1);
    assert_string_equal(out[0]->key->object, "doc:3");
    done_all(&f, out, 1);
    assert_int_equal(hint_table_take(&f.t, out, 2), 2);
    done_all(&f, out, 2);
    hint_table_release(&f.t);
}

/* W28: what one transaction changes of one object comes in one batch, from both queues, however far apart it stands. */
static void test_W28_a_transaction_stays_together(void **state)
{
    struct fixture f;
    struct entry *out[100];
    char name[32];
    (void)state;
    open_table(&f);
    offer(&f, "doc:moved", "folder:old", 1, 77, true);
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "doc:%d", i);
        offer(&f, name, "user:a", i + 2, (uint64_t)i + 100, false);
    }
    offer(&f, "doc:moved", "folder:new", 900, 77, false);
    offer(&f, "doc:moved", "folder:later", 901, 78, false); /* another transaction */
    assert_int_equal(hint_table_take(&f.t, out, 100), 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(out[i]->key->object, "doc:moved");
        assert_int_equal(out[i]->hint_xid, 77);
    }
    hint_table_release(&f.t);
}

static void test_a_group_that_does_not_fit_waits_for_the_next_batch(void **state)
{
    struct fixture f;
    struct entry *out[10];
    char name[32];
    (void)state;
    open_table(&f);
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "user:%d", i);
        offer(&f, "doc:a", name, i + 1, 1, false);
    }
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "user:%d", i);
        offer(&f, "doc:b", name, i + 10, 1, false);
    }
    assert_int_equal(hint_table_take(&f.t, out, 10), 6);
    done_all(&f, out, 6);
    assert_int_equal(hint_table_take(&f.t, out, 10), 6);
    for (int i = 0; i < 6; i++)
        assert_string_equal(out[i]->key->object, "doc:b");
    done_all(&f, out, 6);
    for (int i = 0; i < 25; i++) { /* more than fits into any batch: in parts */
        snprintf(name, sizeof name, "user:%d", i);
        offer(&f, "doc:c", name, i + 30, 1, false);
    }
    size_t total = 0, batches = 0;
    for (size_t n; (n = hint_table_take(&f.t, out, 10)) > 0; batches++)
        total += done_all(&f, out, n);
    assert_int_equal(total, 25);
    assert_int_equal(batches, 3);
    hint_table_release(&f.t);
}

static void test_delayed_entries_come_back(void **state)
{
    struct fixture f;
    struct entry *out[2];
    (void)state;
    open_table(&f);
    offer(&f, "doc:1", "user:a", 1, 1, false);
    assert_int_equal(hint_table_take(&f.t, out, 2), 1);
    hint_table_delay(&f.t, out[0], 1000);
    assert_int_equal(hint_table_wake(&f.t, 999), 1000);
    assert_int_equal(hint_table_take(&f.t, out, 2), 0);
    assert_int_equal(offer(&f, "doc:1", "user:a", 2, 2, true), HINT_MERGED); /* it keeps its place */
    assert_int_equal(hint_table_take(&f.t, out, 2), 0);
    assert_true(hint_table_wake(&f.t, 1000) == DEADLINE_NONE);
    assert_int_equal(hint_table_take(&f.t, out, 2), 1);
    assert_true(out[0]->revoke);
    done_all(&f, out, 1);
    hint_table_release(&f.t);
}

static void test_refs_are_given_back_once(void **state)
{
    struct fixture f;
    struct entry *out[2];
    int part, other;
    (void)state;
    open_table(&f);
    struct hint h = {.key = {"doc:1", "viewer", "user:a"}, .id = 1, .ref = ref_of(&part)};
    hint_table_offer(&f.t, &h);
    h.ref = ref_of(&part);
    hint_table_offer(&f.t, &h); /* an old one: its ref waits for the entry too */
    assert_int_equal(hint_table_take(&f.t, out, 2), 1);
    h.id = 7;
    h.ref = ref_of(&other);
    hint_table_offer(&f.t, &h);
    hint_table_done(&f.t, out[0]);
    assert_int_equal(f.released.refs, 3);
    hint_table_release(&f.t);
}

static void test_W44_a_partition_that_went_away_is_forgotten(void **state)
{
    struct fixture f;
    struct entry *out[4];
    int gone, kept;
    (void)state;
    open_table(&f);
    struct hint h = {.key = {"doc:taken", "viewer", "user:a"}, .id = 1, .ref = ref_of(&gone)};
    hint_table_offer(&f.t, &h);
    assert_int_equal(hint_table_take(&f.t, out, 4), 1);
    h = (struct hint){.key = {"doc:queued", "viewer", "user:a"}, .id = 2, .ref = ref_of(&gone)};
    hint_table_offer(&f.t, &h);
    h = (struct hint){.key = {"doc:both", "viewer", "user:a"}, .id = 3, .ref = ref_of(&gone)};
    hint_table_offer(&f.t, &h);
    h.ref = ref_of(&kept);
    hint_table_offer(&f.t, &h);
    h = (struct hint){.key = {"doc:forced", "viewer", "user:a"}, .force = true};
    hint_table_offer(&f.t, &h);
    assert_int_equal(hint_table_forget(&f.t, &gone, true), 2); /* the taken one keeps its ref: its batch may end */
    assert_null(hint_table_find(&f.t, &(struct tuple_key){"doc:queued", "viewer", "user:a"}));
    assert_non_null(hint_table_find(&f.t, &(struct tuple_key){"doc:both", "viewer", "user:a"}));
    assert_non_null(hint_table_find(&f.t, &(struct tuple_key){"doc:forced", "viewer", "user:a"}));
    assert_int_equal(hint_table_forget(&f.t, &gone, false), 1);
    assert_non_null(hint_table_find(&f.t, &(struct tuple_key){"doc:taken", "viewer", "user:a"}));
    assert_null(out[0]->refs);
    hint_table_done(&f.t, out[0]);
    hint_table_release(&f.t);
}

/* ---- batches ---- */
static struct batch *batch_of(struct fixture *f, size_t n)
{
    struct entry *out[100];
    struct batch *b = batch_new();
    assert_non_null(b);
    assert_int_equal(hint_table_take(&f->t, out, 100), n);
    for (size_t i = 0; i < n; i++)
        assert_true(batch_add(b, out[i]));
    return b;
}

static void test_a_batch_is_sorted_by_key(void **state)
{
    struct fixture f;
    (void)state;
    open_table(&f);
    offer(&f, "doc:2", "user:a", 1, 1, false);
    offer(&f, "doc:1", "user:b", 2, 2, false);
    offer(&f, "doc:1", "user:a", 3, 3, false);
    struct batch *b = batch_of(&f, 3);
    batch_sort(b);
    for (size_t i = 1; i < b->n; i++)
        assert_true(tuple_key_cmp(b->items[i - 1].key, b->items[i].key) < 0);
    free(b);
    hint_table_release(&f.t);
}

static void test_W28_halves_keep_a_transaction_together_while_they_can(void **state)
{
    struct fixture f;
    char name[32];
    (void)state;
    open_table(&f);
    for (int i = 0; i < 10; i++) { /* one transaction with six changes of one object, four others */
        snprintf(name, sizeof name, "user:%d", i);
        offer(&f, i < 6 ? "doc:a" : "doc:b", name, i + 1, i < 6 ? 1 : (uint64_t)i, false);
    }
    struct batch *b = batch_of(&f, 10);
    b->intent = 42;
    struct batch *rest = batch_split(b);
    assert_non_null(rest);
    assert_int_equal(b->n + rest->n, 10);
    assert_true(b->n >= 1 && rest->n >= 1);
    struct batch *halves[] = {b, rest};
    for (int h = 0; h < 2; h++) {
        int of_a = 0;
        for (size_t i = 0; i < halves[h]->n; i++)
            of_a += strcmp(halves[h]->items[i].key->object, "doc:a") == 0;
        assert_true(of_a == 0 || of_a == 6);
        assert_true(halves[h]->alone);
    }
    /* The intent still covers what is done last. */
    assert_int_equal(b->intent, 0);
    assert_int_equal(rest->intent, 42);
    free(b);
    free(rest);
    hint_table_release(&f.t);
}

static void test_W02_halving_one_group_is_logarithmic(void **state)
{
    struct fixture f;
    char name[32];
    (void)state;
    open_table(&f);
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "user:%d", i);
        offer(&f, "doc:a", name, i + 1, 1, false);
    }
    struct batch *b = batch_of(&f, 100);
    int splits = 0;
    while (b->n > 1) {
        struct batch *rest = batch_split(b);
        assert_non_null(rest);
        assert_in_range(rest->n, b->n, b->n + 1);
        free(rest);
        splits++;
    }
    assert_in_range(splits, 6, 7);
    free(b);
    hint_table_release(&f.t);
}

static void test_what_an_attempt_takes_over_and_what_is_news(void **state)
{
    struct fixture f;
    (void)state;
    open_table(&f);
    struct hint h = {.key = {"doc:1", "viewer", "user:a"}, .id = 5, .xid = 9, .created_us = 1000, .force = true};
    hint_table_offer(&f.t, &h);
    struct batch *b = batch_of(&f, 1);
    struct item *it = &b->items[0];
    assert_true(it->force);
    assert_false(it->entry->force); /* set again = another hint during the attempt */
    assert_int_equal(it->created_us, 1000);
    h = (struct hint){.key = h.key, .id = 8, .xid = 10, .created_us = 2000};
    hint_table_offer(&f.t, &h);
    assert_int_equal(it->hint_id, 5);
    batch_refresh(b); /* the attempt failed: the next one knows both */
    assert_int_equal(it->hint_id, 8);
    assert_true(it->force);
    assert_int_equal(it->created_us, 1000);
    free(b);
    hint_table_release(&f.t);
}

/* Memory is given back from the newest grants on, of what waits behind an object that gets nowhere; what more than a
 * hint speaks for stays, and so does everything else. */
static void test_shedding_keeps_what_is_owed(void **state)
{
    struct fixture f;
    struct entry *out[20], *stuck;
    char subject[32];
    (void)state;
    open_table(&f);
    assert_int_equal(offer(&f, "doc:stuck", "user:first", 1, 1, false), HINT_ADDED);
    assert_int_equal(hint_table_take(&f.t, &stuck, 1), 1);
    for (int i = 0; i < 10; i++) {
        snprintf(subject, sizeof subject, "user:%d", i);
        assert_int_equal(offer(&f, "doc:stuck", subject, i + 2, 2, i == 0), HINT_ADDED);
    }
    struct hint forced = {.key = {"doc:stuck", "viewer", "user:forced"}, .force = true};
    assert_int_equal(hint_table_offer(&f.t, &forced), HINT_ADDED);
    struct hint kafka = {.key = {"doc:stuck", "viewer", "user:kafka"}, .id = 20, .ref = ref_of(&f)};
    assert_int_equal(hint_table_offer(&f.t, &kafka), HINT_ADDED);
    assert_int_equal(offer(&f, "doc:well", "user:a", 21, 3, false), HINT_ADDED);
    assert_int_equal(hint_table_shed(&f.t, 0), 0); /* nothing is known to be stuck */
    hint_table_stick(&f.t, stuck);
    assert_int_equal(hint_table_shed(&f.t, 10), 0);
    assert_int_equal(hint_table_shed(&f.t, 1), 9); /* the revocation is the last to go */
    assert_int_equal(f.released.entries, 9);
    assert_int_equal(hint_table_take(&f.t, out, 20), 1);
    assert_string_equal(out[0]->key->object, "doc:well");
    done_all(&f, out, 1);
    hint_table_requeue(&f.t, stuck);
    assert_int_equal(hint_table_shed(&f.t, 0), 0); /* given back: stuck no more */
    size_t n = hint_table_take(&f.t, out, 20);
    assert_int_equal(n, 4);
    done_all(&f, out, n);
    assert_int_equal(f.released.refs, 1);
    hint_table_release(&f.t);
}

/* One Write in flight an object: its other keys wait, those of others do not. */
static void test_an_object_is_under_way_once(void **state)
{
    struct fixture f;
    struct entry *first[4], *second[4], *third[8];
    (void)state;
    open_table(&f);
    offer(&f, "doc:1", "user:a", 1, 1, false);
    offer(&f, "doc:1", "user:b", 2, 2, false);
    assert_int_equal(hint_table_take(&f.t, first, 4), 2); /* of several transactions, in one Write */
    offer(&f, "doc:1", "user:c", 3, 3, true);
    offer(&f, "doc:1", "user:d", 4, 4, false);
    assert_false(hint_table_queued(&f.t));
    assert_int_equal(hint_table_waiting(&f.t), 2);
    offer(&f, "doc:2", "user:a", 5, 5, false);
    assert_true(hint_table_queued(&f.t));
    assert_int_equal(hint_table_take(&f.t, second, 4), 1);
    assert_string_equal(second[0]->key->object, "doc:2");
    hint_table_done(&f.t, first[0]);
    assert_int_equal(hint_table_take(&f.t, third, 8), 0);
    hint_table_rest(&f.t, first[1]);
    assert_true(hint_table_queued(&f.t));
    assert_int_equal(hint_table_take(&f.t, third, 8), 2);
    hint_table_delay(&f.t, third[0], 1000);
    assert_true(hint_table_blocked(&f.t, third[0])); /* the other one is still under way */
    hint_table_done(&f.t, third[1]);
    assert_false(hint_table_blocked(&f.t, third[0]));
    hint_table_done(&f.t, second[0]);
    hint_table_release(&f.t);
}

/* Who waits for an object gets it next, however much comes for it. */
static void test_a_reserved_object_is_left_alone(void **state)
{
    struct fixture f;
    struct entry *out[4], *waits;
    (void)state;
    open_table(&f);
    offer(&f, "doc:1", "user:a", 1, 1, false);
    assert_int_equal(hint_table_take(&f.t, out, 4), 1);
    waits = hint_table_ensure(&f.t, &(struct tuple_key){"doc:1", "viewer", "user:late"});
    assert_non_null(waits);
    hint_table_reserve(&f.t, waits, true);
    hint_table_reserve(&f.t, waits, true); /* again is harmless */
    offer(&f, "doc:1", "user:b", 2, 2, false);
    offer(&f, "doc:2", "user:b", 3, 3, false);
    done_all(&f, out, 1);
    assert_false(hint_table_blocked(&f.t, waits));
    assert_int_equal(hint_table_take(&f.t, out, 4), 1);
    assert_string_equal(out[0]->key->object, "doc:2");
    done_all(&f, out, 1);
    assert_false(hint_table_queued(&f.t));
    hint_table_grab(&f.t, waits);
    assert_int_equal(hint_table_take(&f.t, out, 4), 0);
    hint_table_done(&f.t, waits);
    assert_int_equal(hint_table_take(&f.t, out, 4), 1);
    done_all(&f, out, 1);
    hint_table_release(&f.t);
}

/* Few changes travel in one Write, whatever they are: none has to wait for another's. */
static void test_few_changes_go_together(void **state)
{
    struct fixture f;
    struct entry *out[100];
    char name[32];
    (void)state;
    open_table(&f);
    for (int i = 0; i < 25; i++) {
        snprintf(name, sizeof name, "doc:%d", i);
        offer(&f, name, "user:a", i + 1, (uint64_t)i + 1, i >= 20);
    }
    assert_int_equal(hint_table_take(&f.t, out, 100), 25);
    for (int i = 0; i < 25; i++)
        assert_int_equal(out[i]->revoke, i < 5);
    done_all(&f, out, 25);
    hint_table_release(&f.t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_key_stands_in_one_place),
        cmocka_unit_test(test_W40_keys_differ_in_every_part),
        cmocka_unit_test(test_R16_revocations_go_first_but_not_alone),
        cmocka_unit_test(test_a_grant_that_turns_into_a_revocation_moves_ahead),
        cmocka_unit_test(test_W28_a_transaction_stays_together),
        cmocka_unit_test(test_a_group_that_does_not_fit_waits_for_the_next_batch),
        cmocka_unit_test(test_delayed_entries_come_back),
        cmocka_unit_test(test_refs_are_given_back_once),
        cmocka_unit_test(test_W44_a_partition_that_went_away_is_forgotten),
        cmocka_unit_test(test_a_batch_is_sorted_by_key),
        cmocka_unit_test(test_W28_halves_keep_a_transaction_together_while_they_can),
        cmocka_unit_test(test_W02_halving_one_group_is_logarithmic),
        cmocka_unit_test(test_what_an_attempt_takes_over_and_what_is_news),
        cmocka_unit_test(test_shedding_keeps_what_is_owed),
        cmocka_unit_test(test_an_object_is_under_way_once),
        cmocka_unit_test(test_a_reserved_object_is_left_alone),
        cmocka_unit_test(test_few_changes_go_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
