/*
 * bench-lists - inventory-lister beside what it is made of: the same SQL, and BatchChecks that are sent directly.
 *
 * Lists are of inventory.resource_instances, the newest first. Subjects are user:all-1, user:all-2, ..., who may see
 * all rows; each measurement takes new ones, so that nothing is known about them.
 *
 * mode = cold: two subjects walk their lists page by page, one through the lister, one by the SQL of that page and one
 *   BatchCheck; which goes first changes. {"pages", "lister_p50_ms", "lister_p99_ms", "direct_p50_ms", "direct_p99_ms",
 *   "sql_p50_ms", "check_p50_ms"}
 * mode = warm: pages that the lister knows everything about, and the SQL of such a page, in turn. {"pages", "misses",
 *   "lister_p50_ms", "lister_p99_ms", "sql_p50_ms", "sql_p99_ms"}
 * mode = walk: one whole list, by the contender that `way` names: lister, checks (BatchChecks only, `concurrency` at
 *   once), or objects (StreamedListObjects, then the rows by their ids). {"rows", "ms"}
 * mode = revoke: a tuple of a row in a list that is looked at all the time is deleted. {"changes", "applied_p50_ms",
 *   "applied_p99_ms", "gone_p50_ms", "gone_p99_ms", "shown_p50_ms"}; shown: the tuple is written again
 */
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#include "bench/client/client.h"
#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/config/config.h"
#include "common/events/events.h"
#include "common/pg/pg.h"
#include "common/store/batch_check.h"

#define CALL_MS 60000
#define TOKEN_LEN 4096
#define THREADS_MAX 64
#define LOOK_US 1000     /* between two looks at a list */
#define REVOKE_MS 10000  /* longest wait for a row to go */
#define SETTLE_US 100000 /* before the next one, and up to so long more */

#define COLUMNS "t.id, t.name, t.owner_team_id, t.created_at"
#define FROM " FROM inventory.resource_instances t WHERE t.deleted_at IS NULL"
#define ORDER " ORDER BY t.created_at DESC, t.id DESC LIMIT "

struct settings {
    char *dsn, *store_id, *model_id, *relation, *url, *token, *mode, *way;
    int64_t first, rounds, page_size, concurrency, pages;
    struct cfg_store store;
    struct cfg_nats nats;
};

#define KEY(section, key, type, member, preset, min, max, help)                                                        \
    {                                                                                                                  \
        section, key, type, offsetof(struct settings, member), preset, min, max, NULL, NULL, help                      \
    }
static const struct cfg_key keys[] = {
    KEY("pg", "dsn", CFG_SECRET, dsn, NULL, 0, 0, "a login that may read the inventory and call relata.write_tuple"),
    CFG_STORE_KEYS(struct settings, store),
    CFG_NATS_KEYS(struct settings, nats),
    KEY("bench", "store_id", CFG_STRING, store_id, NULL, 0, 0, "the store's id"),
    KEY("bench", "model_id", CFG_STRING, model_id, NULL, 0, 0, "the model's id"),
    KEY("bench", "relation", CFG_STRING, relation, "can_edit", 0, 0, "the relation that shows a row"),
    KEY("bench", "url", CFG_STRING, url, NULL, 0, 0, "of the lister"),
    KEY("bench", "token", CFG_STRING, token, NULL, 0, 0,
        "a caller's, with the rights to name a subject and to diagnose"),
    KEY("bench", "mode", CFG_STRING, mode, NULL, 0, 0, "cold, warm, walk or revoke"),
    KEY("bench", "way", CFG_STRING, way, "lister", 0, 0, "walk: lister, checks or objects"),
    KEY("bench", "first", CFG_INT, first, "1", 1, 1000000, "number of the first subject"),
    KEY("bench", "rounds", CFG_INT, rounds, "100", 1, 1000000, "pages of each contender, or changes"),
    KEY("bench", "pages", CFG_INT, pages, "20", 1, 1000, "warm: different pages"),
    KEY("bench", "page_size", CFG_INT, page_size, "50", 1, 1000, "rows of a page"),
    KEY("bench", "concurrency", CFG_INT, concurrency, "1", 1, THREADS_MAX, "walk by checks: calls at once"),
    {0},
};
static bool is_one_of(const char *s, const char *const *words)
{
    while (*words && strcmp(s, *words) != 0)
        words++;
    return *words != NULL;
}

static enum status validate(const void *settings, struct err *err)
{
    static const char *const modes[] = {"cold", "warm", "walk", "revoke", NULL};
    static const char *const ways[] = {"lister", "checks", "objects", NULL};
    const struct settings *s = settings;

    if (!is_one_of(s->mode, modes))
        return err_set(err, ST_CONFIG, "", "bench.mode: \"%s\" is none of cold, warm, walk, revoke", s->mode);
    if (!is_one_of(s->way, ways))
        return err_set(err, ST_CONFIG, "", "bench.way: \"%s\" is none of lister, checks, objects", s->way);
    return ST_OK;
}

static const struct cfg_program program = {
    .name = "bench-lists",
    .summary = "measures inventory-lister beside the same SQL and BatchChecks sent directly",
    .keys = keys,
    .validate = validate,
};

struct bench {
    struct settings cfg;
    struct pg *pg;
    struct store *store;
    struct store_conn *conn;
    struct client client;
};

/* ---- the lister's page ---- */

static enum status lister_page(struct bench *b, const char *subject, const char *token, struct err *err)
{
    char path[TOKEN_LEN + 512];
    enum status st;

    snprintf(path, sizeof path, "/v1/inventory/instances?page_size=%" PRId64 "&relation=%s&subject=%s%s%s",
             b->cfg.page_size, b->cfg.relation, subject, *token ? "&page_token=" : "", token);
    st = client_get(&b->client, path, err);
    /* A walk goes on after a page that ended early; elsewhere it would be taken for something else. */
    bool good = strcmp(b->cfg.mode, "walk") == 0 ? b->client.status == 200 : client_complete(&b->client);
    if (st == ST_OK && !good)
        st = err_set(err, ST_FATAL, "", "the lister answers %ld: %.300s", b->client.status, buf_str(&b->client.body));
    return st;
}

static enum status lister_step(struct bench *b, const char *subject, char *token, struct err *err)
{
    enum status st = lister_page(b, subject, token, err);

    if (st == ST_OK && !client_next(&b->client, token, TOKEN_LEN))
        st = err_set(err, ST_FATAL, "", "no page: %.300s", buf_str(&b->client.body));
    return st;
}

static size_t rows_shown(const struct bench *b)
{
    size_t n = 0;

    for (const char *at = buf_str(&b->client.body); (at = strstr(at, "{\"id\":")); at++)
        n++;
    return n;
}

/* A number of the answer's diagnostics. */
static int64_t diagnosed(const struct bench *b, const char *name)
{
    char key[64];
    const char *at;

    snprintf(key, sizeof key, "\"%s\":", name);
    at = memmem(b->client.body.data, b->client.body.len, key, strlen(key));
    return at ? strtol(at + strlen(key), NULL, 10) : -1;
}

/* ---- the same directly ---- */

struct place {
    char created_at[64], id[32]; /* "" = before the first row */
};

/* The page after *at, which moves on. */
static enum status sql_page(struct bench *b, struct place *at, struct pg_result **out, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(at->created_at), pg_p_text(at->id)};
    char first[512], next[512];
    enum status st;

    snprintf(first, sizeof first, "SELECT " COLUMNS FROM ORDER "%" PRId64, b->cfg.page_size);
    snprintf(next, sizeof next,
             "SELECT " COLUMNS FROM " AND (t.created_at, t.id) < ($1::timestamptz, $2::bigint)" ORDER "%" PRId64,
             b->cfg.page_size);
    if (*at->id)
        st = pg_query(b->pg, "next", next, params, 2, deadline_in_ms(CALL_MS), out, err);
    else
        st = pg_query(b->pg, "first", first, NULL, 0, deadline_in_ms(CALL_MS), out, err);
    if (st == ST_OK && pg_rows(*out) > 0) {
        snprintf(at->id, sizeof at->id, "%s", pg_text(*out, pg_rows(*out) - 1, 0));
        snprintf(at->created_at, sizeof at->created_at, "%s", pg_text(*out, pg_rows(*out) - 1, 3));
    }
    return st;
}

/* One BatchCheck; every row must be allowed. */
static enum status check_ids(const struct settings *cfg, struct store_conn *conn, const char *subject,
                             char (*objects)[64], size_t n, struct err *err)
{
    struct store_check_item items[STORE_CHECK_MAX] = {0};
    struct store_batch batch = {.model_id = cfg->model_id, .subject = subject, .items = items, .n = n};
    enum status st;

    for (size_t i = 0; i < n; i++)
        items[i] = (struct store_check_item){.object = objects[i], .relation = cfg->relation};
    st = store_batch_check(conn, &batch, deadline_in_ms(CALL_MS), err);
    for (size_t i = 0; st == ST_OK && i < n; i++)
        if (items[i].status != ST_OK || !items[i].allowed)
            st = err_set(err, ST_FATAL, "", "%s: %s may not, or the store does not know", objects[i], subject);
    return st;
}

static enum status check_rows(struct bench *b, const char *subject, const struct pg_result *rows, struct err *err)
{
    char objects[STORE_CHECK_MAX][64];
    size_t n = (size_t)pg_rows(rows);

    if (n > STORE_CHECK_MAX)
        return err_set(err, ST_CONFIG, "", "bench.page_size is above %d", STORE_CHECK_MAX);
    for (size_t i = 0; i < n; i++)
        snprintf(objects[i], sizeof objects[i], "resource_instance:%s", pg_text(rows, (int)i, 0));
    return n > 0 ? check_ids(&b->cfg, b->conn, subject, objects, n, err) : ST_OK;
}

/* ---- cold ---- */

struct cold {
    struct samples lister, direct, sql, check;
    char token[TOKEN_LEN], lister_subject[64], direct_subject[64];
    struct place at;
};

static enum status cold_lister(struct bench *b, struct cold *c, struct err *err)
{
    mono_us begin = clock_mono_us();
    enum status st = lister_step(b, c->lister_subject, c->token, err);

    samples_add(&c->lister, clock_mono_us() - begin);
    if (st == ST_OK && diagnosed(b, "checked") < b->cfg.page_size)
        st = err_set(err, ST_FATAL, "", "the lister knew rows of %s already", c->lister_subject);
    return st;
}

static enum status cold_direct(struct bench *b, struct cold *c, struct err *err)
{
    struct pg_result *rows = NULL;
    mono_us begin = clock_mono_us(), read;
    enum status st = sql_page(b, &c->at, &rows, err);

    read = clock_mono_us();
    if (st == ST_OK)
        st = check_rows(b, c->direct_subject, rows, err);
    samples_add(&c->sql, read - begin);
    samples_add(&c->check, clock_mono_us() - read);
    samples_add(&c->direct, clock_mono_us() - begin);
    pg_result_free(rows);
    return st;
}

/* The list's last page has fewer rows to decide: it is not reached. */
static enum status run_cold(struct bench *b, int64_t pages, struct err *err)
{
    struct cold c = {.token = ""};
    enum status st = pages > 1 ? ST_OK : err_set(err, ST_CONFIG, "", "the inventory is too small");

    for (int64_t i = 0; st == ST_OK && i < b->cfg.rounds; i++) {
        if (i % (pages - 1) == 0) {
            int64_t pair = i / (pages - 1);
            snprintf(c.lister_subject, sizeof c.lister_subject, "user:all-%" PRId64, b->cfg.first + 2 * pair);
            snprintf(c.direct_subject, sizeof c.direct_subject, "user:all-%" PRId64, b->cfg.first + 2 * pair + 1);
            c.token[0] = '\0';
            c.at = (struct place){"", ""};
        }
        st = i % 2 ? cold_lister(b, &c, err) : cold_direct(b, &c, err);
        if (st == ST_OK)
            st = i % 2 ? cold_direct(b, &c, err) : cold_lister(b, &c, err);
    }
    if (st == ST_OK)
        printf("{\"pages\": %zu, \"lister_p50_ms\": %.3f, \"lister_p99_ms\": %.3f, \"direct_p50_ms\": %.3f, "
               "\"direct_p99_ms\": %.3f, \"sql_p50_ms\": %.3f, \"check_p50_ms\": %.3f}\n",
               c.lister.n, samples_ms(&c.lister, 0.5), samples_ms(&c.lister, 0.99), samples_ms(&c.direct, 0.5),
               samples_ms(&c.direct, 0.99), samples_ms(&c.sql, 0.5), samples_ms(&c.check, 0.5));
    return st;
}

/* ---- warm ---- */

static enum status run_warm(struct bench *b, struct err *err)
{
    struct samples lister = {0}, sql = {0};
    size_t n = (size_t)b->cfg.pages, misses = 0;
    char(*tokens)[TOKEN_LEN] = calloc(n + 1, sizeof *tokens), subject[64];
    struct place *places = calloc(n + 1, sizeof *places);
    enum status st = tokens && places ? ST_OK : err_set(err, ST_NOMEM, "", "no memory for pages");

    snprintf(subject, sizeof subject, "user:all-%" PRId64, b->cfg.first);
    for (int64_t i = -(int64_t)n; st == ST_OK && i < b->cfg.rounds; i++) {
        size_t k = (size_t)(i + (int64_t)n) % n;
        struct pg_result *rows = NULL;
        char token[TOKEN_LEN];
        struct place at = places[k];
        mono_us begin = clock_mono_us(), answered, read;

        snprintf(token, sizeof token, "%s", tokens[k]);
        st = lister_step(b, subject, token, err);
        answered = clock_mono_us();
        if (st == ST_OK)
            st = sql_page(b, &at, &rows, err);
        read = clock_mono_us();
        pg_result_free(rows);
        snprintf(tokens[k + 1], sizeof tokens[k + 1], "%s", token);
        places[k + 1] = at;
        if (i >= 0 && diagnosed(b, "checked") == 0) {
            samples_add(&lister, answered - begin);
            samples_add(&sql, read - answered);
        }
        misses += i >= 0 && diagnosed(b, "checked") != 0;
    }
    if (st == ST_OK)
        printf("{\"pages\": %zu, \"misses\": %zu, \"lister_p50_ms\": %.3f, \"lister_p99_ms\": %.3f, \"sql_p50_ms\": "
               "%.3f, \"sql_p99_ms\": %.3f}\n",
               lister.n, misses, samples_ms(&lister, 0.5), samples_ms(&lister, 0.99), samples_ms(&sql, 0.5),
               samples_ms(&sql, 0.99));
    free(tokens);
    free(places);
    return st;
}

/* ---- whole walks ---- */

struct walk {
    struct bench *b;
    const char *subject;
    char (*objects)[64];
    size_t n;
    atomic_size_t next;
    atomic_int failed;
};

static enum status walk_lister(struct bench *b, const char *subject, size_t *rows, struct err *err)
{
    char token[TOKEN_LEN] = "";
    enum status st;

    do {
        st = lister_step(b, subject, token, err);
        *rows += st == ST_OK ? rows_shown(b) : 0;
    } while (st == ST_OK && *token);
    return st;
}

static void *walk_main(void *arg)
{
    struct walk *w = arg;
    struct store_conn *conn = NULL;
    struct err err = {0};
    enum status st = store_conn_new(&conn, w->b->store, w->b->cfg.store_id, &err);
    size_t at;

    while (st == ST_OK && (at = atomic_fetch_add(&w->next, STORE_CHECK_MAX)) < w->n) {
        size_t n = w->n - at < STORE_CHECK_MAX ? w->n - at : STORE_CHECK_MAX;
        st = check_ids(&w->b->cfg, conn, w->subject, w->objects + at, n, &err);
    }
    store_conn_free(conn);
    if (st != ST_OK && atomic_fetch_add(&w->failed, 1) == 0)
        fprintf(stderr, "bench-lists: %s\n", err.text);
    return NULL;
}

static enum status walk_checks(struct walk *w, struct err *err)
{
    pthread_t threads[THREADS_MAX];
    int64_t n = 0;

    for (; n < w->b->cfg.concurrency; n++)
        if (pthread_create(&threads[n], NULL, walk_main, w) != 0)
            break;
    for (int64_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    return n < w->b->cfg.concurrency || atomic_load(&w->failed)
               ? err_set(err, ST_FATAL, "", "not all checks were answered")
               : ST_OK;
}

/* StreamedListObjects: a JSON object a line. */
static enum status list_objects(struct bench *b, const char *subject, struct buf *ids, struct err *err)
{
    char body[512], url[1024];
    struct buf answer;
    CURL *curl = curl_easy_init();
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    static const char object[] = "\"object\":\"resource_instance:";
    const char *at, *end;

    buf_init(&answer, 64 << 20);
    snprintf(url, sizeof url, "%s/stores/%s/streamed-list-objects", b->cfg.store.url, b->cfg.store_id);
    snprintf(body, sizeof body,
             "{\"authorization_model_id\":\"%s\",\"type\":\"resource_instance\",\"relation\":\"%s\",\"user\":\"%s\"}",
             b->cfg.model_id, b->cfg.relation, subject);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, client_take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
    CURLcode rc = curl_easy_perform(curl);
    pg_array_begin(ids);
    for (at = buf_str(&answer); (at = strstr(at, object)) && (end = strchr(at + sizeof object - 1, '"')); at = end)
        pg_array_add_int(ids, strtol(at + sizeof object - 1, NULL, 10));
    pg_array_end(ids);
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    buf_release(&answer);
    return rc == CURLE_OK ? ST_OK : err_set(err, ST_UNKNOWN, "", "ListObjects: %s", curl_easy_strerror(rc));
}

static enum status walk_objects(struct bench *b, const char *subject, size_t *rows, struct err *err)
{
    struct pg_result *r = NULL;
    struct buf ids;
    enum status st;

    buf_init(&ids, 64 << 20);
    st = list_objects(b, subject, &ids, err);
    if (st == ST_OK) {
        const struct pg_param p = pg_p_buf(&ids);
        st = pg_query(b->pg, NULL, "SELECT " COLUMNS FROM " AND t.id = ANY ($1::bigint[])" ORDER "ALL", &p, 1,
                      deadline_in_ms(CALL_MS), &r, err);
    }
    *rows = st == ST_OK ? (size_t)pg_rows(r) : 0;
    pg_result_free(r);
    buf_release(&ids);
    return st;
}

static enum status load_objects(struct bench *b, struct walk *w, struct err *err)
{
    struct pg_result *r = NULL;
    enum status st = pg_query(b->pg, NULL, "SELECT t.id" FROM ORDER "ALL", NULL, 0, deadline_in_ms(CALL_MS), &r, err);

    w->n = st == ST_OK ? (size_t)pg_rows(r) : 0;
    w->objects = calloc(w->n + 1, sizeof *w->objects);
    if (st == ST_OK && !w->objects)
        st = err_set(err, ST_NOMEM, "", "no memory for objects");
    for (size_t i = 0; st == ST_OK && i < w->n; i++)
        snprintf(w->objects[i], sizeof w->objects[i], "resource_instance:%s", pg_text(r, (int)i, 0));
    pg_result_free(r);
    return st;
}

static enum status run_walk(struct bench *b, struct err *err)
{
    char subject[64];
    struct walk w = {.b = b, .subject = subject};
    enum status st = load_objects(b, &w, err);
    size_t rows = 0, wanted = w.n;
    mono_us begin = clock_mono_us();

    snprintf(subject, sizeof subject, "user:all-%" PRId64, b->cfg.first);
    if (st == ST_OK && strcmp(b->cfg.way, "lister") == 0)
        st = walk_lister(b, subject, &rows, err);
    else if (st == ST_OK && strcmp(b->cfg.way, "objects") == 0)
        st = walk_objects(b, subject, &rows, err);
    else if (st == ST_OK && (st = walk_checks(&w, err)) == ST_OK)
        rows = w.n;
    if (st == ST_OK && rows != wanted)
        st = err_set(err, ST_FATAL, "", "%zu rows of %zu, by %s", rows, wanted, b->cfg.way);
    if (st == ST_OK)
        printf("{\"rows\": %zu, \"ms\": %.3f}\n", rows, (double)(clock_mono_us() - begin) / 1000);
    free(w.objects);
    return st;
}

/* ---- revoke ---- */

struct revoke {
    struct bench *b;
    pthread_mutex_t mutex;
    int64_t last;    /* the newest that was heard of */
    mono_us applied; /* when it was; 0 = not yet */
    struct samples gone, shown, applied_us;
};

/* The event can be faster than the answer to the commit: versions only grow here. */
static void on_event(void *arg, const struct events_seen *seen)
{
    struct revoke *v = arg;
    mono_us now = clock_mono_us();

    pthread_mutex_lock(&v->mutex);
    for (size_t i = 0; !seen->heartbeat && i < seen->n; i++) {
        if (seen->changes[i].version > v->last) {
            v->last = seen->changes[i].version;
            v->applied = now;
        }
    }
    pthread_mutex_unlock(&v->mutex);
}

static enum status change(struct bench *b, const char *object, bool write, int64_t *version, struct err *err)
{
    const struct pg_param params[] = {pg_p_text(write ? "write" : "delete"), pg_p_text(object)};
    struct pg_result *r = NULL;
    enum status st = pg_query(b->pg, "change",
                              "INSERT INTO relata.outbox (op, object, relation, subject) "
                              "VALUES ($1, $2, 'editor', 'user:some') RETURNING id",
                              params, 2, deadline_in_ms(CALL_MS), &r, err);

    if (st == ST_OK)
        *version = pg_int(r, 0, 0);
    pg_result_free(r);
    return st;
}

static bool shows(const struct bench *b, const char *id)
{
    char key[64];

    snprintf(key, sizeof key, "{\"id\":%s,", id);
    return memmem(b->client.body.data, b->client.body.len, key, strlen(key)) != NULL;
}

/* Look at the list until the row has gone or come. */
static enum status look(struct bench *b, const char *id, bool wanted, mono_us *at, struct err *err)
{
    mono_us last = deadline_in_ms(REVOKE_MS);
    enum status st;

    for (;;) {
        st = lister_page(b, "user:some", "", err);
        *at = clock_mono_us();
        if (st != ST_OK || shows(b, id) == wanted)
            return st;
        if (*at > last)
            return err_set(err, ST_DEADLINE, "", "row %s does not %s", id, wanted ? "come" : "go");
        st = stop_sleep_until(*at + LOOK_US);
        if (st != ST_OK)
            return err_set(err, st, "", "stopped by a signal");
    }
}

static enum status change_and_look(struct revoke *v, const char *id, bool write, struct err *err)
{
    struct bench *b = v->b;
    char object[64];
    mono_us committed = 0, at = 0, applied;
    int64_t version = 0;
    enum status st = look(b, id, !write, &at, err);

    snprintf(object, sizeof object, "resource_instance:%s", id);
    if (st == ST_OK)
        st = change(b, object, write, &version, err);
    committed = clock_mono_us();
    if (st == ST_OK)
        st = look(b, id, write, &at, err);
    if (st != ST_OK)
        return st;
    samples_add(write ? &v->shown : &v->gone, at - committed);
    /* Without an event the row would not have gone so soon; it may be taken from the queue a little later. */
    for (mono_us last = deadline_in_ms(1000);;) {
        pthread_mutex_lock(&v->mutex);
        applied = v->last >= version ? v->applied : 0;
        pthread_mutex_unlock(&v->mutex);
        if (applied || clock_mono_us() > last)
            break;
        (void)stop_sleep_until(deadline_in_ms(1));
    }
    if (!applied)
        return err_set(err, ST_FATAL, "", "no event tells of change %" PRId64, version);
    if (!write)
        samples_add(&v->applied_us, applied > committed ? applied - committed : 1);
    return ST_OK;
}

static enum status revoke_all(struct revoke *v, const struct pg_result *shared, struct err *err)
{
    struct bench *b = v->b;
    enum status st = ST_OK;

    for (int64_t i = 0; st == ST_OK && i < b->cfg.rounds; i++) {
        const char *id = pg_text(shared, (int)(i % pg_rows(shared)), 0);
        st = change_and_look(v, id, false, err);
        if (st == ST_OK)
            st = stop_sleep_until(clock_mono_us() + SETTLE_US + i * 7919 % SETTLE_US);
        if (st == ST_OK)
            st = change_and_look(v, id, true, err);
        if (st == ST_OK)
            st = stop_sleep_until(clock_mono_us() + SETTLE_US + i * 104729 % SETTLE_US);
    }
    return st;
}

/* user:some may edit the newest rows, one page of them, by a tuple each. */
static enum status run_revoke(struct bench *b, struct err *err)
{
    struct revoke v = {.b = b};
    struct events_sub *sub = NULL;
    struct pg_result *shared = NULL;
    struct place at = {"", ""};
    enum status st;

    pthread_mutex_init(&v.mutex, NULL);
    st = events_sub_new(&sub, &b->cfg.nats, b->cfg.store.name, on_event, &v, deadline_in_ms(CALL_MS), err);
    if (st == ST_OK)
        st = sql_page(b, &at, &shared, err);
    if (st == ST_OK)
        st = revoke_all(&v, shared, err);
    if (st == ST_OK)
        printf("{\"changes\": %zu, \"applied_p50_ms\": %.3f, \"applied_p99_ms\": %.3f, \"gone_p50_ms\": %.3f, "
               "\"gone_p99_ms\": %.3f, \"shown_p50_ms\": %.3f}\n",
               v.gone.n, samples_ms(&v.applied_us, 0.5), samples_ms(&v.applied_us, 0.99), samples_ms(&v.gone, 0.5),
               samples_ms(&v.gone, 0.99), samples_ms(&v.shown, 0.5));
    events_sub_free(sub);
    pg_result_free(shared);
    return st;
}

/* ---- all ---- */

static enum status count_pages(struct bench *b, int64_t *pages, struct err *err)
{
    struct pg_result *r = NULL;
    enum status st = pg_query(b->pg, NULL, "SELECT count(*)" FROM, NULL, 0, deadline_in_ms(CALL_MS), &r, err);

    *pages = st == ST_OK ? pg_int(r, 0, 0) / b->cfg.page_size : 0;
    pg_result_free(r);
    return st;
}

static enum status measure(struct bench *b, struct err *err)
{
    struct pg_config cfg = {.dsn = b->cfg.dsn, .application_name = program.name};
    int64_t pages = 0;
    enum status st = pg_open(&b->pg, &cfg, deadline_in_ms(CALL_MS), err);

    if (st == ST_OK)
        st = count_pages(b, &pages, err);
    if (st == ST_OK)
        st = store_new(&b->store, &b->cfg.store, err);
    if (st == ST_OK)
        st = store_conn_new(&b->conn, b->store, b->cfg.store_id, err);
    if (st == ST_OK)
        st = client_init(&b->client, b->cfg.url, b->cfg.token, err);
    if (st == ST_OK && strcmp(b->cfg.mode, "cold") == 0)
        st = run_cold(b, pages, err);
    else if (st == ST_OK && strcmp(b->cfg.mode, "warm") == 0)
        st = run_warm(b, err);
    else if (st == ST_OK && strcmp(b->cfg.mode, "walk") == 0)
        st = run_walk(b, err);
    else if (st == ST_OK)
        st = run_revoke(b, err);
    client_free(&b->client);
    store_conn_free(b->conn);
    store_free(b->store);
    pg_close(b->pg);
    return st;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct err err = {0};
    enum cfg_action action;

    if (config_load(&program, argc, argv, &b.cfg, &action, &err) != ST_OK) {
        fprintf(stderr, "bench-lists: %s\n", err.text);
        return EXIT_USAGE;
    }
    int code = EXIT_DONE;
    log_init(program.name, LOG_LVL_WARN, LOG_FMT_LOGFMT);
    stop_init();
    curl_global_init(CURL_GLOBAL_DEFAULT);
    if (action == CFG_RUN && measure(&b, &err) != ST_OK) {
        fprintf(stderr, "bench-lists: %s\n", err.text);
        code = EXIT_FAILED;
    }
    config_release(&program, &b.cfg);
    return code;
}
