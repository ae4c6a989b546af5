/*
 * model_test.c - the whole pipeline under random transactions and random faults: at rest, what the services committed,
 * the ledger and the store are the same, tuple by tuple; nothing pends, nothing is parked.
 *
 * The seed is printed; RELATA_SEED=N gives the same transactions again (faults fall where the clock puts them).
 */
#include <poll.h>

#include "tests/harness/compare.h"
#include "tests/harness/harness.h"
#include "tests/harness/proc.h"
#include "tests/harness/proxy.h"
#include "tests/model/clients.h"
#include "tests/model/txgen.h"

#define CHANGES 20000
#define REQUEST_MS 1500
#define LATE_MS 2500   /* a late request reaches the store this long after it was sent */
#define WINDOW_MS 4000 /* store.late_window */
#define FREEZE_MS 5000
/* A process that was frozen between its last check and its send is the stated residual (docs/tuple-writer.md): its send
 * comes later than its intent tells. It is not killed before its answer can have been handled. */
#define KILL_AFTER_FREEZE_MS (LATE_MS + REQUEST_MS)

enum { WRITERS = 2, RELAYS = 2 };

struct program {
    struct proc *proc;
    struct proc *(*start)(struct harness *h, const char *dsn, const char *store, const char *nats);
    mono_us frozen_until; /* 0 = runs */
    mono_us spare_until;  /* no kill before */
};

struct world {
    struct harness *h;
    bool kafka;
    struct proxy *pg, *store, *nats;
    const char *dsn, *store_url, *nats_url;
    struct program programs[WRITERS + RELAYS];
    int nprograms;
    struct txgen dice;
    const char *sick; /* the service that is frozen now, or "store", "pg", "nats" for a proxy; NULL = none */
    mono_us sick_until;
    struct buf faults; /* what was done, a word each, for the report */
};

static void note(struct world *w, const char *what, const char *whom)
{
    buf_addf(&w->faults, " %s:%s", what, whom);
}

static struct proc *start_writer(struct harness *h, const char *dsn, const char *store, const char *nats)
{
    return writer_start(
        h, "--set", harness_strf(h, "pg.dsn=%s", dsn), "--set", harness_strf(h, "store.url=%s", store), "--set",
        harness_strf(h, "nats.url=%s", nats), "--set", harness_strf(h, "store.request_timeout=%dms", REQUEST_MS),
        "--set", harness_strf(h, "store.late_window=%dms", WINDOW_MS), "--set",
        harness_strf(h, "writer.source=%s", h->brokers ? "kafka" : "outbox"), "--set", "log.level=info", NULL);
}

static struct proc *start_relay(struct harness *h, const char *dsn, const char *store, const char *nats)
{
    (void)store;
    (void)nats;
    return relay_start(h, "--set", harness_strf(h, "pg.dsn=%s", dsn), "--set", "relay.topic_partitions=8", "--set",
                       "relay.resend_after=10s", "--set", "log.level=info", NULL);
}

static void program_start(struct world *w, struct program *p)
{
    p->proc = p->start(w->h, w->dsn, w->store_url, w->nats_url);
    p->frozen_until = p->spare_until = 0;
}

static void heal_program(struct world *w, struct program *p)
{
    if (p->frozen_until) {
        proc_continue(p->proc);
        p->frozen_until = 0;
        p->spare_until = deadline_in_ms(KILL_AFTER_FREEZE_MS);
    }
    if (!proc_running(p->proc))
        program_start(w, p);
}

static void heal_service(struct world *w)
{
    if (!w->sick)
        return;
    proxy_pass(w->pg);
    proxy_pass(w->store);
    proxy_pass(w->nats);
    if (strcmp(w->sick, "proxy") != 0)
        harness_service(w->h, "continue", w->sick);
    w->sick = NULL;
}

/* One thing that goes wrong with a program. */
static void hurt_program(struct world *w, struct program *p)
{
    mono_us now = clock_mono_us();
    if (p->frozen_until)
        return;
    if (txgen_below(&w->dice, 3) == 0) {
        note(w, "freeze", p->start == start_writer ? "writer" : "relay");
        proc_freeze(p->proc);
        p->frozen_until = now + FREEZE_MS * 1000;
    } else if (now >= p->spare_until) {
        note(w, "kill", p->start == start_writer ? "writer" : "relay");
        proc_kill(p->proc);
        program_start(w, p);
    }
}

/* One thing that goes wrong with a service or on the way to it; only one at a time, so that work gets done. */
static void hurt_service(struct world *w)
{
    static const char *const names[] = {"postgres", "openfga", "nats", "kafka"};
    if (w->sick)
        return;
    const char *name = names[txgen_below(&w->dice, w->kafka ? 4 : 3)];
    unsigned what = txgen_below(&w->dice, 7);
    if (what <= 1) {
        note(w, what ? "kill" : "restart", name);
        if (what)
            harness_service(w->h, "kill", name);
        harness_service(w->h, what ? "start" : "restart", name);
        return;
    }
    w->sick = what == 2 ? name : "proxy";
    if (what == 2) {
        note(w, "freeze", name);
        harness_service(w->h, "freeze", name);
    } else if (what <= 4) { /* requests to the store take effect late, also those whose sender is dead by then */
        note(w, "late", "openfga");
        proxy_late(w->store, LATE_MS);
    } else if (what == 5) {
        note(w, "unanswered", "openfga");
        proxy_drop(w->store, PROXY_DOWN);
    } else {
        struct proxy *cut[] = {w->pg, w->store, w->nats};
        unsigned which = txgen_below(&w->dice, 3);
        note(w, "cut", names[which]);
        proxy_cut(cut[which]);
        proxy_freeze(cut[which], PROXY_BOTH);
    }
    w->sick_until = deadline_in_ms(500 + txgen_below(&w->dice, 4000));
}

static void chaos_step(struct world *w)
{
    mono_us now = clock_mono_us();
    if (w->sick && now >= w->sick_until)
        heal_service(w);
    for (int i = 0; i < w->nprograms; i++) {
        struct program *p = &w->programs[i];
        if (p->frozen_until && now >= p->frozen_until)
            heal_program(w, p);
        /* A program may not end by itself, whatever happens to its services. */
        if (!proc_running(p->proc))
            fail_msg("a program ended by itself; its log: %s", proc_log(p->proc));
    }
    if (txgen_below(&w->dice, 2))
        hurt_program(w, &w->programs[txgen_below(&w->dice, (unsigned)w->nprograms)]);
    else
        hurt_service(w);
}

static const char *host_port(const char *url)
{
    const char *p = strstr(url, "://");
    return p ? p + 3 : url;
}

static void world_start(struct world *w, struct harness *h, uint64_t seed)
{
    *w = (struct world){.h = h, .kafka = h->brokers != NULL};
    const char *store_id, *model_id;
    harness_store_new(h, txgen_model_json, &store_id, &model_id);
    harness_pin(h, store_id, model_id);
    h->store_id = store_id;
    assert_int_equal(store_conn_use(h->store_conn, store_id, NULL), ST_OK);
    harness_sql(h, txgen_schema_sql);
    buf_init(&w->faults, 1 << 20);
    txgen_init(&w->dice, seed, 1000);
    const char *port = harness_sql_text(h, "SELECT current_setting('port')");
    w->pg = proxy_start(harness_strf(h, "127.0.0.1:%s", port));
    w->store = proxy_start(host_port(h->store_url));
    w->nats = proxy_start(host_port(h->nats_url));
    assert_true(w->pg && w->store && w->nats);
    w->dsn = harness_dsn(h, NULL, proxy_address(w->pg), NULL);
    w->store_url = harness_strf(h, "http://%s", proxy_address(w->store));
    w->nats_url = harness_strf(h, "nats://%s", proxy_address(w->nats));
    for (int i = 0; i < WRITERS; i++)
        w->programs[w->nprograms++].start = start_writer;
    for (int i = 0; w->kafka && i < RELAYS; i++)
        w->programs[w->nprograms++].start = start_relay;
    for (int i = 0; i < w->nprograms; i++)
        program_start(w, &w->programs[i]);
}

static void world_heal(struct world *w)
{
    heal_service(w);
    for (int i = 0; i < w->nprograms; i++)
        heal_program(w, &w->programs[i]);
}

static void world_stop(struct world *w)
{
    for (int i = 0; i < w->nprograms; i++)
        proc_stop(w->programs[i].proc);
    buf_release(&w->faults);
    proxy_stop(w->pg);
    proxy_stop(w->store);
    proxy_stop(w->nats);
}

static void run(struct harness *h)
{
    struct world w;
    uint64_t seed = harness_seed();
    unsigned changes = (unsigned)harness_soak(CHANGES), committed, refused, lost;
    world_start(&w, h, seed);
    struct clients *clients = clients_start(h->dsn, seed, changes);
    assert_non_null(clients);
    while (!clients_done(clients)) {
        chaos_step(&w);
        (void)poll(NULL, 0, 200 + (int)txgen_below(&w.dice, 800));
    }
    world_heal(&w);
    assert_int_equal(clients_join(clients, &committed, &refused, &lost), 0);
    (void)fprintf(stderr, "%u changes: %u transactions committed, %u refused, %u lost; faults:%s\n", changes, committed,
                  refused, lost, buf_str(&w.faults));
    assert_true(committed > changes / 20);
    /* Whatever was granted before an erasure or deletion is gone, what was not committed at that time included; what
     * was granted after it stays. Then the rest of the mortals goes, since `truth` does not know of them. */
    assert_sql_eventually(h, "SELECT count(*) FROM relata.request WHERE done_at IS NULL", "0", 120000);
    assert_int_equal(harness_sql_int(h,
                                     "SELECT count(*) FROM relata.tuple t JOIN relata.request r"
                                     " ON r.target IN (t.object, t.subject) WHERE t.present AND t.version < r.before"),
                     0);
    harness_sql(h, "SELECT relata.erase_subject(s) FROM (SELECT DISTINCT subject AS s FROM relata.tuple"
                   " WHERE present AND subject LIKE 'user:e%') x;"
                   "SELECT relata.delete_object(o) FROM (SELECT DISTINCT object AS o FROM relata.tuple"
                   " WHERE present AND object LIKE 'doc:d%') x");
    struct tuple_set *truth =
        tuple_set_query(h, "SELECT object, relation, subject, condition, context FROM public.truth WHERE present");
    assert_converged_to(h, truth, 180000);
    assert_int_equal(harness_sql_int(h, "SELECT count(*) FROM relata.dead_letter WHERE closed_at IS NULL"), 0);
    tuple_set_free(truth);
    world_stop(&w);
}

static void test_model_outbox(void **state)
{
    run(*state);
}

static void test_model_kafka_two_writers(void **state)
{
    run(*state);
}

#define OWN (HARNESS_DB | HARNESS_STORE | HARNESS_NATS | HARNESS_OWN_PG | HARNESS_OWN_OPENFGA | HARNESS_OWN_NATS)

int main(void)
{
    const struct CMUnitTest tests[] = {
        HARNESS_TEST(test_model_outbox, OWN),
        HARNESS_TEST(test_model_kafka_two_writers, OWN | HARNESS_KAFKA | HARNESS_OWN_KAFKA),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
