/*
 * model_valid_test.c - what a model, a tuple and a condition's context are refused for: OpenFGA 1.22.1's own messages,
 * each read off a running one.
 */
#include <stdio.h>
#include <string.h>

#include "engine/model.h"
#include "tests/harness/harness.h"

/* ---- models ---- */

#define USER "{\"type\":\"user\"}"
#define OF(types) "{\"directly_related_user_types\":[" types "]}"
#define TYPE(type) "{\"type\":\"" type "\"}"
#define USERSET(type, relation) "{\"type\":\"" type "\",\"relation\":\"" relation "\"}"
#define THIS "{\"this\":{}}"
#define COMPUTED(relation) "{\"computedUserset\":{\"relation\":\"" relation "\"}}"
#define FROM(relation, tupleset)                                                                                       \
    "{\"tupleToUserset\":{\"tupleset\":{\"relation\":\"" tupleset "\"},\"computedUserset\":{\"relation\":\"" relation  \
    "\"}}}"
#define DOC(relations, restrictions)                                                                                   \
    "{\"type\":\"doc\",\"relations\":{" relations "},\"metadata\":{\"relations\":{" restrictions "}}}"

struct refused {
    const char *types, *why; /* why NULL: it is taken */
    const char *conditions, *schema, *code;
};

static const struct refused models[] = {
    {.types = USER, NULL},
    {.types = USER, "invalid schema version", .schema = "1.0"},
    {.types = USER "," USER, "an authorization model cannot contain duplicate types"},
    {.types = TYPE(""), "the type name of a type definition cannot be an empty string"},
    {.types = TYPE("this"), "the definition of type 'this' is invalid"},
    {.types = USER "," DOC("\"self\":" THIS, "\"self\":" OF(TYPE("user"))),
     "the definition of relation 'self' in object type 'doc' is invalid: self and this are reserved keywords"},
    {.types = USER "," DOC("\"a\":{}", ""),
     "the definition of relation 'a' in object type 'doc' is invalid: invalid userset rewrite definition"},
    {.types = USER "," DOC("\"a\":" COMPUTED("a"), ""),
     "the definition of relation 'a' in object type 'doc' is invalid: invalid userset rewrite definition"},
    {.types = USER "," DOC("\"a\":" COMPUTED("b"), ""), "'doc#b' relation is undefined"},
    {.types = USER "," DOC("\"a\":" FROM("b", "p"), ""), "'doc#p' relation is undefined"},
    {.types = USER "," DOC("\"a\":" FROM("b", "c") ",\"b\":" THIS ",\"c\":" COMPUTED("b"), "\"b\":" OF(TYPE("user"))),
     "the 'doc#c' relation is referenced in at least one tupleset and thus must be a direct relation"},
    {.types = USER "," DOC("\"a\":" FROM("b", "p") ",\"p\":" THIS, "\"p\":" OF(TYPE("user") "," USERSET("doc", "p"))),
     "undefined relation: b does not appear as a relation in any of the directly related user types [type:\"user\" "
     "type:\"doc\" relation:\"p\"]"},
    {.types = USER "," DOC("\"a\":" THIS, ""),
     "the assignable relation 'a' in object type 'doc' must contain at least one relation type"},
    {.types = USER "," DOC("\"a\":" COMPUTED("b") ",\"b\":" THIS, "\"a\":" OF(TYPE("user")) ",\"b\":" OF(TYPE("user"))),
     "the non-assignable relation 'a' in object type 'doc' should not contain a relation type"},
    {.types = USER "," DOC("\"a\":" THIS, "\"a\":" OF(TYPE("team"))),
     "the relation type 'team' on 'a' in object type 'doc' is not valid"},
    {.types = USER "," DOC("\"a\":" THIS, "\"a\":" OF(USERSET("user", "b"))),
     "the relation type 'user#b' on 'a' in object type 'doc' is not valid"},
    {.types = USER "," DOC("\"a\":" THIS, "\"a\":" OF(USERSET("user", ""))),
     "the relation type 'user' on 'a' in object type 'doc' has an empty relation reference: empty relation reference"},
    {.types = USER "," DOC("\"a\":" FROM("a", "p") ",\"p\":" THIS, "\"p\":" OF(USERSET("doc", "p") "," TYPE("doc"))),
     "the definition of relation 'a' in object type 'doc' is invalid: no entrypoints defined"},
    {.types = USER "," DOC("\"p\":" THIS ",\"z\":" FROM("p", "p"), "\"p\":" OF(TYPE("doc") "," USERSET("doc", "p"))),
     "the relation type 'doc#p' on 'p' in object type 'doc' is not valid"},
    {.types = USER "," DOC("\"a\":" THIS, "\"a\":" OF(USERSET("doc", "a"))),
     "the definition of relation 'a' in object type 'doc' is invalid: no entrypoints defined"},
    {.types = USER "," DOC("\"a\":" COMPUTED("b") ",\"b\":" COMPUTED("a"), ""),
     "the definition of relation 'a' in object type 'doc' is invalid: potential loop"},
    {.types = USER "," DOC("\"a\":{\"union\":{\"child\":[" THIS
                           "," COMPUTED("b") "]}},\"b\":{\"union\":{\"child\":[" THIS "," COMPUTED("a") "]}}",
                           "\"a\":" OF(TYPE("user")) ",\"b\":" OF(TYPE("user"))),
     "the definition of relation 'a' in object type 'doc' is invalid: an authorization model cannot contain a cycle"},
    {.types = USER "," DOC("\"a\":{\"union\":{\"child\":[" THIS "]}}", "\"a\":" OF(TYPE("user"))),
     "invalid relation: 'doc#a' as union has less than 2 children"},
    /* What a relation leads to may not have been judged yet. */
    {.types = USER "," DOC("\"a\":" COMPUTED("b") ",\"b\":" THIS, "\"b\":" OF(USERSET("user", "x"))),
     "undefined type definition for 'user#x'"},
    {.types = USER "," DOC("\"a\":" COMPUTED("b") ",\"b\":" THIS, "\"b\":" OF(USERSET("team", "x"))),
     "undefined type definition for 'team#x'"},
    {.types = USER "," DOC("\"a\":" COMPUTED("b") ",\"b\":" FROM("x", "y"), ""),
     "undefined type definition for 'doc#y'"},
    {.types = USER "," DOC("\"a\":" COMPUTED("b") ",\"b\":" COMPUTED("c"), ""),
     "undefined type definition for 'doc#c'"},
    {.types = USER "," DOC("\"a\":" COMPUTED("b") ",\"b\":{}", ""), "error validating model"},
    {.types = USER "," DOC("\"a\":" COMPUTED("b") ",\"b\":{\"union\":{\"child\":[" THIS "," COMPUTED("c") "]}}",
                           "\"b\":" OF(TYPE("user"))),
     "'doc#c' relation is undefined"},
    {.types = USER "," DOC("\"a\":" THIS, "\"a\":" OF("{\"type\":\"user\",\"condition\":\"c\"}")),
     "condition c is undefined for relation a"},
    {.types = USER, "condition key 'c' does not match condition name 'd'", .conditions = "{\"c\":{\"name\":\"d\"}}"},
    {.types = USER,
     "failed to compile expression on condition 'c' - failed to decode parameter type for parameter 'x': condition "
     "parameter type `TYPE_NAME_LIST` requires 1 generic types; found 0",
     .conditions = "{\"c\":{\"name\":\"c\",\"expression\":\"true\",\"parameters\":{\"x\":{\"type_name\":"
                   "\"TYPE_NAME_LIST\"}}}}"},
    {.types = USER "," DOC("\"a\":" THIS, "\"a\":" OF("{\"type\":\"user\",\"condition\":\"$expression\"}")),
     "$expression requires the \"inline_expressions\" experimental feature flag",
     .schema = "1.0",
     .code = "validation_error"},
};

static void test_models(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct refused *m = &models[i];
        struct model_err err = {.text = ""};
        char json[4096];
        snprintf(json, sizeof json, "{\"schema_version\":\"%s\",\"type_definitions\":[%s],\"conditions\":%s}",
                 m->schema ? m->schema : "1.1", m->types, m->conditions ? m->conditions : "{}");
        if (model_valid(json, strlen(json), &err) != !m->why)
            fail_msg("%s: %s", json, err.text);
        if (m->why) {
            assert_string_equal(err.text, m->why);
            assert_string_equal(err.code, m->code ? m->code : "invalid_authorization_model");
        }
    }
}

/* Each type's relation is looked for twice in the next: 2^99 ways, none of which ends at a user. */
static void test_a_model_made_to_take_forever_is_refused(void **state)
{
    (void)state;
    static char json[1 << 17];
    size_t n = (size_t)snprintf(json, sizeof json, "{\"schema_version\":\"1.1\",\"type_definitions\":[" USER);
    for (int i = 0; i < 98; i++)
        n += (size_t)snprintf(
            json + n, sizeof json - n,
            ",{\"type\":\"t%d\",\"relations\":{\"a\":{\"union\":{\"child\":[{\"tupleToUserset\":{\"tupleset\":{"
            "\"relation\":\"p\"},\"computedUserset\":{\"relation\":\"a\"}}},{\"tupleToUserset\":{\"tupleset\":{"
            "\"relation\":\"p\"},\"computedUserset\":{\"relation\":\"a\"}}}]}},\"p\":{\"this\":{}}},\"metadata\":{"
            "\"relations\":{\"p\":{\"directly_related_user_types\":[{\"type\":\"t%d\"}]}}}}",
            i, (i + 1) % 98);
    snprintf(json + n, sizeof json - n, "]}");
    struct model_err err;
    assert_false(model_valid(json, strlen(json), &err));
    assert_string_equal(err.text, "the model's relations lead to each other in too many ways");
}

/* ---- tuples ---- */

static const char by_hand[] =
    "{\"schema_version\":\"1.1\",\"type_definitions\":[" USER ",{\"type\":\"group\",\"relations\":{\"member\":" THIS
    "},\"metadata\":{\"relations\":{\"member\":" OF(TYPE("user") "," USERSET(
        "group",
        "member") ",{"
                  "\"type\":"
                  "\"user\","
                  "\"wildcard"
                  "\":{}}") "}}}," DOC("\"v\":" THIS ",\"w\":" COMPUTED("v") ",\"p\":" THIS ",\"x\":" FROM("v", "p"),
                                       "\"v\":" OF(
                                           TYPE("user") ",{\"type\":\"user\",\"condition\":\"c1\"},{\"type\":\"user\","
                                                        "\"condition\":\"c0\"},"
                                                        "{\"type\":\"user\",\"wildcard\":{},\"condition\":\"c2\"},"
                                                        "{\"type\":\"group\",\"relation\":\"member\",\"condition\":"
                                                        "\"c2\"}") ","
                                                                   "\"p\":" OF(TYPE("doc"))) "],"
                                                                                             "\"co"
                                                                                             "ndit"
                                                                                             "ions"
                                                                                             "\":{"
                                                                                             "\"c0"
                                                                                             "\":{"
                                                                                             "\"na"
                                                                                             "me\""
                                                                                             ":\"c"
                                                                                             "0\","
                                                                                             "\"ex"
                                                                                             "pres"
                                                                                             "sion"
                                                                                             "\":"
                                                                                             "\"tr"
                                                                                             "ue\""
                                                                                             "},"
                                                                                             "\"c2"
                                                                                             "\":{"
                                                                                             "\"na"
                                                                                             "me\""
                                                                                             ":\"c"
                                                                                             "2\","
                                                                                             "\"ex"
                                                                                             "pres"
                                                                                             "sion"
                                                                                             "\":"
                                                                                             "\"x="
                                                                                             "=1\""
                                                                                             ",\"p"
                                                                                             "aram"
                                                                                             "eter"
                                                                                             "s\":"
                                                                                             "{\"x"
                                                                                             "\":{"
                                                                                             "\"ty"
                                                                                             "pe_"
                                                                                             "name"
                                                                                             "\":"
                                                                                             "\"TY"
                                                                                             "PE_"
                                                                                             "NAME"
                                                                                             "_INT"
                                                                                             "\"}}"
                                                                                             "},"
                                                                                             "\"c1"
                                                                                             "\":{"
                                                                                             "\"na"
                                                                                             "me\""
                                                                                             ":\"c"
                                                                                             "1\","
                                                                                             "\"ex"
                                                                                             "pres"
                                                                                             "sion"
                                                                                             "\":"
                                                                                             "\"tr"
                                                                                             "ue\""
                                                                                             ",\"p"
                                                                                             "aram"
                                                                                             "eter"
                                                                                             "s\":"
                                                                                             "{"
#define PARAMETER(name, type) "\"" name "\":{\"type_name\":\"TYPE_NAME_" type "\"}"
#define GENERIC(name, type, of)                                                                                        \
    "\"" name "\":{\"type_name\":\"TYPE_NAME_" type "\",\"generic_types\":[{\"type_name\":\"TYPE_NAME_" of "\"}]}"
    PARAMETER("bool", "BOOL") "," PARAMETER("string", "STRING") "," PARAMETER("int", "INT") "," PARAMETER(
        "uint",
        "UIN"
        "T") "," PARAMETER("double",
                           "DOUBLE") "," PARAMETER("duration",
                                                   "DURATION") "," PARAMETER("time",
                                                                             "TIMESTAMP") "," PARAMETER("ip",
                                                                                                        "IPADDRES"
                                                                                                        "S") "," PARAMETER("any",
                                                                                                                           "ANY") "," GENERIC("list",
                                                                                                                                              "LIST",
                                                                                                                                              "STRING") "," GENERIC("map",
                                                                                                                                                                    "MAP",
                                                                                                                                                                    "INT") "}}}}";

static int open_model(void **state)
{
    struct model *m;
    struct model_err err;
    assert_true(model_valid(by_hand, strlen(by_hand), &err));
    if (!model_parse(&m, by_hand, strlen(by_hand), &err))
        fail_msg("%s", err.text);
    *state = m;
    return 0;
}

static int close_model(void **state)
{
    model_free(*state);
    return 0;
}

struct tuple {
    const char *object, *relation, *subject, *condition, *context;
    enum model_fault fault;
    const char *why;
};

static const struct tuple tuples[] = {
    {"doc:1", "v", "user:a", NULL, NULL, MODEL_FITS, ""},
    {"doc:1", "v", "user:a b", NULL, NULL, MODEL_MALFORMED, "the 'user' field is malformed"},
    {"doc:1", "v", "group:*#member", NULL, NULL, MODEL_MALFORMED, "the 'user' field is malformed"},
    {"doc:1", "v", "a:b:c", NULL, NULL, MODEL_MALFORMED, "the 'user' field is malformed"},
    {"doc:1", "v", "anne", NULL, NULL, MODEL_MALFORMED,
     "the 'user' field must be an object (e.g. document:1) or an 'object#relation' or a typed wildcard (e.g. "
     "group:*)"},
    {"doc:1", "v", "team:a", NULL, NULL, MODEL_NO_TYPE, "type 'team' not found"},
    {"doc:1", "v", "group:a#x", NULL, NULL, MODEL_NO_RELATION, "relation 'group#x' not found"},
    {"doc", "v", "user:a", NULL, NULL, MODEL_MALFORMED, "invalid 'object' field format"},
    {"doc:*", "v", "user:a", NULL, NULL, MODEL_MALFORMED, "the 'object' field cannot reference a typed wildcard"},
    {"team:1", "v", "user:a", NULL, NULL, MODEL_NO_TYPE, "type 'team' not found"},
    {"doc:1", "v#", "user:a", NULL, NULL, MODEL_MALFORMED, "the 'relation' field is malformed"},
    {"doc:1", "z", "user:a", NULL, NULL, MODEL_NO_RELATION, "relation 'doc#z' not found"},
    {"doc:1", "p", "doc:*", NULL, NULL, MODEL_RESTRICTED,
     "unexpected wildcard relationship with tupleset relation 'doc#p'"},
    {"doc:1", "p", "doc:2#v", NULL, NULL, MODEL_RESTRICTED, "unexpected user 'doc:2#v' with tupleset relation 'doc#p'"},
    {"doc:1", "w", "user:a", NULL, NULL, MODEL_RESTRICTED,
     "type 'user' is not an allowed type restriction for 'doc#w'"},
    {"doc:1", "v", "doc:1#v", NULL, NULL, MODEL_RESTRICTED, "'doc#v' is not an allowed type restriction for 'doc#v'"},
    {"doc:1", "v", "doc:*", NULL, NULL, MODEL_RESTRICTED,
     "the typed wildcard 'doc:*' is not an allowed type restriction for 'doc#v'"},
    {"doc:1", "v", "user:*", NULL, NULL, MODEL_CONDITION, "condition is missing"},
    {"doc:1", "v", "user:a", "c9", NULL, MODEL_CONDITION, "undefined condition"},
    {"doc:1", "v", "user:a", "c2", NULL, MODEL_CONDITION, "invalid condition for type restriction"},
    {"doc:1", "v", "user:*", "c1", NULL, MODEL_CONDITION, "invalid condition for type restriction"},
    {"doc:1", "v", "user:a", "$expression", NULL, MODEL_CONDITION, "invalid condition for type restriction"},
    {"doc:1", "v", "user:*", "c2", "{\"x\":1}", MODEL_FITS, ""},
    {"doc:1", "v", "user:a", "c1", "{\"y\":1}", MODEL_CONDITION, "found invalid context parameter: y"},
    {"doc:1", "v", "user:a", "c1", "{\"any\":[\"a\\u0001\\u0085\"]}", MODEL_CONDITION,
     "context value \"a\\x01\\u0085\" contains forbidden characters"},
    {"doc:1", "v", "user:a", "c1", "{\"any\":{\"\\n\":1}}", MODEL_CONDITION,
     "context key \"\\n\" contains forbidden characters"},
    {"doc:1", "v", "user:a", "c0", "{\"x\":1}", MODEL_CONDITION,
     "parameter type error on condition 'c0' - no parameters defined for the condition"},
};

static void test_tuples(void **state)
{
    for (size_t i = 0; i < sizeof tuples / sizeof *tuples; i++) {
        const struct tuple *t = &tuples[i];
        struct model_err err = {.text = ""};
        enum model_fault f =
            model_check_tuple(*state, t->object, t->relation, t->subject, t->condition, t->context, &err);
        if (f != t->fault || (f != MODEL_FITS && strcmp(err.text, t->why) != 0))
            fail_msg("%s#%s@%s: %d %s", t->object, t->relation, t->subject, (int)f, err.text);
        /* A question need not obey restrictions. */
        if (t->fault == MODEL_RESTRICTED || t->fault == MODEL_CONDITION)
            assert_int_equal(model_check_names(*state, t->object, t->relation, t->subject, &err), MODEL_FITS);
    }
}

static const struct {
    const char *context, *why; /* NULL: it fits */
} contexts[] = {
    {"{}", NULL},
    {"{\"any\":null}", NULL},
    {"{\"bool\":true}", NULL},
    {"{\"bool\":\"true\"}", "'bool': expected type value 'bool', but found 'string'"},
    {"{\"string\":1}", "'string': expected type value 'string', but found 'float64'"},
    {"{\"string\":null}", "'string': expected type value 'string', but found '%!s(<nil>)'"},
    {"{\"int\":\"1e3\"}", NULL},
    {"{\"int\":\"1e400\"}", NULL},
    {"{\"int\":[]}", "'int': expected type value 'int64', but found '[]interface {}'"},
    {"{\"int\":1.5}", "'int': expected an int value, but found numeric value '1.5'"},
    {"{\"int\":\"+Inf\"}", "'int': expected an int value, but found numeric value '+Inf'"},
    {"{\"int\":\"0x10\"}", "'int': expected a int64 value, but found invalid string value '0x10'"},
    {"{\"int\":\"\"}", "'int': expected a int64 value, but found invalid string value ''"},
    {"{\"uint\":-1}", "'uint': expected a uint value, but found int64 value '-1'"},
    {"{\"double\":\"0.5\"}", NULL},
    {"{\"double\":\"0.1\"}", "'double': number cannot be represented as a float64: 0.1"},
    {"{\"duration\":\"-1h2.5m\"}", NULL},
    {"{\"duration\":\"9223372037s\"}", "'duration': expected a valid duration string, but found: '9223372037s'"},
    {"{\"duration\":\"1\"}", "'duration': expected a valid duration string, but found: '1'"},
    {"{\"duration\":[1234567.5,{\"b\":null,\"a\":true},\"x\"]}",
     "'duration': expected a duration string, but found: []interface {} '[1.2345675e+06 map[a:true b:<nil>] x]'"},
    {"{\"time\":\"2024-02-29T00:00:00.123+02:00\"}", NULL},
    {"{\"time\":\"2023-02-29T00:00:00Z\"}",
     "'time': expected RFC 3339 formatted timestamp string, but found '2023-02-29T00:00:00Z'"},
    {"{\"time\":\"2023-02-28T00:00:00\"}",
     "'time': expected RFC 3339 formatted timestamp string, but found '2023-02-28T00:00:00'"},
    {"{\"ip\":\"::ffff:1.2.3.4\"}", NULL},
    {"{\"ip\":\"fe80::1%eth0\"}", NULL},
    {"{\"ip\":\"01.2.3.4\"}", "'ip': expected a well-formed IP address, but found: '01.2.3.4'"},
    {"{\"list\":\"a\"}", "'list': list requires a list, found: string"},
    {"{\"list\":[\"a\",1]}",
     "'list': found an invalid list item at index `1`: expected type value 'string', but found 'float64'"},
    {"{\"map\":{\"k\":1}}", NULL},
    {"{\"map\":{\"k\":true}}",
     "'map': found an invalid value for key 'k': expected type value 'int64', but found 'bool'"},
};

static void test_contexts(void **state)
{
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++) {
        struct model_err err = {.text = ""};
        char want[512];
        enum model_fault f = model_check_tuple(*state, "doc:1", "v", "user:a", "c1", contexts[i].context, &err);
        snprintf(want, sizeof want, "parameter type error on condition 'c1' - failed to convert context parameter %s",
                 contexts[i].why ? contexts[i].why : "");
        if (f != (contexts[i].why ? MODEL_CONDITION : MODEL_FITS) || (contexts[i].why && strcmp(err.text, want) != 0))
            fail_msg("%s: %d %s", contexts[i].context, (int)f, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_a_model_made_to_take_forever_is_refused),
        cmocka_unit_test_setup_teardown(test_tuples, open_model, close_model),
        cmocka_unit_test_setup_teardown(test_contexts, open_model, close_model),
    };
    return cmocka_run_group_tests_name("model_valid", tests, NULL, NULL);
}
