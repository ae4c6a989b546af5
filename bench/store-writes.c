/*
 * bench-store-writes - the Writes of a tuple-writer and nothing else: the pending tuples of an outbox, read beforehand,
 * in the writer's order, lanes and batches, sent to a store with as many in flight.
 *
 * Prints {"tuples", "writes", "seconds", "cpu_seconds"}; the times are those of sending.
 */
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>

#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/config/config.h"
#include "common/pg/pg.h"
#include "common/store/store.h"
#include "common/tuple/tuple.h"

#define CONNECT_MS 30000
#define QUERY_MS 60000
#define LANES_MAX 256
#define TRIES 5 /* a store that is too slow for once; a writer would try again too */

struct settings {
    char *dsn, *store_id, *model_id;
    int64_t lanes, batch;
    struct cfg_store store;
};

#define KEY(section, key, type, member, preset, min, max, help)                                                        \
    {                                                                                                                  \
        section, key, type, offsetof(struct settings, member), preset, min, max, NULL, NULL, help                      \
    }
static const struct cfg_key keys[] = {
    KEY("pg", "dsn", CFG_SECRET, dsn, NULL, 0, 0, "the database whose relata.outbox holds the tuples"),
    CFG_STORE_KEYS(struct settings, store),
    KEY("bench", "store_id", CFG_STRING, store_id, NULL, 0, 0, "the store's id"),
    KEY("bench", "model_id", CFG_STRING, model_id, NULL, 0, 0, "the model's id"),
    KEY("bench", "lanes", CFG_INT, lanes, "16", 1, LANES_MAX, "Writes in flight at once"),
    KEY("bench", "batch", CFG_INT, batch, "100", 1, STORE_WRITE_MAX, "tuples in one Write"),
    {0},
};
static const struct cfg_program program = {
    .name = "bench-store-writes",
    .summary = "sends the pending tuples of an outbox to a store and measures only that",
    .keys = keys,
};

struct lane {
    const struct settings *cfg;
    struct store_conn *conn;
    struct store_tuple *tuples;
    size_t n, cap;
    int64_t writes;
    pthread_t thread;
    bool started;
    enum status st;
    struct err err;
};

struct bench {
    struct settings cfg;
    struct store *store;
    struct lane lane[LANES_MAX];
    size_t tuples;
};

/* ---- reading ---- */

static enum status add_tuple(void *arg, char *line, size_t len, struct err *err)
{
    struct bench *b = arg;
    char *fields[3];
    if (pg_copy_split(line, len, fields, 3) != 3)
        return err_set(err, ST_FATAL, "", "a row without three columns");
    struct lane *l = &b->lane[tuple_object_hash(fields[0]) % (uint64_t)b->cfg.lanes];
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 1024;
        struct store_tuple *grown = realloc(l->tuples, cap * sizeof *grown);
        if (!grown)
            return err_set(err, ST_NOMEM, "", "no memory");
        l->tuples = grown;
        l->cap = cap;
    }
    const struct tuple_key key = {fields[0], fields[1], fields[2]};
    struct tuple_key *copy = tuple_key_dup(&key); /* kept until the process ends */
    if (!copy)
        return err_set(err, ST_NOMEM, "", "no memory");
    l->tuples[l->n++] = (struct store_tuple){.key = *copy};
    b->tuples++;
    return ST_OK;
}

static enum status read_tuples(struct bench *b, struct err *err)
{
    struct pg *pg = NULL;
    struct pg_config cfg = {.dsn = b->cfg.dsn, .application_name = program.name};
    enum status st = pg_open(&pg, &cfg, deadline_in_ms(CONNECT_MS), err);
    if (st == ST_OK)
        st = pg_copy_out(pg,
                         "COPY (SELECT object, relation, subject FROM relata.outbox WHERE op = 'write' "
                         "ORDER BY xid, id) TO STDOUT",
                         QUERY_MS, add_tuple, b, err);
    pg_close(pg);
    return st;
}

/* ---- sending ---- */

static int by_key(const void *a, const void *b)
{
    const struct store_tuple *x = a, *y = b;
    return tuple_key_cmp(&x->key, &y->key);
}

static void *lane_main(void *arg)
{
    struct lane *l = arg;
    size_t batch = (size_t)l->cfg->batch;
    for (size_t at = 0; at < l->n && l->st == ST_OK; at += batch) {
        size_t n = l->n - at < batch ? l->n - at : batch;
        qsort(l->tuples + at, n, sizeof *l->tuples, by_key);
        for (int tries = 0; tries < TRIES; tries++) {
            l->st = store_write(l->conn, l->cfg->model_id, l->tuples + at, n, NULL, 0,
                                deadline_in_ms(l->cfg->store.request_timeout_ms), &l->err);
            l->writes++;
            if (!status_is_retryable(l->st))
                break;
        }
    }
    return NULL;
}

static enum status run_lanes(struct bench *b, int64_t *writes, struct err *err)
{
    enum status st = ST_OK;
    for (int64_t i = 0; i < b->cfg.lanes && st == ST_OK; i++) {
        struct lane *l = &b->lane[i];
        l->started = pthread_create(&l->thread, NULL, lane_main, l) == 0;
        if (!l->started)
            st = err_set(err, ST_NOMEM, "", "cannot start a thread");
    }
    for (int64_t i = 0; i < b->cfg.lanes; i++) {
        struct lane *l = &b->lane[i];
        if (l->started)
            pthread_join(l->thread, NULL);
        *writes += l->writes;
        if (l->st != ST_OK && st == ST_OK) {
            st = l->st;
            *err = l->err;
        }
    }
    return st;
}

static enum status measure(struct bench *b, struct err *err)
{
    int64_t writes = 0;
    enum status st = read_tuples(b, err);
    if (st == ST_OK)
        st = store_new(&b->store, &b->cfg.store, err);
    for (int64_t i = 0; i < b->cfg.lanes && st == ST_OK; i++) {
        b->lane[i].cfg = &b->cfg;
        st = store_conn_new(&b->lane[i].conn, b->store, b->cfg.store_id, err);
    }
    mono_us began = clock_mono_us();
    int64_t cpu = clock_cpu_us();
    if (st == ST_OK)
        st = run_lanes(b, &writes, err);
    if (st == ST_OK)
        printf("{\"tuples\": %zu, \"writes\": %" PRId64 ", \"seconds\": %.4f, \"cpu_seconds\": %.4f}\n", b->tuples,
               writes, (double)(clock_mono_us() - began) / 1e6, (double)(clock_cpu_us() - cpu) / 1e6);
    for (int64_t i = 0; i < b->cfg.lanes; i++)
        store_conn_free(b->lane[i].conn);
    store_free(b->store);
    return st;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct err err = {0};
    enum cfg_action action;
    if (config_load(&program, argc, argv, &b.cfg, &action, &err) != ST_OK) {
        fprintf(stderr, "bench-store-writes: %s\n", err.text);
        return EXIT_USAGE;
    }
    int code = EXIT_DONE;
    log_init(program.name, LOG_LVL_WARN, LOG_FMT_LOGFMT);
    if (action == CFG_RUN && measure(&b, &err) != ST_OK) {
        fprintf(stderr, "bench-store-writes: %s\n", err.text);
        code = EXIT_FAILED;
    }
    config_release(&program, &b.cfg);
    return code;
}
