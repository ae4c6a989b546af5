/*
 * file.h - small files that are read whole, and noticing that they changed: tokens, keys, certificates.
 *
 * Blocks on the file system. Thread-safe.
 */
#ifndef RELATA_BASE_FILE_H
#define RELATA_BASE_FILE_H

#include <stdbool.h>
#include <sys/stat.h>

#include "common/base/buf.h"
#include "common/base/status.h"

/* Appends a whole regular file of at most `max` bytes; ST_CONFIG names it. The content may be secret: it is left
 * nowhere but in `out`. `seen` (may be NULL) is what fstat said. */
enum status file_read(const char *path, size_t max, struct buf *out, struct stat *seen, struct err *err) MUST_CHECK;
/* What is at the path now; all zero if nothing can be seen there. */
void file_look(const char *path, struct stat *out);
/* Whether two looks show the same file with the same content, as far as the file system tells. */
bool file_same(const struct stat *a, const struct stat *b);

#endif
