#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/config/internal.h"

/* libinih takes the file line by line from next_line(), which looks at each line first: what the library would cut,
 * join or skip silently never reaches it. */
struct reader {
    struct cfg_loader *loader;
    const char *path;
    const char *data;
    size_t len, pos;
    int line;
    enum status st;
    struct err *err;
};

static enum status read_whole(const char *path, size_t max, struct buf *out, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum status st = ST_OK;
    ssize_t n;
    char chunk[8192];

    if (fd < 0)
        return err_set(err, ST_CONFIG, NULL, "cannot open %s: %s", path, strerror(errno));
    buf_init(out, max);
    while ((n = read(fd, chunk, sizeof chunk)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            st = err_set(err, ST_CONFIG, NULL, "cannot read %s: %s", path, strerror(errno));
            break;
        }
        buf_add(out, chunk, (size_t)n);
        if (!buf_ok(out)) {
            st = err_set(err, ST_CONFIG, NULL, "%s is larger than %zu bytes: is it the right file?", path, max);
            break;
        }
    }
    close(fd);
    return st;
}

static enum status refuse(struct reader *r, const char *why)
{
    r->st = err_set(r->err, ST_CONFIG, NULL, "%s:%d: %s", r->path, r->line, why);
    return r->st;
}

static bool is_blank(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (!isspace((unsigned char)s[i]))
            return false;
    }
    return true;
}

static enum status check_bytes(struct reader *r, const char *s, size_t len)
{
    if (r->line == 1 && len >= 3 && memcmp(s, "\xEF\xBB\xBF", 3) == 0)
        return refuse(r, "the file starts with a byte order mark: save it as UTF-8 without one");
    if (r->line == 1 && len >= 2 && (memcmp(s, "\xFF\xFE", 2) == 0 || memcmp(s, "\xFE\xFF", 2) == 0))
        return refuse(r, "the file is UTF-16: save it as UTF-8");
    if (memchr(s, '\0', len))
        return refuse(r, "the line holds a NUL byte: is this a text file?");
    if (len > CFG_LINE_MAX) {
        r->st = err_set(r->err, ST_CONFIG, NULL,
                        "%s:%d: the line has %zu bytes, more than %d: use --set or the environment", r->path, r->line,
                        len, CFG_LINE_MAX);
        return r->st;
    }
    for (size_t i = 0; i < len; i++) {
        if (((unsigned char)s[i] < ' ' && s[i] != '\t') || s[i] == 0x7F)
            return refuse(r, "the line holds a control byte");
    }
    return ST_OK;
}

static enum status check_section(struct reader *r, const char *s, size_t len)
{
    const char *end = memchr(s, ']', len);

    if (!end)
        return refuse(r, "a section needs a closing \"]\"");
    if (end - s - 1 > CFG_SECTION_MAX)
        return refuse(r, "the section's name is longer than 48 bytes");
    if (!is_blank(end + 1, len - (size_t)(end + 1 - s)))
        return refuse(r, "text after the section's \"]\": put it in a line of its own");
    return ST_OK;
}

static enum status check_pair(struct reader *r, const char *s, size_t len)
{
    size_t sep = 0, start;

    while (sep < len && s[sep] != '=' && s[sep] != ':')
        sep++;
    if (sep == len)
        return refuse(r, "the line is neither [section], key = value nor a comment");
    if (is_blank(s, sep))
        return refuse(r, "the key before \"=\" is missing");
    for (size_t i = sep + 1; i + 1 < len; i++) {
        if (isspace((unsigned char)s[i]) && s[i + 1] == ';')
            return refuse(
                r, "the value holds \" ;\": put a comment in a line of its own, and such a value in --set or the "
                   "environment");
    }
    start = sep + 1;
    while (start < len && isspace((unsigned char)s[start]))
        start++;
    if (len - start >= 2 && s[start] == '"' && s[len - 1] == '"')
        return refuse(r, "the value is in quotes, which would become part of it: take them off");
    return ST_OK;
}

static enum status check_line(struct reader *r, const char *s, size_t len)
{
    if (len > 0 && s[len - 1] == '\r')
        len--;
    if (check_bytes(r, s, len) != ST_OK)
        return r->st;
    while (len > 0 && isspace((unsigned char)s[len - 1]))
        len--;
    while (len > 0 && isspace((unsigned char)*s)) {
        s++;
        len--;
    }
    if (len == 0 || *s == ';' || *s == '#')
        return ST_OK;
    return *s == '[' ? check_section(r, s, len) : check_pair(r, s, len);
}

/* An ini_reader, like fgets(). */
static char *next_line(char *str, int num, void *stream)
{
    struct reader *r = stream;
    const char *s = r->data + r->pos;
    const char *newline;
    size_t len;

    if (r->pos >= r->len || r->st != ST_OK)
        return NULL;
    newline = memchr(s, '\n', r->len - r->pos);
    len = newline ? (size_t)(newline - s) : r->len - r->pos;
    r->line++;
    if (check_line(r, s, len) != ST_OK)
        return NULL;
    if (len + 2 > (size_t)num) {
        refuse(r, "the line is too long for the INI library");
        return NULL;
    }
    memcpy(str, s, len);
    str[len] = '\n';
    str[len + 1] = '\0';
    r->pos += len + (newline != NULL);
    return str;
}

static int on_pair(void *user, const char *section, const char *name, const char *value)
{
    struct reader *r = user;
    char where[4200];

    if (r->st != ST_OK)
        return 0;
    if (*section == '\0') {
        refuse(r, "a key before the first [section]");
        return 0;
    }
    snprintf(where, sizeof where, "%s:%d", r->path, r->line);
    r->st = loader_assign(r->loader, section, name, value, CFG_FROM_FILE, where, r->err);
    return r->st == ST_OK;
}

enum status loader_read_file(struct cfg_loader *l, const char *path, struct err *err)
{
    struct reader r = {.loader = l, .path = path, .st = ST_OK, .err = err};
    struct buf content = {.max = CFG_FILE_MAX};
    int rc;

    r.st = read_whole(path, CFG_FILE_MAX, &content, err);
    if (r.st != ST_OK)
        goto cleanup;
    r.data = buf_str(&content);
    r.len = content.len;
    ini_max_line = CFG_LINE_MAX + 4;
    ini_use_stack = true;
    ini_allow_multiline = false;
    ini_allow_inline_comments = false;
    ini_stop_on_first_error = true;
    rc = ini_parse_stream(next_line, &r, on_pair, &r);
    if (rc != 0 && r.st == ST_OK)
        refuse(&r, "the line cannot be read");
cleanup:
    buf_release(&content);
    return r.st;
}

enum status secret_read(const char *path, char **out, struct err *err)
{
    struct buf content = {.max = CFG_SECRET_FILE_MAX};
    enum status st = read_whole(path, CFG_SECRET_FILE_MAX, &content, err);
    const char *s = buf_str(&content);
    size_t len;

    if (st != ST_OK)
        goto cleanup;
    len = strcspn(s, "\r\n");
    if (len == 0)
        st = err_set(err, ST_CONFIG, NULL, "the first line of %s is empty", path);
    else if (len < content.len && s[len] == '\0')
        st = err_set(err, ST_CONFIG, NULL, "%s holds a NUL byte", path);
    else if (!(*out = strndup(s, len)))
        st = err_set(err, ST_NOMEM, NULL, "no memory for the content of %s", path);
cleanup:
    buf_release(&content);
    return st;
}
