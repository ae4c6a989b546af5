/* The lister's callers: any bytes as token file, as a JWT's text and as a key set (the first byte chooses). */
#include <stdlib.h>
#include <string.h>

#include "inventory-lister/callers/jwt.h"
#include "inventory-lister/callers/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_tokens(struct bytes text)
{
    struct tokens *t = NULL;
    struct err err = {0};

    if (tokens_parse(text, &t, &err) != ST_OK && !err.text[0])
        abort();
    tokens_free(t);
}

/* A header that was taken names an asymmetric algorithm, and the payload lies within the token. */
static void try_jwt(struct bytes token)
{
    static const struct jwt_rules rules = {1023, "i", "a", "sub", "user", RIGHT_LIST, 0};
    struct caller_impl *caller = NULL;
    struct jwt_head head;
    struct err err = {0};
    int64_t until = 0;

    if (jwt_head_parse(token, &head, &err) == ST_OK) {
        if (!head.alg || head.alg->name[0] == 'H' || head.payload.data < token.data ||
            head.payload.data + head.payload.len > token.data + token.len || strlen(head.kid) > JWT_KID_MAX)
            abort();
    } else if (!err.text[0] || strcmp(err.code, "invalid_token") != 0) {
        abort();
    }
    if (jwt_verify(&rules, NULL, token, 0, &caller, &until, &err) == ST_OK)
        abort(); /* without any key */
}

static void try_keys(struct bytes json)
{
    struct jwks *keys = NULL;
    struct err err = {0};
    size_t skipped = 0;

    if (jwks_parse(json, &keys, &skipped, &err) == ST_OK ? jwks_count(keys) == 0 : !err.text[0])
        abort();
    jwks_unref(keys);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes rest = {(const char *)data + 1, size - 1};

    if (size == 0)
        return 0;
    if (data[0] == 't')
        try_tokens(rest);
    else if (data[0] == 'k')
        try_keys(rest);
    else
        try_jwt(rest);
    return 0;
}
