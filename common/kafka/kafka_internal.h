/* kafka_internal.h - shared by the files of this room. */
#ifndef RELATA_KAFKA_INTERNAL_H
#define RELATA_KAFKA_INTERNAL_H

#include <librdkafka/rdkafka.h>

#include "common/kafka/kafka.h"

enum kafka_role { KAFKA_PRODUCER, KAFKA_CONSUMER, KAFKA_ADMIN };

/* Our settings and defaults, then the properties. Consumer properties are left out of producers and the other way
 * round, so that one section serves both without warnings. */
enum status kafka_conf(rd_kafka_conf_t **out, enum kafka_role role, const struct cfg_map *properties, struct err *err);
enum status kafka_set(rd_kafka_conf_t *conf, const char *key, const char *value, struct err *err);

enum status kafka_status(rd_kafka_resp_err_t code);
/* err_set with the class and librdkafka's name of `code`; "what: reason". */
enum status kafka_fail(struct err *err, rd_kafka_resp_err_t code, const char *what, const char *reason);

/* Does nothing; makes the linker take c11_threads.c, whose functions librdkafka then finds in sanitizer builds. */
void kafka_threads(void);

#endif
