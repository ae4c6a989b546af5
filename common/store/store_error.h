/*
 * store_error.h - private to common/store: what an HTTP answer that is not 2xx means. One table, by HTTP status and the
 * code in the body, never by text.
 */
#ifndef RELATA_STORE_STORE_ERROR_H
#define RELATA_STORE_STORE_ERROR_H

#include "common/base/buf.h"
#include "common/base/status.h"

/* `code`: the body's code, "" if it has none. */
enum status store_error_class(long http_status, const char *code);

/* Fill `err` from an answer of the store. `request_len` is the size of the request's body. */
enum status store_error_from_answer(long http_status, struct bytes body, size_t request_len, unsigned retry_after_ms,
                                    struct err *err);

#endif
