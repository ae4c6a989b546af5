/* model_file.c - reading a model. Whether it makes sense is the store's to say. */
#include <jansson.h>

#include "relatactl/model_file.h"

enum status model_file_read(const char *path, char **json, struct err *err)
{
    json_error_t where;
    *json = NULL;
    json_t *doc = json_load_file(path, JSON_REJECT_DUPLICATES, &where);
    if (!doc && where.line <= 0)
        return err_set(err, ST_CONFIG, "", "cannot read the model: %s", where.text);
    if (!doc)
        return err_set(err, ST_CONFIG, "",
                       "%s:%d:%d: not JSON: %s (the DSL is turned into JSON by fga model transform)", path, where.line,
                       where.column, where.text);
    enum status st = ST_OK;
    if (!json_is_object(doc) || !json_is_array(json_object_get(doc, "type_definitions")))
        st = err_set(err, ST_CONFIG, "", "%s: not a model: no type_definitions", path);
    if (st == ST_OK) {
        (void)json_object_del(doc, "id"); /* a printed model may be written again */
        *json = json_dumps(doc, JSON_COMPACT);
        if (!*json)
            st = err_set(err, ST_NOMEM, "", "no memory for the model");
    }
    json_decref(doc);
    return st;
}
