#include "inventory-lister/callers/caller.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/base/utf8.h"
#include "common/tuple/tuple.h"

#define NAME_CHARS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@-"
#define NAME_MAX_BYTES 64
#define ACCOUNT_BUCKETS 1024

/* ---- accounts: requests in flight by name, whichever token or file generation they came with ---- */

struct account {
    char *name;
    size_t bucket;
    int refs; /* guarded by accounts_lock */
    _Atomic int64_t in_flight;
    struct account *next;
};

static pthread_mutex_t accounts_lock = PTHREAD_MUTEX_INITIALIZER;
static struct account *accounts[ACCOUNT_BUCKETS];

static struct account *account_find(size_t bucket, const char *name)
{
    struct account *a = accounts[bucket];

    while (a && strcmp(a->name, name) != 0)
        a = a->next;
    return a;
}

static struct account *account_get(const char *name)
{
    size_t bucket = XXH3_64bits(name, strlen(name)) % ACCOUNT_BUCKETS;
    struct account *a;

    pthread_mutex_lock(&accounts_lock);
    a = account_find(bucket, name);
    if (!a) {
        a = calloc(1, sizeof *a);
        if (a)
            a->name = strdup(name);
        if (!a || !a->name) {
            free(a);
            pthread_mutex_unlock(&accounts_lock);
            return NULL;
        }
        a->bucket = bucket;
        a->next = accounts[bucket];
        accounts[bucket] = a;
    }
    a->refs++;
    pthread_mutex_unlock(&accounts_lock);
    return a;
}

static void account_put(struct account *a)
{
    struct account **at;

    if (!a)
        return;
    pthread_mutex_lock(&accounts_lock);
    if (--a->refs > 0)
        a = NULL;
    for (at = a ? &accounts[a->bucket] : NULL; a && *at != a;)
        at = &(*at)->next;
    if (a)
        *at = a->next;
    pthread_mutex_unlock(&accounts_lock);
    if (a) {
        free(a->name);
        free(a);
    }
}

bool caller_enter(const struct caller *c, int64_t max)
{
    struct account *a = ((struct caller_impl *)c->impl)->account;

    if (atomic_fetch_add(&a->in_flight, 1) < max)
        return true;
    atomic_fetch_sub(&a->in_flight, 1);
    return false;
}

void caller_leave(const struct caller *c)
{
    atomic_fetch_sub(&((struct caller_impl *)c->impl)->account->in_flight, 1);
}

/* ---- callers ---- */

static void caller_free(struct caller_impl *c)
{
    for (size_t i = 0; i < c->nclaims; i++) {
        free(c->claims[i].name);
        free(c->claims[i].value);
    }
    free(c->claims);
    account_put(c->account);
    free(c->name);
    free(c->subject);
    free(c);
}

struct caller_impl *caller_make(const char *name, const char *subject, unsigned rights)
{
    struct caller_impl *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    atomic_init(&c->refs, 1);
    c->name = strdup(name);
    c->subject = strdup(subject);
    c->account = account_get(name);
    if (!c->name || !c->subject || !c->account) {
        caller_free(c);
        return NULL;
    }
    c->pub = (struct caller){.name = c->name, .subject = c->subject, .rights = rights, .impl = c};
    return c;
}

bool caller_add_claim(struct caller_impl *c, struct bytes name, struct bytes value)
{
    struct caller_claim_pair *more;

    if (c->nclaims == CALLER_CLAIMS_MAX)
        return false;
    more = realloc(c->claims, (c->nclaims + 1) * sizeof *more);
    if (!more)
        return false;
    c->claims = more;
    more[c->nclaims] = (struct caller_claim_pair){strndup(name.data, name.len), strndup(value.data, value.len)};
    if (!more[c->nclaims].name || !more[c->nclaims].value) {
        free(more[c->nclaims].name);
        free(more[c->nclaims].value);
        return false;
    }
    c->nclaims++;
    return true;
}

struct caller_impl *caller_ref(struct caller_impl *c)
{
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

void caller_unref(struct caller_impl *c)
{
    if (c && atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1)
        caller_free(c);
}

void caller_release(const struct caller *c)
{
    if (c)
        caller_unref(c->impl);
}

const char *caller_claim(const struct caller *c, const char *claim)
{
    const struct caller_impl *impl = c->impl;

    for (size_t i = 0; i < impl->nclaims; i++) {
        if (strcmp(impl->claims[i].name, claim) == 0)
            return impl->claims[i].value;
    }
    return NULL;
}

/* ---- text ---- */

enum status subject_check(const char *subject, struct err *err)
{
    const char *colon = strchr(subject, ':');

    if (tuple_check_subject((struct bytes){subject, strlen(subject)}, err) != ST_OK)
        return ST_INVALID;
    if (strchr(subject, '#'))
        return err_set(err, ST_INVALID, NULL, "a caller is one subject, not a set of them");
    if (colon && strcmp(colon, ":*") == 0)
        return err_set(err, ST_INVALID, NULL, "a caller is one subject, not everybody");
    return ST_OK;
}

static bool is(struct bytes b, const char *word)
{
    return b.len == strlen(word) && memcmp(b.data, word, b.len) == 0;
}

enum status rights_parse(struct bytes text, unsigned *out, struct err *err)
{
    *out = 0;
    while (text.len > 0) {
        const char *comma = memchr(text.data, ',', text.len);
        struct bytes word = {text.data, comma ? (size_t)(comma - text.data) : text.len};

        if (is(word, "list"))
            *out |= RIGHT_LIST;
        else if (is(word, "name-subject"))
            *out |= RIGHT_NAME_SUBJECT;
        else if (is(word, "diagnose"))
            *out |= RIGHT_DIAGNOSE;
        else
            return err_set(err, ST_INVALID, NULL, "unknown right \"%.*s\"; there are list, name-subject, diagnose",
                           (int)(word.len > 64 ? 64 : word.len), word.data);
        text.data += word.len + (comma != NULL);
        text.len -= word.len + (comma != NULL);
        if (comma && text.len == 0)
            return err_set(err, ST_INVALID, NULL, "the rights end with a comma");
    }
    return ST_OK;
}

struct attributes {
    struct bytes subject, rights;
    struct bytes claims[CALLER_CLAIMS_MAX]; /* "tenant=t1" */
    size_t nclaims;
};

static bool has_prefix(struct bytes b, const char *prefix)
{
    return b.len >= strlen(prefix) && memcmp(b.data, prefix, strlen(prefix)) == 0;
}

static struct bytes skip(struct bytes b, size_t n)
{
    return (struct bytes){b.data + n, b.len - n};
}

static enum status take_attribute(struct bytes word, struct attributes *a, struct err *err)
{
    struct bytes *once = NULL;
    const char *equals;

    if (has_prefix(word, "subject="))
        once = &a->subject;
    else if (has_prefix(word, "rights="))
        once = &a->rights;
    if (once && once->data)
        return err_set(err, ST_INVALID, NULL, "%s is given twice", once == &a->subject ? "subject" : "rights");
    if (once) {
        *once = skip(word, once == &a->subject ? 8 : 7);
        if (once->len == 0)
            return err_set(err, ST_INVALID, NULL, "%s= is empty; leave it out",
                           once == &a->subject ? "subject" : "rights");
        return ST_OK;
    }
    word = has_prefix(word, "claim.") ? skip(word, 6) : (struct bytes){word.data, 0};
    equals = word.len ? memchr(word.data, '=', word.len) : NULL;
    if (!equals || equals == word.data)
        return err_set(err, ST_INVALID, NULL, "unknown attribute; there are subject=, rights= and claim.<name>=");
    if (a->nclaims == CALLER_CLAIMS_MAX)
        return err_set(err, ST_INVALID, NULL, "more than %d claims", CALLER_CLAIMS_MAX);
    a->claims[a->nclaims++] = word;
    return ST_OK;
}

static enum status split_attributes(struct bytes text, struct attributes *a, struct err *err)
{
    size_t i = 0;

    while (i < text.len) {
        size_t start;
        enum status st;

        while (i < text.len && (text.data[i] == ' ' || text.data[i] == '\t'))
            i++;
        start = i;
        while (i < text.len && text.data[i] != ' ' && text.data[i] != '\t')
            i++;
        if (i == start)
            break;
        st = take_attribute((struct bytes){text.data + start, i - start}, a, err);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static enum status add_claims(struct caller_impl *c, const struct attributes *a, struct err *err)
{
    for (size_t i = 0; i < a->nclaims; i++) {
        struct bytes pair = a->claims[i];
        size_t at = (size_t)((const char *)memchr(pair.data, '=', pair.len) - pair.data);
        struct bytes name = {pair.data, at}, value = skip(pair, at + 1);

        if (value.len > CALLER_CLAIM_BYTES_MAX)
            return err_set(err, ST_INVALID, NULL, "a claim is longer than %d bytes", CALLER_CLAIM_BYTES_MAX);
        for (size_t k = 0; k < i; k++) {
            if (a->claims[k].len > at && memcmp(a->claims[k].data, pair.data, at + 1) == 0)
                return err_set(err, ST_INVALID, NULL, "claim.%.*s is given twice", (int)at, pair.data);
        }
        if (!caller_add_claim(c, name, value))
            return err_set(err, ST_NOMEM, NULL, "no memory for a caller");
    }
    return ST_OK;
}

static enum status check_text(struct bytes b, struct err *err)
{
    size_t n;

    for (size_t i = 0; i < b.len; i += n) {
        uint32_t cp = 0;

        n = utf8_next(b.data + i, b.len - i, &cp);
        if (n == 0)
            return err_set(err, ST_INVALID, NULL, "the text is not valid UTF-8");
        if ((cp < 0x20 && cp != '\t') || cp == 0x7f)
            return err_set(err, ST_INVALID, NULL, "the text holds a control character");
    }
    return ST_OK;
}

enum status caller_parse(struct bytes name, struct bytes attributes, struct caller_impl **out, struct err *err)
{
    struct attributes a = {0};
    unsigned rights = RIGHT_LIST;
    struct caller_impl *c;
    char name_text[NAME_MAX_BYTES + 1], subject[TUPLE_SUBJECT_MAX_BYTES + 1];
    enum status st;

    *out = NULL;
    if (name.len == 0 || name.len > NAME_MAX_BYTES)
        return err_set(err, ST_INVALID, NULL, "a caller's name has 1 to %d bytes", NAME_MAX_BYTES);
    memcpy(name_text, name.data, name.len);
    name_text[name.len] = '\0';
    if (strspn(name_text, NAME_CHARS) != name.len)
        return err_set(err, ST_INVALID, NULL, "a caller's name is made of A-Z a-z 0-9 . _ @ -");
    st = check_text(attributes, err);
    if (st == ST_OK)
        st = split_attributes(attributes, &a, err);
    if (st == ST_OK && a.rights.data)
        st = rights_parse(a.rights, &rights, err);
    if (st != ST_OK)
        return st;
    if (a.subject.len >= sizeof subject)
        return err_set(err, ST_INVALID, NULL, "the subject is too long");
    memcpy(subject, a.subject.data ? a.subject.data : "", a.subject.len);
    subject[a.subject.len] = '\0';
    if (a.subject.data && subject_check(subject, err) != ST_OK)
        return err_prefix(err, "subject");
    if (!a.subject.data && !(rights & RIGHT_NAME_SUBJECT))
        return err_set(err, ST_INVALID, NULL, "a caller without subject= needs the right name-subject");
    c = caller_make(name_text, subject, rights);
    if (!c)
        return err_set(err, ST_NOMEM, NULL, "no memory for a caller");
    st = add_claims(c, &a, err);
    if (st != ST_OK) {
        caller_unref(c);
        return st;
    }
    *out = c;
    return ST_OK;
}
