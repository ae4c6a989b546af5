#include "bench/client/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/stop.h"

#define URL_MAX 65536
#define BODY_MAX (32 << 20)
#define TIMEOUT_MS 60000

/* ---- times ---- */

void samples_add(struct samples *s, int64_t us)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 1024;
        s->us = realloc(s->us, s->cap * sizeof *s->us);
        if (!s->us) {
            fprintf(stderr, "no memory for samples\n");
            exit(EXIT_FAILED);
        }
    }
    s->us[s->n++] = us;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

double samples_ms(struct samples *s, double q)
{
    if (s->n == 0)
        return 0;
    qsort(s->us, s->n, sizeof *s->us, by_value);
    return (double)s->us[(size_t)((double)(s->n - 1) * q)] / 1000;
}

void samples_free(struct samples *s)
{
    free(s->us);
    *s = (struct samples){0};
}

/* ---- requests ---- */

size_t client_take(char *data, size_t size, size_t n, void *arg)
{
    buf_add(arg, data, size * n);
    return buf_ok(arg) ? size * n : 0;
}

enum status client_init(struct client *c, const char *url, const char *token, struct err *err)
{
    char header[256];

    *c = (struct client){.curl = curl_easy_init()};
    snprintf(header, sizeof header, "Authorization: Bearer %s", token);
    c->headers = curl_slist_append(NULL, header);
    buf_init(&c->url, URL_MAX);
    buf_init(&c->body, BODY_MAX);
    if (!c->curl || !c->headers)
        return err_set(err, ST_NOMEM, "", "no memory for a connection");
    if (strncmp(url, "unix:", 5) == 0)
        curl_easy_setopt(c->curl, CURLOPT_UNIX_SOCKET_PATH, url + 5);
    buf_adds(&c->url, strncmp(url, "unix:", 5) == 0 ? "http://localhost" : url);
    c->base = c->url.len;
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, client_take);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, &c->body);
    curl_easy_setopt(c->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->curl, CURLOPT_PROXY, "");
    curl_easy_setopt(c->curl, CURLOPT_TIMEOUT_MS, (long)TIMEOUT_MS);
    curl_easy_setopt(c->curl, CURLOPT_PRIVATE, c);
    return ST_OK;
}

void client_free(struct client *c)
{
    curl_easy_cleanup(c->curl);
    curl_slist_free_all(c->headers);
    buf_release(&c->url);
    buf_release(&c->body);
}

void client_aim(struct client *c, const char *path)
{
    c->url.len = c->base;
    buf_adds(&c->url, path);
    buf_clear(&c->body);
    c->status = 0;
    curl_easy_setopt(c->curl, CURLOPT_URL, buf_str(&c->url));
}

enum status client_get(struct client *c, const char *path, struct err *err)
{
    CURLcode rc;

    client_aim(c, path);
    rc = curl_easy_perform(c->curl);
    if (rc != CURLE_OK)
        return err_set(err, ST_UNKNOWN, "", "%s: %s", buf_str(&c->url), curl_easy_strerror(rc));
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &c->status);
    return ST_OK;
}

/* Tokens hold nothing that JSON escapes; parsing the whole page would cost more than what is measured. */
bool client_next(const struct client *c, char *token, size_t size)
{
    static const char name[] = "\"next_page_token\":\"";
    const char *at = c->body.len > 0 ? memmem(c->body.data, c->body.len, name, sizeof name - 1) : NULL, *end;

    if (c->status != 200 || !at)
        return false;
    at += sizeof name - 1;
    end = strchr(at, '"');
    if (!end || (size_t)(end - at) >= size)
        return false;
    memcpy(token, at, (size_t)(end - at));
    token[end - at] = '\0';
    return true;
}

bool client_complete(const struct client *c)
{
    static const char whole[] = "\"complete\":true";

    return c->status == 200 && c->body.len > 0 && memmem(c->body.data, c->body.len, whole, sizeof whole - 1);
}
