/* Plans of repairs: any bytes. */
#include <stdint.h>
#include <stdlib.h>

#include "drift-checker/repair/repair.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct plan plan;

    if (plan_parse((struct bytes){(const char *)data, size}, &plan, NULL) != ST_OK)
        return 0;
    for (size_t i = 0; i < plan.len; i++) {
        if (!plan.items[i].key || plan.items[i].action > ACTION_DELETE)
            abort();
    }
    plan_free(&plan);
    return 0;
}
