#include "authz-store/stores/metrics.h"

#include "authz-store/stores/stores.h"

#define METRIC(var, kind_, n, h, label_)                                                                               \
    struct metric var = {.kind = kind_, .name = "relata_store_" n, .help = h, .label = label_}
#define COUNTER(var, n, h) METRIC(var, METRIC_COUNTER, n, h, NULL)
#define GAUGE(var, n, h) METRIC(var, METRIC_GAUGE, n, h, NULL)
#define HISTOGRAM(var, n, h) METRIC(var, METRIC_HISTOGRAM, n, h, NULL)

GAUGE(m_active, "active", "1 if this process is the active one: it may write.");
GAUGE(m_epoch, "epoch", "The epoch in which this process was last the active one; it rises with each takeover.");
COUNTER(m_takeovers, "takeovers_total", "How often this process has become the active one.");
GAUGE(m_stores, "stores", "Stores that are served.");
GAUGE(m_tuples, "tuples", "Tuples in memory, of all stores.");
GAUGE(m_bytes, "engine_bytes", "Memory of the tuples, their names and indexes, garbage included.");
GAUGE(m_garbage, "engine_garbage_bytes", "Memory that is held only for decisions that are being made.");
COUNTER(m_commits, "commits_total",
        "Transactions that changed tuples; jobs divided by commits: how many writes shared one.");
COUNTER(m_jobs, "writes_total", "Writes that were committed or refused by what the store holds.");
METRIC(m_written, METRIC_COUNTER, "changes_total", "Changes of tuples that were committed.", "op=\"write\"");
METRIC(m_removed, METRIC_COUNTER, "changes_total", "Changes of tuples that were committed.", "op=\"delete\"");
HISTOGRAM(m_commit_seconds, "commit_seconds", "Time of a transaction that changed tuples, in Postgres.");
COUNTER(m_unknown, "lost_answers_total", "Commits whose answer was lost, so that Postgres had to be asked.");
COUNTER(m_reconnects, "reconnects_total", "Times that the writer has connected to Postgres.");
COUNTER(m_throttled, "throttled_total", "Jobs that were refused because too many waited.");
GAUGE(m_load_seconds, "load_seconds", "How long loading took at the start.");
COUNTER(m_pages, "pages_total", "Pages of tuples or changes that were read from Postgres.");

void stores_metrics(void)
{
    struct metric *const all[] = {&m_active,       &m_epoch,          &m_takeovers, &m_stores,     &m_tuples,
                                  &m_bytes,        &m_garbage,        &m_commits,   &m_jobs,       &m_written,
                                  &m_removed,      &m_commit_seconds, &m_unknown,   &m_reconnects, &m_throttled,
                                  &m_load_seconds, &m_pages};

    metric_register_all(all, sizeof all / sizeof *all);
}
