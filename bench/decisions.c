/*
 * bench-decisions - posts the requests of a file, one after the other on each of some connections, and measures.
 *
 * A line of the file is PATH, a tab, what the answer must contain (may be empty), a tab, and the body. Prints
 * {"requests", "wrong", "seconds", "p50_ms", "p99_ms", "per_second"}.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/client/client.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/config/config.h"

struct settings {
    char *url, *file;
    int64_t connections, requests, seconds_ms;
};

static const struct cfg_key keys[] = {
    {"bench", "url", CFG_STRING, offsetof(struct settings, url), NULL, 0, 0, NULL, NULL, "http://host:port"},
    {"bench", "file", CFG_STRING, offsetof(struct settings, file), NULL, 0, 0, NULL, NULL, "the requests"},
    {"bench", "connections", CFG_INT, offsetof(struct settings, connections), "1", 1, 256, NULL, NULL, "at once"},
    {"bench", "requests", CFG_INT, offsetof(struct settings, requests), "0", 0, 100000000, NULL, NULL,
     "to make; 0 = until the time is over"},
    {"bench", "seconds", CFG_DURATION, offsetof(struct settings, seconds_ms), "5s", 10, 3600000, NULL, NULL,
     "how long, at most"},
    {0},
};
static const struct cfg_program program = {
    .name = "bench-decisions",
    .summary = "posts requests to a store and measures",
    .keys = keys,
};

struct request {
    const char *path, *wanted, *body;
};

struct run {
    struct settings cfg;
    struct buf text;
    struct request *requests;
    size_t n;
    atomic_size_t next;
    mono_us until;
};

struct worker {
    struct run *run;
    pthread_t thread;
    struct samples samples;
    size_t wrong;
    struct err err;
    bool failed;
};

static enum status read_requests(struct run *r, struct err *err)
{
    enum status st = file_read(r->cfg.file, 256 << 20, &r->text, NULL, err);
    size_t lines = 0;
    if (st != ST_OK)
        return st;
    for (const char *at = r->text.data; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    r->requests = calloc(lines + 1, sizeof *r->requests);
    if (!r->requests)
        return err_set(err, ST_NOMEM, NULL, "no memory");
    for (char *at = r->text.data, *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        char *wanted = memchr(at, '\t', (size_t)(end - at));
        char *body = wanted ? memchr(wanted + 1, '\t', (size_t)(end - wanted - 1)) : NULL;
        if (!body)
            return err_set(err, ST_CONFIG, NULL, "%s: line %zu is no request", r->cfg.file, r->n + 1);
        *end = *wanted = *body = '\0';
        r->requests[r->n++] = (struct request){at, wanted + 1, body + 1};
    }
    return r->n ? ST_OK : err_set(err, ST_CONFIG, NULL, "%s holds no request", r->cfg.file);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct run *r = w->run;
    struct client c;
    w->failed = client_init(&c, r->cfg.url, "none", &w->err) != ST_OK;
    c.headers = curl_slist_append(c.headers, "Content-Type: application/json");
    while (!w->failed && clock_mono_us() < r->until) {
        size_t i = atomic_fetch_add(&r->next, 1);
        if (r->cfg.requests && i >= (size_t)r->cfg.requests)
            break;
        const struct request *q = &r->requests[i % r->n];
        mono_us began = clock_mono_us();
        client_aim(&c, q->path);
        curl_easy_setopt(c.curl, CURLOPT_HTTPHEADER, c.headers);
        curl_easy_setopt(c.curl, CURLOPT_POSTFIELDS, q->body);
        CURLcode rc = curl_easy_perform(c.curl);
        curl_easy_getinfo(c.curl, CURLINFO_RESPONSE_CODE, &c.status);
        if (rc != CURLE_OK) {
            w->failed = true;
            err_set(&w->err, ST_RETRY, NULL, "%s", curl_easy_strerror(rc));
        }
        samples_add(&w->samples, clock_mono_us() - began);
        w->wrong += c.status != 200 || !strstr(buf_str(&c.body), q->wanted);
    }
    client_free(&c);
    return NULL;
}

static enum status measure(struct run *r, struct err *err)
{
    struct worker *w = calloc((size_t)r->cfg.connections, sizeof *w);
    struct samples all = {0};
    size_t wrong = 0;
    enum status st = w ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory");
    mono_us began = clock_mono_us();
    r->until = deadline_in_ms(r->cfg.seconds_ms);
    for (int64_t i = 0; st == ST_OK && i < r->cfg.connections; i++) {
        w[i].run = r;
        if (pthread_create(&w[i].thread, NULL, work, &w[i]) != 0)
            return err_set(err, ST_NOMEM, NULL, "cannot start a thread");
    }
    for (int64_t i = 0; st == ST_OK && i < r->cfg.connections; i++)
        pthread_join(w[i].thread, NULL);
    double seconds = (double)(clock_mono_us() - began) / 1e6;
    for (int64_t i = 0; st == ST_OK && i < r->cfg.connections; i++) {
        if (w[i].failed) {
            *err = w[i].err;
            st = ST_RETRY;
        }
        for (size_t k = 0; k < w[i].samples.n; k++)
            samples_add(&all, w[i].samples.us[k]);
        wrong += w[i].wrong;
        samples_free(&w[i].samples);
    }
    if (st == ST_OK)
        printf("{\"requests\": %zu, \"wrong\": %zu, \"seconds\": %.3f, \"p50_ms\": %.4f, \"p99_ms\": %.4f, "
               "\"per_second\": "
               "%.1f}\n",
               all.n, wrong, seconds, samples_ms(&all, 0.5), samples_ms(&all, 0.99), (double)all.n / seconds);
    samples_free(&all);
    free(w);
    return st;
}

int main(int argc, char **argv)
{
    static struct run r;
    struct err err = {0};
    enum cfg_action action;
    int code = EXIT_DONE;
    if (config_load(&program, argc, argv, &r.cfg, &action, &err) != ST_OK) {
        fprintf(stderr, "bench-decisions: %s\n", err.text);
        return EXIT_USAGE;
    }
    log_init(program.name, LOG_LVL_WARN, LOG_FMT_LOGFMT);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    buf_init(&r.text, 256 << 20);
    if (action == CFG_RUN && (read_requests(&r, &err) != ST_OK || measure(&r, &err) != ST_OK)) {
        fprintf(stderr, "bench-decisions: %s\n", err.text);
        code = EXIT_FAILED;
    }
    free(r.requests);
    buf_release(&r.text);
    config_release(&program, &r.cfg);
    return code;
}
