/*
 * bench-store-reads - Read pages of a whole store, one after the other, and nothing else.
 *
 * Prints {"tuples", "pages", "seconds"}.
 */
#include <inttypes.h>

#include "common/base/log.h"
#include "common/base/stop.h"
#include "common/config/config.h"
#include "common/store/store.h"

struct settings {
    char *store_id;
    struct cfg_store store;
};

static const struct cfg_key keys[] = {
    CFG_STORE_KEYS(struct settings, store),
    {"bench", "store_id", CFG_STRING, offsetof(struct settings, store_id), NULL, 0, 0, NULL, NULL, "the store's id"},
    {0},
};
static const struct cfg_program program = {
    .name = "bench-store-reads",
    .summary = "reads every page of a store and measures only that",
    .keys = keys,
};

static enum status read_all(struct store_conn *conn, const struct settings *cfg, int64_t *tuples, int64_t *pages,
                            struct err *err)
{
    char *token = strdup("");
    enum status st = token ? ST_OK : err_set(err, ST_NOMEM, "", "no memory");

    do {
        struct store_tuples page = {0};
        char *next = NULL;

        if (st == ST_OK)
            st = store_read_page(conn, token, &page, &next, deadline_in_ms(cfg->store.request_timeout_ms), err);
        *tuples += (int64_t)page.len;
        *pages += 1;
        store_tuples_free(&page);
        free(token);
        token = next;
    } while (st == ST_OK && token[0]);
    free(token);
    return st;
}

static enum status measure(const struct settings *cfg, struct err *err)
{
    struct store *store = NULL;
    struct store_conn *conn = NULL;
    int64_t tuples = 0, pages = 0;
    enum status st = store_new(&store, &cfg->store, err);
    mono_us began;

    if (st == ST_OK)
        st = store_conn_new(&conn, store, cfg->store_id, err);
    began = clock_mono_us();
    if (st == ST_OK)
        st = read_all(conn, cfg, &tuples, &pages, err);
    if (st == ST_OK)
        printf("{\"tuples\": %" PRId64 ", \"pages\": %" PRId64 ", \"seconds\": %.4f}\n", tuples, pages,
               (double)(clock_mono_us() - began) / 1e6);
    store_conn_free(conn);
    store_free(store);
    return st;
}

int main(int argc, char **argv)
{
    static struct settings cfg;
    struct err err = {0};
    enum cfg_action action;
    int code = EXIT_DONE;

    if (config_load(&program, argc, argv, &cfg, &action, &err) != ST_OK) {
        fprintf(stderr, "bench-store-reads: %s\n", err.text);
        return EXIT_USAGE;
    }
    log_init(program.name, LOG_LVL_WARN, LOG_FMT_LOGFMT);
    if (action == CFG_RUN && measure(&cfg, &err) != ST_OK) {
        fprintf(stderr, "bench-store-reads: %s\n", err.text);
        code = EXIT_FAILED;
    }
    config_release(&program, &cfg);
    return code;
}
