/* lister_helpers.h - collections declared and checked, for tests of the lister's SQL. */
#ifndef RELATA_TESTS_LISTER_HELPERS_H
#define RELATA_TESTS_LISTER_HELPERS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inventory-lister/collections/collection.h"
#include "tests/harness/harness.h"

#define DECLARE_MAX 32

static inline struct model *lister_model(void)
{
    static const char json[] =
        "{\"schema_version\":\"1.1\",\"type_definitions\":[{\"type\":\"user\"},{\"type\":\"thing\",\"relations\":"
        "{\"viewer\":{\"this\":{}},\"editor\":{\"this\":{}}},\"metadata\":{\"relations\":{"
        "\"viewer\":{\"directly_related_user_types\":[{\"type\":\"user\"}]},"
        "\"editor\":{\"directly_related_user_types\":[{\"type\":\"user\"}]}}}}]}";
    struct model_err why;
    struct model *m = NULL;

    if (!model_parse(&m, json, sizeof json - 1, &why))
        fail_msg("%s", why.text);
    return m;
}

/* "t.table = public.t\nt.id = id\n.." as from relata.conf from line 1 on, parsed and checked through `pg`. */
static inline enum status lister_declare(struct collections *out, struct pg *pg, const char *text, struct err *err)
{
    struct cfg_map_item items[DECLARE_MAX];
    char origins[DECLARE_MAX][32], *copy = strdup(text), *save = NULL;
    struct cfg_map map = {.items = items};
    struct model *m = lister_model();
    enum status st;

    assert_non_null(copy);
    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *value = strstr(line, " = ");

        if (!value || map.len == DECLARE_MAX)
            fail_msg("cannot declare: %s", line);
        *value = '\0';
        snprintf(origins[map.len], sizeof origins[0], "relata.conf:%zu", map.len + 1);
        items[map.len] = (struct cfg_map_item){line, value + 3, origins[map.len]};
        map.len++;
    }
    *err = (struct err){0};
    st = collections_parse(out, &map, err);
    if (st == ST_OK)
        st = collections_check(out, pg, m, deadline_in_ms(harness_ms(20000)), err);
    model_free(m);
    free(copy);
    return st;
}

#endif
