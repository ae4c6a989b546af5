/* migrate_files.h - the migration files of a folder, in order, with their checksums. */
#ifndef RELATA_CTL_MIGRATE_FILES_H
#define RELATA_CTL_MIGRATE_FILES_H

#include "common/base/buf.h"
#include "common/base/status.h"

struct migration {
    int version;
    char *name; /* "0001_schema.sql" */
    struct buf sql;
    char checksum[72]; /* "sha256:" and 64 hex digits */
};

struct migrations {
    struct migration *items; /* by version */
    size_t len;
};

/* Read NNNN_words.sql files of `dir`. ST_CONFIG: no such folder, none in it, a bad name, a version twice, not text. */
enum status migrations_read(const char *dir, struct migrations *out, struct err *err) MUST_CHECK;
void migrations_release(struct migrations *m); /* accepts a zeroed struct */
/* Where the files of this program are: PREFIX/share/relata/migrations of an installed one, migrations/ of a built tree,
 * both relative to the program itself, never to the working folder. */
enum status migrations_find(struct buf *dir, struct err *err) MUST_CHECK;

#endif
