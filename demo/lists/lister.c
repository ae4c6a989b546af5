#include "demo/lists/lister.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/stop.h"

#define ANSWER_MAX (16 << 20)
#define PAUSE_MS 100

struct lister {
    const char *url;
    CURL *curl;
    struct curl_slist *headers;
    struct buf path, answer;
    unsigned retries;
};

static size_t take(char *data, size_t size, size_t n, void *arg)
{
    buf_add(arg, data, size * n);
    return buf_ok(arg) ? size * n : 0;
}

enum status lister_new(struct lister **out, const char *url, const char *token, struct err *err)
{
    struct lister *l = calloc(1, sizeof *l);
    struct buf header;

    *out = NULL;
    buf_init(&header, 4096);
    buf_addf(&header, "Authorization: Bearer %s", token);
    if (l) {
        *l = (struct lister){.url = url, .curl = curl_easy_init()};
        l->headers = buf_ok(&header) ? curl_slist_append(NULL, buf_str(&header)) : NULL;
        buf_init(&l->path, 65536);
        buf_init(&l->answer, ANSWER_MAX);
    }
    buf_release(&header);
    if (!l || !l->curl || !l->headers) {
        lister_free(l);
        return err_set(err, ST_NOMEM, "", "no memory for a connection to the lister");
    }
    curl_easy_setopt(l->curl, CURLOPT_HTTPHEADER, l->headers);
    curl_easy_setopt(l->curl, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(l->curl, CURLOPT_WRITEDATA, &l->answer);
    curl_easy_setopt(l->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(l->curl, CURLOPT_PROXY, "");
    *out = l;
    return ST_OK;
}

void lister_free(struct lister *l)
{
    if (!l)
        return;
    curl_slist_free_all(l->headers);
    curl_easy_cleanup(l->curl);
    buf_release(&l->path);
    buf_release(&l->answer);
    free(l);
}

unsigned lister_retries(const struct lister *l)
{
    return l->retries;
}

void page_release(struct page *p)
{
    json_decref(p->items);
    free(p->next);
    *p = (struct page){0};
}

static void add_param(struct lister *l, const char *name, const char *value)
{
    char *escaped = curl_easy_escape(l->curl, value, 0);

    if (!escaped)
        l->path.failed = true;
    else
        buf_addf(&l->path, "&%s=%s", name, escaped);
    curl_free(escaped);
}

static enum status build_url(struct lister *l, const struct question *q, int64_t size, const char *token,
                             struct err *err)
{
    buf_clear(&l->path);
    buf_addf(&l->path, "%s/v1/inventory/instances?page_size=%lld", l->url, (long long)size);
    add_param(l, "relation", q->relation);
    add_param(l, "subject", q->subject);
    add_param(l, "order_by", q->order);
    for (size_t i = 0; i < q->nconditions; i++)
        add_param(l, q->conditions[i].name, q->conditions[i].value);
    if (token[0])
        add_param(l, "page_token", token);
    return buf_ok(&l->path) ? ST_OK : err_set(err, ST_NOMEM, "", "no memory for a URL");
}

/* The reason in a problem document (RFC 9457), or the answer's begin. */
static enum status refused(struct lister *l, long code, enum status st, struct err *err)
{
    json_t *problem = json_loads(buf_str(&l->answer), 0, NULL);
    const char *detail = json_string_value(json_object_get(problem, "detail"));

    err_set(err, st, "", "the lister answers %ld: %.200s", code, detail ? detail : buf_str(&l->answer));
    json_decref(problem);
    return st;
}

static enum status send_once(struct lister *l, mono_us deadline, int64_t *pause_ms, struct err *err)
{
    long code = 0;
    curl_off_t after = 0;

    buf_clear(&l->answer);
    curl_easy_setopt(l->curl, CURLOPT_URL, buf_str(&l->path));
    curl_easy_setopt(l->curl, CURLOPT_TIMEOUT_MS, (long)deadline_poll_ms(deadline) + 1);
    CURLcode rc = curl_easy_perform(l->curl);
    if (rc == CURLE_OPERATION_TIMEDOUT)
        return err_set(err, ST_DEADLINE, "", "%s: all of it takes longer than lists.patience", l->url);
    if (rc != CURLE_OK)
        return err_set(err, ST_FATAL, "", "%s: %s", l->url, curl_easy_strerror(rc));
    curl_easy_getinfo(l->curl, CURLINFO_RESPONSE_CODE, &code);
    if (code == 503 || code == 504) {
        curl_easy_getinfo(l->curl, CURLINFO_RETRY_AFTER, &after);
        *pause_ms = after > 0 ? (int64_t)after * 1000 : PAUSE_MS;
        return refused(l, code, ST_RETRY, err);
    }
    return code == 200 ? ST_OK : refused(l, code, ST_FATAL, err);
}

static enum status parse(struct lister *l, struct page *out, struct err *err)
{
    json_t *body = json_loadb(buf_str(&l->answer), l->answer.len, 0, NULL);
    json_t *items = json_object_get(body, "items");
    const char *next = json_string_value(json_object_get(body, "next_page_token"));
    enum status st = ST_OK;

    if (!json_is_array(items) || !next)
        st = err_set(err, ST_FATAL, "", "the lister's answer is no page: %.200s", buf_str(&l->answer));
    else
        *out = (struct page){.items = json_incref(items),
                             .next = strdup(next),
                             .complete = json_is_true(json_object_get(body, "complete"))};
    if (st == ST_OK && !out->next)
        st = err_set(err, ST_NOMEM, "", "no memory for a page");
    json_decref(body);
    return st;
}

enum status lister_page(struct lister *l, const struct question *q, int64_t size, const char *token, mono_us deadline,
                        struct page *out, struct err *err)
{
    int64_t pause_ms = 0;
    enum status st = build_url(l, q, size, token, err);

    if (st != ST_OK)
        return st;
    while ((st = send_once(l, deadline, &pause_ms, err)) == ST_RETRY) {
        mono_us again = deadline_in_ms(pause_ms);
        if (again >= deadline)
            return st;
        l->retries++;
        if (stop_sleep_until(again) != ST_OK)
            return err_set(err, ST_STOPPED, "", "stopped by a signal");
    }
    return st == ST_OK ? parse(l, out, err) : st;
}
