#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum status file_read(const char *path, size_t max, struct buf *out, struct stat *seen, struct err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum status result = ST_OK;
    char chunk[16384];
    ssize_t n;

    if (fd < 0)
        return err_set(err, ST_CONFIG, NULL, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        result = err_set(err, ST_CONFIG, NULL, "%s is no regular file", path);
        goto cleanup;
    }
    if ((uintmax_t)st.st_size > max) {
        result = err_set(err, ST_CONFIG, NULL, "%s is too large: more than %zu bytes", path, max);
        goto cleanup;
    }
    (void)buf_reserve(out, (size_t)st.st_size); /* growing would leave copies behind */
    do {
        n = read(fd, chunk, sizeof chunk);
        if (n > 0)
            buf_add(out, chunk, (size_t)n);
    } while ((n > 0 && buf_ok(out)) || (n < 0 && errno == EINTR));
    if (n < 0 || !buf_ok(out))
        result = err_set(err, ST_CONFIG, NULL, "cannot read %s: %s", path, n < 0 ? strerror(errno) : "too large");
    if (seen)
        *seen = st;
cleanup:
    explicit_bzero(chunk, sizeof chunk);
    close(fd);
    return result;
}

void file_look(const char *path, struct stat *out)
{
    if (stat(path, out) != 0)
        *out = (struct stat){0};
}

bool file_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mode == b->st_mode &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}
