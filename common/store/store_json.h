/*
 * store_json.h - private to common/store: request bodies and answers of OpenFGA's HTTP API, by jansson.
 *
 * Encoders fill `out` (cleared first): ST_OK; ST_INVALID if a part is not valid UTF-8 or a context is not a JSON
 * object; ST_TOO_BIG if the buffer's maximum does not do; ST_NOMEM. Decoders take bytes from outside: ST_OK, ST_NOMEM,
 * or ST_UNKNOWN for an answer that is not what the API promises (repeated keys included); nothing is assumed for what
 * is missing. Pure functions, any thread.
 */
#ifndef RELATA_STORE_STORE_JSON_H
#define RELATA_STORE_STORE_JSON_H

#include <stdbool.h>

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/store/store.h"

/* ---- requests ---- */
enum status store_json_write(struct buf *out, const char *model_id, const struct store_tuple *writes, size_t nwrites,
                             const struct tuple_key *deletes, size_t ndeletes, struct err *err) MUST_CHECK;
enum status store_json_read_tuple(struct buf *out, const struct tuple_key *key, struct err *err) MUST_CHECK;
/* `about_object` NULL: all tuples. */
enum status store_json_read_page(struct buf *out, const char *about_object, const char *about_subject,
                                 const char *token, int page_size, struct err *err) MUST_CHECK;
enum status store_json_check(struct buf *out, const char *model_id, const struct tuple_key *key, bool higher,
                             struct err *err) MUST_CHECK;
enum status store_json_create(struct buf *out, const char *name, struct err *err) MUST_CHECK;
/* `json`: an AuthorizationModel object; its "id" is left out. */
enum status store_json_model(struct buf *out, const char *json, struct err *err) MUST_CHECK;

/* ---- answers ---- */
/* `next` may be NULL; else malloc'd. On failure *out is zeroed and *next NULL. */
enum status store_json_tuples(struct bytes body, struct store_tuples *out, char **next, struct err *err) MUST_CHECK;
enum status store_json_allowed(struct bytes body, bool *allowed, struct err *err) MUST_CHECK;
/* One string member of the answer's object, malloc'd; it must not be empty. */
enum status store_json_member(struct bytes body, const char *member, char **out, struct err *err) MUST_CHECK;
/* The first of the models in a list answer, or NULL in *id if there is none. */
enum status store_json_first_model(struct bytes body, char **id, struct err *err) MUST_CHECK;
/* The models of a list answer: *out malloc'd, *next as in store_json_tuples. */
enum status store_json_models(struct bytes body, struct store_model_info **out, size_t *n, char **next,
                              struct err *err) MUST_CHECK;
/* The model of an answer as JSON text, malloc'd. */
enum status store_json_model_text(struct bytes body, char **json, struct err *err) MUST_CHECK;
/* Any JSON object will do (the answer of a Write is an empty one). */
enum status store_json_object(struct bytes body, struct err *err) MUST_CHECK;

/* An error answer {"code": .., "message": ..}: false if it is none. Strings are cut to fit. */
struct store_fault {
    char code[64];
    char message[768];
};
bool store_json_fault(struct bytes body, struct store_fault *out);

/* A token endpoint's answer: `token` malloc'd; *expires_s is 0 if not told. On an error answer, `refusal` (cut to fit)
 * gets the OAuth error name. */
enum status store_json_token(struct bytes body, char **token, int64_t *expires_s, struct err *err) MUST_CHECK;
void store_json_token_refusal(struct bytes body, char *refusal, size_t size);

#endif
