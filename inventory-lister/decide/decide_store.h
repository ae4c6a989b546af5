/* decide_store.h - a decider that asks the store by BatchCheck, behind the cache. See decide.h. */
#ifndef RELATA_LISTER_DECIDE_DECIDE_STORE_H
#define RELATA_LISTER_DECIDE_DECIDE_STORE_H

#include "inventory-lister/decide/decide.h"

struct cache;
struct store;
struct world;

struct decide_store_settings {
    int64_t in_flight;  /* BatchChecks at once, for the whole process: one connection and thread each */
    int64_t batch_size; /* at most 50 unless the store was configured otherwise */
    int64_t queue;      /* checks that may wait for a free connection; more only of one request, while no other waits */
};

enum status decide_store_new(struct decider **out, const struct decide_store_settings *cfg, struct store *store,
                             struct world *world, struct cache *cache, struct err *err) MUST_CHECK;
/* Registers its metrics; before threads start. */
void decide_store_metrics(void);
void decide_store_free(struct decider *d); /* waits for the calls in flight; accepts NULL */

#endif
