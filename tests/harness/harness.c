/* harness.c - a test's world: set up, torn down. */
#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness/internal.h"

#define OWN (HARNESS_OWN_PG | HARNESS_OWN_OPENFGA | HARNESS_OWN_NATS | HARNESS_OWN_KAFKA)

static int services(struct harness *h, const char *const *options, const char *verb, const char *const *names)
{
    const char *argv[48] = {0};
    size_t n = 0;

    argv[n++] = harness_strf(h, "%s/scripts/services", harness_root());
    while (options != NULL && *options != NULL && n < 32)
        argv[n++] = *options++;
    argv[n++] = verb;
    argv[n++] = h->private->services_dir;
    while (*names != NULL)
        argv[n++] = *names++;
    return proc_run_logged(argv, harness_strf(h, "%s/services.log", h->dir), harness_ms(120000));
}

static void show_services_log(struct harness *h)
{
    struct buf b;

    buf_init(&b, 1 << 20);
    harness_read_file(harness_strf(h, "%s/services.log", h->dir), &b);
    print_error("%s\n", buf_str(&b));
    buf_release(&b);
}

static void start_own(struct harness *h, const char *const *given)
{
    unsigned parts = h->private->parts;
    const char *names[5] = {0}, *options[32] = {0};
    size_t n = 0, o = 0;

    h->private->services_dir = strdup(harness_strf(h, "%s/s", h->dir));
    if (h->private->services_dir == NULL)
        fail_msg("no memory");
    if (parts & HARNESS_OWN_PG)
        names[n++] = "postgres";
    if (parts & HARNESS_OWN_OPENFGA)
        names[n++] = "openfga";
    if (parts & HARNESS_OWN_NATS)
        names[n++] = "nats";
    if (parts & HARNESS_OWN_KAFKA)
        names[n++] = "kafka";
    if (!(parts & HARNESS_OWN_PG))
        options[o++] = "--openfga=memory";
    while (given != NULL && *given != NULL && o < 30)
        options[o++] = *given++;
    if (services(h, options, "start", names) != 0) {
        show_services_log(h);
        fail_msg("private servers did not start");
    }
}

void harness_service(struct harness *h, const char *verb, const char *name)
{
    const char *names[] = {name, NULL};

    if (h->private->services_dir == NULL)
        fail_msg("%s %s: this test has no private servers (HARNESS_OWN_*)", verb, name);
    if (services(h, NULL, verb, names) != 0) {
        show_services_log(h);
        fail_msg("scripts/services %s %s failed", verb, name);
    }
}

int harness_service_pid(struct harness *h, const char *name)
{
    struct buf b;
    int pid;

    buf_init(&b, 4096);
    harness_read_file(harness_strf(h, "%s/%s/pid", h->private->services_dir, name), &b);
    pid = (int)strtol(buf_str(&b), NULL, 10);
    buf_release(&b);
    if (pid <= 0)
        fail_msg("%s does not run", name);
    return pid;
}

/* KEY of the private servers if `own`, else of the environment. */
static const char *service_value(struct harness *h, unsigned own, const char *key)
{
    const char *v;

    if (!(h->private->parts & own))
        return harness_env(key);
    v = harness_file_value(h, harness_strf(h, "%s/env", h->private->services_dir), key);
    if (v == NULL)
        fail_msg("%s is not in %s/env", key, h->private->services_dir);
    return v;
}

/* Unique on this machine, and short enough for a database name with room for suffixes. */
static const char *unique_id(struct harness *h, const char *name)
{
    char word[25];
    size_t n = 0;

    if (strncmp(name, "test_", 5) == 0)
        name += 5;
    for (; *name != '\0' && n < sizeof(word) - 1; name++)
        word[n++] = isalnum((unsigned char)*name) ? (char)tolower((unsigned char)*name) : '_';
    word[n] = '\0';
    return harness_strf(h, "t_%s_%x_%llx", word, (unsigned)getpid(),
                        (unsigned long long)(clock_wall_us() / 1000 & 0xffffffff));
}

static const char *program_name(void)
{
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    const char *slash;

    path[n > 0 ? n : 0] = '\0';
    slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : "test";
}

static void remove_old(const char *dir)
{
    const char *const argv[] = {"/bin/rm", "-rf", dir, NULL};

    proc_run_logged(argv, "/dev/null", 30000);
}

int harness_setup(void **state)
{
    const struct harness_spec *spec = *state;
    struct harness *h = calloc(1, sizeof(*h));
    char *real;

    if (h == NULL || (h->private = calloc(1, sizeof(*h->private))) == NULL)
        fail_msg("no memory");
    *state = h;
    h->name = spec->name;
    h->private->parts = spec->parts;
    h->id = unique_id(h, spec->name);
    h->dir = harness_strf(h, "%s/%s.%s", harness_run_dir(), program_name(), spec->name);
    remove_old(h->dir);
    harness_mkdirs(h->dir);
    /* Absolute: programs and servers have other working folders. */
    real = realpath(h->dir, NULL);
    h->dir = harness_strf(h, "%s", real != NULL ? real : h->dir);
    free(real);
    h->store_name = "default";
    if (spec->parts & OWN)
        start_own(h, spec->options);
    if (spec->parts & (HARNESS_DB | HARNESS_EMPTY_DB)) {
        h->pg_admin = service_value(h, HARNESS_OWN_PG, "SERVICES_PG_DSN");
        harness_db_open(h);
    }
    if (spec->parts & (HARNESS_NATS | HARNESS_OWN_NATS))
        h->nats_url = service_value(h, HARNESS_OWN_NATS, "SERVICES_NATS_URL");
    if (spec->parts & (HARNESS_KAFKA | HARNESS_OWN_KAFKA)) {
        h->brokers = service_value(h, HARNESS_OWN_KAFKA, "SERVICES_KAFKA_BROKERS");
        h->topic = harness_strf(h, "relata.%s", h->id);
    }
    if (spec->parts & (HARNESS_STORE | HARNESS_OWN_OPENFGA)) {
        h->store_url = service_value(h, HARNESS_OWN_OPENFGA, "SERVICES_OPENFGA_URL");
        harness_store_open(h);
        if (spec->parts & HARNESS_DB)
            harness_pin(h, h->store_id, h->model_id);
    }
    return 0;
}

int harness_teardown(void **state)
{
    struct harness *h = *state;
    const char *const none[] = {NULL};
    const char *report = proc_end_all(h);

    harness_store_close(h);
    harness_db_close(h);
    if (h->private->services_dir != NULL) {
        const char *const now[] = {"--now", NULL};
        if (services(h, now, "stop", none) != 0)
            print_error("private servers in %s did not stop\n", h->private->services_dir);
        else
            remove_old(h->private->services_dir);
    }
    free(h->private->services_dir);
    free(h->private->database);
    for (struct note *n = h->private->notes, *next; n != NULL; n = next) {
        next = n->next;
        free(n);
    }
    free(h->private);
    free(h);
    *state = NULL;
    if (report != NULL)
        print_error("%s\n", report);
    return report != NULL ? -1 : 0;
}
