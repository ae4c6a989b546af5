/* tokens.h - the file of bearer tokens' digests. Part of callers/. Immutable once made; reads from any thread. */
#ifndef RELATA_LISTER_CALLERS_TOKENS_H
#define RELATA_LISTER_CALLERS_TOKENS_H

#include <stdint.h>
#include <sys/stat.h>

#include "inventory-lister/callers/caller.h"

#define TOKEN_HASH_BYTES 32
#define TOKEN_FILE_MAX (8U * 1024 * 1024)
#define TOKEN_LINE_MAX 4096

struct tokens;

/* ST_INVALID names the line. */
enum status tokens_parse(struct bytes text, struct tokens **out, struct err *err) MUST_CHECK;
/* The file, its permissions checked: ST_OK or ST_CONFIG, which names it. `seen` is what fstat said. */
enum status tokens_load(const char *path, struct tokens **out, struct stat *seen, struct err *err) MUST_CHECK;
void tokens_free(struct tokens *t); /* accepts NULL */
size_t tokens_count(const struct tokens *t);
/* Without a reference; NULL if there is none. */
struct caller_impl *tokens_find(const struct tokens *t, const uint8_t hash[TOKEN_HASH_BYTES]);

#endif
