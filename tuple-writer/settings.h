/*
 * settings.h - tuple-writer's configuration: one table, docs/reference/tuple-writer.md is made from it.
 */
#ifndef RELATA_WRITER_SETTINGS_H
#define RELATA_WRITER_SETTINGS_H

#include "common/admin/admin.h"
#include "common/config/config.h"
#include "common/events/events.h"
#include "common/store/store.h"

enum source_kind { SOURCE_OUTBOX, SOURCE_KAFKA };

struct settings {
    struct cfg_log log;
    struct cfg_admin admin;
    struct cfg_store store;
    struct cfg_nats nats;
    struct cfg_map kafka;

    char *pg_dsn;
    int64_t statement_timeout_ms;

    char *name;
    int source;
    int64_t lanes;
    int64_t batch;
    int64_t window;
    int64_t drain_timeout_ms;
    int64_t retry_min_ms, retry_max_ms;
    int64_t circuit_failures;
    int64_t verify_interval_ms;
    int64_t visible_timeout_ms;
    char *topic, *group;
};

extern const struct cfg_program settings_program;

/* Names that have a default made at run time: the host's name, and the group. ST_NOMEM. */
enum status settings_complete(struct settings *s, struct err *err) MUST_CHECK;

#endif
