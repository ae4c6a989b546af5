/*
 * client.h - what the benchmarks of inventory-lister share: a keep-alive connection to it, and times that are measured.
 */
#ifndef RELATA_BENCH_CLIENT_CLIENT_H
#define RELATA_BENCH_CLIENT_CLIENT_H

#include <curl/curl.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/status.h"

/* ---- times ---- */

struct samples {
    int64_t *us;
    size_t n, cap;
};
void samples_add(struct samples *s, int64_t us); /* without memory the process ends: nothing is measured then */
/* Milliseconds below which the share q of them is; 0 without any. Sorts. */
double samples_ms(struct samples *s, double q);
void samples_free(struct samples *s);

/* ---- requests ---- */

/* For CURLOPT_WRITEFUNCTION, with a struct buf. */
size_t client_take(char *data, size_t size, size_t n, void *arg);

/* One connection, kept alive. One thread. */
struct client {
    CURL *curl;
    struct curl_slist *headers;
    struct buf url, body;
    size_t base; /* length of the URL without a path */
    long status; /* of the last answer */
};
/* `url` is http://host:port or unix:/path. */
enum status client_init(struct client *c, const char *url, const char *token, struct err *err) MUST_CHECK;
void client_free(struct client *c);
/* The handle is set up for a GET of that path, its body to come to c->body. */
void client_aim(struct client *c, const char *path);
/* GET, blocking: ST_OK with c->status and c->body, whatever the status is. */
enum status client_get(struct client *c, const char *path, struct err *err) MUST_CHECK;
/* The page that follows the one in c->body; "" = none. False: the body is no page. */
bool client_next(const struct client *c, char *token, size_t size);
/* Whether c->body is a whole page: 200 and not ended early. */
bool client_complete(const struct client *c);

#endif
