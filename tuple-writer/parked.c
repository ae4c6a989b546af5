#include "tuple-writer/parked.h"

#include "tuple-writer/lane.h"
#include "tuple-writer/metrics.h"

#define PAGE 500

void parked_start(struct parked *p)
{
    p->after = 0;
    p->running = true;
}

enum status parked_step(struct parked *p, struct writer *w, struct pg *pg, struct err *err)
{
    if (!p->running || lanes_held(w->lanes, false) > (size_t)w->cfg->window)
        return ST_OK;
    struct pin pin = gate_pinned(w->gate);
    char after[24], limit[24];
    const struct pg_param params[] = {pg_p_text(w->cfg->store.name), pg_p_int(p->after, after), pg_p_text(pin.model_id),
                                      pg_p_int(PAGE, limit)};
    struct pg_result *r = NULL;
    enum status st = pg_query(pg, "parked_page",
                              "SELECT id, object, relation, subject, op = 'delete' FROM relata.dead_letter "
                              "WHERE store = $1 AND closed_at IS NULL AND id > $2 AND model_id IS DISTINCT FROM $3 "
                              "ORDER BY id LIMIT $4",
                              params, 4, deadline_in_ms(w->cfg->statement_timeout_ms), &r, err);
    if (st != ST_OK)
        return st;
    struct hint *hints = calloc(PAGE, sizeof *hints);
    int n = hints ? pg_rows(r) : 0;
    for (int i = 0; i < n; i++) {
        hints[i].key = (struct tuple_key){pg_text(r, i, 1), pg_text(r, i, 2), pg_text(r, i, 3)};
        hints[i].revoke = pg_bool(r, i, 4);
        hints[i].force = true;
        p->after = pg_int(r, i, 0);
    }
    if (n > 0) {
        lanes_offer(w->lanes, hints, (size_t)n);
        metric_add(&m_unparked_total, n);
    }
    p->running = n == PAGE;
    free(hints);
    pg_result_free(r);
    return ST_OK;
}
