#include "common/base/json.h"

static int add(const char *data, size_t len, void *out)
{
    buf_add(out, data, len);
    return buf_ok(out) ? 0 : -1;
}

bool json_add(struct buf *out, const json_t *json, size_t flags)
{
    return json_dump_callback(json, add, out, flags) == 0;
}
