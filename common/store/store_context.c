#include "common/store/store_context.h"

#include <math.h>
#include <string.h>

#include "common/store/store.h"

/* Doubles hold every whole number up to here. */
#define WHOLE_MAX 9007199254740992.0

/* The integer node that stands for this number, or NULL if it stays as it is. */
static json_t *whole(const json_t *number)
{
    double v = json_real_value(number);

    if (!json_is_real(number) || v != trunc(v) || fabs(v) > WHOLE_MAX)
        return NULL;
    return json_integer((json_int_t)v);
}

static bool is_whole(const json_t *number)
{
    double v;

    if (!json_is_real(number))
        return false;
    v = json_real_value(number);
    return v == trunc(v) && fabs(v) <= WHOLE_MAX;
}

bool store_context_canonical(json_t *node)
{
    const char *key;
    json_t *child;
    size_t i;

    if (json_is_object(node)) {
        json_object_foreach(node, key, child)
        {
            if (is_whole(child) ? json_object_set_new_nocheck(node, key, whole(child)) != 0
                                : !store_context_canonical(child))
                return false;
        }
    } else if (json_is_array(node)) {
        json_array_foreach(node, i, child)
        {
            if (is_whole(child) ? json_array_set_new(node, i, whole(child)) != 0 : !store_context_canonical(child))
                return false;
        }
    }
    return true;
}

enum status store_context_parse(const char *text, json_t **out, struct err *err)
{
    json_error_t why;

    *out = NULL;
    if (!text || !*text)
        text = "{}";
    *out = json_loads(text, STORE_JSON_DECODE, &why);
    if (!*out && json_error_code(&why) == json_error_out_of_memory)
        return err_set(err, ST_NOMEM, NULL, "no memory for a condition context");
    if (!*out)
        return err_set(err, ST_INVALID, NULL, "the condition context is not JSON: %s", why.text);
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return err_set(err, ST_INVALID, NULL, "the condition context is not a JSON object");
    }
    if (!store_context_canonical(*out)) {
        json_decref(*out);
        *out = NULL;
        return err_set(err, ST_NOMEM, NULL, "no memory for a condition context");
    }
    return ST_OK;
}

bool store_context_equal(const char *a, const char *b)
{
    json_t *ja = NULL, *jb = NULL;
    bool equal =
        store_context_parse(a, &ja, NULL) == ST_OK && store_context_parse(b, &jb, NULL) == ST_OK && json_equal(ja, jb);

    json_decref(ja);
    json_decref(jb);
    return equal;
}
