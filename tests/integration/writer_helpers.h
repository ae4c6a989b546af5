/*
 * writer_helpers.h - what the tests of tuple-writer share: changes by SQL, questions to the store.
 */
#ifndef RELATA_TESTS_WRITER_HELPERS_H
#define RELATA_TESTS_WRITER_HELPERS_H

#include "tests/harness/compare.h"
#include "tests/harness/fake_store.h"
#include "tests/harness/harness.h"
#include "tests/harness/proc.h"

#define WAIT_MS 20000
#define CONVERGE_MS 30000

static inline void grant_tuple(struct harness *h, const char *object, const char *relation, const char *subject)
{
    harness_sqlf(h, "SELECT relata.write_tuple('%s', '%s', '%s')", object, relation, subject);
}

static inline void revoke_tuple(struct harness *h, const char *object, const char *relation, const char *subject)
{
    harness_sqlf(h, "SELECT relata.delete_tuple('%s', '%s', '%s')", object, relation, subject);
}

static inline bool store_has(struct harness *h, const char *object, const char *relation, const char *subject)
{
    struct tuple_key key = {object, relation, subject};
    struct err err;
    bool found = false;
    if (store_read_tuple(h->store_conn, &key, &found, NULL, deadline_in_ms(harness_ms(10000)), &err) != ST_OK)
        fail_msg("reading %s: %s", object, err.text);
    return found;
}

/* Number of tuples in the store. */
static inline size_t store_size(struct harness *h)
{
    struct tuple_set *s = tuple_set_store(h);
    size_t n = tuple_set_len(s);
    tuple_set_free(s);
    return n;
}

struct presence {
    struct harness *h;
    const char *object, *relation, *subject;
    bool present;
};

static inline bool presence_is(void *arg)
{
    struct presence *p = arg;
    return store_has(p->h, p->object, p->relation, p->subject) == p->present;
}

static inline void assert_presence_eventually(struct harness *h, bool present, const char *object, const char *relation,
                                              const char *subject)
{
    struct presence p = {h, object, relation, subject, present};
    if (!eventually(presence_is, &p, WAIT_MS))
        fail_msg("%s#%s@%s is not %s in the store", object, relation, subject, present ? "present" : "absent");
}

struct use {
    struct fake_store *f;
    int rule, times;
};

static inline bool rule_used(void *arg)
{
    struct use *u = arg;
    return fake_store_used(u->f, u->rule) >= u->times;
}

static inline void assert_rule_used(struct fake_store *f, int rule, int times)
{
    struct use u = {f, rule, times};
    if (!eventually(rule_used, &u, WAIT_MS))
        fail_msg("rule %d was used %d times, not %d", rule, fake_store_used(f, rule), times);
}

static inline int write_count(struct fake_store *f)
{
    return fake_store_count(f, "/write");
}

/* Tuples named in the body of the n-th Write (-1 = the last). */
static inline int write_size(struct fake_store *f, int n)
{
    char *body = fake_store_body(f, "/write", n);
    int count = 0;
    for (const char *at = body; at && (at = strstr(at, "\"object\"")) != NULL; at++)
        count++;
    free(body);
    return count;
}

static inline bool write_names(struct fake_store *f, int n, const char *text)
{
    char *body = fake_store_body(f, "/write", n);
    bool found = body && strstr(body, text);
    free(body);
    return found;
}

static inline bool unready_because(struct proc *p, const char *text)
{
    const char *body = "";
    return proc_get(p, "/readyz", &body) == 503 && strstr(body, text) != NULL;
}

struct reason {
    struct proc *p;
    const char *text;
};

static inline bool has_reason(void *arg)
{
    struct reason *r = arg;
    return unready_because(r->p, r->text);
}

static inline void assert_unready_eventually(struct proc *p, const char *text)
{
    struct reason r = {p, text};
    if (!eventually(has_reason, &r, WAIT_MS)) {
        const char *body = "";
        int code = proc_get(p, "/readyz", &body);
        fail_msg("not unready because of \"%s\" but %d: %s", text, code, body);
    }
}

#endif
