/* context.c - condition contexts as OpenFGA's table holds them: a serialised google.protobuf.Struct. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hex.h"
#include "drift-checker/compare/internal.h"
#include "google/protobuf/struct.pb-c.h"

#define DEPTH_MAX 64

static json_t *struct_json(const Google__Protobuf__Struct *s, int depth);

static json_t *value_json(const Google__Protobuf__Value *v, int depth)
{
    json_t *list, *item;

    if (!v || depth > DEPTH_MAX)
        return NULL;
    switch (v->kind_case) {
    case GOOGLE__PROTOBUF__VALUE__KIND_NULL_VALUE:
        return json_null();
    case GOOGLE__PROTOBUF__VALUE__KIND_NUMBER_VALUE:
        return json_real(v->number_value);
    case GOOGLE__PROTOBUF__VALUE__KIND_STRING_VALUE:
        return json_string(v->string_value);
    case GOOGLE__PROTOBUF__VALUE__KIND_BOOL_VALUE:
        return json_boolean(v->bool_value);
    case GOOGLE__PROTOBUF__VALUE__KIND_STRUCT_VALUE:
        return struct_json(v->struct_value, depth + 1);
    case GOOGLE__PROTOBUF__VALUE__KIND_LIST_VALUE:
        list = json_array();
        for (size_t i = 0; list && i < v->list_value->n_values; i++) {
            item = value_json(v->list_value->values[i], depth + 1);
            if (!item || json_array_append_new(list, item) != 0) {
                json_decref(list);
                return NULL;
            }
        }
        return list;
    case GOOGLE__PROTOBUF__VALUE__KIND__NOT_SET:
    case _GOOGLE__PROTOBUF__VALUE__KIND__CASE_IS_INT_SIZE:
    default:
        return NULL;
    }
}

static json_t *struct_json(const Google__Protobuf__Struct *s, int depth)
{
    json_t *object = json_object(), *value;

    for (size_t i = 0; object && s && i < s->n_fields; i++) {
        value = value_json(s->fields[i]->value, depth);
        if (!value || json_object_set_new(object, s->fields[i]->key, value) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

bool context_decode(const char *hex, struct buf *out)
{
    size_t n = strlen(hex) / 2;
    uint8_t *bytes = malloc(n + 1);
    Google__Protobuf__Struct *s = NULL;
    json_t *object = NULL;
    char *text = NULL;

    if (bytes && hex_decode((struct bytes){hex, strlen(hex)}, bytes, n))
        s = google__protobuf__struct__unpack(NULL, n, bytes);
    if (s)
        object = struct_json(s, 0);
    if (object)
        text = json_dumps(object, JSON_COMPACT);
    if (text)
        buf_adds(out, text);
    free(text);
    json_decref(object);
    if (s)
        google__protobuf__struct__free_unpacked(s, NULL);
    free(bytes);
    return text;
}
