/* min_token.c - see min_token.h. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/base/stop.h"
#include "common/pg/pg.h"
#include "inventory-lister/pages/min_token.h"

#define FIRST_XID 3 /* lower ones are Postgres' own */
#define NAP_MIN_MS 1
#define NAP_MAX_MS 20
#define TOKEN_MAX 100
#define PROGRESS_EVERY 10 /* polls */

struct wait {
    struct pg *pg;
    const char *store;
    char xid[24];
    bool once; /* no waiting */
    mono_us deadline;
    int polls;
    /* What is known so far. */
    bool asked, committed;
    int64_t pending;
    double age_s;
    struct err *err;
};

static enum status no_token(struct err *err)
{
    return err_set(err, ST_INVALID, NULL, "this is no token of relata.token() or relata.write_tuple()");
}

/* "r1.<cluster>.<transaction id>": the two parts behind "r1.". */
static bool token_split(const char *token, struct bytes *cluster, char xid[24])
{
    const char *last = strrchr(token, '.');
    char *end;
    unsigned long long v;

    if (strnlen(token, TOKEN_MAX + 1) > TOKEN_MAX || strncmp(token, "r1.", 3) != 0 || last < token + 3)
        return false;
    *cluster = (struct bytes){token + 3, (size_t)(last - token - 3)};
    if (last[1] < '1' || last[1] > '9')
        return false;
    errno = 0;
    v = strtoull(last + 1, &end, 10);
    if (errno != 0 || *end != '\0' || v < FIRST_XID)
        return false;
    snprintf(xid, 24, "%llu", v);
    return true;
}

static enum status check_cluster(struct wait *w, struct bytes cluster)
{
    struct pg_result *r = NULL;
    const char *own;
    enum status st = pg_query(w->pg, "lister_cluster", "SELECT relata.cluster()", NULL, 0, w->deadline, &r, w->err);

    if (st != ST_OK)
        return st;
    own = pg_text(r, 0, 0);
    if (strlen(own) != cluster.len || memcmp(own, cluster.data, cluster.len) != 0)
        st =
            err_set(w->err, ST_INVALID, NULL,
                    "this token is of another database cluster, or of before a failover or restore: read again without "
                    "it");
    pg_result_free(r);
    return st;
}

/* ST_OK: committed; ST_NOT_FOUND: not yet. */
static enum status check_committed(struct wait *w)
{
    struct pg_param p = {.data = w->xid};
    struct pg_result *r = NULL;
    struct err own = {0};
    enum status st =
        pg_query(w->pg, "lister_committed", "SELECT pg_xact_status($1::xid8)", &p, 1, w->deadline, &r, &own);

    if (st == ST_INVALID && strcmp(own.code, "22023") == 0) /* in the future */
        return err_set(w->err, ST_INVALID, NULL,
                       "no transaction has had this token's number yet: it was not made here");
    if (st != ST_OK) {
        if (w->err)
            *w->err = own;
        return st;
    }
    w->asked = true;
    if (pg_is_null(r, 0, 0))
        st = err_set(w->err, ST_INVALID, NULL,
                     "this token is too old: what became of its transaction is not known any more");
    else if (strcmp(pg_text(r, 0, 0), "aborted") == 0)
        st = err_set(w->err, ST_CONFLICT, NULL,
                     "the transaction of this token was rolled back: nothing of it will be seen");
    else if (strcmp(pg_text(r, 0, 0), "committed") != 0)
        st = ST_NOT_FOUND;
    pg_result_free(r);
    return st;
}

/* One statement: a change moves from pending to parked in one, too. */
static const char applied_sql[] = "SELECT EXISTS (SELECT FROM relata.outbox o WHERE o.store = $1 AND o.xid = "
                                  "$2::xid8), d.what, d.code FROM (SELECT) x "
                                  "LEFT JOIN LATERAL (SELECT l.object || '#' || l.relation || '@' || l.subject AS "
                                  "what, l.code FROM relata.dead_letter l "
                                  "WHERE l.xid = $2::xid8 AND l.store = $1 AND l.closed_at IS NULL LIMIT 1) d ON true";

/* ST_OK: nothing of it is pending; ST_NOT_FOUND: not yet. */
static enum status check_applied(struct wait *w)
{
    struct pg_param params[2] = {{.data = w->store}, {.data = w->xid}};
    struct pg_result *r = NULL;
    enum status st = pg_query(w->pg, "lister_applied", applied_sql, params, 2, w->deadline, &r, w->err);

    if (st != ST_OK)
        return st;
    if (!pg_is_null(r, 0, 1))
        st =
            err_set(w->err, ST_CONFLICT, "parked",
                    "a change of this token's transaction is parked: %s was refused by the store (%s); an operator can "
                    "replay or drop it",
                    pg_text(r, 0, 1), pg_text(r, 0, 2));
    else if (pg_bool(r, 0, 0))
        st = ST_NOT_FOUND;
    pg_result_free(r);
    return st;
}

static const char progress_sql[] =
    "SELECT relata.pending($1, 10000), coalesce((SELECT extract(epoch FROM clock_timestamp() - o.created_at) "
    "FROM relata.outbox o WHERE o.store = $1 ORDER BY o.id LIMIT 1), 0)";

/* Now and then, so that it is known when the time is up. */
static enum status note_progress(struct wait *w)
{
    struct pg_param p = {.data = w->store};
    struct pg_result *r = NULL;
    enum status st;

    if (w->polls++ % PROGRESS_EVERY != 0)
        return ST_OK;
    st = pg_query(w->pg, "lister_progress", progress_sql, &p, 1, w->deadline, &r, w->err);
    if (st == ST_OK) {
        w->pending = pg_int(r, 0, 0);
        w->age_s = pg_double(r, 0, 1);
    }
    pg_result_free(r);
    return st;
}

/* ST_OK, ST_NOT_FOUND: ask again, or what it comes to. */
static enum status poll_once(struct wait *w)
{
    enum status st = ST_OK;

    if (!w->committed)
        st = check_committed(w);
    if (st != ST_OK)
        return st;
    w->committed = true;
    st = check_applied(w);
    if (st == ST_NOT_FOUND && (st = note_progress(w)) == ST_OK)
        st = ST_NOT_FOUND;
    return st;
}

static enum status too_late(struct wait *w, enum status st)
{
    if (!w->asked)
        return st;
    if (!w->committed)
        return err_set(w->err, ST_CONFLICT, NULL, "the transaction of this token is not committed yet");
    return err_set(w->err, ST_CONFLICT, NULL,
                   "the changes of this token are not applied yet: %s%" PRId64
                   " pending in store \"%s\", the oldest for "
                   "%.1f s",
                   w->pending >= 10000 ? "at least " : "", w->pending, w->store, w->age_s > 0 ? w->age_s : 0);
}

static enum status wait_applied(struct wait *w)
{
    int64_t nap = NAP_MIN_MS;

    for (;;) {
        enum status st = poll_once(w);

        if (st == ST_DEADLINE)
            return too_late(w, st);
        if (st != ST_NOT_FOUND)
            return st;
        if (w->once)
            return err_set(w->err, ST_CONFLICT, "pending", "the changes of this token are not applied yet");
        if (clock_mono_us() + nap * 1000 >= w->deadline)
            return too_late(w, ST_DEADLINE);
        if (stop_sleep_until(deadline_in_ms(nap)) != ST_OK)
            return err_set(w->err, ST_STOPPED, NULL, "the server is stopping");
        nap = nap * 2 < NAP_MAX_MS ? nap * 2 : NAP_MAX_MS;
    }
}

static enum status run(struct pg *pg, const char *store, const char *token, bool once, mono_us deadline,
                       mono_us *applied_at, struct err *err)
{
    struct wait w = {.pg = pg, .store = store, .once = once, .deadline = deadline};
    struct bytes cluster;
    struct err own = {0};
    enum status st;

    w.err = err ? err : &own;
    if (!token_split(token, &cluster, w.xid))
        return no_token(err);
    st = check_cluster(&w, cluster);
    if (st == ST_OK)
        st = wait_applied(&w);
    if (st == ST_OK)
        *applied_at = clock_mono_us();
    return st;
}

enum status min_token_wait(struct pg *pg, const char *store, const char *token, mono_us deadline, mono_us *applied_at,
                           struct err *err)
{
    return run(pg, store, token, false, deadline, applied_at, err);
}

enum status min_token_look(struct pg *pg, const char *store, const char *token, mono_us deadline, mono_us *applied_at,
                           struct err *err)
{
    return run(pg, store, token, true, deadline, applied_at, err);
}
