/* The stop flag and calls to the store. One process of its own: the flag is never lowered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/stop.h"
#include "common/store/store.h"
#include "tests/harness/raw_server.h"

#define STORE_ID "01HVMMBCMGZNT3SED4Z17ECXCA"
#define MODEL_ID "01HVMMBCMGZNT3SED4Z17ECXCB"

/* The request of the patient connection is answered once the other one has been given up. */
static enum raw_next stop_and_wait(struct raw_peer *p, const struct raw_request *rq, void *arg)
{
    (void)arg;
    if (rq->number == 0) {
        stop_request();
        raw_pause(p, -1);
        return RAW_CLOSE;
    }
    raw_reply(p, 200, "", "{}");
    return RAW_KEEP;
}

static void test_W14_only_connections_that_heed_the_flag_are_stopped(void **state)
{
    static char none[] = "";
    struct raw_server *server = raw_server_start(&(struct raw_options){.handler = stop_and_wait});
    struct store_tuple t = {{"doc:1", "viewer", "user:u1"}, NULL, NULL};
    struct cfg_store cfg = {.token = none, .connect_timeout_ms = 5000, .request_timeout_ms = 60000};
    struct store_conn *heeding, *patient;
    struct store *store;
    struct err err;
    char url[200];
    (void)state;

    snprintf(url, sizeof(url), "%s", raw_server_url(server));
    cfg.url = url;
    assert_int_equal(store_new(&store, &cfg, &err), ST_OK);
    assert_int_equal(store_conn_new(&heeding, store, STORE_ID, &err), ST_OK);
    assert_int_equal(store_conn_new(&patient, store, STORE_ID, &err), ST_OK);
    store_conn_heed_stop(heeding, true);
    assert_int_equal(store_write(heeding, MODEL_ID, &t, 1, NULL, 0, DEADLINE_NONE, &err), ST_STOPPED);
    assert_true(stop_requested());
    assert_int_equal(store_write(patient, MODEL_ID, &t, 1, NULL, 0, DEADLINE_NONE, &err), ST_OK);
    store_conn_free(heeding);
    store_conn_free(patient);
    store_free(store);
    raw_server_stop(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_W14_only_connections_that_heed_the_flag_are_stopped)};

    stop_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
