/* openapi.c - the API's description, embedded. */
#include "inventory-lister/api/internal.h"

__asm__(".section .rodata\n"
        ".global openapi_json\n"
        "openapi_json:\n"
        ".incbin \"inventory-lister/api/openapi.json\"\n"
        ".global openapi_json_end\n"
        "openapi_json_end:\n"
        ".byte 0\n"
        ".previous\n");
