#include <errno.h>
#include <signal.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/wait.h"
#include "inventory-lister/callers/internal.h"
#include "inventory-lister/callers/jwks_fetch.h"

#define LOOK_MS 500 /* between two looks at the files */
#define RETRY_MAX_MS 30000

#define RELOADS(label)                                                                                                 \
    METRIC_INIT(METRIC_COUNTER, "relata_lister_callers_reloads_total",                                                 \
                "Token files and key sets that were to be read again.", label)
struct metric callers_reloaded = RELOADS("result=\"taken\"");
struct metric callers_reload_failed = RELOADS("result=\"kept_former\"");

static enum status file_fault(struct err *err, const char *path)
{
    err_prefix(err, "%s", path);
    if (err)
        err->status = ST_CONFIG;
    return ST_CONFIG;
}

static void keep_jwks(struct callers *c, struct jwks *fresh)
{
    struct jwks *former;
    struct caller_impl *gone[SEEN_SLOTS];

    pthread_mutex_lock(&c->lock);
    former = c->jwks;
    c->jwks = fresh;
    c->jwks_generation++;
    for (size_t i = 0; i < SEEN_SLOTS; i++) {
        gone[i] = c->seen[i].caller;
        c->seen[i].caller = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    jwks_unref(former);
    for (size_t i = 0; i < SEEN_SLOTS; i++)
        caller_unref(gone[i]);
}

static enum status load_jwks_file(struct callers *c, struct err *err)
{
    const char *path = c->cfg->jwks_file;
    struct jwks *fresh = NULL;
    size_t skipped = 0;
    struct buf text;
    enum status st;

    buf_init(&text, JWKS_MAX_BYTES);
    st = file_read(path, JWKS_MAX_BYTES, &text, &c->jwks_seen, err);
    if (st == ST_OK && jwks_parse((struct bytes){buf_str(&text), text.len}, &fresh, &skipped, err) != ST_OK)
        st = file_fault(err, path);
    buf_release(&text);
    if (st != ST_OK)
        return err_prefix(err, "callers.jwks_file"), st;
    if (skipped > 0)
        log_warn("keys left out: symmetric, weak, or not for signatures", "file", path, NULL);
    keep_jwks(c, fresh);
    return ST_OK;
}

static enum status load_tokens(struct callers *c, struct err *err)
{
    struct tokens *fresh = NULL, *former;
    enum status st = tokens_load(c->cfg->tokens_file, &fresh, &c->tokens_seen, err);

    if (st != ST_OK)
        return err_prefix(err, "callers.tokens_file"), st;
    pthread_mutex_lock(&c->lock);
    former = c->tokens;
    c->tokens = fresh;
    pthread_mutex_unlock(&c->lock);
    tokens_free(former);
    return ST_OK;
}

/* A file that is gone or faulty for a moment keeps what was read before. */
static void look_at(struct callers *c, const char *path, struct stat *seen,
                    enum status (*load)(struct callers *, struct err *))
{
    struct stat now;
    struct err err = {0};

    if (!path[0])
        return;
    file_look(path, &now);
    if (file_same(&now, seen))
        return;
    *seen = now;
    if (load(c, &err) == ST_OK) {
        metric_add(&callers_reloaded, 1);
        log_info("callers read again", "file", path, NULL);
    } else {
        metric_add(&callers_reload_failed, 1);
        log_err(LOG_LVL_ERROR, "callers not read again, the former ones stay", &err, NULL);
    }
}

static void fetch_keys(struct callers *c)
{
    struct jwks *fresh = NULL;
    struct err err = {0};
    size_t skipped = 0;
    enum status st = jwks_fetch(c->cfg->jwks_url, c->cfg->jwks_ca_file, &c->stop, &fresh, &skipped, &err);

    c->last_fetch = clock_mono_us();
    if (st == ST_OK) {
        if (skipped > 0)
            log_warn("keys left out: symmetric, weak, or not for signatures", "url", c->cfg->jwks_url, NULL);
        keep_jwks(c, fresh);
        metric_add(&callers_reloaded, 1);
        c->failures = 0;
        c->next_fetch = deadline_in_ms(c->cfg->jwks_refresh_ms);
    } else if (st != ST_STOPPED) {
        metric_add(&callers_reload_failed, 1);
        log_err(LOG_LVL_ERROR, "keys not fetched, the former ones stay", &err, NULL);
        c->next_fetch = deadline_in_ms(backoff_ms(c->failures++, 1000, RETRY_MAX_MS));
    }
}

/* When the next look is due, and whether a token asks for one. */
static bool wait_turn(struct callers *c)
{
    mono_us until = deadline_in_ms(LOOK_MS), soonest = c->last_fetch + c->cfg->jwks_min_interval_ms * 1000;
    bool wanted;

    if (c->cfg->jwks_url[0])
        until = deadline_min(until, c->next_fetch);
    pthread_mutex_lock(&c->lock);
    for (;;) {
        mono_us end = c->wanted ? deadline_min(until, soonest) : until;

        if (atomic_load(&c->stop) || clock_mono_us() >= end)
            break;
        (void)wait_cond(&c->wake, &c->lock, end);
    }
    wanted = c->wanted && clock_mono_us() >= soonest;
    if (wanted)
        c->wanted = false;
    pthread_mutex_unlock(&c->lock);
    return wanted;
}

static void *keep_current(void *arg)
{
    struct callers *c = arg;
    bool wanted = false;

    while (!atomic_load(&c->stop)) {
        look_at(c, c->cfg->tokens_file, &c->tokens_seen, load_tokens);
        look_at(c, c->cfg->jwks_file, &c->jwks_seen, load_jwks_file);
        if (c->cfg->jwks_url[0] && (wanted || clock_mono_us() >= c->next_fetch))
            fetch_keys(c);
        wanted = wait_turn(c);
    }
    return NULL;
}

enum status keeper_load(struct callers *c, struct err *err)
{
    enum status st = c->cfg->tokens_file[0] ? load_tokens(c, err) : ST_OK;

    return st == ST_OK && c->cfg->jwks_file[0] ? load_jwks_file(c, err) : st;
}

enum status keeper_start(struct callers *c, struct err *err)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all); /* signals belong to the main thread */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    rc = pthread_create(&c->thread, NULL, keep_current, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return err_set(err, ST_FATAL, NULL, "cannot start the callers' thread: %s", strerror(rc));
    c->running = true;
    return ST_OK;
}

void keeper_stop(struct callers *c)
{
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->stop, true);
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    if (c->running)
        pthread_join(c->thread, NULL);
}

void keeper_want_keys(struct callers *c)
{
    pthread_mutex_lock(&c->lock);
    c->wanted = c->cfg->jwks_url[0] != '\0';
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
}
