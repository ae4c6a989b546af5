/*
 * world.h - what the decisions rest on: the store's identity and the model in force, followed as they change, and the
 * NATS events that make cached decisions old (hearing.h).
 *
 * One thread reads relata.store each second, makes sure that the store still exists, and reads the model's JSON from
 * the store when its id changes; the new model is swapped in and the cache flushed. As long as the database cannot be
 * read, what was read last stays in force. A model that cannot be had is none: nothing is decided by an old one.
 */
#ifndef RELATA_LISTER_DECIDE_WORLD_H
#define RELATA_LISTER_DECIDE_WORLD_H

#include "common/base/clock.h"
#include "common/base/status.h"
#include "engine/model.h"
#include "inventory-lister/decide/cache.h"

struct admin;
struct cfg_nats;
struct store;
struct world;

struct world_settings {
    const char *pg_dsn;
    const char *store_name;
    const struct cfg_nats *nats; /* url "" = no events: always blind */
    int64_t heartbeat_timeout_ms;
};

/* Registers the metrics of world and cache; before threads start (world_start does it too). */
void world_metrics_init(void);

/* Connects in threads of its own and reports to `admin` (may be NULL) as condition "model". Being without events is no
 * reason to be unready: answers stay right, asked for with higher consistency; relata_lister_events_blind tells.
 * ST_CONFIG for bad settings; that a service is down is not an error. The arguments must outlive it. */
enum status world_start(struct world **out, const struct world_settings *cfg, struct store *store, struct cache *cache,
                        struct admin *admin, struct err *err) MUST_CHECK;
/* Waits for its threads: calls under way end within 2 s, those to the store within its request_timeout. Everything held
 * must have been released. Accepts NULL. */
void world_stop(struct world *w);

/* The model in force, held until released: a request keeps one from its first to its last check. NULL before the first
 * was read, or while the store is not pinned, gone, or the model that is pinned cannot be read. Any thread. */
struct in_force {
    const struct model *model;
    char store_id[32];
    char model_id[32];
};
const struct in_force *world_hold(struct world *w);
void world_release(struct world *w, const struct in_force *f);

/* For start-up checks: wait until there is a model. ST_OK, ST_DEADLINE with the reason, ST_STOPPED. */
enum status world_wait(struct world *w, mono_us deadline, struct err *err) MUST_CHECK;

#endif
