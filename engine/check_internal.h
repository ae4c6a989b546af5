/*
 * check_internal.h - private to check*.c: what a check remembers while its subject stays the same, in the reader's
 * scratch memory.
 */
#ifndef RELATA_ENGINE_CHECK_INTERNAL_H
#define RELATA_ENGINE_CHECK_INTERNAL_H

#include "engine/check.h"
#include "engine/graph_internal.h"

#define MINE_MAX 16
#define MINES 8
/* Objects that no tuple names: of the subject's userset, and any other. */
#define UNNAMED UINT32_MAX
#define OTHER_UNNAMED (UINT32_MAX - 1)

enum state { ABSENT, ASKING, ASSUMED, KNOWN };

/* A node and what is known of it. */
struct memo {
    uint64_t key; /* object << 32 | pair */
    uint32_t round;
    int32_t index; /* on the stack; while ASKING or ASSUMED */
    int32_t low;   /* the lowest index that its value assumes something about */
    uint16_t depth, height;
    uint8_t state, value;
    bool cycle;
};

/* The usersets of a flat relation that the subject is in, if they are few. */
struct mine {
    int pair;
    uint32_t round;
    bool many;
    size_t n;
    object_id of[MINE_MAX];
};

struct check {
    struct engine_reader *reader;
    const struct rules *rules;
    struct tuples *tuples;
    const struct engine_limits *limits;
    unsigned depth_max, nested, asked;
    enum engine_status failed; /* ENGINE_OK: go on */
    struct engine_text condition;
    /* the subject */
    struct engine_text text;
    object_id subject, wildcard; /* 0: no tuple names it */
    name_id type, relation;
    int kind, pair; /* pair: of a userset; else -1 */
    /* what was found */
    struct memo *memo;
    size_t memo_mask, nmemo;
    uint32_t round;
    uint32_t *stack; /* places in memo */
    size_t nstack, stack_cap;
    struct mine mine[MINES]; /* by pair */
    bool by_way;             /* what a cycle bears on is not remembered */
    unsigned forgotten;
};

/* The place of a node; UINT32_MAX: no memory. It moves when another is added. */
uint32_t memo_at(struct check *c, uint64_t key);
size_t memo_slot(const struct check *c, uint64_t key); /* of one that is there */
/* Puts a node on the stack. False: no memory. */
bool memo_push(struct check *c, uint32_t at);
void memo_forget(struct check *c); /* all */

#endif
