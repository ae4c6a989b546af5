/*
 * identity.h - which store a name means (relata.store), and whether the store that answers is that one.
 */
#ifndef RELATA_CTL_IDENTITY_H
#define RELATA_CTL_IDENTITY_H

#include "relatactl/ctl.h"

#define ID_MAX 64

struct pin {
    char store_id[ID_MAX]; /* "" = not pinned */
    char model_id[ID_MAX];
    int64_t generation;
};

/* The pin of settings.store.name; its ids are "" if there is none. */
enum status pin_find(struct ctl *ctl, struct pin *out, struct err *err) MUST_CHECK;
/* The same; ST_MISSING, with the command that helps in err, if there is none. */
enum status pin_read(struct ctl *ctl, struct pin *out, struct err *err) MUST_CHECK;
/* Record store and model as the ones in force; the generation rises if that changes anything. */
enum status pin_write(struct ctl *ctl, const char *store_id, const char *model_id, struct pin *out,
                      struct err *err) MUST_CHECK;
/* pin_read, and ctl->store_conn connected to that store, which must exist and have the model. */
enum status pin_connect(struct ctl *ctl, struct pin *out, struct err *err) MUST_CHECK;

/* What reading back the last applied keys (relata.probe) says about the store. */
struct probes {
    int agree, differ;
    int unsettled; /* pending, parked or just changing: says nothing */
    struct buf first_difference;
};
void probes_release(struct probes *p);
enum status probes_check(struct ctl *ctl, struct probes *out, struct err *err) MUST_CHECK;
/* err says that the store is not the one it was. Returns ST_INVALID. */
enum status probes_refuse(const struct probes *p, const char *store_id, struct err *err);

/* "not pinned", "pinned", "store gone", "store unreachable". Only the store of settings.store.name is asked, a short
 * while, as others may be elsewhere. `store_id` "" = not pinned. */
const char *store_state(struct ctl *ctl, const char *name, const char *store_id);

/* Whether processes that write to this store live (their number), by their advisory locks. */
enum status live_writers(struct ctl *ctl, int *n, struct err *err) MUST_CHECK;

#endif
