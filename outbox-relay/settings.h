/*
 * settings.h - the relay's configuration table.
 */
#ifndef RELATA_RELAY_SETTINGS_H
#define RELATA_RELAY_SETTINGS_H

#include "common/admin/admin.h"
#include "common/config/config.h"

enum relay_mode { RELAY_WAL, RELAY_POLL };

struct settings {
    char *dsn;
    int64_t statement_timeout_ms;
    struct cfg_map kafka;
    struct cfg_admin admin;
    struct cfg_log log;

    char *name;
    int mode; /* enum relay_mode */
    char *topic;
    int64_t topic_partitions; /* 0 = the topic must exist */
    int64_t topic_replication;
    char *slot; /* "" = relata_<name>; see settings_slot */
    char *publication;
    char *writer_group; /* "%s" stands for the store */
    int64_t in_flight;
    int64_t resend_after_ms; /* 0 = never */
    int64_t poll_interval_ms;
    int64_t status_interval_ms;
    int64_t heartbeat_interval_ms; /* 0 = never */
    int64_t maintain_interval_ms;
    int64_t drain_timeout_ms;
};

extern const struct cfg_program relay_program;

/* The slot's name; `out` needs 64 bytes. */
void settings_slot(const struct settings *s, char out[64]);

#endif
