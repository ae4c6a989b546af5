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

static bool is_plain(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c < ' ' || c > '~' || c == '"' || c == '\\')
            return false;
    }
    return true;
}

void json_add_text(struct buf *out, const char *s, size_t len)
{
    if (is_plain(s, len)) { /* nearly always, and then a tenth of the time */
        buf_addc(out, '"');
        buf_add(out, s, len);
        buf_addc(out, '"');
        return;
    }
    json_t *text = json_stringn(s, len);
    if (text ? !json_add(out, text, JSON_ENCODE_ANY) : true)
        buf_adds(out, "\"\xef\xbf\xbd\"");
    json_decref(text);
}
