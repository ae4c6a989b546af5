/* proc_admin.c - what a program says: its output and its admin port. */
#include <curl/curl.h>
#include <unistd.h>

#include "tests/harness/internal.h"
#include "tests/harness/proc_internal.h"

const char *proc_log(struct proc *p)
{
    buf_clear(&p->log);
    harness_read_file(p->log_path, &p->log);
    return buf_str(&p->log);
}

const char *proc_log_tail(struct proc *p)
{
    const char *log = proc_log(p);

    return p->log.len > 3000 ? log + p->log.len - 3000 : log;
}

bool proc_logged(struct proc *p, const char *text)
{
    return strstr(proc_log(p), text) != NULL;
}

struct log_wait {
    struct proc *p;
    const char *text;
};

static bool logged(void *arg)
{
    struct log_wait *w = arg;

    return proc_logged(w->p, w->text);
}

void assert_logged(struct proc *p, const char *text, int timeout_ms)
{
    struct log_wait w = {p, text};

    if (!eventually(logged, &w, timeout_ms))
        fail_msg("%s has not logged \"%s\" within %d ms:\n%s", p->label, text, timeout_ms, proc_log_tail(p));
}

/* ---- admin port ---- */

static bool url_known(void *arg)
{
    struct proc *p = arg;
    struct buf b;

    buf_init(&b, 4096);
    harness_read_file(p->url_file, &b);
    if (strncmp(buf_str(&b), "http", 4) == 0)
        p->admin_url = harness_strf(p->h, "%.*s", (int)strcspn(buf_str(&b), "\r\n"), buf_str(&b));
    buf_release(&b);
    return p->admin_url != NULL || !proc_running(p);
}

const char *proc_admin_url(struct proc *p)
{
    if (p->admin_url == NULL)
        eventually(url_known, p, 20000);
    if (p->admin_url == NULL)
        fail_msg("%s has no admin port (ended: %s):\n%s", p->label, p->ended ? "yes" : "no", proc_log_tail(p));
    return p->admin_url;
}

static size_t take_body(char *data, size_t size, size_t n, void *arg)
{
    buf_add(arg, data, size * n);
    return size * n;
}

int proc_get(struct proc *p, const char *path, const char **body)
{
    const char *url = proc_admin_url(p);
    CURL *curl = curl_easy_init();
    char full[1024];
    long status = 0;

    if (curl == NULL)
        fail_msg("no memory");
    snprintf(full, sizeof(full), "%s%s", url, path);
    buf_clear(&p->body);
    curl_easy_setopt(curl, CURLOPT_URL, full);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)harness_ms(5000));
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &p->body);
    if (curl_easy_perform(curl) == CURLE_OK)
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(curl);
    if (body != NULL)
        *body = buf_str(&p->body);
    return (int)status;
}

static bool is_ready(void *arg)
{
    struct proc *p = arg;

    return !proc_running(p) || proc_get(p, "/readyz", NULL) == 200;
}

void proc_ready_wait(struct proc *p, int timeout_ms)
{
    const char *body = "";

    if (eventually(is_ready, p, timeout_ms) && proc_running(p))
        return;
    if (!proc_running(p))
        fail_msg("%s ended with %d before it was ready:\n%s", p->label, p->code, proc_log_tail(p));
    proc_get(p, "/readyz", &body);
    fail_msg("%s is not ready within %d ms: %s\n%s", p->label, timeout_ms, body, proc_log_tail(p));
}

double proc_metric(struct proc *p, const char *series)
{
    const char *body = "";
    size_t len = strlen(series);

    if (proc_get(p, "/metrics", &body) != 200)
        return -1;
    for (const char *line = body; line != NULL && *line != '\0';) {
        if (strncmp(line, series, len) == 0 && line[len] == ' ')
            return strtod(line + len + 1, NULL);
        line = strchr(line, '\n');
        if (line != NULL)
            line++;
    }
    return -1;
}

struct metric_wait {
    struct proc *p;
    const char *series;
    double at_least, last;
};

static bool metric_reached(void *arg)
{
    struct metric_wait *w = arg;

    w->last = proc_metric(w->p, w->series);
    return w->last >= w->at_least;
}

void assert_metric_eventually(struct proc *p, const char *series, double at_least, int timeout_ms)
{
    struct metric_wait w = {p, series, at_least, -1};

    if (!eventually(metric_reached, &w, timeout_ms))
        fail_msg("%s: %s is %g, not %g, after %d ms", p->label, series, w.last, at_least, timeout_ms);
}
