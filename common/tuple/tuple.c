#include "common/tuple/tuple.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/base/utf8.h"

int tuple_key_cmp(const struct tuple_key *a, const struct tuple_key *b)
{
    int c = strcmp(a->object, b->object);

    if (c == 0)
        c = strcmp(a->relation, b->relation);
    if (c == 0)
        c = strcmp(a->subject, b->subject);
    return c;
}

uint64_t tuple_object_hash(const char *object)
{
    return XXH3_64bits(object, strlen(object));
}

/* Each part's hash seeds the next, so that "a","bc" and "ab","c" differ. */
uint64_t tuple_key_hash(const struct tuple_key *k)
{
    uint64_t h = tuple_object_hash(k->object);

    h = XXH3_64bits_withSeed(k->relation, strlen(k->relation), h);
    return XXH3_64bits_withSeed(k->subject, strlen(k->subject), h);
}

static struct tuple_key *make_key(struct bytes object, struct bytes relation, struct bytes subject)
{
    struct tuple_key *k = malloc(sizeof *k + object.len + relation.len + subject.len + 3);
    char *p = (char *)(k + 1);

    if (!k)
        return NULL;
    k->object = p;
    memcpy(p, object.data, object.len);
    p += object.len;
    *p++ = '\0';
    k->relation = p;
    memcpy(p, relation.data, relation.len);
    p += relation.len;
    *p++ = '\0';
    k->subject = p;
    memcpy(p, subject.data, subject.len);
    p[subject.len] = '\0';
    return k;
}

static struct bytes bytes_of(const char *s)
{
    return (struct bytes){s, strlen(s)};
}

struct tuple_key *tuple_key_dup(const struct tuple_key *k)
{
    return make_key(bytes_of(k->object), bytes_of(k->relation), bytes_of(k->subject));
}

void tuple_key_format(const struct tuple_key *k, struct buf *out)
{
    buf_adds(out, k->object);
    buf_addc(out, '#');
    buf_adds(out, k->relation);
    buf_addc(out, '@');
    buf_adds(out, k->subject);
}

enum status tuple_key_parse(const char *text, struct tuple_key **out, struct err *err)
{
    const char *hash = strchr(text, '#');
    const char *at = hash ? strchr(hash + 1, '@') : NULL;
    struct bytes object, relation, subject;
    enum status st;

    *out = NULL;
    if (!at)
        return err_set(err, ST_INVALID, NULL, "\"%.100s\" is no tuple: must be type:id#relation@subject", text);
    object = (struct bytes){text, (size_t)(hash - text)};
    relation = (struct bytes){hash + 1, (size_t)(at - hash - 1)};
    subject = bytes_of(at + 1);
    st = tuple_check(object, relation, subject, err);
    if (st != ST_OK)
        return st;
    *out = make_key(object, relation, subject);
    return *out ? ST_OK : err_set(err, ST_NOMEM, NULL, "no memory for a tuple");
}

struct bytes tuple_type(const char *object)
{
    const char *colon = strchr(object, ':');

    return (struct bytes){object, colon ? (size_t)(colon - object) : 0};
}

void tuple_encode_id(struct bytes id, struct buf *out)
{
    size_t n;

    for (size_t i = 0; i < id.len; i += n) {
        uint32_t cp = 0;

        n = utf8_next(id.data + i, id.len - i, &cp);
        if (n == 0)
            n = 1, cp = '%'; /* no UTF-8: never valid in a subject; escaped, it stays distinct */
        if (cp <= 0x20 || (cp >= 0x7f && cp <= 0x9f) || cp == '%' || cp == ':' || cp == '#' || cp == '*') {
            for (size_t k = 0; k < n; k++)
                buf_addf(out, "%%%02X", (unsigned)(unsigned char)id.data[i + k]);
        } else {
            buf_add(out, id.data + i, n);
        }
    }
}
