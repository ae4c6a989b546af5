/* batch_check_json.h - private to common/store: the bodies of BatchCheck. Contracts as in store_json.h. */
#ifndef RELATA_STORE_BATCH_CHECK_JSON_H
#define RELATA_STORE_BATCH_CHECK_JSON_H

#include "common/store/batch_check.h"

/* Items whose status is not ST_OK are left out; the others are named by their index. */
enum status store_json_batch(struct buf *out, const struct store_batch *b, struct err *err) MUST_CHECK;
/* Fills the items that were sent (status ST_OK on entry), and `strange`. On failure the items are as before. */
enum status store_json_batch_answer(struct bytes body, struct store_batch *b, struct err *err) MUST_CHECK;

#endif
