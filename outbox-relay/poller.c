/* poller.c - see poller.h. */
#include "outbox-relay/poller.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_ROWS 500
#define LIST_EVERY_US (1000 * 1000)

static void store_release(struct poller_store *s)
{
    free(s->name);
    free(s->base.snapshot);
    free(s->since);
    free(s->current.snapshot);
    pg_result_free(s->page);
    for (unsigned i = 0; i < s->count; i++)
        free(s->waiting[(s->first + i) % POLLER_ROUNDS].snapshot);
}

enum status poller_init(struct poller *p, struct db *db, struct sender *sender, const char *start, struct err *err)
{
    *p = (struct poller){.db = db, .sender = sender, .start = strdup(start ? start : SNAPSHOT_NONE)};
    return p->start ? ST_OK : err_set(err, ST_NOMEM, "", "out of memory");
}

void poller_release(struct poller *p)
{
    for (size_t i = 0; i < p->nstores; i++)
        store_release(&p->stores[i]);
    free(p->stores);
    free(p->start);
    *p = (struct poller){0};
}

static enum status store_add(struct poller *p, const char *name, struct err *err)
{
    for (size_t i = 0; i < p->nstores; i++)
        if (strcmp(p->stores[i].name, name) == 0)
            return ST_OK;
    struct poller_store *grown = realloc(p->stores, (p->nstores + 1) * sizeof *grown);
    if (!grown)
        return err_set(err, ST_NOMEM, "", "out of memory");
    p->stores = grown;
    struct poller_store *s = &grown[p->nstores];
    *s = (struct poller_store){.name = strdup(name), .base.snapshot = strdup(p->start), .since = strdup(p->start)};
    if (!s->name || !s->base.snapshot || !s->since) {
        store_release(s);
        return err_set(err, ST_NOMEM, "", "out of memory");
    }
    p->nstores++;
    return ST_OK;
}

void poller_relist(struct poller *p)
{
    p->listed_at = 0;
}

static enum status list_stores(struct poller *p, struct err *err)
{
    mono_us now = clock_mono_us();
    if (p->listed_at != 0 && now < p->listed_at + LIST_EVERY_US)
        return ST_OK;
    struct pg_result *r = NULL;
    enum status st = db_stores(p->db, &r, err);
    for (int i = 0; st == ST_OK && i < pg_rows(r); i++)
        st = store_add(p, pg_text(r, i, 0), err);
    pg_result_free(r);
    if (st == ST_OK)
        p->listed_at = now;
    return st;
}

static void round_move(struct poller_round *to, struct poller_round *from)
{
    free(to->snapshot);
    *to = *from;
    *from = (struct poller_round){0};
}

static void store_settle(struct poller *p, struct poller_store *s)
{
    while (s->count > 0 && s->waiting[s->first].after <= p->sender->window.low) {
        round_move(&s->base, &s->waiting[s->first]);
        s->first = (s->first + 1) % POLLER_ROUNDS;
        s->count--;
        p->moved = true;
    }
}

void poller_settle(struct poller *p)
{
    for (size_t i = 0; i < p->nstores; i++)
        store_settle(p, &p->stores[i]);
}

/* The round's last page is sent. `empty`: it had no row at all, so there is nothing to wait for but earlier rounds. */
static enum status round_end(struct poller *p, struct poller_store *s, bool empty, struct err *err)
{
    char *since = strdup(s->current.snapshot);
    if (!since)
        return err_set(err, ST_NOMEM, "", "out of memory");
    free(s->since);
    s->since = since;
    s->current.after = p->sender->window.next;
    if (empty && s->count == 0)
        round_move(&s->base, &s->current);
    else if (empty) /* stands for the last one that waits */
        round_move(&s->waiting[(s->first + s->count - 1) % POLLER_ROUNDS], &s->current);
    else
        round_move(&s->waiting[(s->first + s->count++) % POLLER_ROUNDS], &s->current);
    return ST_OK;
}

static enum status page_fetch(struct poller *p, struct poller_store *s, struct err *err)
{
    struct snapshot since;
    bool first = s->current.snapshot == NULL;
    if (first) {
        if (!snapshot_parse(s->since, &since))
            return err_set(err, ST_FATAL, "", "relata.relay holds no snapshot: %.80s", s->since);
        s->current.taken_at = clock_mono_us();
        s->after_xid = since.xmin;
        s->after_id = 0;
    }
    enum status st = db_page(p->db, s->name, s->since, s->after_xid, s->after_id, PAGE_ROWS, &s->page, err);
    s->row = 0;
    if (st == ST_OK && first && !(s->current.snapshot = strdup(db_page_snapshot(s->page))))
        st = err_set(err, ST_NOMEM, "", "out of memory");
    return st;
}

/* Send what is left of the page. */
static enum status page_send(struct poller *p, struct poller_store *s, struct err *err)
{
    static const struct position nowhere = {0, 0};
    int n = db_page_len(s->page);
    struct outbox_row row;
    for (; s->row < n; s->row++) {
        db_page_row(s->page, s->row, s->name, &row);
        enum status st = sender_send(p->sender, &row, nowhere, err);
        if (st != ST_OK)
            return st;
        s->after_xid = row.xid;
        s->after_id = row.id;
    }
    return ST_OK;
}

/* One page. *waits: too many rounds of this store wait for reports. */
static enum status store_turn(struct poller *p, struct poller_store *s, bool *idle, bool *waits, struct err *err)
{
    enum status st = ST_OK;
    store_settle(p, s);
    if (!s->page) {
        if (!s->current.snapshot && s->count == POLLER_ROUNDS) {
            *waits = true;
            return ST_OK;
        }
        bool begins = s->current.snapshot == NULL;
        st = page_fetch(p, s, err);
        if (st != ST_OK)
            return st;
        if (begins && db_page_len(s->page) == 0) {
            pg_result_free(s->page);
            s->page = NULL;
            return round_end(p, s, true, err);
        }
    }
    *idle = false;
    st = page_send(p, s, err);
    if (st != ST_OK)
        return st;
    bool last = db_page_len(s->page) < PAGE_ROWS;
    pg_result_free(s->page);
    s->page = NULL;
    return last ? round_end(p, s, false, err) : ST_OK;
}

enum status poller_turn(struct poller *p, bool *idle, struct err *err)
{
    *idle = true;
    enum status st = list_stores(p, err);
    bool waits = false;
    for (size_t n = 0; st == ST_OK && n < p->nstores; n++) {
        size_t i = (p->turn + n) % p->nstores;
        st = store_turn(p, &p->stores[i], idle, &waits, err);
        if (st == ST_THROTTLED)
            p->turn = i; /* it goes on with its page, then the next one has its turn */
    }
    if (st == ST_OK && p->nstores > 0)
        p->turn = (p->turn + 1) % p->nstores;
    if (st == ST_OK && waits && *idle)
        st = ST_THROTTLED;
    if (st == ST_THROTTLED)
        *idle = false;
    return st;
}

bool poller_busy(const struct poller *p)
{
    for (size_t i = 0; i < p->nstores; i++)
        if (p->stores[i].count > 0 || p->stores[i].current.snapshot)
            return true;
    return false;
}

static const struct poller_store *oldest(const struct poller *p)
{
    const struct poller_store *s = NULL;
    for (size_t i = 0; i < p->nstores; i++)
        if (!s || p->stores[i].base.taken_at < s->base.taken_at)
            s = &p->stores[i];
    return s;
}

mono_us poller_covered(const struct poller *p)
{
    const struct poller_store *s = oldest(p);
    return s ? s->base.taken_at : 0;
}

const char *poller_snapshot(struct poller *p)
{
    const struct poller_store *s = oldest(p);
    if (!p->moved || !s)
        return NULL;
    p->moved = false;
    return s->base.snapshot;
}

void poller_names(const struct poller *p, struct buf *out)
{
    pg_array_begin(out);
    for (size_t i = 0; i < p->nstores; i++)
        pg_array_add(out, p->stores[i].name);
    pg_array_end(out);
}
