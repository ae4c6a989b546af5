/* Requests to authz-store: any bytes. One that passes is complete, and passes as what it became. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "authz-store/api/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_message(const struct message *m, const json_t *json)
{
    struct buf why;
    buf_init(&why, 1 << 16);
    if (schema_types(m, json, &why) && schema_rules(m, json, &why)) {
        json_t *complete = schema_complete(m, json);
        if (!complete || !schema_types(m, complete, &why) || !schema_rules(m, complete, &why))
            abort();
        json_decref(complete);
    } else if (!schema_code(buf_str(&why))[0]) {
        abort();
    }
    buf_release(&why);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct message *const all[] = {
        &message_check, &message_batch_check, &message_list_objects, &message_list_users,  &message_expand,
        &message_write, &message_read,        &message_create_store, &message_write_model, &message_write_assertions};
    json_t *json = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
    for (size_t i = 0; json && i < sizeof all / sizeof *all; i++)
        try_message(all[i], json);
    json_decref(json);
    return 0;
}
