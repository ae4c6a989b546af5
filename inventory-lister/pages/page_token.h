/*
 * page_token.h - where the next page goes on: sealed, so that a client can neither read nor make one.
 *
 * AES-256-GCM (libcrypto), base64url. Sealed inside: version, issue time, and the sort values of the last row consumed,
 * returned or hidden; as additional data, not sent: collection, order, filters, bound claim, relation, subject,
 * min_token. A token for another question does not open. Padded to one of three sizes (512, 2,048, 8,192 bytes), so
 * that the length hardly tells what a hidden row holds.
 *
 * Keys: a file with one or two lines of 64 hex digits; the first seals, both open (rotation: put the new one first,
 * drop the old one after token_lifetime; with several servers, give all of them the new one as the second before that).
 * Read again when it changes. Without a file a random key is made at start, with a warning: tokens end with the
 * process.
 *
 * Functions are thread-safe. Only token_keys_new and token_keys_refresh block, on reading the file.
 */
#ifndef RELATA_LISTER_PAGES_PAGE_TOKEN_H
#define RELATA_LISTER_PAGES_PAGE_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/status.h"

#define POSITION_MAX 5        /* SORT_MAX and the id */
#define TOKEN_VALUES_MAX 8000 /* bytes of a position's values together; more fit no token */

/* Sort values as text, as Postgres gives them with TimeZone UTC; NULL is SQL NULL. */
struct position {
    size_t n;
    char *values[POSITION_MAX]; /* owned */
};
void position_free(struct position *p);

struct token_keys;
/* `path` NULL or "" = a random key. ST_CONFIG names the file and line. */
enum status token_keys_new(struct token_keys **out, const char *path, int64_t lifetime_ms, struct err *err) MUST_CHECK;
void token_keys_free(struct token_keys *k); /* accepts NULL */
/* Read the file again if it changed; a fault keeps the former keys and is returned. */
enum status token_keys_refresh(struct token_keys *k, struct err *err) MUST_CHECK;

/* `question` is all that the token is bound to, unambiguously joined. Appends to `out`: at most 10,980 bytes.
 * ST_TOO_BIG: the values are over TOKEN_VALUES_MAX. */
enum status token_seal(struct token_keys *k, struct bytes question, const struct position *at, struct buf *out,
                       struct err *err) MUST_CHECK;
/* ST_INVALID: not ours, damaged, for another question, too old, or `n` values were expected. One text for all. */
enum status token_open(struct token_keys *k, struct bytes question, const char *token, size_t n, struct position *out,
                       struct err *err) MUST_CHECK;

#endif
