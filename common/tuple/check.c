#include <string.h>

#include "common/base/utf8.h"
#include "common/tuple/tuple.h"

/* What a part is made of, found in one pass. */
struct shape {
    size_t chars;      /* code points */
    size_t type_chars; /* before the first ':' */
    size_t id_len;     /* bytes between the first ':' and the first '#' behind it, or the end */
    size_t relation;   /* offset behind that '#', 0 = none */
    size_t colon;      /* offset of the first ':', SIZE_MAX = none */
    bool starred;      /* '*' behind the ':' */
};

static enum status refuse(struct err *err, const char *part, struct bytes b, const char *why)
{
    char shown[100];
    const char *s = b.data ? b.data : "";
    size_t n = utf8_cut(s, b.len, sizeof shown - 1);

    for (size_t i = 0; i < n; i++)
        shown[i] = (unsigned char)s[i] < ' ' || s[i] == 0x7F ? '?' : s[i];
    shown[n] = '\0';
    return err_set(err, ST_INVALID, part, "%s \"%s%s\" %s", part, shown, n < b.len ? "..." : "", why);
}

/* The code points that no part may hold. Space and the controls are all of the store's white space; wider Unicode
 * spaces are letters to it. */
static const char *bad_char(uint32_t cp)
{
    if (cp == 0)
        return "holds a NUL";
    if (cp == ' ')
        return "holds a space";
    if (cp < ' ' || (cp >= 0x7F && cp <= 0x9F))
        return "holds a control character";
    return NULL;
}

/* Measures a part; the reason if some byte can stand nowhere. */
static const char *measure(struct bytes b, struct shape *s)
{
    size_t id_end = b.len;

    *s = (struct shape){.colon = SIZE_MAX};
    for (size_t i = 0; i < b.len;) {
        uint32_t cp = 0;
        size_t n = utf8_next(b.data + i, b.len - i, &cp);
        const char *bad = n ? bad_char(cp) : "is not valid UTF-8";

        if (bad)
            return bad;
        if (cp == ':' && s->colon == SIZE_MAX) {
            s->colon = i;
            s->type_chars = s->chars;
        } else if (cp == '#' && s->colon != SIZE_MAX && s->relation == 0) {
            s->relation = i + 1;
            id_end = i;
        } else if (cp == '*' && s->colon != SIZE_MAX) {
            s->starred = true;
        }
        s->chars++;
        i += n;
    }
    if (s->colon != SIZE_MAX)
        s->id_len = id_end - s->colon - 1;
    return NULL;
}

static bool holds(struct bytes b, size_t from, size_t to, char c)
{
    return to > from && memchr(b.data + from, c, to - from) != NULL;
}

/* "type:id" in front of any relation: shared by object and subject. */
static const char *check_type_id(struct bytes b, const struct shape *s)
{
    size_t end = s->relation ? s->relation - 1 : b.len;

    if (s->colon == SIZE_MAX)
        return "must be type:id: it has no ':'";
    if (s->colon == 0)
        return "must be type:id: the type is empty";
    if (s->id_len == 0)
        return "must be type:id: the id is empty";
    if (holds(b, s->colon + 1, end, ':'))
        return "holds a second ':'";
    if (holds(b, 0, s->colon, '#') || holds(b, 0, s->colon, '@'))
        return "has a type that holds '#' or '@'";
    if (s->type_chars > TUPLE_TYPE_MAX_CHARS)
        return "has a type of more than 254 characters";
    return NULL;
}

static const char *check_object(struct bytes b)
{
    struct shape s;
    const char *why = measure(b, &s);

    if (!why)
        why = check_type_id(b, &s);
    if (why)
        return why;
    if (s.relation)
        return "holds a '#'";
    if (s.id_len == 1 && b.data[s.colon + 1] == '*')
        return "is a wildcard, which only a subject may be";
    if (s.chars > TUPLE_OBJECT_MAX_CHARS)
        return "has more than 256 characters";
    return NULL;
}

static const char *check_relation(struct bytes b)
{
    struct shape s;
    const char *why = measure(b, &s);

    if (why)
        return why;
    if (b.len == 0)
        return "is empty";
    if (holds(b, 0, b.len, '#') || holds(b, 0, b.len, ':') || holds(b, 0, b.len, '@'))
        return "holds '#', ':' or '@'";
    if (s.chars > TUPLE_RELATION_MAX_CHARS)
        return "has more than 50 characters";
    return NULL;
}

static const char *check_subject(struct bytes b)
{
    struct shape s;
    struct bytes relation;
    const char *why = measure(b, &s);

    if (!why)
        why = check_type_id(b, &s);
    if (why)
        return why;
    if (b.len > TUPLE_SUBJECT_MAX_BYTES)
        return "has more than 512 bytes";
    if (!s.relation)
        return NULL;
    if (s.starred)
        return "holds '*' and a relation: a userset has no wildcard";
    relation = (struct bytes){b.data + s.relation, b.len - s.relation};
    return check_relation(relation) ? "has a relation behind '#' that is empty, too long or holds '#', ':' or '@'"
                                    : NULL;
}

static bool is_implicit(struct bytes object, struct bytes relation, struct bytes subject)
{
    return subject.len == object.len + 1 + relation.len && memcmp(subject.data, object.data, object.len) == 0 &&
           subject.data[object.len] == '#' && memcmp(subject.data + object.len + 1, relation.data, relation.len) == 0;
}

enum status tuple_check_object(struct bytes object, struct err *err)
{
    const char *why = check_object(object);

    return why ? refuse(err, "object", object, why) : ST_OK;
}

enum status tuple_check_relation(struct bytes relation, struct err *err)
{
    const char *why = check_relation(relation);

    return why ? refuse(err, "relation", relation, why) : ST_OK;
}

enum status tuple_check_subject(struct bytes subject, struct err *err)
{
    const char *why = check_subject(subject);

    return why ? refuse(err, "subject", subject, why) : ST_OK;
}

enum status tuple_check(struct bytes object, struct bytes relation, struct bytes subject, struct err *err)
{
    enum status st = tuple_check_object(object, err);

    if (st == ST_OK)
        st = tuple_check_relation(relation, err);
    if (st == ST_OK)
        st = tuple_check_subject(subject, err);
    if (st == ST_OK && is_implicit(object, relation, subject))
        st = refuse(err, "subject", subject, "is the object and relation themselves, which always holds");
    return st;
}
