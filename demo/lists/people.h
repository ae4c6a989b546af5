/*
 * people.h - whose lists are walked: one who sees a few instances, one who sees some, one who sees all.
 */
#ifndef RELATA_DEMO_LISTS_PEOPLE_H
#define RELATA_DEMO_LISTS_PEOPLE_H

#include <stdint.h>

#include "common/pg/pg.h"

#define FEW_USER "lea.gast" /* has three instances shared with her */
#define ALL_USER "kim.nord" /* in the support team, which edits every organization */
#define ALL_TEAM "support"

struct people {
    char some[128]; /* an organization's administrator */
    /* One of FEW_USER's instances, and one that ALL_USER sees through a grant on an organization. */
    int64_t shared, granted;
    char shared_team[128], granted_team[128], granted_organization[128];
    char since[40];            /* RFC 3339: created_at of the oldest instance that is walked; "" = all are */
    char name[128];            /* of the middle one of these instances, by name */
    char live[16], walked[16]; /* instances in all, and how many are walked if not all; as people write numbers */
};

/* Adds the two to the inventory, by the service's login, where they are not there yet; then waits until nothing is
 * pending. `rows` bounds the walks: older instances stay out of them. */
enum status people_find(struct people *out, struct pg *service, struct pg *truth, int64_t rows, mono_us deadline,
                        struct err *err) MUST_CHECK;
/* Waits until the store has every change. */
enum status people_settle(struct pg *truth, mono_us deadline, struct err *err) MUST_CHECK;

#endif
