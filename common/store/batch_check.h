/*
 * batch_check.h - BatchCheck: many (object, relation) of one subject in one call. Part of the store client; store.h
 * tells what its statuses mean.
 */
#ifndef RELATA_STORE_BATCH_CHECK_H
#define RELATA_STORE_BATCH_CHECK_H

#include "common/store/store.h"

/* The server's default maximum of checks in one call (max-checks-per-batch-check). */
#define STORE_CHECK_MAX 50

struct store_check_item {
    const char *object;
    const char *relation;
    /* Answered: */
    enum status status; /* ST_OK: `allowed` is the store's answer. Else there is none for this item: ST_INVALID (not a
                           tuple, or refused by its content), ST_THROTTLED, ST_UNKNOWN (missing or malformed in the
                           answer, or an error inside the store), ... */
    bool allowed;       /* false unless status is ST_OK */
    char code[48];      /* the store's code for an item that failed; "" = none */
};

struct store_batch {
    const char *model_id;
    const char *subject;
    const char *traceparent; /* NULL = none */
    bool higher;             /* HIGHER_CONSISTENCY */
    struct store_check_item *items;
    size_t n;       /* at most STORE_CHECK_MAX; 0 sends nothing (the store refuses an empty list) */
    size_t strange; /* answered: results that belong to no item that was sent; ignored, worth a line in the log */
};

/*
 * ST_OK: each item has its own status. Otherwise the call failed as a whole, and so has each item, with the same
 * status. An item that is no tuple by the store's grammar is not sent: the store would refuse its neighbours with it.
 */
enum status store_batch_check(struct store_conn *c, struct store_batch *b, mono_us deadline,
                              struct err *err) MUST_CHECK;

#endif
