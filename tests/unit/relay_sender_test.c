/* outbox-relay/sender against librdkafka's own mock broker: refusals, fatal errors, retries, each of them forced. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>

#include "outbox-relay/sender.h"

#define PRODUCE 0 /* the request's number in Kafka's protocol */
#define BOUND_MS 30000

struct world {
    rd_kafka_t *rk;
    rd_kafka_mock_cluster_t *cluster;
    struct sender sender;
    int64_t parked[16];
    int nparked;
    enum status park_result;
    uint64_t hidden_xid; /* queries do not show its rows yet */
    int asked;
};

static enum status park(void *arg, const char *store, int64_t outbox_id, uint64_t xid, const struct err *why,
                        struct err *err)
{
    struct world *w = arg;
    assert_string_equal(store, "default");
    assert_true(why->status == ST_TOO_BIG || why->status == ST_INVALID);
    assert_non_null(strstr(why->code, "MSG_SIZE_TOO_LARGE"));
    w->asked++;
    if (w->hidden_xid != 0 && xid == w->hidden_xid)
        return err_set(err, ST_NOT_FOUND, "", "not visible yet");
    if (w->park_result != ST_OK)
        return err_set(err, w->park_result, "", "cannot park");
    assert_true(w->nparked < 16);
    w->parked[w->nparked++] = outbox_id;
    return ST_OK;
}

static int setup_lingering(void **state, const char *linger_ms)
{
    char linger[8];
    struct world *w = calloc(1, sizeof *w);
    char reason[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "log_level", "0", reason, sizeof reason);
    w->rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, reason, sizeof reason);
    w->cluster = rd_kafka_mock_cluster_new(w->rk, 1);
    rd_kafka_mock_topic_create(w->cluster, "t", 1, 1);
    char servers[256];
    (void)snprintf(servers, sizeof servers, "%s", rd_kafka_mock_cluster_bootstraps(w->cluster));
    (void)snprintf(linger, sizeof linger, "%s", linger_ms);
    struct cfg_map_item items[] = {
        {.key = (char[]){"bootstrap.servers"}, .value = servers},
        {.key = (char[]){"linger.ms"}, .value = linger},
        {.key = (char[]){"retry.backoff.ms"}, .value = (char[]){"10"}},
        {.key = (char[]){"message.max.bytes"}, .value = (char[]){"50000"}},
    };
    struct cfg_map map = {.items = items, .len = 4};
    struct err err;
    if (sender_init(&w->sender, &map, "t", 100, park, w, &err) != ST_OK)
        fail_msg("%s", err.text);
    *state = w;
    return 0;
}

static int setup(void **state)
{
    return setup_lingering(state, "20");
}

/* Messages that are sent together are one batch, even if the sending takes a moment. */
static int setup_one_batch(void **state)
{
    return setup_lingering(state, "500");
}

/* The same, but a hundred messages go alone then, each after its linger. */
static int setup_one_batch_then_alone(void **state)
{
    return setup_lingering(state, "100");
}

static int teardown(void **state)
{
    struct world *w = *state;
    sender_release(&w->sender);
    rd_kafka_mock_cluster_destroy(w->cluster);
    rd_kafka_destroy(w->rk);
    free(w);
    return 0;
}

static struct outbox_row row_of(int64_t id, const char *actor)
{
    return (struct outbox_row){.id = id,
                               .xid = 1000 + (uint64_t)id / 10,
                               .store = "default",
                               .op = "write",
                               .object = "doc:1",
                               .relation = "viewer",
                               .subject = "user:a",
                               .actor = actor};
}

/* Send ids from..to, in order; ST_OK or the failure. `big` has a long actor. */
static enum status send_all(struct world *w, int64_t from, int64_t to, int64_t big, const char *actor, struct err *err)
{
    mono_us end = deadline_in_ms(BOUND_MS);
    for (int64_t id = from; id <= to && clock_mono_us() < end;) {
        struct outbox_row row = row_of(id, id == big ? actor : NULL);
        enum status st = sender_send(&w->sender, &row, (struct position){1, (uint64_t)id}, err);
        if (st == ST_OK)
            id++;
        else if (st != ST_THROTTLED)
            return st;
        else if ((st = sender_serve(&w->sender, 10, err)) != ST_OK)
            return st;
    }
    while (!window_empty(&w->sender.window) && clock_mono_us() < end) {
        enum status st = sender_serve(&w->sender, 10, err);
        if (st != ST_OK)
            return st;
    }
    assert_true(window_empty(&w->sender.window));
    return ST_OK;
}

/* As the relay does: from the first message without a good report, until all are through. */
static int send_until_done(struct world *w, int64_t last, int64_t big, const char *actor)
{
    struct err err;
    int replays = 0;
    int64_t next = 1;
    while (send_all(w, next, last, big, actor, &err) != ST_OK) {
        struct position open = window_first_open(&w->sender.window);
        next = open.lsn ? (int64_t)open.index : last + 1;
        assert_int_equal(sender_reset(&w->sender, &err), ST_OK);
        assert_true(++replays < 20);
    }
    return replays;
}

static void test_reports_move_the_window(void **state)
{
    struct world *w = *state;
    assert_int_equal(send_until_done(w, 500, -1, NULL), 0); /* five times the room of the window */
    assert_int_equal(w->nparked, 0);
}

static void test_retriable_errors_are_retried_below(void **state)
{
    struct world *w = *state;
    rd_kafka_mock_push_request_errors(w->cluster, PRODUCE, 3, RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
                                      RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT);
    assert_int_equal(send_until_done(w, 50, -1, NULL), 0);
    assert_int_equal(w->nparked, 0);
}

/* The client's own limit: nothing is sent, nothing fails. */
static void test_R08_over_the_own_limit_is_parked_at_once(void **state)
{
    struct world *w = *state;
    static char actor[60001];
    memset(actor, 'x', sizeof actor - 1);
    assert_int_equal(send_until_done(w, 40, 17, actor), 0);
    assert_int_equal(w->nparked, 1);
    assert_true(w->parked[0] == 17);
}

/* The broker refuses the batch; then the culprit alone. */
static void test_R08_the_culprit_of_a_refused_batch_is_found(void **state)
{
    struct world *w = *state;
    static char actor[20001];
    memset(actor, 'x', sizeof actor - 1);
    rd_kafka_mock_push_request_errors(w->cluster, PRODUCE, 1, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
    struct err err;
    assert_int_equal(send_all(w, 1, 40, 17, actor, &err), ST_RETRY);
    assert_string_equal(err.code, "MSG_SIZE_TOO_LARGE");
    assert_int_equal(w->nparked, 0); /* nobody is suspected by his company */
    int64_t next = (int64_t)window_first_open(&w->sender.window).index;
    assert_int_equal(sender_reset(&w->sender, &err), ST_OK);

    /* All before it, then it alone, refused. */
    assert_int_equal(send_all(w, next, 16, 17, actor, &err), ST_OK);
    rd_kafka_mock_push_request_errors(w->cluster, PRODUCE, 1, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
    assert_int_equal(send_all(w, 17, 40, 17, actor, &err), ST_OK);
    assert_int_equal(w->nparked, 1);
    assert_true(w->parked[0] == 17);
}

/* Each message fits alone: it was the batch. Smaller ones from then on, none parked. */
static void test_a_refused_batch_without_a_culprit_makes_batches_smaller(void **state)
{
    struct world *w = *state;
    size_t before = kafka_producer_batch_limit(w->sender.kafka, 0);
    rd_kafka_mock_push_request_errors(w->cluster, PRODUCE, 1, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
    assert_int_equal(send_until_done(w, 300, -1, NULL), 1);
    assert_int_equal(w->nparked, 0);
    assert_true(kafka_producer_batch_limit(w->sender.kafka, 0) < before);
    assert_true(w->sender.alone_from == SIZE_MAX);
}

/* An idempotent producer that lost its sequence is made anew, and what had no report is sent again. */
static void test_fatal_errors_need_a_new_producer(void **state)
{
    struct world *w = *state;
    struct err err;
    assert_int_equal(send_all(w, 1, 10, -1, NULL, &err), ST_OK);
    rd_kafka_mock_push_request_errors(w->cluster, PRODUCE, 1, RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER);
    enum status st = send_all(w, 11, 20, -1, NULL, &err);
    assert_int_not_equal(st, ST_OK);
    struct outbox_row row = row_of(99, NULL);
    assert_int_not_equal(sender_send(&w->sender, &row, (struct position){1, 99}, &err), ST_OK); /* stays refused */
    assert_true(window_first_open(&w->sender.window).index == 11);
    assert_int_equal(sender_reset(&w->sender, &err), ST_OK);
    assert_int_equal(send_all(w, 11, 20, -1, NULL, &err), ST_OK);
    assert_int_equal(kafka_producer_outstanding(w->sender.kafka), 0);
}

/* A message that went alone (a row sent again, at the end of a handover) when the stream begins. */
static void test_a_message_that_was_forgotten_holds_nobody_up(void **state)
{
    struct world *w = *state;
    struct err err;
    struct outbox_row row = row_of(1, NULL);
    w->sender.alone_from = 0;
    assert_int_equal(sender_send(&w->sender, &row, (struct position){0, 0}, &err), ST_OK);
    assert_true(w->sender.alone != 0);
    window_restart(&w->sender.window, 0);
    w->sender.alone_from = SIZE_MAX;
    assert_int_equal(send_all(w, 2, 3, -1, NULL, &err), ST_OK);
    assert_true(w->sender.alone == 0);
}

/* Serve until the window holds `open` messages. */
static void serve_until(struct world *w, size_t open)
{
    struct err err;
    for (mono_us end = deadline_in_ms(BOUND_MS); w->sender.window.open > open && clock_mono_us() < end;)
        assert_int_equal(sender_serve(&w->sender, 10, &err), ST_OK);
    assert_int_equal(w->sender.window.open, open);
}

/* The stream brings rows before queries show them. Such a row is neither gone nor parked: what covers it is not
 * confirmed, its neighbours go on, and it is parked once it shows. */
static void test_R08_a_refused_row_that_is_not_visible_yet_is_asked_for_again(void **state)
{
    struct world *w = *state;
    struct err err;
    static char actor[60001];
    memset(actor, 'x', sizeof actor - 1);
    w->hidden_xid = 1001; /* of the rows 10..19 */
    for (int64_t id = 10; id < 50; id++) {
        struct outbox_row row = row_of(id, id == 12 || id == 17 || id == 35 ? actor : NULL);
        assert_int_equal(sender_send(&w->sender, &row, (struct position){1, (uint64_t)id}, &err), ST_OK);
        if (id == 11)
            window_mark(&w->sender.window, 11);
    }
    window_mark(&w->sender.window, 49);
    serve_until(w, 2); /* all others are stored; 35 is parked */
    assert_int_equal(w->nparked, 1);
    assert_true(w->parked[0] == 35);
    assert_true(w->sender.window.confirmed == 11);
    assert_false(window_empty(&w->sender.window)); /* so no keepalive confirms them either */
    assert_true(window_first_open(&w->sender.window).index == 12);
    assert_true(sender_due(&w->sender) != DEADLINE_NONE);
    int asked = w->asked;
    for (mono_us end = deadline_in_ms(BOUND_MS); w->asked < asked + 2 && clock_mono_us() < end;)
        assert_int_equal(sender_serve(&w->sender, 10, &err), ST_OK);
    assert_true(w->asked >= asked + 2);
    assert_int_equal(w->nparked, 1);
    w->hidden_xid = 0;
    serve_until(w, 0);
    assert_int_equal(w->nparked, 3);
    assert_true(w->parked[1] == 12 && w->parked[2] == 17);
    assert_true(w->sender.window.confirmed == 49);
    assert_true(sender_due(&w->sender) == DEADLINE_NONE);
}

/* The same with a row that the broker refuses; what goes alone is not held up by it. */
static void test_R08_a_hidden_row_holds_no_suspects_up(void **state)
{
    struct world *w = *state;
    struct err err;
    static char actor[20001];
    memset(actor, 'x', sizeof actor - 1);
    w->hidden_xid = 1001;
    w->sender.alone_from = 10000; /* learnt before */
    rd_kafka_mock_push_request_errors(w->cluster, PRODUCE, 1, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
    struct outbox_row row = row_of(17, actor);
    assert_int_equal(sender_send(&w->sender, &row, (struct position){1, 17}, &err), ST_OK);
    for (mono_us end = deadline_in_ms(BOUND_MS); w->asked == 0 && clock_mono_us() < end;)
        assert_int_equal(sender_serve(&w->sender, 10, &err), ST_OK);
    assert_int_equal(w->nparked, 0);
    row = row_of(25, actor); /* large, and alone again */
    assert_int_equal(sender_send(&w->sender, &row, (struct position){1, 25}, &err), ST_OK);
    serve_until(w, 1);
    row = row_of(26, NULL);
    assert_int_equal(sender_send(&w->sender, &row, (struct position){1, 26}, &err), ST_OK);
    serve_until(w, 1);
    assert_int_equal(sender_reset(&w->sender, &err), ST_OK); /* read again: nothing of it is kept */
    assert_int_equal(w->sender.nhidden, 0);
    w->hidden_xid = 0;
    rd_kafka_mock_push_request_errors(w->cluster, PRODUCE, 1, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
    row = row_of(17, actor);
    assert_int_equal(sender_send(&w->sender, &row, (struct position){1, 17}, &err), ST_OK);
    serve_until(w, 0);
    assert_int_equal(w->nparked, 1);
}

static void test_a_failed_parking_is_a_failure(void **state)
{
    struct world *w = *state;
    struct err err;
    static char actor[60001];
    memset(actor, 'x', sizeof actor - 1);
    w->park_result = ST_RETRY;
    assert_int_equal(send_all(w, 1, 5, 3, actor, &err), ST_RETRY);
    assert_string_equal(err.text, "cannot park");
    w->park_result = ST_OK;
    assert_int_equal(send_until_done(w, 5, 3, actor), 1);
    assert_int_equal(w->nparked, 1);
}

static void test_what_correctness_rests_on_cannot_be_set(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "enable.idempotence", "acks",     "partitioner",      "delivery.report.only.error",
        "transactional.id",   "group.id", "auto.offset.reset"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char key[64];
        (void)snprintf(key, sizeof key, "%s", keys[i]);
        struct cfg_map_item items[] = {{.key = (char[]){"bootstrap.servers"}, .value = (char[]){"127.0.0.1:1"}},
                                       {.key = key, .value = (char[]){"true"}}};
        struct cfg_map map = {.items = items, .len = 2};
        struct kafka_producer *p;
        struct err err;
        assert_int_equal(kafka_producer_new(&p, &map, NULL, NULL, &err), ST_CONFIG);
        assert_null(p);
        assert_non_null(strstr(err.text, keys[i]));
        assert_int_equal(kafka_properties_check(&map, &err), ST_CONFIG);
        assert_non_null(strstr(err.text, keys[i]));
    }
    struct cfg_map none = {0};
    struct kafka_producer *p;
    struct err err;
    assert_int_equal(kafka_producer_new(&p, &none, NULL, NULL, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "bootstrap.servers"));
    struct cfg_map_item bad[] = {{.key = (char[]){"bootstrap.servers"}, .value = (char[]){"127.0.0.1:1"}},
                                 {.key = (char[]){"no.such.property"}, .value = (char[]){"1"}}};
    struct cfg_map map = {.items = bad, .len = 2};
    assert_int_equal(kafka_producer_new(&p, &map, NULL, NULL, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "no.such.property"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reports_move_the_window, setup, teardown),
        cmocka_unit_test_setup_teardown(test_retriable_errors_are_retried_below, setup, teardown),
        cmocka_unit_test_setup_teardown(test_R08_over_the_own_limit_is_parked_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_R08_the_culprit_of_a_refused_batch_is_found, setup_one_batch, teardown),
        cmocka_unit_test_setup_teardown(test_a_refused_batch_without_a_culprit_makes_batches_smaller,
                                        setup_one_batch_then_alone, teardown),
        cmocka_unit_test_setup_teardown(test_fatal_errors_need_a_new_producer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_message_that_was_forgotten_holds_nobody_up, setup, teardown),
        cmocka_unit_test_setup_teardown(test_R08_a_refused_row_that_is_not_visible_yet_is_asked_for_again, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_R08_a_hidden_row_holds_no_suspects_up, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_failed_parking_is_a_failure, setup, teardown),
        cmocka_unit_test(test_what_correctness_rests_on_cannot_be_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
