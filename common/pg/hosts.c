/* hosts.c - splitting a DSN's lists of hosts. */
#include <stdlib.h>

#include "common/pg/dsn.h"
#include "common/pg/hosts.h"
#include "common/pg/internal.h"

static const char *option(PQconninfoOption *options, const char *keyword)
{
    for (PQconninfoOption *o = options; o && o->keyword; o++) {
        if (strcmp(o->keyword, keyword) == 0)
            return o->val && *o->val ? o->val : NULL;
    }
    return NULL;
}

static int count_of(const char *list)
{
    int n = list != NULL;
    for (; list && *list; list++)
        n += *list == ',';
    return n;
}

/* The i-th of a list, malloc'd; a list of one stands for all. */
static char *nth(const char *list, int i)
{
    if (!list)
        return NULL;
    if (count_of(list) == 1)
        i = 0;
    while (i-- > 0)
        list = strchr(list, ',') + 1;
    return strndup(list, strcspn(list, ","));
}

static enum status check_lists(int hosts, int addresses, int ports, struct err *err)
{
    int n = hosts > addresses ? hosts : addresses;
    if (hosts && addresses && hosts != addresses)
        return err_set(err, ST_CONFIG, "", "bad Postgres DSN: %d hosts, but %d hostaddr", hosts, addresses);
    if (ports > 1 && ports != n)
        return err_set(err, ST_CONFIG, "", "bad Postgres DSN: %d ports for %d hosts", ports, n);
    return ST_OK;
}

static enum status split(PQconninfoOption *options, struct pg_hosts *out, struct err *err)
{
    const char *host = option(options, "host"), *address = option(options, "hostaddr"), *port = option(options, "port");
    const char *attrs = option(options, "target_session_attrs"), *timeout = option(options, "connect_timeout");
    int n = count_of(host) > count_of(address) ? count_of(host) : count_of(address);
    enum status st = check_lists(count_of(host), count_of(address), count_of(port), err);
    if (st != ST_OK)
        return st;
    out->connect_ms = timeout ? strtol(timeout, NULL, 10) * 1000 : 0;
    if (n <= 1) {
        out->n = 1;
        return ST_OK;
    }
    /* "prefer-standby" means: a standby among all, and only then any. */
    int rounds = attrs && strcmp(attrs, "prefer-standby") == 0 ? 2 : 1;
    struct pg_host *items = calloc((size_t)n * (size_t)rounds, sizeof *items);
    if (!items)
        return err_set(err, ST_NOMEM, "", "no memory for the hosts of a DSN");
    free(out->items);
    out->items = items;
    for (int i = 0; i < n * rounds; i++) {
        items[i] =
            (struct pg_host){.host = nth(host, i % n), .hostaddr = nth(address, i % n), .port = nth(port, i % n)};
        if (rounds == 2)
            items[i].session_attrs = i < n ? "standby" : "any";
    }
    out->n = n * rounds;
    return ST_OK;
}

enum status pg_hosts_parse(const char *dsn, struct pg_hosts *out, struct err *err)
{
    *out = (struct pg_hosts){.n = 1, .items = calloc(1, sizeof *out->items)};
    if (!out->items)
        return err_set(err, ST_NOMEM, "", "no memory for the hosts of a DSN");
    enum status st = pg_dsn_readable(dsn, err);
    if (st == ST_OK && !pg_dsn_is_conninfo(dsn)) /* a bare database name, or empty: the PG* environment */
        return ST_OK;
    PQconninfoOption *options = st == ST_OK ? PQconninfoParse(dsn, NULL) : NULL;
    if (st == ST_OK && !options)
        st = err_set(err, ST_NOMEM, "", "no memory for a DSN");
    if (st == ST_OK)
        st = split(options, out, err);
    PQconninfoFree(options);
    if (st != ST_OK)
        pg_hosts_release(out);
    return st;
}

void pg_hosts_release(struct pg_hosts *h)
{
    for (int i = 0; h->items && i < h->n; i++) {
        free(h->items[i].host);
        free(h->items[i].hostaddr);
        free(h->items[i].port);
    }
    free(h->items);
    *h = (struct pg_hosts){0};
}

enum status pg_dsn_check(const char *dsn, struct err *err)
{
    struct pg_hosts hosts;
    enum status st = pg_hosts_parse(dsn, &hosts, err);
    pg_hosts_release(&hosts);
    return st;
}
