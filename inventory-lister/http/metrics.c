/* metrics.c - what the server counts. */
#include "inventory-lister/http/internal.h"

#define REQUESTS(label)                                                                                                \
    METRIC_INIT(METRIC_COUNTER, "relata_lister_http_requests_total", "Requests answered, by class of status.", label)
#define REFUSED(label)                                                                                                 \
    METRIC_INIT(METRIC_COUNTER, "relata_lister_http_refused_total", "Requests that no handler has seen, and why.",     \
                label)

static struct metric by_class[] = {REQUESTS("status=\"2xx\""), REQUESTS("status=\"4xx\""), REQUESTS("status=\"5xx\"")};

struct metric http_refused_queue = REFUSED("reason=\"queue_full\"");
struct metric http_refused_caller = REFUSED("reason=\"caller_in_flight\"");
struct metric http_refused_waited = REFUSED("reason=\"waited_too_long\"");
struct metric http_refused_token = REFUSED("reason=\"unauthenticated\"");
struct metric http_refused_headers = REFUSED("reason=\"headers_too_large\"");
struct metric http_refused_body = REFUSED("reason=\"body_too_large\"");
struct metric http_refused_slow = REFUSED("reason=\"too_slow\"");
struct metric http_refused_bad = REFUSED("reason=\"malformed\"");
struct metric http_hangups = METRIC_INIT(METRIC_COUNTER, "relata_lister_http_hangups_total",
                                         "Requests cancelled because their client hung up.", NULL);
struct metric http_connections = METRIC_INIT(METRIC_GAUGE, "relata_lister_http_connections", "Open connections.", NULL);
struct metric http_in_flight =
    METRIC_INIT(METRIC_GAUGE, "relata_lister_http_in_flight", "Requests that are queued or worked on.", NULL);
struct metric http_queue_wait = METRIC_INIT(METRIC_HISTOGRAM, "relata_lister_http_queue_wait_seconds",
                                            "Time that requests waited for a worker.", NULL);
struct metric http_duration = METRIC_INIT(METRIC_HISTOGRAM, "relata_lister_http_duration_seconds",
                                          "Time from the end of a request's headers to the end of its answer.", NULL);

void http_count_status(int status)
{
    metric_add(&by_class[status >= 500 ? 2 : status >= 400 ? 1 : 0], 1);
}

void http_metrics_register(void)
{
    static struct metric *const all[] = {
        &by_class[0],         &by_class[1],         &by_class[2],        &http_refused_queue,
        &http_refused_caller, &http_refused_waited, &http_refused_token, &http_refused_headers,
        &http_refused_body,   &http_refused_slow,   &http_refused_bad,   &http_hangups,
        &http_connections,    &http_in_flight,      &http_queue_wait,    &http_duration,
    };

    metric_register_all(all, sizeof all / sizeof *all);
}
