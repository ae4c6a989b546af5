/* caller.h - one caller as its room makes it: counted, immutable once shared. Part of callers/. */
#ifndef RELATA_LISTER_CALLERS_CALLER_H
#define RELATA_LISTER_CALLERS_CALLER_H

#include <stdatomic.h>
#include <stddef.h>

#include "common/base/buf.h"
#include "inventory-lister/callers/callers.h"

#define CALLER_CLAIMS_MAX 64
#define CALLER_CLAIM_BYTES_MAX 1024
#define RIGHTS_ALL (RIGHT_LIST | RIGHT_NAME_SUBJECT | RIGHT_DIAGNOSE)

struct account;

struct caller_claim_pair {
    char *name, *value;
};

struct caller_impl {
    struct caller pub; /* pub.impl is this */
    atomic_int refs;
    struct account *account; /* of its name: the requests in flight */
    char *name, *subject;
    struct caller_claim_pair *claims;
    size_t nclaims;
};

/* One reference; NULL = no memory. Strings are copied. */
struct caller_impl *caller_make(const char *name, const char *subject, unsigned rights);
/* While nobody else has it. False: no memory, or too many. */
bool caller_add_claim(struct caller_impl *c, struct bytes name, struct bytes value);
struct caller_impl *caller_ref(struct caller_impl *c);
void caller_unref(struct caller_impl *c); /* accepts NULL */

/* "NAME attributes" of a token line (what stood between them cut out) and of [peers]. ST_INVALID says why. */
enum status caller_parse(struct bytes name, struct bytes attributes, struct caller_impl **out,
                         struct err *err) MUST_CHECK;
/* "list,diagnose". ST_INVALID names the word. */
enum status rights_parse(struct bytes text, unsigned *out, struct err *err) MUST_CHECK;
/* A subject that a caller may be: "type:id", no userset, no wildcard. */
enum status subject_check(const char *subject, struct err *err) MUST_CHECK;

#endif
