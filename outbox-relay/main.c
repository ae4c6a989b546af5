/* main.c - outbox-relay: carries pending tuple changes from relata.outbox to a Kafka topic. */
#include <malloc.h>
#include <stdio.h>

#include "common/base/log.h"
#include "outbox-relay/relay.h"
#include "outbox-relay/relay_metrics.h"

int main(int argc, char **argv)
{
    struct settings settings = {0};
    struct err err = {0};
    struct admin *admin = NULL;
    enum cfg_action action;

    /* librdkafka's threads allocate and free for each other: arenas of their own would only grow. */
    mallopt(M_ARENA_MAX, 2);
    if (config_load(&relay_program, argc, argv, &settings, &action, &err) != ST_OK) {
        fprintf(stderr, "outbox-relay: %s\n", err.text);
        return EXIT_USAGE;
    }
    if (action == CFG_EXIT)
        return EXIT_DONE;
    log_init("outbox-relay", (enum log_level)settings.log.level, (enum log_format)settings.log.format);
    stop_init();
    relay_metrics_register();

    enum exit_code code = EXIT_USAGE;
    if (admin_start(&admin, &settings.admin, &err) != ST_OK) {
        log_err(LOG_LVL_ERROR, "cannot start", &err, NULL);
    } else {
        log_info("starting", "version", RELATA_VERSION, "admin", admin_url(admin), NULL);
        code = relay_run(&settings, admin);
        log_info("stopped", NULL);
    }
    admin_stop(admin);
    config_release(&relay_program, &settings);
    return code;
}
