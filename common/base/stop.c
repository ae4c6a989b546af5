#include "common/base/stop.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int fd = -1;
static atomic_bool requested;
static atomic_int signals;

void stop_request(void)
{
    int keep = errno;
    uint64_t one = 1;

    atomic_store(&requested, true);
    if (fd >= 0) {
        ssize_t n = write(fd, &one, sizeof one);
        (void)n; /* only a full counter can fail, and then it is readable */
    }
    errno = keep;
}

static void on_signal(int sig)
{
    (void)sig;
    if (atomic_fetch_add(&signals, 1) > 0)
        _exit(EXIT_KILLED);
    stop_request();
}

void stop_init(void)
{
    struct sigaction act = {.sa_handler = on_signal};
    struct sigaction ignore = {.sa_handler = SIG_IGN};

    if (fd < 0)
        fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sigemptyset(&act.sa_mask);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
}

bool stop_requested(void)
{
    return atomic_load(&requested);
}

const atomic_bool *stop_flag(void)
{
    return &requested;
}

int stop_fd(void)
{
    return fd;
}

enum status stop_sleep_until(mono_us deadline)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ms = deadline_poll_ms(deadline);

        if (stop_requested())
            return ST_STOPPED;
        if (ms == 0)
            return ST_OK;
        if (poll(&p, 1, ms) < 0 && errno != EINTR)
            return ST_STOPPED; /* cannot wait: end rather than spin */
    }
}
