/*
 * bench-pages - load for inventory-lister: pages of lists, in phases of a given rate (open loop: a request is due at
 * its time whether or not earlier ones are answered, and its latency counts from then) or as fast as answers come
 * (closed).
 *
 * At its start it walks the first pages of some subjects' lists, whose requests it then repeats in turn. Refused is a
 * 503; an error is everything else that is no whole page. Meanwhile `idle` further connections make a request each,
 * spread over 20 s, again and again.
 *
 * Prints a JSON array with an object for each phase: {"rate", "seconds", "sent", "served", "refused", "errors",
 * "served_rate", "served_p50_ms", "served_p99_ms", "refused_p50_ms", "refused_p99_ms", "bytes"}.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "bench/client/client.h"
#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/config/config.h"

#define CONNECTIONS_MAX 4096
#define TOKENS_MAX 64
#define PHASES_MAX 16
#define TOKEN_LEN 4096
#define IDLE_ROUND_US 20000000
#define LAST_MS 15000 /* longest wait for the answers that a phase leaves */

struct settings {
    char *url, *tokens, *path, *phases;
    int64_t subjects, first, pages, connections, idle;
};

#define KEY(key, type, member, preset, min, max, help)                                                                 \
    {                                                                                                                  \
        "bench", key, type, offsetof(struct settings, member), preset, min, max, NULL, NULL, help                      \
    }
static const struct cfg_key keys[] = {
    KEY("url", CFG_STRING, url, NULL, 0, 0, "of the lister: http://host:port or unix:/path"),
    KEY("tokens", CFG_STRING, tokens, NULL, 0, 0,
        "bearer tokens of callers, with commas; connections take them in turn"),
    KEY("path", CFG_STRING, path, NULL, 0, 0, "of the list; a subject's number is added to its end"),
    KEY("phases", CFG_STRING, phases, "0:10", 0, 0, "RATE:SECONDS,..; rate 0 = as fast as answers come"),
    KEY("subjects", CFG_INT, subjects, "4", 1, 100000, "how many subjects' lists"),
    KEY("first", CFG_INT, first, "1", 0, 1000000, "number of the first of them"),
    KEY("pages", CFG_INT, pages, "10", 1, 100000, "pages of each list"),
    KEY("connections", CFG_INT, connections, "16", 1, CONNECTIONS_MAX, "requests in flight at most"),
    KEY("idle", CFG_INT, idle, "0", 0, CONNECTIONS_MAX, "further connections, nearly idle"),
    {0},
};
static const struct cfg_program program = {
    .name = "bench-pages",
    .summary = "makes load for inventory-lister",
    .keys = keys,
};

struct phase {
    double rate, seconds;
    uint64_t sent, errors, bytes;
    struct samples served, refused;
    mono_us begin, end;
};

struct slot {
    struct client client;
    mono_us due;
    bool busy;
};

struct load {
    struct settings cfg;
    char *tokens[TOKENS_MAX];
    size_t ntokens;
    char **paths;
    size_t npaths, next_path;
    struct phase phases[PHASES_MAX];
    size_t nphases;

    CURLM *multi;
    struct slot *slots;
    size_t *spare, nspare;
    int timer;

    pthread_t idler;
    atomic_bool idle_ends;
    atomic_int idle_open, idle_failed;
};

/* ---- what to ask ---- */

static enum status parse_phases(struct load *l, struct err *err)
{
    const char *at = l->cfg.phases;

    while (*at && l->nphases < PHASES_MAX) {
        struct phase *p = &l->phases[l->nphases++];
        char *end;

        p->rate = strtod(at, &end);
        if (*end != ':')
            return err_set(err, ST_CONFIG, "", "bench.phases: \"%s\" is not RATE:SECONDS", at);
        p->seconds = strtod(end + 1, &end);
        if ((*end && *end != ',') || p->rate < 0 || p->seconds <= 0)
            return err_set(err, ST_CONFIG, "", "bench.phases: \"%s\" is not RATE:SECONDS", at);
        at = end + (*end == ',');
    }
    return l->nphases > 0 && !*at ? ST_OK : err_set(err, ST_CONFIG, "", "bench.phases: none, or too many");
}

static void split_tokens(struct load *l)
{
    char *rest = l->cfg.tokens, *token;

    while (l->ntokens < TOKENS_MAX && (token = strsep(&rest, ",")))
        l->tokens[l->ntokens++] = token;
}

static enum status add_path(struct load *l, int64_t subject, const char *token, struct err *err)
{
    size_t size = strlen(l->cfg.path) + strlen(token) + 64;
    char *path = malloc(size);

    if (!path)
        return err_set(err, ST_NOMEM, "", "no memory for a path");
    snprintf(path, size, "%s%" PRId64 "%s%s", l->cfg.path, subject, *token ? "&page_token=" : "", token);
    l->paths[l->npaths++] = path;
    return ST_OK;
}

/* The requests of one subject's first pages. */
static enum status walk(struct load *l, struct client *c, int64_t subject, struct err *err)
{
    char token[TOKEN_LEN] = "";
    enum status st = ST_OK;

    for (int64_t i = 0; st == ST_OK && i < l->cfg.pages && (i == 0 || *token); i++) {
        st = add_path(l, subject, token, err);
        if (st == ST_OK)
            st = client_get(c, l->paths[l->npaths - 1], err);
        if (st == ST_OK && (!client_complete(c) || !client_next(c, token, sizeof token)))
            st = err_set(err, ST_FATAL, "", "%s answers %ld: %.300s", l->paths[l->npaths - 1], c->status,
                         buf_str(&c->body));
    }
    return st;
}

static enum status collect(struct load *l, struct err *err)
{
    struct client c;
    enum status st = client_init(&c, l->cfg.url, l->tokens[0], err);

    l->paths = calloc((size_t)(l->cfg.subjects * l->cfg.pages), sizeof *l->paths);
    if (!l->paths && st == ST_OK)
        st = err_set(err, ST_NOMEM, "", "no memory for paths");
    for (int64_t i = 0; st == ST_OK && i < l->cfg.subjects; i++)
        st = walk(l, &c, l->cfg.first + i, err);
    client_free(&c);
    return st;
}

/* ---- nearly idle connections ---- */

static void *idle_main(void *arg)
{
    struct load *l = arg;
    size_t n = (size_t)l->cfg.idle;
    struct client *clients = calloc(n, sizeof *clients);
    mono_us begin = clock_mono_us();
    struct err err;

    for (size_t i = 0; clients && !atomic_load(&l->idle_ends); i++) {
        struct client *c = &clients[i % n];
        mono_us due = begin + (int64_t)i * IDLE_ROUND_US / (int64_t)n;

        if (i < n && client_init(c, l->cfg.url, l->tokens[i % l->ntokens], &err) != ST_OK)
            break;
        /* The first round in a tenth of the time. */
        if (stop_sleep_until(i < n ? begin + (due - begin) / 10 : due) != ST_OK)
            break;
        /* On a busy machine some are refused or late: answers, too. */
        if (client_get(c, l->paths[i % l->npaths], &err) != ST_OK ||
            (c->status != 200 && c->status != 503 && c->status != 504))
            atomic_fetch_add(&l->idle_failed, 1);
        buf_release(&c->body);
        atomic_store(&l->idle_open, i < n ? (int)i + 1 : (int)n);
    }
    for (size_t i = 0; clients && i < n; i++)
        if (clients[i].curl)
            client_free(&clients[i]);
    free(clients);
    return NULL;
}

static enum status start_idle(struct load *l, struct err *err)
{
    struct rlimit files;

    if (l->cfg.idle == 0)
        return ST_OK;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    if (pthread_create(&l->idler, NULL, idle_main, l) != 0)
        return err_set(err, ST_NOMEM, "", "cannot start a thread");
    while (atomic_load(&l->idle_open) < l->cfg.idle && !stop_requested())
        (void)stop_sleep_until(deadline_in_ms(20));
    return ST_OK;
}

/* ---- the load ---- */

static bool send_next(struct load *l, struct phase *p, mono_us due)
{
    struct slot *s;

    if (l->nspare == 0)
        return false;
    s = &l->slots[l->spare[--l->nspare]];
    s->busy = true;
    s->due = due;
    client_aim(&s->client, l->paths[l->next_path++ % l->npaths]);
    curl_multi_add_handle(l->multi, s->client.curl);
    p->sent++;
    return true;
}

static void received(struct load *l, struct phase *p, CURL *curl, CURLcode rc)
{
    struct client *c = NULL;
    struct slot *s;
    mono_us now = clock_mono_us();

    curl_easy_getinfo(curl, CURLINFO_PRIVATE, (char **)&c);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &c->status);
    s = (struct slot *)(void *)((char *)c - offsetof(struct slot, client));
    p->bytes += c->body.len;
    if (rc == CURLE_OK && client_complete(c))
        samples_add(&p->served, now - s->due);
    else if (rc == CURLE_OK && c->status == 503)
        samples_add(&p->refused, now - s->due);
    else
        p->errors++;
    curl_multi_remove_handle(l->multi, curl);
    s->busy = false;
    l->spare[l->nspare++] = (size_t)(s - l->slots);
}

/* Once over what has come. */
static void turn(struct load *l, struct phase *p)
{
    int running, left;
    struct CURLMsg *m;

    curl_multi_perform(l->multi, &running);
    while ((m = curl_multi_info_read(l->multi, &left)))
        if (m->msg == CURLMSG_DONE)
            received(l, p, m->easy_handle, m->data.result);
}

/* curl_multi_poll() knows milliseconds only. */
static void sleep_until(struct load *l, mono_us until)
{
    struct itimerspec at = {.it_value = {.tv_sec = until / 1000000, .tv_nsec = until % 1000000 * 1000}};
    struct curl_waitfd fd = {.fd = l->timer, .events = CURL_WAIT_POLLIN};

    timerfd_settime(l->timer, TFD_TIMER_ABSTIME, &at, NULL);
    curl_multi_poll(l->multi, &fd, 1, 1000, NULL);
}

static void run_phase(struct load *l, struct phase *p)
{
    uint64_t due_count = 0;
    mono_us due;

    p->begin = clock_mono_us();
    p->end = p->begin + (int64_t)(p->seconds * 1e6);
    for (mono_us now = p->begin; now < p->end && !stop_requested(); now = clock_mono_us()) {
        if (p->rate > 0) {
            while ((due = p->begin + (int64_t)((double)due_count * 1e6 / p->rate)) <= now && send_next(l, p, due))
                due_count++;
        } else {
            while (send_next(l, p, now))
                ;
            due = p->end;
        }
        turn(l, p);
        if (clock_mono_us() < due || l->nspare == 0)
            sleep_until(l, l->nspare == 0 || due > p->end ? p->end : due);
    }
    p->end = clock_mono_us();
    for (mono_us last = deadline_in_ms(LAST_MS); l->nspare < (size_t)l->cfg.connections && clock_mono_us() < last;) {
        turn(l, p);
        if (l->nspare < (size_t)l->cfg.connections)
            sleep_until(l, deadline_in_ms(100));
    }
}

static enum status prepare(struct load *l, struct err *err)
{
    size_t n = (size_t)l->cfg.connections;
    enum status st = ST_OK;

    l->multi = curl_multi_init();
    l->slots = calloc(n, sizeof *l->slots);
    l->spare = calloc(n, sizeof *l->spare);
    l->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (!l->multi || !l->slots || !l->spare || l->timer < 0)
        return err_set(err, ST_NOMEM, "", "no memory for connections");
    curl_multi_setopt(l->multi, CURLMOPT_MAXCONNECTS, (long)n);
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        st = client_init(&l->slots[i].client, l->cfg.url, l->tokens[i % l->ntokens], err);
        l->spare[l->nspare++] = n - 1 - i;
    }
    return st;
}

static void release(struct load *l)
{
    atomic_store(&l->idle_ends, true);
    if (l->idler)
        pthread_join(l->idler, NULL);
    for (size_t i = 0; l->slots && i < (size_t)l->cfg.connections; i++) {
        if (l->slots[i].busy)
            curl_multi_remove_handle(l->multi, l->slots[i].client.curl);
        client_free(&l->slots[i].client);
    }
    curl_multi_cleanup(l->multi);
    for (size_t i = 0; i < l->npaths; i++)
        free(l->paths[i]);
    free(l->paths);
    free(l->slots);
    free(l->spare);
}

static void print_phase(struct phase *p)
{
    double seconds = (double)(p->end - p->begin) / 1e6;

    printf("{\"rate\": %.1f, \"seconds\": %.3f, \"sent\": %" PRIu64 ", \"served\": %zu, \"refused\": %zu, \"errors\": "
           "%" PRIu64 ", \"served_rate\": %.1f, ",
           p->rate, seconds, p->sent, p->served.n, p->refused.n, p->errors, (double)p->served.n / seconds);
    printf("\"served_p50_ms\": %.3f, \"served_p99_ms\": %.3f, \"refused_p50_ms\": %.3f, \"refused_p99_ms\": %.3f, "
           "\"bytes\": %" PRIu64 "}",
           samples_ms(&p->served, 0.5), samples_ms(&p->served, 0.99), samples_ms(&p->refused, 0.5),
           samples_ms(&p->refused, 0.99), p->bytes);
    samples_free(&p->served);
    samples_free(&p->refused);
}

static enum status measure(struct load *l, struct err *err)
{
    enum status st = parse_phases(l, err);

    split_tokens(l);
    if (st == ST_OK)
        st = collect(l, err);
    if (st == ST_OK)
        st = prepare(l, err);
    if (st == ST_OK)
        st = start_idle(l, err);
    for (size_t i = 0; st == ST_OK && i < l->nphases; i++)
        run_phase(l, &l->phases[i]);
    for (size_t i = 0; st == ST_OK && i < l->nphases; i++) {
        fputs(i ? ",\n " : "[", stdout);
        print_phase(&l->phases[i]);
    }
    if (st == ST_OK)
        puts("]");
    if (st == ST_OK && atomic_load(&l->idle_failed) > 0)
        st = err_set(err, ST_FATAL, "", "%d requests on idle connections failed", atomic_load(&l->idle_failed));
    release(l);
    return st;
}

int main(int argc, char **argv)
{
    static struct load l;
    struct err err = {0};
    enum cfg_action action;

    if (config_load(&program, argc, argv, &l.cfg, &action, &err) != ST_OK) {
        fprintf(stderr, "bench-pages: %s\n", err.text);
        return EXIT_USAGE;
    }
    int code = EXIT_DONE;
    log_init(program.name, LOG_LVL_WARN, LOG_FMT_LOGFMT);
    stop_init();
    curl_global_init(CURL_GLOBAL_DEFAULT);
    if (action == CFG_RUN && measure(&l, &err) != ST_OK) {
        fprintf(stderr, "bench-pages: %s\n", err.text);
        code = EXIT_FAILED;
    }
    config_release(&program, &l.cfg);
    return code;
}
