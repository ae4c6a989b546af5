#include "tests/harness/http_world.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

atomic_bool released;
atomic_int blocked, cancelled, ran, began, ended;

static void block(struct request *rq)
{
    atomic_fetch_add(&blocked, 1);
    while (!atomic_load(&released) && !atomic_load(&rq->cancelled))
        usleep(500);
    atomic_fetch_sub(&blocked, 1);
    if (atomic_load(&rq->cancelled)) {
        atomic_fetch_add(&cancelled, 1);
        return;
    }
    rq->status = 200;
    rq->content_type = "text/plain";
    buf_adds(&rq->answer, "released\n");
}

static void echo(struct request *rq)
{
    const char *x = request_header(rq, "x-test");

    rq->status = 200;
    rq->content_type = "text/plain";
    buf_addf(&rq->answer, "%s %s\n", rq->method, rq->path);
    for (size_t i = 0; i < rq->nparams; i++)
        buf_addf(&rq->answer, "%s=%s\n", rq->params[i].name, rq->params[i].value);
    buf_addf(&rq->answer, "caller=%s\ntraceparent=%s\nx-test=%s\nbody=%.*s\n", rq->caller ? rq->caller->name : "",
             rq->traceparent ? rq->traceparent : "", x ? x : "", (int)rq->body.len, rq->body.data);
    buf_adds(&rq->link, "</next>; rel=\"next\"");
    buf_adds(&rq->timing, "sql;dur=1.5");
}

static void handle(void *worker, struct request *rq)
{
    static const struct err fatal = {.status = ST_FATAL, .text = "secret://internals"};

    assert_non_null(worker);
    atomic_fetch_add(&ran, 1);
    if (strcmp(rq->path, "/block") == 0) {
        block(rq);
    } else if (strcmp(rq->path, "/big") == 0) {
        rq->status = 200;
        rq->content_type = "text/plain";
        for (int i = 0; i < 4096; i++)
            buf_addf(&rq->answer, "%01023d\n", i);
    } else if (strcmp(rq->path, "/fail") == 0) {
        problem_of(rq, &fatal);
    } else if (strncmp(rq->path, "/nothing", 8) != 0) {
        echo(rq);
        while (strcmp(rq->path, "/link") == 0 && rq->link.len < HEADER_VALUE_MAX - 1)
            buf_addc(&rq->link, 'x');
    }
}

static void *begin(void *arg, int number)
{
    (void)number;
    atomic_fetch_add(&began, 1);
    return arg;
}

static void end(void *worker)
{
    (void)worker;
    atomic_fetch_add(&ended, 1);
}

static bool needs_caller(const char *path)
{
    return strcmp(path, "/open") != 0;
}

int world_setup(void **state)
{
    static struct world w;

    w = (struct world){
        .cfg = http_small(),
        .callers_cfg = callers_defaults(),
        .app = {.arg = &w, .worker_begin = begin, .worker_end = end, .handle = handle, .needs_caller = needs_caller},
    };
    w.callers_cfg.anonymous = true;
    atomic_store(&released, false);
    atomic_store(&blocked, 0);
    atomic_store(&cancelled, 0);
    atomic_store(&ran, 0);
    atomic_store(&began, 0);
    atomic_store(&ended, 0);
    *state = &w;
    return 0;
}

int world_teardown(void **state)
{
    struct world *w = *state;
    bool started = w->http != NULL;

    atomic_store(&released, true);
    http_free(w->http);
    callers_free(w->callers);
    return started && atomic_load(&ended) != w->cfg.workers;
}

void start(struct world *w)
{
    struct err err = {0};
    const char *colon;

    if (callers_new(&w->callers, &w->callers_cfg, &err) != ST_OK ||
        http_start(&w->http, &w->cfg, &w->app, w->callers, &err) != ST_OK)
        fail_msg("start: %s", err.text);
    colon = strrchr(http_url(w->http), ':');
    w->port = w->cfg.listen[0] ? (int)strtol(colon + 1, NULL, 10) : 0;
}

int dial(int port)
{
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (struct sockaddr *)&sa, sizeof sa) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

int dial_local(const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(sa.sun_path, path, strlen(path) + 1);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&sa, sizeof sa) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

int dial_world(const struct world *w)
{
    int fd = dial(w->port);

    assert_true(fd >= 0);
    return fd;
}

bool try_write(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);

        if (n <= 0)
            return false;
        data += n;
        len -= (size_t)n;
    }
    return true;
}

void say(int fd, const char *text)
{
    assert_true(try_write(fd, text, strlen(text)));
}

void get(int fd, const char *target, const char *headers)
{
    struct buf out;

    buf_init(&out, 1 << 20);
    buf_addf(&out, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", target, headers);
    assert_true(try_write(fd, out.data, out.len));
    buf_release(&out);
}

int next_byte(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    unsigned char c;

    if (poll(&p, 1, PATIENCE_MS) != 1)
        fail_msg("no answer within %d ms", PATIENCE_MS);
    return recv(fd, &c, 1, 0) == 1 ? c : -1;
}

static void read_body(int fd, struct reply *r, bool is_head)
{
    const char *length = strcasestr(r->head, "\r\nContent-Length:");
    size_t got = 0;

    r->len = length && !is_head ? strtoul(length + 17, NULL, 10) : 0;
    r->body = calloc(1, r->len + 1);
    assert_non_null(r->body);
    while (got < r->len) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t n;

        if (poll(&p, 1, PATIENCE_MS) != 1)
            fail_msg("no body within %d ms", PATIENCE_MS);
        n = recv(fd, r->body + got, r->len - got, 0);
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    assert_int_equal(got, r->len);
}

struct reply reply_of(int fd, bool is_head)
{
    struct reply r = {0};
    size_t n = 0;
    int c;

    while (n < sizeof r.head - 1 && (c = next_byte(fd)) >= 0) {
        r.head[n++] = (char)c;
        if (n >= 4 && memcmp(r.head + n - 4, "\r\n\r\n", 4) == 0)
            break;
    }
    if (n == 0)
        return r;
    assert_int_equal(sscanf(r.head, "HTTP/1.1 %d", &r.status), 1);
    read_body(fd, &r, is_head);
    return r;
}

struct reply next_reply(int fd)
{
    return reply_of(fd, false);
}

void reply_free(struct reply *r)
{
    free(r->body);
    r->body = NULL;
}

void expect(int fd, int status, const char *in_head, const char *in_body)
{
    struct reply r = next_reply(fd);
    bool good =
        r.status == status && (!in_head || strcasestr(r.head, in_head)) && (!in_body || strstr(r.body, in_body));
    char got[301];

    snprintf(got, sizeof got, "%s", r.body ? r.body : "");
    reply_free(&r);
    if (!good)
        fail_msg("wanted %d \"%s\" \"%s\", got %s%s", status, in_head ? in_head : "", in_body ? in_body : "", r.head,
                 got);
}

void expect_end(int fd)
{
    int c = next_byte(fd);

    if (c >= 0)
        fail_msg("the connection goes on with '%c'", c);
}

void ask(const struct world *w, const char *target, const char *headers, int status, const char *in_body)
{
    int fd = dial_world(w);

    get(fd, target, headers);
    expect(fd, status, NULL, in_body);
    close(fd);
}

bool comes_to(atomic_int *n, int want)
{
    mono_us until = deadline_in_ms(PATIENCE_MS);

    while (atomic_load(n) != want) {
        if (clock_mono_us() > until)
            return false;
        usleep(500);
    }
    return true;
}
