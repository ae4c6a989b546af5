/* clients.c - services under test; see the header. */
#include "tests/model/clients.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/pg/pg.h"
#include "tests/model/txgen.h"

#define STATEMENT_MS 20000
/* Longest pause between two transactions: faults need time to fall between them. */
#define THINK_MS 900

struct client {
    struct clients *all;
    pthread_t thread;
    struct txgen gen;
    unsigned quota;
};

struct clients {
    const char *dsn;
    struct client each[MODEL_CLIENTS];
    atomic_uint made, running, committed, refused, lost, failed;
};

static bool explained(const struct err *err)
{
    /* 40xxx deadlock and serialisation; 57xxx shutdown; 55P03 and 57014 waits behind a frozen server; lost connections.
     */
    return err->status == ST_RETRY || err->status == ST_UNKNOWN || err->status == ST_DEADLINE;
}

static void one(struct client *c, struct pg *pg, const char *sql)
{
    struct err err = {0};
    enum status st = pg_exec(pg, sql, deadline_in_ms(STATEMENT_MS), &err);
    if (st == ST_OK) {
        atomic_fetch_add(&c->all->committed, 1);
        return;
    }
    if (!explained(&err)) {
        atomic_fetch_add(&c->all->failed, 1);
        (void)fprintf(stderr, "client %d: %s %s\n%s\n", c->gen.client, err.code, err.text, sql);
    } else if (pg_alive(pg)) {
        atomic_fetch_add(&c->all->refused, 1);
    } else {
        atomic_fetch_add(&c->all->lost, 1);
    }
    if (pg_alive(pg))
        (void)!pg_exec(pg, "ROLLBACK", deadline_in_ms(STATEMENT_MS), &err);
}

static void *client_main(void *arg)
{
    struct client *c = arg;
    struct pg *pg = NULL;
    struct buf sql;
    struct err err;
    buf_init(&sql, 1 << 20);
    while (c->gen.made < c->quota) {
        unsigned before = c->gen.made;
        (void)txgen_next(&c->gen, &sql);
        while (!pg || !pg_alive(pg)) {
            enum status st = pg ? pg_reopen(pg, deadline_in_ms(STATEMENT_MS), &err)
                                : pg_open(&pg, &(struct pg_config){.dsn = c->all->dsn, .application_name = "service"},
                                          deadline_in_ms(STATEMENT_MS), &err);
            if (st != ST_OK)
                (void)poll(NULL, 0, 50);
        }
        one(c, pg, buf_str(&sql));
        (void)poll(NULL, 0, (int)txgen_below(&c->gen, THINK_MS));
        atomic_fetch_add(&c->all->made, c->gen.made - before);
    }
    pg_close(pg);
    buf_release(&sql);
    atomic_fetch_sub(&c->all->running, 1);
    return NULL;
}

struct clients *clients_start(const char *dsn, uint64_t seed, unsigned changes)
{
    struct clients *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->dsn = dsn;
    atomic_store(&c->running, MODEL_CLIENTS);
    for (int i = 0; i < MODEL_CLIENTS; i++) {
        struct client *one_of = &c->each[i];
        one_of->all = c;
        one_of->quota = changes / MODEL_CLIENTS + 1;
        txgen_init(&one_of->gen, seed, i);
        if (pthread_create(&one_of->thread, NULL, client_main, one_of) != 0)
            abort();
    }
    return c;
}

unsigned clients_made(struct clients *c)
{
    return atomic_load(&c->made);
}

bool clients_done(struct clients *c)
{
    return atomic_load(&c->running) == 0;
}

unsigned clients_join(struct clients *c, unsigned *committed, unsigned *refused, unsigned *lost)
{
    for (int i = 0; i < MODEL_CLIENTS; i++)
        (void)pthread_join(c->each[i].thread, NULL);
    *committed = atomic_load(&c->committed);
    *refused = atomic_load(&c->refused);
    *lost = atomic_load(&c->lost);
    unsigned failed = atomic_load(&c->failed);
    free(c);
    return failed;
}
