/* migrate_files.c - finding and reading migrations. */
#include <dirent.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "relatactl/migrate_files.h"

#define SQL_MAX (16 << 20)

enum status migrations_find(struct buf *dir, struct err *err)
{
    static const char *const places[] = {"/../share/relata/migrations", "/../../../migrations"};
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0)
        return err_set(err, ST_CONFIG, "", "cannot tell where this program is: name the migrations with --dir");
    exe[n] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash)
        *slash = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct stat st;
        buf_clear(dir);
        buf_addf(dir, "%s%s", exe, places[i]);
        if (buf_ok(dir) && stat(buf_str(dir), &st) == 0 && S_ISDIR(st.st_mode))
            return ST_OK;
    }
    return err_set(err, ST_CONFIG, "", "no migrations at %s%s nor at %s%s: name their folder with --dir", exe,
                   places[0], exe, places[1]);
}

/* "0001_schema.sql" -> 1; 0 if the name is not of that form. */
static int version_of(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    size_t len = strlen(name);
    if (len < 10 || strspn(name, "0123456789") != 4 || name[4] != '_' || strcmp(name + len - 4, ".sql") != 0)
        return 0;
    if (strspn(name + 5, allowed) != len - 9)
        return 0;
    return (int)strtol(name, NULL, 10);
}

static enum status checksum(struct migration *m, struct err *err)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    if (EVP_Digest(m->sql.data, m->sql.len, digest, &len, EVP_sha256(), NULL) != 1 || len != 32)
        return err_set(err, ST_FATAL, "", "cannot compute SHA-256 of %s", m->name);
    char *to = m->checksum + snprintf(m->checksum, sizeof m->checksum, "sha256:");
    for (unsigned i = 0; i < len; i++)
        to += snprintf(to, 3, "%02x", digest[i]);
    return ST_OK;
}

static enum status read_file(const char *dir, struct migration *m, struct err *err)
{
    char path[4096], block[65536];
    size_t n;
    (void)snprintf(path, sizeof path, "%s/%s", dir, m->name);
    FILE *f = fopen(path, "re");
    if (!f)
        return err_set(err, ST_CONFIG, "", "cannot read %s: %m", path);
    buf_init(&m->sql, SQL_MAX);
    while ((n = fread(block, 1, sizeof block, f)) > 0)
        buf_add(&m->sql, block, n);
    bool failed = ferror(f) != 0;
    (void)fclose(f);
    if (failed || !buf_ok(&m->sql))
        return err_set(err, ST_CONFIG, "", "cannot read %s, or it is larger than 16 MiB", path);
    if (m->sql.len == 0 || memchr(m->sql.data, '\0', m->sql.len))
        return err_set(err, ST_CONFIG, "", "%s is empty or holds a NUL byte", path);
    return checksum(m, err);
}

static int by_version(const void *a, const void *b)
{
    const struct migration *x = a, *y = b;
    return (x->version > y->version) - (x->version < y->version);
}

static enum status take_name(struct migrations *out, const char *name, const char *dir, struct err *err)
{
    size_t len = strlen(name);
    if (name[0] == '.' || len < 4 || strcmp(name + len - 4, ".sql") != 0)
        return ST_OK; /* an editor's, a README */
    int version = version_of(name);
    if (!version)
        return err_set(err, ST_CONFIG, "", "%s/%s: a migration is named like 0001_words.sql", dir, name);
    struct migration *grown = realloc(out->items, (out->len + 1) * sizeof *grown);
    if (!grown)
        return err_set(err, ST_NOMEM, "", "no memory for migrations");
    out->items = grown;
    struct migration *m = &out->items[out->len++];
    *m = (struct migration){.version = version, .name = strdup(name)};
    return m->name ? ST_OK : err_set(err, ST_NOMEM, "", "no memory for migrations");
}

enum status migrations_read(const char *dir, struct migrations *out, struct err *err)
{
    enum status st = ST_OK;
    struct dirent *entry;
    *out = (struct migrations){0};
    DIR *d = opendir(dir);
    if (!d)
        return err_set(err, ST_CONFIG, "", "cannot open the folder of migrations \"%s\": %m", dir);
    while (st == ST_OK && (entry = readdir(d)) != NULL)
        st = take_name(out, entry->d_name, dir, err);
    (void)closedir(d);
    if (st == ST_OK && out->len == 0)
        st = err_set(err, ST_CONFIG, "", "no migrations in \"%s\"", dir);
    if (st == ST_OK)
        qsort(out->items, out->len, sizeof *out->items, by_version);
    for (size_t i = 0; st == ST_OK && i < out->len; i++) {
        if (i && out->items[i].version == out->items[i - 1].version)
            st = err_set(err, ST_CONFIG, "", "%s: version %04d twice: %s and %s", dir, out->items[i].version,
                         out->items[i - 1].name, out->items[i].name);
        else
            st = read_file(dir, &out->items[i], err);
    }
    if (st != ST_OK)
        migrations_release(out);
    return st;
}

void migrations_release(struct migrations *m)
{
    for (size_t i = 0; i < m->len; i++) {
        free(m->items[i].name);
        buf_release(&m->items[i].sql);
    }
    free(m->items);
    *m = (struct migrations){0};
}
