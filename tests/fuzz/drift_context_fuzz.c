/* Condition contexts of OpenFGA's table: any bytes, given in hexadecimal digits as Postgres does. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "drift-checker/compare/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf hex, out;

    buf_init(&hex, 1 << 20);
    buf_init(&out, 1 << 22);
    for (size_t i = 0; i < size; i++)
        buf_addf(&hex, "%02x", data[i]);
    if (context_decode(buf_str(&hex), &out) && !store_context_equal(buf_str(&out), buf_str(&out)))
        abort();
    buf_release(&hex);
    buf_release(&out);
    return 0;
}
