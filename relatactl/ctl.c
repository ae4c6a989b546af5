/* ctl.c - connections of a command. */
#include "relatactl/ctl.h"

#define CONNECT_MS 10000

mono_us ctl_deadline(const struct ctl *ctl)
{
    return deadline_in_ms(ctl->settings.pg.statement_timeout_ms);
}

mono_us ctl_store_deadline(const struct ctl *ctl)
{
    return deadline_in_ms(ctl->settings.store.request_timeout_ms);
}

enum status ctl_pg_new(const struct ctl *ctl, struct pg **out, struct err *err)
{
    const struct pg_config cfg = {.dsn = ctl->settings.pg.dsn, .application_name = "relatactl", .watch_stop = true};
    return pg_open(out, &cfg, deadline_in_ms(CONNECT_MS), err);
}

enum status ctl_pg(struct ctl *ctl, struct err *err)
{
    return ctl->pg ? ST_OK : ctl_pg_new(ctl, &ctl->pg, err);
}

enum status ctl_store(struct ctl *ctl, const char *store_id, struct err *err)
{
    enum status st = ctl->store ? ST_OK : store_new(&ctl->store, &ctl->settings.store, err);
    if (st != ST_OK)
        return st;
    if (ctl->store_conn)
        return store_conn_use(ctl->store_conn, store_id, err);
    return store_conn_new(&ctl->store_conn, ctl->store, store_id, err);
}
