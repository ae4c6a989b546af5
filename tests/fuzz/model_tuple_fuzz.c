/*
 * Tuples against a model: any bytes as object, relation, subject, condition and context (five lines). Why one is
 * refused is said in one piece; what may be written may be asked about.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PARAMETER(name, type) "\"" name "\":{\"type_name\":\"TYPE_NAME_" type "\"}"
#define GENERIC(name, type, of)                                                                                        \
    "\"" name "\":{\"type_name\":\"TYPE_NAME_" type "\",\"generic_types\":[{\"type_name\":\"TYPE_NAME_" of "\"}]}"

static const char json[] =
    "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"u\"},{\"type\":\"d\",\"relations\":{\"v\":{\"this\":"
    "{}},"
    "\"p\":{\"this\":{}},\"x\":{\"tupleToUserset\":{\"tupleset\":{\"relation\":\"p\"},\"computedUserset\":{"
    "\"relation\":"
    "\"v\"}}}},\"metadata\":{\"relations\":{\"p\":{\"directly_related_user_types\":[{\"type\":\"d\"}]},\"v\":{"
    "\"directly_related_user_types\":[{\"type\":\"u\"},{\"type\":\"u\",\"wildcard\":{}},{\"type\":\"d\",\"relation\":"
    "\"v\"},{\"type\":\"u\",\"condition\":\"c\"}]}}}}],\"conditions\":{\"c\":{\"name\":\"c\",\"expression\":\"true\","
    "\"parameters\":{" PARAMETER("b", "BOOL") "," PARAMETER("s", "STRING") "," PARAMETER("i", "INT") "," PARAMETER("u", "UINT") "," PARAMETER("d", "DOUBLE") "," PARAMETER(
        "t",
        "DURATION") "," PARAMETER("w",
                                  "TIMESTAMP") "," PARAMETER("a",
                                                             "IPADDRESS") "," PARAMETER("y",
                                                                                        "ANY") "," GENERIC("l", "LIST",
                                                                                                           "STRING") "," GENERIC("m",
                                                                                                                                 "MAP",
                                                                                                                                 "INT") "}}}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct model *m;
    struct model_err err;
    char *text = malloc(size + 1), *parts[5], *at = text;
    if (!text || (!m && !model_parse(&m, json, strlen(json), &err)))
        abort();
    memcpy(text, data, size);
    text[size] = '\0';
    for (int i = 0; i < 5; i++)
        parts[i] = at ? strsep(&at, i < 4 ? "\n" : "") : NULL;
    if (parts[0] && parts[1] && parts[2]) {
        const char *condition = parts[3] && *parts[3] ? parts[3] : NULL;
        err.text[0] = '\0';
        enum model_fault f =
            model_check_tuple(m, parts[0], parts[1], parts[2], condition, condition ? parts[4] : NULL, &err);
        if ((f != MODEL_FITS && !err.text[0]) || memchr(err.text, '\0', sizeof err.text) == NULL)
            abort();
        if (f == MODEL_FITS && (model_check_names(m, parts[0], parts[1], parts[2], &err) != MODEL_FITS ||
                                !model_allows(m, parts[0], parts[1], parts[2], condition)))
            abort();
    }
    free(text);
    return 0;
}
