/* world_metrics.c - time series of the cache and of what makes it old. */
#include "inventory-lister/decide/world_internal.h"

#define COUNTER(var, n, h) struct metric var = {.kind = METRIC_COUNTER, .name = "relata_lister_" n, .help = h}
#define GAUGE(var, n, h) struct metric var = {.kind = METRIC_GAUGE, .name = "relata_lister_" n, .help = h}
#define HISTOGRAM(var, n, h) struct metric var = {.kind = METRIC_HISTOGRAM, .name = "relata_lister_" n, .help = h}

COUNTER(m_events, "events_total", "Events about changed tuples that came.");
HISTOGRAM(m_event_delay, "event_delay_seconds", "From the making of an event at its writer to its arrival here.");
GAUGE(m_blind, "events_blind", "1 while events may be missing: every check asks for higher consistency.");
COUNTER(m_model_reads, "model_reads_total", "Models read from the store.");
static COUNTER(m_hits, "cache_hits_total", "Decisions found in the cache.");
static COUNTER(m_misses, "cache_misses_total", "Decisions not found in the cache, or too old.");
static COUNTER(m_refused, "cache_fills_refused_total", "Answers not cached: a change came after they were asked for.");
static GAUGE(m_entries, "cache_entries", "Places of the cache that hold a decision, too old ones included.");
static GAUGE(m_capacity, "cache_capacity", "Decisions that the cache can hold.");

#define SCOPE(word)                                                                                                    \
    {                                                                                                                  \
        .kind = METRIC_COUNTER, .name = "relata_lister_invalidations_total",                                           \
        .help = "Invalidations of a relation's decisions, by what they were narrowed to.",                             \
        .label = "scope=\"" word "\""                                                                                  \
    }
static struct metric scopes[] = {SCOPE("relation"), SCOPE("subject"), SCOPE("object"), SCOPE("subject_object")};

#define FLUSH(word)                                                                                                    \
    {                                                                                                                  \
        .kind = METRIC_COUNTER, .name = "relata_lister_cache_flushes_total", .help = "Flushes of the cache, by why.",  \
        .label = "why=\"" word "\""                                                                                    \
    }
static struct metric flushes[FLUSH_REASONS] = {
    [FLUSH_GAP] = FLUSH("gap"),         [FLUSH_EPOCH] = FLUSH("writer"), [FLUSH_SUBJECT] = FLUSH("subject"),
    [FLUSH_SILENCE] = FLUSH("silence"), [FLUSH_MODEL] = FLUSH("model"),  [FLUSH_OTHER] = FLUSH("other_model")};

void world_metrics_init(void)
{
    static struct metric *const list[] = {&m_events, &m_event_delay, &m_blind,   &m_model_reads, &m_hits,
                                          &m_misses, &m_refused,     &m_entries, &m_capacity};
    metric_register_all(list, sizeof list / sizeof *list);
    for (size_t i = 0; i < sizeof scopes / sizeof *scopes; i++)
        metric_register(&scopes[i]);
    for (size_t i = 0; i < FLUSH_REASONS; i++)
        metric_register(&flushes[i]);
}

void world_flush(struct cache *cache, enum flush_why why)
{
    cache_flush(cache);
    metric_add(&flushes[why], 1);
}

static void advance(struct metric *m, uint64_t now, uint64_t before)
{
    metric_add(m, (int64_t)(now - before));
}

void world_metrics_cache(const struct cache *cache, struct cache_stats *last)
{
    struct cache_stats s;
    cache_stats(cache, &s);
    advance(&m_hits, s.hits, last->hits);
    advance(&m_misses, s.misses, last->misses);
    advance(&m_refused, s.refused_fills, last->refused_fills);
    advance(&scopes[0], s.invalidations_pair, last->invalidations_pair);
    advance(&scopes[1], s.invalidations_subject, last->invalidations_subject);
    advance(&scopes[2], s.invalidations_object, last->invalidations_object);
    advance(&scopes[3], s.invalidations_both, last->invalidations_both);
    metric_set(&m_entries, (double)s.entries);
    metric_set(&m_capacity, (double)s.capacity);
    *last = s;
}
