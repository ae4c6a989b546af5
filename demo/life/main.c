/*
 * demo-life - ordinary life on the Inari inventory, and how long its changes take to the store.
 *
 * With life.seconds = 0 it only watches the store take in what is pending: until life.wait_file exists (whoever loads
 * the inventory makes it when done) and nothing is pending any more.
 */
#include <jansson.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/config/config.h"
#include "demo/life/client.h"
#include "demo/life/ops.h"
#include "demo/life/progress.h"
#include "demo/life/watch.h"

#define CONNECT_MS 30000
#define CLIENTS_MAX 64
#define LOOK_MS 100

struct settings {
    char *dsn, *watch_dsn, *store, *wait_file, *json;
    struct cfg_nats nats;
    int64_t seconds_ms, patience_ms, rate, clients, seed, total;
};

#define KEY(section, key, type, member, preset, min, max, help)                                                        \
    {                                                                                                                  \
        section, key, type, offsetof(struct settings, member), preset, min, max, NULL, NULL, help                      \
    }
static const struct cfg_key keys[] = {
    KEY("pg", "dsn", CFG_SECRET, dsn, NULL, 0, 0, "the service's login, which changes the inventory"),
    CFG_NATS_KEYS(struct settings, nats),
    KEY("life", "watch_dsn", CFG_SECRET, watch_dsn, NULL, 0, 0, "a login that may read relata.lag, outbox and tuple"),
    KEY("life", "store", CFG_STRING, store, "default", 0, 0, "the store's name"),
    KEY("life", "seconds", CFG_DURATION, seconds_ms, "30s", 0, 86400000, "how long life goes on; 0 = watch only"),
    KEY("life", "rate", CFG_INT, rate, "100", 1, 100000, "transactions a second, all clients together"),
    KEY("life", "clients", CFG_INT, clients, "4", 1, CLIENTS_MAX, "clients at once, each with a connection of its own"),
    KEY("life", "seed", CFG_INT, seed, "1", 0, INT32_MAX, "of the random choices"),
    KEY("life", "patience", CFG_DURATION, patience_ms, "60s", 1000, 86400000,
        "give up when the pending changes do not get fewer for so long"),
    KEY("life", "wait_file", CFG_STRING, wait_file, "", 0, 0, "watching goes on until this file exists"),
    KEY("life", "total", CFG_INT, total, "0", 0, INT32_MAX, "changes that are to come, for the progress bar"),
    KEY("life", "json", CFG_STRING, json, "", 0, 0, "file for the results"),
    {0},
};
static const struct cfg_program program = {
    .name = "demo-life",
    .summary = "ordinary life on the demo's inventory, with commit-to-applied times",
    .keys = keys,
    .details = "Exit: 0 done and nothing pending, 1 failed or changes stay pending, 2 bad usage.",
};

struct run {
    const struct settings *cfg;
    struct watch *watch;
    struct life_counts counts;
    struct progress progress;
    mono_us begun, ended;
    struct watch_lag lag;
    int64_t ledger;
};

static double seconds_since(mono_us t)
{
    return (double)(clock_mono_us() - t) / 1e6;
}

/* ---- watching the store take in what is pending ---- */

static void show_carry(struct run *run, bool last)
{
    char a[32], b[32], c[32], bar[21];
    struct watch_counts seen;
    watch_counts(run->watch, &seen);
    double s = seconds_since(run->begun), total = (double)run->cfg->total;
    if (!watch_has_events(run->watch)) {
        progress_line(&run->progress, last, "  %5.1f s  %9s pending", s, progress_count((uint64_t)run->lag.pending, a));
        return;
    }
    double part = total > 0 ? (double)seen.changes / total : 0;
    size_t filled = part >= 1 ? 20 : (size_t)(part * 20);
    memset(bar, '.', 20);
    memset(bar, '#', filled);
    bar[20] = '\0';
    progress_line(&run->progress, last, "  %5.1f s  [%s]  %8s applied  %8s pending  %6s/s", s, bar,
                  progress_count(seen.changes, a), progress_count((uint64_t)run->lag.pending, b),
                  progress_count(s > 0 ? (uint64_t)((double)seen.changes / s) : 0, c));
}

/* Waits until nothing is pending; `show` is called each second. */
static enum status until_drained(struct run *run, void (*show)(struct run *, bool), struct err *err)
{
    const char *wait_file = run->cfg->wait_file;
    int64_t before = -1;
    mono_us moved = clock_mono_us(), shown = moved;
    for (;;) {
        bool loaded = !wait_file[0] || access(wait_file, F_OK) == 0;
        enum status st = watch_lag(run->watch, &run->lag, err);
        if (st != ST_OK)
            return st;
        mono_us now = clock_mono_us();
        if (loaded && run->lag.pending == 0)
            return ST_OK;
        if (!loaded || run->lag.pending != before)
            moved = now;
        before = run->lag.pending;
        if (now - moved > run->cfg->patience_ms * 1000)
            return err_set(err, ST_FATAL, "", "%lld changes stay pending: see the logs of tuple-writer and the store",
                           (long long)run->lag.pending);
        if (now - shown >= 1000000) {
            show(run, false);
            shown += 1000000;
        }
        st = stop_sleep_until(now + LOOK_MS * 1000);
        if (st != ST_OK)
            return err_set(err, st, "", "stopped by a signal");
    }
}

/* The next heartbeats tell whether the last events came. */
static void await_heartbeats(struct run *run)
{
    struct watch_counts first, now;
    mono_us deadline = deadline_in_ms(5000);
    watch_counts(run->watch, &first);
    do {
        if (!watch_has_events(run->watch) || stop_sleep_until(clock_mono_us() + LOOK_MS * 1000) != ST_OK)
            return;
        watch_counts(run->watch, &now);
    } while (now.heartbeats < first.heartbeats + 2 && clock_mono_us() < deadline);
}

/* ---- life ---- */

static void show_life(struct run *run, bool last)
{
    char a[32], b[32], c[32], d[32], e[32];
    struct watch_counts seen;
    struct watch_times times;
    watch_counts(run->watch, &seen);
    watch_times(run->watch, !last, &times);
    progress_line(&run->progress, last, "  %3.0f s %7s commits %7s applied %4s pending  p50 %s  p99 %s",
                  seconds_since(run->begun), progress_count(atomic_load(&run->counts.committed), a),
                  progress_count(watch_has_events(run->watch) ? seen.changes : seen.transactions, b),
                  progress_count((uint64_t)run->lag.pending, c), times.n ? progress_time(times.p50, d) : "-",
                  times.n ? progress_time(times.p99, e) : "-");
}

static enum status live(struct run *run, struct err *err)
{
    const struct settings *cfg = run->cfg;
    struct client *clients[CLIENTS_MAX] = {0};
    enum status st = ST_OK;
    run->begun = clock_mono_us();
    mono_us until = run->begun + cfg->seconds_ms * 1000;
    for (int64_t i = 0; st == ST_OK && i < cfg->clients; i++) {
        struct client_config client = {.dsn = cfg->dsn,
                                       .rate = (double)cfg->rate / (double)cfg->clients,
                                       .seed = (uint64_t)cfg->seed,
                                       .number = (unsigned)i,
                                       .until = until,
                                       .watch = run->watch,
                                       .counts = &run->counts};
        st = client_start(&clients[i], &client, err);
    }
    for (mono_us next = run->begun + 1000000; st == ST_OK && next < until; next += 1000000) {
        if (stop_sleep_until(next) != ST_OK)
            break;
        st = watch_lag(run->watch, &run->lag, err);
        if (st == ST_OK)
            show_life(run, false);
    }
    if (st != ST_OK)
        stop_request();
    for (int64_t i = 0; i < cfg->clients; i++) {
        struct err e = {0};
        enum status ended = client_join(clients[i], &e);
        if (st == ST_OK && ended != ST_OK) {
            st = ended;
            *err = e;
        }
    }
    run->ended = clock_mono_us();
    return st;
}

/* ---- results ---- */

static json_t *transactions_json(struct run *run)
{
    struct life_counts *c = &run->counts;
    json_t *ops_json = json_object();
    for (size_t i = 0; i < ops_len; i++)
        json_object_set_new(ops_json, ops[i].what, json_integer((json_int_t)atomic_load(&c->done[i])));
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "committed", (json_int_t)atomic_load(&c->committed),
                     "without_changes", (json_int_t)atomic_load(&c->empty), "rolled_back",
                     (json_int_t)atomic_load(&c->rolled_back), "refused", (json_int_t)atomic_load(&c->refused),
                     "deadlocks", (json_int_t)atomic_load(&c->deadlocks), "connections_lost",
                     (json_int_t)atomic_load(&c->lost), "operations", ops_json);
}

static enum status write_results(struct run *run, struct err *err)
{
    struct watch_counts seen;
    struct watch_times times;
    double seconds = run->begun ? (double)(run->ended - run->begun) / 1e6 : 0;
    bool events = watch_has_events(run->watch);
    watch_counts(run->watch, &seen);
    watch_times(run->watch, false, &times);
    json_t *json = json_pack(
        "{s:f, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I, s:I, s:I}, s:I, s:I, s:I}", "seconds", seconds,
        "measured_by", events ? "events" : "outbox", "transactions", transactions_json(run), "transactions_applied",
        (json_int_t)seen.transactions, "changes_applied", (json_int_t)seen.changes, "events", (json_int_t)seen.events,
        "event_gaps", (json_int_t)seen.gaps, "publishers", (json_int_t)seen.epochs, "heartbeats",
        (json_int_t)seen.heartbeats, "events_of_rolled_back", (json_int_t)seen.ghosts, "commit_to_applied_us", "n",
        (json_int_t)times.n, "p50", (json_int_t)times.p50, "p99", (json_int_t)times.p99, "max", (json_int_t)times.max,
        "ledger", (json_int_t)run->ledger, "pending", (json_int_t)run->lag.pending, "parked",
        (json_int_t)run->lag.parked);
    enum status st = ST_OK;
    if (!json || json_dump_file(json, run->cfg->json, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) != 0)
        st = err_set(err, ST_CONFIG, "", "cannot write %s: does its folder exist?", run->cfg->json);
    json_decref(json);
    return st;
}

static enum status judge(struct run *run, struct err *err)
{
    struct watch_counts seen;
    watch_counts(run->watch, &seen);
    if (seen.ghosts > 0)
        return err_set(err, ST_FATAL, "", "%llu changes of transactions that were rolled back reached the store",
                       (unsigned long long)seen.ghosts);
    return watch_failed(run->watch, err);
}

static enum status run_all(struct run *run, struct err *err)
{
    const struct settings *cfg = run->cfg;
    struct watch_config watch = {.nats = &cfg->nats, .dsn = cfg->watch_dsn, .store = cfg->store};
    /* A load goes on while the watch connects, and may be over by then. */
    run->begun = clock_mono_us();
    enum status st = watch_new(&run->watch, &watch, deadline_in_ms(CONNECT_MS), err);
    if (st != ST_OK)
        return st;
    bool life = cfg->seconds_ms > 0;
    progress_init(&run->progress, life ? 5 : 2);
    if (life)
        st = live(run, err);
    if (st == ST_OK)
        st = until_drained(run, life ? show_life : show_carry, err);
    if (!life)
        run->ended = clock_mono_us();
    if (run->begun)
        (life ? show_life : show_carry)(run, true);
    if (st == ST_OK)
        await_heartbeats(run);
    if (st == ST_OK)
        st = watch_ledger(run->watch, &run->ledger, err);
    if (st == ST_OK)
        st = judge(run, err);
    if (cfg->json[0]) {
        struct err e = {0};
        if (write_results(run, &e) != ST_OK && st == ST_OK) {
            *err = e;
            st = e.status;
        }
    }
    return st;
}

int main(int argc, char **argv)
{
    struct settings settings = {0};
    struct run run = {.cfg = &settings};
    struct err err = {0};
    enum cfg_action action;
    if (config_load(&program, argc, argv, &settings, &action, &err) != ST_OK) {
        fprintf(stderr, "demo-life: %s\n", err.text);
        return EXIT_USAGE;
    }
    int code = EXIT_DONE;
    if (action == CFG_RUN) {
        log_init(program.name, LOG_LVL_WARN, LOG_FMT_LOGFMT);
        stop_init();
        if (run_all(&run, &err) != ST_OK) {
            fprintf(stderr, "demo-life: %s\n", err.text);
            code = EXIT_FAILED;
        }
    }
    watch_free(run.watch);
    config_release(&program, &settings);
    return code;
}
