/* Tuple keys: any bytes as object, relation and subject (three lines), and as the text form. */
#include <stdlib.h>
#include <string.h>

#include "common/tuple/tuple.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Up to the next newline, or the rest. */
static struct bytes next_line(const char **p, size_t *left)
{
    const char *newline = memchr(*p, '\n', *left);
    struct bytes b = {*p, newline ? (size_t)(newline - *p) : *left};
    size_t used = b.len + (newline != NULL);

    *p += used;
    *left -= used;
    return b;
}

/* A key that was taken survives its text form, and its hashes are those of its copy. */
static void check_taken(const struct tuple_key *k)
{
    struct tuple_key *back = NULL, *copy = tuple_key_dup(k);
    struct buf text;

    buf_init(&text, 4096);
    tuple_key_format(k, &text);
    if (!copy || !buf_ok(&text) || tuple_key_parse(buf_str(&text), &back, NULL) != ST_OK)
        abort();
    if (tuple_key_cmp(back, k) != 0 || tuple_key_hash(back) != tuple_key_hash(copy))
        abort();
    if (tuple_type(k->object).len == 0 || tuple_type(k->subject).len == 0 ||
        strlen(k->subject) > TUPLE_SUBJECT_MAX_BYTES)
        abort();
    free(back);
    free(copy);
    buf_release(&text);
}

static char *string_of(struct bytes b)
{
    char *s = malloc(b.len + 1);

    if (!s)
        abort();
    memcpy(s, b.data, b.len);
    s[b.len] = '\0';
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *p = (const char *)data;
    size_t left = size;
    struct bytes object = next_line(&p, &left), relation = next_line(&p, &left), subject = {p, left};
    struct bytes all = {(const char *)data, size};
    struct tuple_key *parsed = NULL;
    struct err err = {0};
    char *text = string_of(all);

    if (tuple_check(object, relation, subject, &err) == ST_OK) {
        char *o = string_of(object), *r = string_of(relation), *s = string_of(subject);
        struct tuple_key k = {o, r, s};

        if (strlen(o) != object.len || strlen(r) != relation.len || strlen(s) != subject.len)
            abort(); /* a NUL got through */
        check_taken(&k);
        free(o);
        free(r);
        free(s);
    } else if (!err.text[0]) {
        abort();
    }
    if (tuple_key_parse(text, &parsed, &err) == ST_OK)
        check_taken(parsed);
    free(parsed);
    free(text);
    return 0;
}
