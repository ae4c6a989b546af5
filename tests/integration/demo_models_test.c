/* demo/model-deep.json and demo/model-flat.json: the same tuples, the same decisions. */
#include "tests/harness/harness.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"

/* ---- a small inventory and what it means ---- */

static const struct node {
    const char *object, *parent;
} nodes[] = {
    {"organization:o1", NULL},
    {"organization:o2", NULL},
    {"tenant:t1", "organization:o1"},
    {"tenant:t2", "organization:o1"},
    {"tenant_zone:z1", "tenant:t1"},
    {"cluster:c1", "tenant:t1"},
    {"cluster:c2", "tenant:t2"},
    {"cloud_account:a1", "cluster:c1"},
    {"cloud_account:a2", "cluster:c2"},
    {"catalog_item:i1", "cloud_account:a1"},
    {"catalog_item:i2", "cloud_account:a2"},
    {"resource_instance:r1", "catalog_item:i1"},
    {"resource_instance:r2", "catalog_item:i1"},
    {"resource_instance:r3", "catalog_item:i2"},
};
#define NODES (sizeof(nodes) / sizeof(nodes[0]))

static const char *const levels[] = {"viewer", "operator", "editor"}; /* each holds all before it */
static const char *const permissions[] = {"can_view", "can_operate", "can_edit"};

static const struct grant {
    const char *object, *relation, *subject, *user; /* the user that it reaches */
} grants[] = {
    {"organization:o1", "editor", "team:admins#member", "user:adm"},
    {"organization:o1", "viewer", "team:auditors#member", "user:aud"},
    {"tenant:t1", "operator", "team:network#member", "user:net"},
    {"cluster:c2", "viewer", "team:storage#member", "user:sto"},
    {"resource_instance:r1", "editor", "team:owners#member", "user:own"},
    {"resource_instance:r2", "viewer", "user:shared", "user:shared"},
    {"catalog_item:i2", "operator", "user:shared", "user:shared"},
};
#define GRANTS (sizeof(grants) / sizeof(grants[0]))
static const char *const users[] = {"user:adm", "user:aud",    "user:net",   "user:sto",
                                    "user:own", "user:shared", "user:nobody"};
#define USERS (sizeof(users) / sizeof(users[0]))

static int level_of(const char *relation)
{
    for (int i = 0; i < 3; i++)
        if (strcmp(levels[i], relation) == 0)
            return i;
    fail_msg("no such level: %s", relation);
    return -1;
}

static const char *parent_of(const char *object)
{
    for (size_t i = 0; i < NODES; i++)
        if (strcmp(nodes[i].object, object) == 0)
            return nodes[i].parent;
    fail_msg("no such object: %s", object);
    return NULL;
}

/* The specification: some grant at the object or above it, of this level or a higher one. */
static bool may(const char *user, int level, const char *object)
{
    for (; object; object = parent_of(object))
        for (size_t i = 0; i < GRANTS; i++)
            if (strcmp(grants[i].object, object) == 0 && strcmp(grants[i].user, user) == 0 &&
                level_of(grants[i].relation) >= level)
                return true;
    return false;
}

/* ---- stores ---- */

struct demo {
    struct harness *h;
    struct store_conn *conn;
    const char *model_id;
    struct err err;
};

static char *read_model(const char *name)
{
    const char *root = getenv("RELATA_ROOT");
    char path[1024], *text = calloc(1, 65536);
    FILE *f;

    snprintf(path, sizeof(path), "%s/demo/model-%s.json", root && *root ? root : ".", name);
    f = fopen(path, "re");
    if (!f || !text || fread(text, 1, 65535, f) == 0)
        fail_msg("cannot read %s", path);
    fclose(f);
    return text;
}

static enum status put(struct demo *d, const char *object, const char *relation, const char *subject)
{
    struct store_tuple t = {{object, relation, subject}, NULL, NULL};

    return store_write(d->conn, d->model_id, &t, 1, NULL, 0, deadline_in_ms(harness_ms(15000)), &d->err);
}

static void must_put(struct demo *d, const char *object, const char *relation, const char *subject)
{
    if (put(d, object, relation, subject) != ST_OK)
        fail_msg("%s", d->err.text);
}

static void demo_open(struct demo *d, struct harness *h, const char *model)
{
    char *text = read_model(model);
    const char *store_id;

    *d = (struct demo){.h = h};
    harness_store_new(h, text, &store_id, &d->model_id);
    free(text);
    assert_int_equal(store_conn_new(&d->conn, h->store, store_id, &d->err), ST_OK);
    for (size_t i = 0; i < NODES; i++)
        if (nodes[i].parent)
            must_put(d, nodes[i].object, "parent", nodes[i].parent);
    for (size_t i = 0; i < GRANTS; i++) {
        must_put(d, grants[i].object, grants[i].relation, grants[i].subject);
        if (strncmp(grants[i].subject, "team:", 5) == 0)
            must_put(d, harness_strf(h, "%.*s", (int)strcspn(grants[i].subject, "#"), grants[i].subject), "member",
                     grants[i].user);
    }
}

static bool check(struct demo *d, const char *user, const char *relation, const char *object)
{
    struct tuple_key key = {object, relation, user};
    bool allowed;

    if (store_check(d->conn, d->model_id, &key, true, &allowed, deadline_in_ms(harness_ms(15000)), &d->err) != ST_OK)
        fail_msg("%s", d->err.text);
    return allowed;
}

/* Every user, level and object; returns the number of decisions that allow. */
static int check_all(struct demo *d, const char *const *relations)
{
    int allowed = 0;

    for (size_t u = 0; u < USERS; u++)
        for (int level = 0; level < 3; level++)
            for (size_t n = 0; n < NODES; n++) {
                bool want = may(users[u], level, nodes[n].object);
                if (check(d, users[u], relations[level], nodes[n].object) != want)
                    fail_msg("%s %s %s: must be %s", users[u], relations[level], nodes[n].object,
                             want ? "allowed" : "denied");
                allowed += want;
            }
    return allowed;
}

static void refuse_wrong_tuples(struct demo *d)
{
    assert_int_equal(put(d, "resource_instance:r1", "parent", "cluster:c1"), ST_INVALID);
    assert_int_equal(put(d, "organization:o1", "parent", "organization:o2"), ST_INVALID);
    assert_int_equal(put(d, "tenant:t1", "viewer", "team:admins"), ST_INVALID);
    assert_int_equal(put(d, "tenant:t1", "viewer", "user:*"), ST_INVALID);
    assert_int_equal(put(d, "tenant:t1", "can_view", "user:adm"), ST_INVALID);
    assert_int_equal(put(d, "team:admins", "member", "team:owners#member"), ST_INVALID);
    assert_int_equal(put(d, "tenant:t1", "owner", "user:adm"), ST_INVALID);
}

static void test_deep_model(void **state)
{
    struct demo d;

    demo_open(&d, *state, "deep");
    assert_true(check_all(&d, levels) > 50);
    check_all(&d, permissions);
    refuse_wrong_tuples(&d);
    store_conn_free(d.conn);
}

static void test_flat_model_decides_like_the_deep_one(void **state)
{
    struct demo d;

    demo_open(&d, *state, "flat");
    assert_true(check_all(&d, permissions) > 50);
    /* Here the levels themselves are only what was granted at that very object. */
    assert_true(check(&d, "user:adm", "editor", "organization:o1"));
    assert_false(check(&d, "user:adm", "editor", "tenant:t1"));
    assert_false(check(&d, "user:adm", "viewer", "organization:o1"));
    refuse_wrong_tuples(&d);
    store_conn_free(d.conn);
}

static void test_a_moved_instance_changes_hands(void **state)
{
    static const char *const models[] = {"deep", "flat"};

    for (int i = 0; i < 2; i++) {
        struct tuple_key old = {"resource_instance:r3", "parent", "catalog_item:i2"};
        struct store_tuple new = {{"resource_instance:r3", "parent", "catalog_item:i1"}, NULL, NULL};
        struct demo d;

        demo_open(&d, *state, models[i]);
        assert_true(check(&d, "user:sto", "can_view", "resource_instance:r3"));
        assert_false(check(&d, "user:net", "can_operate", "resource_instance:r3"));
        assert_int_equal(store_write(d.conn, d.model_id, &new, 1, &old, 1, deadline_in_ms(harness_ms(15000)), &d.err),
                         ST_OK);
        assert_false(check(&d, "user:sto", "can_view", "resource_instance:r3"));
        assert_true(check(&d, "user:net", "can_operate", "resource_instance:r3"));
        store_conn_free(d.conn);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_deep_model, HARNESS_STORE),
        HARNESS_TEST(test_flat_model_decides_like_the_deep_one, HARNESS_STORE),
        HARNESS_TEST(test_a_moved_instance_changes_hands, HARNESS_STORE),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
