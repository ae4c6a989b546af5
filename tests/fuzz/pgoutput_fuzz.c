/* Bytes of a replication stream: frames of 2-byte length, each parsed and decoded; every string must end inside it. */
#include <stdlib.h>
#include <string.h>

#include "outbox-relay/message.h"
#include "outbox-relay/pgoutput.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_string(const char *s, const char *frame, size_t len)
{
    if (s && (s < frame || s > frame + len || memchr(s, '\0', (size_t)(frame + len + 1 - s)) == NULL))
        abort();
}

static void check_row(const struct outbox_row *r, const char *frame, size_t len)
{
    const char *const strings[] = {
        r->store, r->op,     r->object, r->relation, r->subject, r->condition_name, r->condition_context,
        r->actor, r->headers};
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++)
        check_string(strings[i], frame, len);
    struct message m;
    message_init(&m);
    if (message_encode(&m, r, NULL) == ST_OK && (m.key.len == 0 || m.payload.len == 0))
        abort();
    message_release(&m);
}

static void one_frame(struct pgoutput *p, const uint8_t *data, size_t len)
{
    struct wal_frame f;
    struct pgoutput_event ev;
    char *frame = malloc(len + 1); /* exactly the bytes that libpq would give */
    if (!frame)
        return;
    memcpy(frame, data, len);
    frame[len] = '\0';
    if (wal_frame_parse(frame, len, &f, NULL) == ST_OK && f.kind == WAL_FRAME_DATA &&
        pgoutput_decode(p, f.data, f.len, &ev, NULL) == ST_OK && ev.kind == PGOUTPUT_ROW)
        check_row(&ev.row, frame, len);
    free(frame);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pgoutput p;
    pgoutput_init(&p);
    while (size >= 2) {
        size_t len = (size_t)data[0] << 8 | data[1];
        data += 2;
        size -= 2;
        if (len > size)
            len = size;
        one_frame(&p, data, len);
        data += len;
        size -= len;
    }
    return 0;
}
