/*
 * bench-until - waits until something is so, and says when that was and what it cost.
 *
 *   bench-until [OPTION]... --sql SQL             until the statement's first column is true ($BENCH_DSN)
 *   bench-until [OPTION]... --metric NAME --at-least N --url URL    until a program's metric, its labels summed, is N
 *   bench-until [OPTION]... --gone PID            until a process has ended
 *
 * Prints one line: the time (seconds since the Unix epoch), then for each --pid the CPU seconds that the process has
 * used and its largest resident memory in KiB. Ends with 1 when the time-out passes or one of the --pid processes has
 * ended.
 */
#include <curl/curl.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/stop.h"
#include "common/pg/pg.h"

#define PIDS_MAX 8
#define STATEMENT_MS 60000
#define BODY_MAX (4u << 20)
#define PAUSE_MAX_US 2000000.0

struct until {
    const char *sql, *metric, *url;
    double at_least;
    pid_t gone;
    pid_t pids[PIDS_MAX];
    int npids;
    int64_t every_ms, timeout_ms;

    struct pg *pg;
    CURL *curl;
    struct buf body;
    double first, last; /* values of the metric, and when the first was read */
    mono_us first_at;
};

/* ---- processes ---- */

static bool process_lives(pid_t pid)
{
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
        state = 'Z';
    fclose(f);
    return state != 'Z';
}

static double process_cpu(pid_t pid)
{
    clockid_t clock;
    struct timespec t;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0)
        return -1;
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static long process_peak_kib(pid_t pid)
{
    char path[64], line[256];
    long kib = -1;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %ld kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib;
}

/* ---- conditions ---- */

static bool ask_sql(struct until *u, bool *yes, struct err *err)
{
    struct pg_result *r = NULL;
    enum status st = pg_query(u->pg, "until", u->sql, NULL, 0, deadline_in_ms(STATEMENT_MS), &r, err);
    *yes = st == ST_OK && pg_rows(r) > 0 && pg_bool(r, 0, 0);
    pg_result_free(r);
    return st == ST_OK;
}

static size_t take_body(char *data, size_t size, size_t n, void *arg)
{
    buf_add(arg, data, size * n);
    return size * n;
}

static bool metric_sum(const char *body, const char *name, double *sum)
{
    size_t len = strlen(name);
    bool found = false;
    *sum = 0;
    for (const char *line = body; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, name, len) != 0 || (line[len] != ' ' && line[len] != '{'))
            continue;
        const char *end = line + strcspn(line, "\n"), *value = end;
        while (value > line && value[-1] != ' ')
            value--;
        *sum += strtod(value, NULL);
        found = true;
    }
    return found;
}

static bool ask_metric(struct until *u, bool *yes, struct err *err)
{
    char why[CURL_ERROR_SIZE] = "";
    double value;
    buf_clear(&u->body);
    curl_easy_setopt(u->curl, CURLOPT_ERRORBUFFER, why);
    CURLcode rc = curl_easy_perform(u->curl);
    if (rc != CURLE_OK)
        return err_set(err, ST_FATAL, "", "%s: %s", u->url, why), false;
    if (!buf_ok(&u->body) || !metric_sum(buf_str(&u->body), u->metric, &value))
        return err_set(err, ST_FATAL, "", "%s: no metric %s", u->url, u->metric), false;
    if (!u->first_at) {
        u->first = value;
        u->first_at = clock_mono_us();
    }
    u->last = value;
    *yes = value >= u->at_least;
    return true;
}

/* Reading a metric costs the program milliseconds: while the goal is far, it is read seldom. */
static mono_us pause_us(const struct until *u)
{
    double passed = (double)(clock_mono_us() - u->first_at), pause = (double)u->every_ms * 1000;
    if (u->metric && u->last > u->first) {
        double left = (u->at_least - u->last) * passed / (u->last - u->first);
        pause = left / 3 > pause ? left / 3 : pause;
    }
    return (mono_us)(pause < PAUSE_MAX_US ? pause : PAUSE_MAX_US);
}

static bool ask(struct until *u, bool *yes, struct err *err)
{
    if (u->sql)
        return ask_sql(u, yes, err);
    if (u->metric)
        return ask_metric(u, yes, err);
    *yes = !process_lives(u->gone);
    return true;
}

static bool prepare(struct until *u, struct err *err)
{
    struct pg_config cfg = {.dsn = getenv("BENCH_DSN"), .application_name = "bench-until", .watch_stop = true};
    buf_init(&u->body, BODY_MAX);
    if (u->sql)
        return pg_open(&u->pg, &cfg, deadline_in_ms(STATEMENT_MS), err) == ST_OK;
    if (!u->metric)
        return true;
    u->curl = curl_easy_init();
    if (!u->curl)
        return err_set(err, ST_NOMEM, "", "no memory"), false;
    curl_easy_setopt(u->curl, CURLOPT_URL, u->url);
    curl_easy_setopt(u->curl, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(u->curl, CURLOPT_WRITEDATA, &u->body);
    curl_easy_setopt(u->curl, CURLOPT_TIMEOUT_MS, 10000L);
    return true;
}

static bool wait_for_it(struct until *u, struct err *err)
{
    mono_us end = deadline_in_ms(u->timeout_ms), next = clock_mono_us();
    bool yes = false;
    while (ask(u, &yes, err)) {
        if (yes)
            return true;
        for (int i = 0; i < u->npids; i++)
            if (!process_lives(u->pids[i]))
                return err_set(err, ST_FATAL, "", "process %d has ended meanwhile", (int)u->pids[i]), false;
        if (clock_mono_us() > end)
            return err_set(err, ST_DEADLINE, "", "not so within %" PRId64 " s: %s", u->timeout_ms / 1000,
                           u->sql      ? u->sql
                           : u->metric ? u->metric
                                       : "process has not ended"),
                   false;
        next += pause_us(u);
        if (next < clock_mono_us())
            next = clock_mono_us();
        if (stop_sleep_until(next) != ST_OK)
            return err_set(err, ST_STOPPED, "", "stopped"), false;
    }
    return false;
}

static void tell(const struct until *u)
{
    printf("%.6f", (double)clock_wall_us() / 1e6);
    for (int i = 0; i < u->npids; i++)
        printf(" %.4f %ld", process_cpu(u->pids[i]), process_peak_kib(u->pids[i]));
    putchar('\n');
}

static bool parse(struct until *u, int argc, char **argv)
{
    static const struct option options[] = {
        {"sql", 1, NULL, 's'},       {"metric", 1, NULL, 'm'}, {"url", 1, NULL, 'u'},
        {"at-least", 1, NULL, 'a'},  {"gone", 1, NULL, 'g'},   {"every-ms", 1, NULL, 'e'},
        {"timeout-s", 1, NULL, 't'}, {"pid", 1, NULL, 'p'},    {0}};
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 's':
            u->sql = optarg;
            break;
        case 'm':
            u->metric = optarg;
            break;
        case 'u':
            u->url = optarg;
            break;
        case 'a':
            u->at_least = strtod(optarg, NULL);
            break;
        case 'g':
            u->gone = (pid_t)strtol(optarg, NULL, 10);
            break;
        case 'e':
            u->every_ms = strtol(optarg, NULL, 10);
            break;
        case 't':
            u->timeout_ms = strtol(optarg, NULL, 10) * 1000;
            break;
        case 'p':
            if (u->npids == PIDS_MAX)
                return false;
            u->pids[u->npids++] = (pid_t)strtol(optarg, NULL, 10);
            break;
        default:
            return false;
        }
    }
    return optind == argc && (u->sql != NULL) + (u->metric != NULL && u->url != NULL) + (u->gone > 0) == 1;
}

int main(int argc, char **argv)
{
    struct until u = {.every_ms = 20, .timeout_ms = 600000};
    struct err err = {0};
    if (!parse(&u, argc, argv)) {
        fprintf(stderr, "bench-until: one of --sql, --metric with --url, --gone is needed; see bench/until.c\n");
        return EXIT_USAGE;
    }
    stop_init();
    bool ok = prepare(&u, &err) && wait_for_it(&u, &err);
    if (ok)
        tell(&u);
    else
        fprintf(stderr, "bench-until: %s\n", err.text);
    pg_close(u.pg);
    curl_easy_cleanup(u.curl);
    buf_release(&u.body);
    return ok ? EXIT_DONE : EXIT_FAILED;
}
