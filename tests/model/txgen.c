/* txgen.c - random transactions of services; see the header. */
#include "tests/model/txgen.h"

#define OBJECTS 40
#define USERS 25

const char txgen_schema_sql[] =
    "CREATE TABLE public.truth (object text, relation text, subject text, present boolean NOT NULL, condition text,"
    " context jsonb, PRIMARY KEY (object, relation, subject))";

const char txgen_model_json[] =
    "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},"
    "{\"type\":\"team\",\"relations\":{\"member\":{\"this\":{}}},"
    "\"metadata\":{\"relations\":{\"member\":{\"directly_related_user_types\":[{\"type\":\"user\"}]}}}},"
    "{\"type\":\"doc\",\"relations\":{\"viewer\":{\"this\":{}},\"editor\":{\"this\":{}}},"
    "\"metadata\":{\"relations\":{"
    "\"viewer\":{\"directly_related_user_types\":[{\"type\":\"user\"},{\"type\":\"user\",\"wildcard\":{}},"
    "{\"type\":\"user\",\"condition\":\"below\"},{\"type\":\"team\",\"relation\":\"member\"}]},"
    "\"editor\":{\"directly_related_user_types\":[{\"type\":\"user\"},{\"type\":\"team\",\"relation\":\"member\"}]}}}}]"
    ","
    "\"conditions\":{\"below\":{\"name\":\"below\",\"expression\":\"x < limit\",\"parameters\":{"
    "\"x\":{\"type_name\":\"TYPE_NAME_INT\"},\"limit\":{\"type_name\":\"TYPE_NAME_INT\"}}}}}";

void txgen_init(struct txgen *g, uint64_t seed, int client)
{
    *g = (struct txgen){.state = seed * 0x9e3779b97f4a7c15u + (uint64_t)client * 0xd1b54a32d192ed03u + 1,
                        .client = client};
}

/* splitmix64 */
static uint64_t next(struct txgen *g)
{
    uint64_t z = g->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

unsigned txgen_below(struct txgen *g, unsigned n)
{
    return (unsigned)(next(g) % n);
}

struct change {
    char object[32], relation[16], subject[32];
    int limit; /* of the condition; -1 = none */
};

static struct change pick(struct txgen *g)
{
    struct change c = {.limit = -1};
    if (txgen_below(g, 6) == 0) {
        (void)snprintf(c.object, sizeof c.object, "team:t%u", txgen_below(g, 5));
        (void)snprintf(c.relation, sizeof c.relation, "member");
        (void)snprintf(c.subject, sizeof c.subject, "user:u%u", txgen_below(g, USERS));
        return c;
    }
    bool viewer = txgen_below(g, 3) > 0;
    unsigned who = txgen_below(g, 10);
    (void)snprintf(c.object, sizeof c.object, "doc:o%u", txgen_below(g, OBJECTS));
    (void)snprintf(c.relation, sizeof c.relation, "%s", viewer ? "viewer" : "editor");
    if (who == 0 && viewer)
        (void)snprintf(c.subject, sizeof c.subject, "user:*");
    else if (who <= 2)
        (void)snprintf(c.subject, sizeof c.subject, "team:t%u#member", txgen_below(g, 5));
    else
        (void)snprintf(c.subject, sizeof c.subject, "user:u%u", txgen_below(g, USERS));
    /* Conditions only where the model allows them, and on some users always, so that changes of a condition are common.
     */
    if (viewer && strncmp(c.subject, "user:u", 6) == 0 && txgen_below(g, 3) == 0)
        c.limit = (int)txgen_below(g, 3);
    return c;
}

static void truth(struct buf *sql, const struct change *c, bool present)
{
    buf_addf(sql, "INSERT INTO public.truth VALUES ('%s','%s','%s',%s,", c->object, c->relation, c->subject,
             present ? "true" : "false");
    if (present && c->limit >= 0)
        buf_addf(sql, "'below','{\"limit\":%d}'", c->limit);
    else
        buf_adds(sql, "NULL,NULL");
    buf_adds(sql, ") ON CONFLICT (object, relation, subject) DO UPDATE SET present = EXCLUDED.present,"
                  " condition = EXCLUDED.condition, context = EXCLUDED.context;\n");
}

static void condition_args(struct buf *sql, const struct change *c)
{
    if (c->limit >= 0)
        buf_addf(sql, "'below','{\"limit\":%d}'", c->limit);
    else
        buf_adds(sql, "NULL,NULL");
}

static void grant(struct txgen *g, struct buf *sql, const struct change *c)
{
    if (txgen_below(g, 2)) {
        buf_addf(sql, "SELECT relata.write_tuple('%s','%s','%s',", c->object, c->relation, c->subject);
        condition_args(sql, c);
        buf_adds(sql, ");\n");
    } else {
        buf_addf(sql,
                 "INSERT INTO relata.outbox (op, object, relation, subject, condition_name, condition_context)"
                 " VALUES ('write','%s','%s','%s',",
                 c->object, c->relation, c->subject);
        condition_args(sql, c);
        buf_adds(sql, ");\n");
    }
    truth(sql, c, true);
}

static void revoke(struct txgen *g, struct buf *sql, const struct change *c)
{
    if (txgen_below(g, 2))
        buf_addf(sql, "SELECT relata.delete_tuple('%s','%s','%s');\n", c->object, c->relation, c->subject);
    else
        buf_addf(sql, "INSERT INTO relata.outbox (op, object, relation, subject) VALUES ('delete','%s','%s','%s');\n",
                 c->object, c->relation, c->subject);
    truth(sql, c, false);
}

/* A set form over several subjects of one object. */
static unsigned set_form(struct txgen *g, struct buf *sql)
{
    unsigned n = 2 + txgen_below(g, 8), object = txgen_below(g, OBJECTS), first = txgen_below(g, USERS);
    bool present = txgen_below(g, 2);
    buf_addf(sql, "SELECT relata.%s_tuples(ARRAY[", present ? "write" : "delete");
    for (unsigned i = 0; i < n; i++)
        buf_addf(sql, "%s'doc:o%u'", i ? "," : "", object);
    buf_adds(sql, "],ARRAY[");
    for (unsigned i = 0; i < n; i++)
        buf_addf(sql, "%s'editor'", i ? "," : "");
    buf_adds(sql, "],ARRAY[");
    for (unsigned i = 0; i < n; i++)
        buf_addf(sql, "%s'user:u%u'", i ? "," : "", (first + i) % USERS);
    buf_adds(sql, "]);\n");
    for (unsigned i = 0; i < n; i++) {
        struct change c = {.limit = -1, .relation = "editor"};
        (void)snprintf(c.object, sizeof c.object, "doc:o%u", object);
        (void)snprintf(c.subject, sizeof c.subject, "user:u%u", (first + i) % USERS);
        truth(sql, &c, present);
    }
    return n;
}

/* Grants to a subject that is erased, or on an object that is deleted, at some time: before, meanwhile, or again after.
 * All clients share the names, so that grants and ends overlap. */
static unsigned mortal(struct txgen *g, struct buf *sql)
{
    bool subject = txgen_below(g, 2);
    unsigned name = g->made / 100 + txgen_below(g, 4);
    if (txgen_below(g, 5) == 0)
        buf_addf(sql, "SELECT relata.%s%u');\n", subject ? "erase_subject('user:e" : "delete_object('doc:d", name);
    else if (subject)
        buf_addf(sql, "SELECT relata.write_tuple('doc:o%u','viewer','user:e%u');\n", txgen_below(g, OBJECTS), name);
    else
        buf_addf(sql, "SELECT relata.write_tuple('doc:d%u','viewer','user:u%u');\n", name, txgen_below(g, USERS));
    return 1;
}

static unsigned operation(struct txgen *g, struct buf *sql)
{
    struct change c = pick(g);
    switch (txgen_below(g, 12)) {
    case 0: /* a condition comes, goes or changes */
        (void)snprintf(c.object, sizeof c.object, "doc:o%u", txgen_below(g, 5));
        (void)snprintf(c.relation, sizeof c.relation, "viewer");
        (void)snprintf(c.subject, sizeof c.subject, "user:u%u", txgen_below(g, 5));
        c.limit = (int)txgen_below(g, 4) - 1;
        grant(g, sql, &c);
        return 1;
    case 1: /* granted, revoked and granted again */
        grant(g, sql, &c);
        revoke(g, sql, &c);
        grant(g, sql, &c);
        return 3;
    case 2:
        revoke(g, sql, &c);
        grant(g, sql, &c);
        return 2;
    case 3: /* changes nothing the second time */
        grant(g, sql, &c);
        grant(g, sql, &c);
        return 2;
    case 4:
        return set_form(g, sql);
    case 5:
        return mortal(g, sql);
    case 6: { /* undone by a savepoint */
        buf_adds(sql, "SAVEPOINT s;\n");
        grant(g, sql, &c);
        if (txgen_below(g, 2)) {
            buf_adds(sql, "ROLLBACK TO SAVEPOINT s;\n");
            return 0;
        }
        buf_adds(sql, "RELEASE SAVEPOINT s;\n");
        return 1;
    }
    case 7:
    case 8:
    case 9:
        revoke(g, sql, &c);
        return 1;
    default:
        grant(g, sql, &c);
        return 1;
    }
}

unsigned txgen_next(struct txgen *g, struct buf *sql)
{
    buf_clear(sql);
    buf_adds(sql, "BEGIN");
    unsigned dice = txgen_below(g, 20);
    if (dice == 0)
        buf_adds(sql, " ISOLATION LEVEL REPEATABLE READ");
    buf_adds(sql, ";\n");
    if (dice >= 1 && dice <= 5)
        buf_adds(sql, "SET LOCAL synchronous_commit = off;\n");
    unsigned n = 1 + txgen_below(g, 6), made = 0;
    for (unsigned i = 0; i < n; i++)
        made += operation(g, sql);
    /* Some stay open for a while, so that commits come in another order than ids. */
    if (txgen_below(g, 4) == 0)
        buf_addf(sql, "SELECT pg_sleep(%u * 0.001);\n", 1 + txgen_below(g, 40));
    if (txgen_below(g, 10) == 0) {
        buf_adds(sql, "ROLLBACK");
        made = 0;
    } else {
        buf_adds(sql, "COMMIT");
    }
    g->made += made;
    return made;
}
