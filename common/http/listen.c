#include "common/http/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct address {
    char host[256];
    char port[6];
};

static enum status nonsense(const char *setting, const char *address, const char *why, struct err *err)
{
    return err_set(err, ST_CONFIG, NULL, "%s = \"%s\": %s; give host:port such as 127.0.0.1:9090 or [::1]:9090",
                   setting, address, why);
}

static enum status parse_port(const char *setting, const char *address, const char *port, struct address *out,
                              struct err *err)
{
    size_t len = strlen(port);
    char *end = NULL;

    if (len == 0)
        return nonsense(setting, address, "the port is missing", err);
    if (strspn(port, "0123456789") != len)
        return nonsense(setting, address, "the port is no number", err);
    if (len > 5 || strtol(port, &end, 10) > 65535)
        return nonsense(setting, address, "the port is above 65535", err);
    memcpy(out->port, port, len + 1);
    return ST_OK;
}

static enum status parse(const char *setting, const char *address, struct address *out, struct err *err)
{
    const char *host = address, *colon = strrchr(address, ':');
    size_t len;

    if (strstr(address, "://"))
        return nonsense(setting, address, "it is an address, not a URL", err);
    if (!colon)
        return nonsense(setting, address, "the port is missing", err);
    len = (size_t)(colon - address);
    if (*address == '[') {
        if (len < 2 || address[len - 1] != ']')
            return nonsense(setting, address, "the \"]\" before the port is missing", err);
        host++;
        len -= 2;
    } else if (memchr(address, ':', len)) {
        return nonsense(setting, address, "an IPv6 address stands in brackets", err);
    }
    if (len == 0)
        return nonsense(setting, address, "the host is missing (0.0.0.0 is every interface)", err);
    if (len >= sizeof out->host)
        return nonsense(setting, address, "the host is too long", err);
    memcpy(out->host, host, len);
    out->host[len] = '\0';
    return parse_port(setting, address, colon + 1, out, err);
}

enum status listen_check(const char *setting, const char *address, struct err *err)
{
    struct address a;

    return parse(setting, address, &a, err);
}

static enum status bind_one(const struct addrinfo *ai, const char *setting, const char *address, int backlog, int *out,
                            struct err *err)
{
    int one = 1;
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        goto failed;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) != 0 || listen(fd, backlog) != 0)
        goto failed;
    *out = fd;
    return ST_OK;
failed:
    if (errno == EADDRINUSE)
        err_set(err, ST_CONFIG, NULL, "cannot listen on %s: %s; choose another %s, port 0 picks a free one", address,
                strerror(errno), setting);
    else
        err_set(err, ST_CONFIG, NULL, "cannot listen on %s: %s", address, strerror(errno));
    if (fd >= 0)
        close(fd);
    return ST_CONFIG;
}

static enum status make_url(int fd, struct buf *url, struct err *err)
{
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof sa;
    char host[NI_MAXHOST], port[NI_MAXSERV];
    const char *v6;

    if (getsockname(fd, (struct sockaddr *)&sa, &len) != 0 ||
        getnameinfo((struct sockaddr *)&sa, len, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV))
        return err_set(err, ST_FATAL, NULL, "cannot tell the address of a listening socket");
    v6 = sa.ss_family == AF_INET6 ? "[]" : NULL;
    buf_addf(url, "http://%.1s%s%s:%s", v6 ? v6 : "", host, v6 ? v6 + 1 : "", port);
    return ST_OK;
}

enum status listen_open(const char *setting, const char *address, int backlog, int *fd, struct buf *url,
                        struct err *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    struct address a;
    enum status st = parse(setting, address, &a, err);
    int rc;

    if (st != ST_OK)
        return st;
    rc = getaddrinfo(a.host, a.port, &hints, &found);
    if (rc != 0)
        return err_set(err, ST_CONFIG, NULL, "%s = \"%s\": %s", setting, address, gai_strerror(rc));
    st = bind_one(found, setting, address, backlog, fd, err);
    freeaddrinfo(found);
    if (st == ST_OK)
        st = make_url(*fd, url, err);
    return st;
}

static enum status cannot_write(const char *setting, const char *path, struct err *err)
{
    return err_set(err, ST_CONFIG, NULL, "cannot write %s %s: %s", setting, path, strerror(errno));
}

enum status listen_check_url(const char *setting, const char *path, struct err *err)
{
    struct buf folder;
    const char *slash = strrchr(path, '/');
    enum status st = ST_OK;

    buf_init(&folder, 8192);
    if (slash)
        buf_add(&folder, path, (size_t)(slash - path) + 1);
    else
        buf_adds(&folder, ".");
    if (access(buf_str(&folder), W_OK | X_OK) != 0)
        st = cannot_write(setting, path, err);
    buf_release(&folder);
    return st;
}

enum status listen_write_url(const char *setting, const char *path, const char *url, struct err *err)
{
    struct buf fresh;
    enum status st = ST_OK;
    FILE *f = NULL;

    buf_init(&fresh, 8192);
    buf_addf(&fresh, "%s.%ld.new", path, (long)getpid());
    f = buf_ok(&fresh) ? fopen(fresh.data, "we") : NULL;
    if (!f || fprintf(f, "%s\n", url) < 0 || fflush(f) != 0)
        st = cannot_write(setting, path, err);
    if (f && fclose(f) != 0 && st == ST_OK)
        st = cannot_write(setting, path, err);
    if (st == ST_OK && rename(fresh.data, path) != 0)
        st = cannot_write(setting, path, err);
    if (st != ST_OK && f)
        unlink(fresh.data);
    buf_release(&fresh);
    return st;
}

/* ---- Unix sockets ---- */

enum status listen_check_local(const char *setting, const char *path, struct err *err)
{
    if (path[0] != '/')
        return err_set(err, ST_CONFIG, NULL, "%s = \"%s\": the path must be absolute", setting, path);
    if (strlen(path) >= sizeof((struct sockaddr_un *)NULL)->sun_path)
        return err_set(err, ST_CONFIG, NULL, "%s = \"%s\": longer than 107 bytes", setting, path);
    return ST_OK;
}

/* A socket file that nobody serves is a leftover; one that somebody serves is not ours. */
static bool remove_leftover(const struct sockaddr_un *sa)
{
    struct stat st;
    int fd, rc;

    if (lstat(sa->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode))
        return false;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    rc = fd < 0 ? 0 : connect(fd, (const struct sockaddr *)sa, sizeof *sa);
    if (fd >= 0)
        close(fd);
    return rc != 0 && errno == ECONNREFUSED && unlink(sa->sun_path) == 0;
}

enum status listen_local(const char *setting, const char *path, int backlog, int *out, struct err *err)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    enum status st = listen_check_local(setting, path, err);
    mode_t before;
    int fd, rc;

    if (st != ST_OK)
        return st;
    memcpy(sa.sun_path, path, strlen(path) + 1);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    before = umask(0117);
    rc = fd < 0 ? -1 : bind(fd, (const struct sockaddr *)&sa, sizeof sa);
    if (rc != 0 && fd >= 0 && errno == EADDRINUSE && remove_leftover(&sa))
        rc = bind(fd, (const struct sockaddr *)&sa, sizeof sa);
    else if (rc != 0 && fd >= 0)
        errno = access(path, F_OK) == 0 ? EADDRINUSE : errno;
    umask(before);
    if (rc != 0 || listen(fd, backlog) != 0) {
        st = err_set(err, ST_CONFIG, NULL, "cannot listen on %s %s: %s", setting, path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return st;
    }
    *out = fd;
    return ST_OK;
}

bool listen_is_loopback(int fd)
{
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof sa;

    if (getsockname(fd, (struct sockaddr *)&sa, &len) != 0)
        return false;
    if (sa.ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)&sa)->sin_addr.s_addr) >> 24 == 127;
    return sa.ss_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)&sa)->sin6_addr);
}
