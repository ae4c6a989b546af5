/* metrics.h - time series of the stores. Registered by stores_metrics(). */
#ifndef RELATA_AUTHZ_STORES_METRICS_H
#define RELATA_AUTHZ_STORES_METRICS_H

#include "common/admin/metrics.h"

extern struct metric m_active, m_epoch, m_takeovers;
extern struct metric m_stores, m_tuples, m_bytes, m_garbage;
extern struct metric m_commits, m_jobs, m_written, m_removed, m_commit_seconds;
extern struct metric m_unknown, m_reconnects, m_throttled, m_load_seconds, m_pages;

#endif
