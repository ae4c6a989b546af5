/* callers_test.c - the token file, attributes of callers, peers, anonymous, and requests in flight. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "inventory-lister/callers/tokens.h"
#include "tests/harness/lister_settings.h"

static char dir[] = "/tmp/callers_test.XXXXXX";

static struct bytes bytes_of(const char *s)
{
    return (struct bytes){s, strlen(s)};
}

/* The digest of a token's text in hex; a few may be in use at once. */
static const char *hex_of(const char *token)
{
    static char slots[8][65];
    static int next;
    unsigned char hash[32];
    char *out = slots[next++ % 8];

    SHA256((const unsigned char *)token, strlen(token), hash);
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", hash[i]);
    return out;
}

static const char *path_of(const char *name)
{
    static char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* In one step, as a careful editor does it. */
static void write_file(const char *name, const char *text, mode_t mode)
{
    char to[128], fresh[140];
    FILE *f;

    snprintf(to, sizeof to, "%s", path_of(name));
    snprintf(fresh, sizeof fresh, "%s.new", to);
    f = fopen(fresh, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(fresh, mode), 0);
    assert_int_equal(rename(fresh, to), 0);
}

static struct callers *start(const struct cfg_callers *cfg)
{
    struct callers *c = NULL;
    struct err err = {0};

    if (callers_new(&c, cfg, &err) != ST_OK)
        fail_msg("callers_new: %s", err.text);
    return c;
}

static const char *who(struct callers *c, const char *authorization, long uid)
{
    static char name[128];
    const struct caller *found = NULL;
    struct err err = {0};

    if (callers_identify(c, authorization, uid, &found, &err) != ST_OK) {
        assert_int_equal(err.status, ST_DENIED);
        assert_null(found);
        snprintf(name, sizeof name, "!%s", err.code);
        return name;
    }
    snprintf(name, sizeof name, "%s", found->name);
    caller_release(found);
    return name;
}

static void test_attributes(void **state)
{
    struct caller_impl *c = NULL;
    struct err err = {0};

    (void)state;
    assert_int_equal(caller_parse(bytes_of("console"),
                                  bytes_of("  subject=user:anne\trights=list,diagnose claim.tenant=t1 claim.a=x=y "),
                                  &c, &err),
                     ST_OK);
    assert_string_equal(c->pub.name, "console");
    assert_string_equal(c->pub.subject, "user:anne");
    assert_int_equal(c->pub.rights, RIGHT_LIST | RIGHT_DIAGNOSE);
    assert_string_equal(caller_claim(&c->pub, "tenant"), "t1");
    assert_string_equal(caller_claim(&c->pub, "a"), "x=y");
    assert_null(caller_claim(&c->pub, "tenan"));
    assert_null(caller_claim(&c->pub, "subject"));
    caller_unref(c);
    assert_int_equal(caller_parse(bytes_of("a"), bytes_of("subject=user:b"), &c, &err), ST_OK);
    assert_int_equal(c->pub.rights, RIGHT_LIST);
    caller_unref(c);
}

static void test_attributes_refused(void **state)
{
    static const char *const cases[][3] = {
        {"", "subject=user:a", "name"},
        {"a:b", "subject=user:a", "name"},
        {"a", "", "needs the right name-subject"},
        {"a", "rights=list", "needs the right name-subject"},
        {"a", "subject=", "empty"},
        {"a", "subject=anne", "subject"},
        {"a", "subject=user:*", "not everybody"},
        {"a", "subject=team:1#member", "not a set"},
        {"a", "subject=user:a subject=user:b", "twice"},
        {"a", "subject=user:a rights=admin", "unknown right \"admin\""},
        {"a", "subject=user:a rights=list,", "comma"},
        {"a", "subject=user:a right=list", "unknown attribute"},
        {"a", "subject=user:a claim.=1", "unknown attribute"},
        {"a", "subject=user:a claim.t=1 claim.t=2", "claim.t is given twice"},
        {"a", "subject=user:\xff", "UTF-8"},
        {"a", "subject=user:a claim.t=\x01", "control"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct caller_impl *c = NULL;
        struct err err = {0};

        if (caller_parse(bytes_of(cases[i][0]), bytes_of(cases[i][1]), &c, &err) != ST_INVALID || c ||
            !strstr(err.text, cases[i][2]))
            fail_msg("\"%s %s\": %s", cases[i][0], cases[i][1], err.text);
    }
}

static void test_token_file_faults_name_the_line(void **state)
{
    static const char *const cases[][2] = {
        {"# ok\nname secret-in-plain subject=user:a\n", "line 2"},
        {"\n\nname\n", "line 3"},
        {"name 00 subject=user:a", "64 hex digits"},
        {"a 0000000000000000000000000000000000000000000000000000000000000001 subject=user:a\n"
         "b 0000000000000000000000000000000000000000000000000000000000000001 subject=user:b\n",
         "lines 1 and 2 have the same token"},
        {"a 0000000000000000000000000000000000000000000000000000000000000001 rights=list\n", "line 1"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokens *t = NULL;
        struct err err = {0};

        assert_int_equal(tokens_parse(bytes_of(cases[i][0]), &t, &err), ST_INVALID);
        assert_null(t);
        if (!strstr(err.text, cases[i][1]) || strstr(err.text, "secret-in-plain"))
            fail_msg("case %zu: %s", i, err.text);
    }
}

static void test_bearer_tokens(void **state)
{
    struct cfg_callers cfg = callers_defaults();
    char text[1024], path[128];
    struct callers *c;

    (void)state;
    snprintf(text, sizeof text,
             "# two for one name\r\nanne %s subject=user:anne\r\nanne %s subject=user:anne\nbe %s "
             "rights=name-subject",
             hex_of("alpha"), hex_of("beta"), hex_of("gamma"));
    write_file("tokens", text, 0640);
    snprintf(path, sizeof path, "%s", path_of("tokens"));
    cfg.tokens_file = path;
    c = start(&cfg);
    assert_false(callers_anonymous(c));
    assert_string_equal(who(c, "Bearer alpha", -1), "anne");
    assert_string_equal(who(c, "bearer  beta ", -1), "anne");
    assert_string_equal(who(c, "BEARER gamma", -1), "be");
    assert_string_equal(who(c, "Bearer alph", -1), "!invalid_token");
    assert_string_equal(who(c, "Bearer alpha beta", -1), "!invalid_token");
    assert_string_equal(who(c, "Bearer", -1), "!invalid_token");
    assert_string_equal(who(c, "Bearer ", -1), "!invalid_token");
    assert_string_equal(who(c, "Bearer \xff", -1), "!invalid_token");
    assert_string_equal(who(c, "Bearer a.b.c", -1), "!invalid_token"); /* no JWKS here */
    assert_string_equal(who(c, "Basic YTpi", -1), "!missing_token");
    assert_string_equal(who(c, "Bearerx alpha", -1), "!missing_token");
    assert_string_equal(who(c, "", -1), "!missing_token");
    assert_string_equal(who(c, NULL, -1), "!missing_token");
    assert_string_equal(who(c, NULL, 0), "!missing_token");
    assert_string_equal(who(c, hex_of("alpha"), -1), "!missing_token");
    callers_free(c);
}

static void test_token_file_that_others_can_read_is_refused(void **state)
{
    struct cfg_callers cfg = callers_defaults();
    struct callers *c = NULL;
    struct err err = {0};
    char path[128];

    (void)state;
    write_file("open", "", 0644);
    snprintf(path, sizeof path, "%s", path_of("open"));
    cfg.tokens_file = path;
    assert_int_equal(callers_check(&cfg, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "chmod 0640"));
    assert_int_equal(callers_new(&c, &cfg, &err), ST_CONFIG);
    assert_null(c);
    write_file("open", "", 0440);
    assert_int_equal(callers_check(&cfg, &err), ST_OK);
    unlink(path);
    assert_int_equal(callers_check(&cfg, &err), ST_CONFIG);
    cfg.tokens_file = dir;
    assert_int_equal(callers_check(&cfg, &err), ST_CONFIG);
}

static bool becomes(struct callers *c, const char *authorization, const char *want)
{
    mono_us end = deadline_in_ms(20000);

    while (strcmp(who(c, authorization, -1), want) != 0) {
        if (clock_mono_us() > end)
            return false;
        usleep(2000);
    }
    return true;
}

static void test_token_file_is_read_again(void **state)
{
    struct cfg_callers cfg = callers_defaults();
    char text[512], path[128];
    const struct caller *held = NULL, *again = NULL;
    struct callers *c;

    (void)state;
    snprintf(text, sizeof text, "anne %s subject=user:anne\n", hex_of("one"));
    write_file("reload", text, 0600);
    snprintf(path, sizeof path, "%s", path_of("reload"));
    cfg.tokens_file = path;
    c = start(&cfg);
    assert_int_equal(callers_identify(c, "Bearer one", -1, &held, NULL), ST_OK);
    assert_true(caller_enter(held, 1));

    /* A fault keeps the former callers; the next good file is taken. */
    write_file("reload", "anne nonsense\n", 0600);
    snprintf(text, sizeof text, "other %s subject=user:o\nanne %s subject=user:anne\n", hex_of("mark"), hex_of("two"));
    assert_string_equal(who(c, "Bearer one", -1), "anne");
    write_file("reload", text, 0600);
    assert_true(becomes(c, "Bearer mark", "other"));
    assert_string_equal(who(c, "Bearer one", -1), "!invalid_token");

    /* Requests in flight are those of the name, over files and tokens; a caller that is held stays whole. */
    assert_string_equal(held->subject, "user:anne");
    assert_int_equal(callers_identify(c, "Bearer two", -1, &again, NULL), ST_OK);
    assert_false(caller_enter(again, 1));
    caller_leave(held);
    assert_true(caller_enter(again, 1));
    caller_leave(again);
    caller_release(again);
    callers_free(c);
    caller_release(held);
}

static void test_peers_and_anonymous(void **state)
{
    struct cfg_callers cfg = callers_defaults();
    char key[] = "uid.1000", value[] = "console subject=user:anne rights=list", origin[] = "test:1";
    char bad_key[] = "gid.1", bad_value[] = "console rights=list";
    struct cfg_map_item item = {.key = key, .value = value, .origin = origin};
    struct err err = {0};
    struct callers *c;

    (void)state;
    assert_int_equal(callers_check(&cfg, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "nobody could call"));

    cfg.peers = (struct cfg_map){&item, 1};
    c = start(&cfg);
    assert_string_equal(who(c, NULL, 1000), "console");
    assert_string_equal(who(c, NULL, 1001), "!missing_token");
    assert_string_equal(who(c, NULL, -1), "!missing_token");
    assert_string_equal(who(c, "Bearer x", 1000), "!invalid_token"); /* no falling back */
    callers_free(c);

    cfg.anonymous = true;
    c = start(&cfg);
    assert_true(callers_anonymous(c));
    assert_string_equal(who(c, NULL, 1000), "console");
    assert_string_equal(who(c, NULL, -1), "anonymous");
    assert_string_equal(who(c, "Bearer x", -1), "!invalid_token");
    callers_free(c);

    item.key = bad_key;
    assert_int_equal(callers_check(&cfg, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "test:1"));
    item.key = key;
    item.value = bad_value;
    assert_int_equal(callers_check(&cfg, &err), ST_CONFIG);
    assert_non_null(strstr(err.text, "peers.uid.1000"));
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    static const char *const names[] = {"tokens", "open", "reload"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(path_of(names[i]));
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attributes),
        cmocka_unit_test(test_attributes_refused),
        cmocka_unit_test(test_token_file_faults_name_the_line),
        cmocka_unit_test(test_bearer_tokens),
        cmocka_unit_test(test_token_file_that_others_can_read_is_refused),
        cmocka_unit_test(test_token_file_is_read_again),
        cmocka_unit_test(test_peers_and_anonymous),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
