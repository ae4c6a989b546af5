/* util.c - memory of a test, files, time, seeds. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness/internal.h"

const char *harness_strf(struct harness *h, const char *fmt, ...)
{
    va_list ap;
    struct note *n;
    int len;

    va_start(ap, fmt);
    len = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    n = malloc(sizeof(*n) + (size_t)len + 1);
    if (n == NULL)
        fail_msg("no memory");
    va_start(ap, fmt);
    vsnprintf(n->text, (size_t)len + 1, fmt, ap);
    va_end(ap);
    n->next = h->private->notes;
    h->private->notes = n;
    return n->text;
}

const char *harness_root(void)
{
    const char *root = getenv("RELATA_ROOT");

    return root != NULL && root[0] != '\0' ? root : ".";
}

const char *harness_run_dir(void)
{
    const char *dir = getenv("HARNESS_DIR");

    return dir != NULL && dir[0] != '\0' ? dir : "build/run/test";
}

const char *harness_env(const char *name)
{
    const char *v = getenv(name);

    if (v == NULL || v[0] == '\0')
        fail_msg("$%s is not set: run this test by `make test ONLY=...`, or start servers with scripts/services and "
                 "export the lines of its env file",
                 name);
    return v;
}

const char *harness_file_value(struct harness *h, const char *path, const char *key)
{
    struct buf b;
    size_t klen = strlen(key);
    const char *found = NULL;

    buf_init(&b, 1 << 20);
    harness_read_file(path, &b);
    for (const char *line = buf_str(&b); found == NULL && *line != '\0';) {
        size_t len = strcspn(line, "\n");
        if (len > klen && strncmp(line, key, klen) == 0 && line[klen] == '=') {
            const char *v = line + klen + 1;
            size_t n = len - klen - 1;
            if (n >= 2 && v[0] == '\'' && v[n - 1] == '\'') {
                v++;
                n -= 2;
            }
            found = harness_strf(h, "%.*s", (int)n, v);
        }
        line += len + (line[len] == '\n');
    }
    buf_release(&b);
    return found;
}

void harness_read_file(const char *path, struct buf *out)
{
    char chunk[65536];
    ssize_t n;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    while ((n = read(fd, chunk, sizeof(chunk))) > 0)
        buf_add(out, chunk, (size_t)n);
    close(fd);
}

void harness_mkdirs(const char *path)
{
    char *p = strdup(path);

    if (p == NULL)
        fail_msg("no memory");
    for (char *s = p + 1; *s != '\0'; s++) {
        if (*s != '/')
            continue;
        *s = '\0';
        mkdir(p, 0755);
        *s = '/';
    }
    if (mkdir(p, 0755) != 0 && errno != EEXIST)
        fail_msg("cannot make folder %s: %s", path, strerror(errno));
    free(p);
}

int harness_ms(int ms)
{
    const char *v = getenv("RELATA_TEST_SLOWNESS");
    long factor = v != NULL ? strtol(v, NULL, 10) : 1;

    return factor > 1 && factor < 100 ? ms * (int)factor : ms;
}

bool eventually(bool (*cond)(void *arg), void *arg, int timeout_ms)
{
    mono_us deadline = deadline_in_ms(harness_ms(timeout_ms));
    int nap = 1;

    for (;;) {
        if (cond(arg))
            return true;
        if (clock_mono_us() >= deadline)
            return cond(arg);
        poll(NULL, 0, nap);
        nap = nap < 16 ? nap * 2 : 20;
    }
}

static bool soaking(void)
{
    const char *v = getenv("RELATA_SOAK");

    return v != NULL && v[0] == '1';
}

uint64_t harness_seed(void)
{
    const char *v = getenv("RELATA_SEED");
    uint64_t seed = 0x9E3779B97F4A7C15U;

    if (v != NULL && v[0] != '\0')
        seed = strtoull(v, NULL, 0);
    else if (soaking() && getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed))
        seed = (uint64_t)clock_wall_us();
    print_message("seed: RELATA_SEED=%" PRIu64 "\n", seed);
    return seed;
}

int harness_soak(int count)
{
    if (soaking())
        return count;
    return count > 10 ? count / 10 : 1;
}
