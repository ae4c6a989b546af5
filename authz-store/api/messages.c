/* messages.c - the tables of schema.h. */
#include "authz-store/api/schema.h"

#define END                                                                                                            \
    {                                                                                                                  \
        .name = NULL                                                                                                   \
    }
#define MODEL_ID                                                                                                       \
    {                                                                                                                  \
        .name = "authorization_model_id", .label = "AuthorizationModelId", .kind = FIELD_STRING,                       \
        .pattern = PATTERN_ID, .may_be_empty = true                                                                    \
    }
#define CONSISTENCY                                                                                                    \
    {                                                                                                                  \
        .name = "consistency", .label = "Consistency", .kind = FIELD_ENUM                                              \
    }
#define CONTEXT                                                                                                        \
    {                                                                                                                  \
        .name = "context", .label = "Context", .kind = FIELD_STRUCT                                                    \
    }
#define TOKEN                                                                                                          \
    {                                                                                                                  \
        .name = "continuation_token", .label = "ContinuationToken", .kind = FIELD_STRING, .bytes_max = 5120,           \
        .pattern = PATTERN_TOKEN                                                                                       \
    }
#define TEXT(n, l, p)                                                                                                  \
    {                                                                                                                  \
        .name = n, .label = l, .kind = FIELD_STRING, .pattern = p                                                      \
    }
#define TEXT_OR_EMPTY(n, l, p)                                                                                         \
    {                                                                                                                  \
        .name = n, .label = l, .kind = FIELD_STRING, .pattern = p, .may_be_empty = true                                \
    }
#define TEXT_MAX(n, l, max)                                                                                            \
    {                                                                                                                  \
        .name = n, .label = l, .kind = FIELD_STRING, .bytes_max = max                                                  \
    }
#define MESSAGE(n, l, m)                                                                                               \
    {                                                                                                                  \
        .name = n, .label = l, .kind = FIELD_MESSAGE, .of = &m                                                         \
    }
#define REQUIRED(n, l, m)                                                                                              \
    {                                                                                                                  \
        .name = n, .label = l, .kind = FIELD_MESSAGE, .of = &m, .required = true                                       \
    }
#define ONE_OF(n, l, m)                                                                                                \
    {                                                                                                                  \
        .name = n, .label = l, .kind = FIELD_MESSAGE, .of = &m, .one_of = true                                         \
    }
#define LIST(n, l, m, min, max)                                                                                        \
    {                                                                                                                  \
        .name = n, .label = l, .kind = FIELD_LIST, .of = &m, .items_min = min, .items_max = max                        \
    }
#define MAP(n, l, m, max)                                                                                              \
    {                                                                                                                  \
        .name = n, .label = l, .kind = FIELD_MAP, .of = &m, .items_max = max, .pattern = PATTERN_RELATION              \
    }
#define DEFINE(var, text, ...)                                                                                         \
    static const struct field var##_fields[] = {__VA_ARGS__, END};                                                     \
    const struct message var = {text, var##_fields}
#define DEFINE_STATIC(var, text, ...)                                                                                  \
    static const struct field var##_fields[] = {__VA_ARGS__, END};                                                     \
    static const struct message var = {text, var##_fields}

/* ---- tuples ---- */

DEFINE_STATIC(condition_of_tuple, "RelationshipCondition", TEXT("name", "Name", PATTERN_OBJECT), CONTEXT);
DEFINE_STATIC(tuple_key, "TupleKey", TEXT_MAX("user", "User", 512),
              TEXT_OR_EMPTY("relation", "Relation", PATTERN_RELATION),
              TEXT_OR_EMPTY("object", "Object", PATTERN_OBJECT), MESSAGE("condition", "Condition", condition_of_tuple));
DEFINE_STATIC(bare_tuple_key, "TupleKeyWithoutCondition", TEXT_MAX("user", "User", 512),
              TEXT_OR_EMPTY("relation", "Relation", PATTERN_RELATION),
              TEXT_OR_EMPTY("object", "Object", PATTERN_OBJECT));
DEFINE_STATIC(contextual, "ContextualTupleKeys", LIST("tuple_keys", "TupleKeys", tuple_key, 0, 100));

/* ---- decisions ---- */

DEFINE_STATIC(check_key, "CheckRequestTupleKey", TEXT("user", "User", PATTERN_USER),
              TEXT("relation", "Relation", PATTERN_RELATION), TEXT("object", "Object", PATTERN_OBJECT));
DEFINE(message_check, "CheckRequest", REQUIRED("tuple_key", "TupleKey", check_key),
       MESSAGE("contextual_tuples", "ContextualTuples", contextual), MODEL_ID, CONTEXT, CONSISTENCY,
       {.name = "trace", .label = "Trace", .kind = FIELD_BOOL});
DEFINE_STATIC(batch_item, "BatchCheckItem", REQUIRED("tuple_key", "TupleKey", check_key),
              MESSAGE("contextual_tuples", "ContextualTuples", contextual), CONTEXT,
              TEXT("correlation_id", "CorrelationId", PATTERN_CORRELATION));
DEFINE(message_batch_check, "BatchCheckRequest", LIST("checks", "Checks", batch_item, 1, 0), MODEL_ID, CONSISTENCY);
#define LIST_OBJECTS                                                                                                   \
    MODEL_ID, TEXT("type", "Type", PATTERN_TYPE), TEXT("relation", "Relation", PATTERN_RELATION),                      \
        {.name = "user", .label = "User", .kind = FIELD_STRING, .bytes_min = 1, .bytes_max = 512},                     \
        MESSAGE("contextual_tuples", "ContextualTuples", contextual), CONTEXT, CONSISTENCY
DEFINE(message_list_objects, "ListObjectsRequest", LIST_OBJECTS);
DEFINE(message_streamed_list_objects, "StreamedListObjectsRequest", LIST_OBJECTS);
DEFINE_STATIC(object_message, "Object", TEXT("type", "Type", PATTERN_TYPE), TEXT("id", "Id", PATTERN_OBJECT_ID));
DEFINE_STATIC(user_filter, "UserTypeFilter", TEXT("type", "Type", PATTERN_TYPE),
              TEXT_OR_EMPTY("relation", "Relation", PATTERN_RELATION));
DEFINE(message_list_users, "ListUsersRequest", MODEL_ID, REQUIRED("object", "Object", object_message),
       TEXT("relation", "Relation", PATTERN_RELATION), LIST("user_filters", "UserFilters", user_filter, 1, 1),
       LIST("contextual_tuples", "ContextualTuples", tuple_key, 0, 100), CONTEXT, CONSISTENCY);
DEFINE_STATIC(expand_key, "ExpandRequestTupleKey", TEXT_OR_EMPTY("relation", "Relation", PATTERN_RELATION),
              TEXT_OR_EMPTY("object", "Object", PATTERN_OBJECT));
DEFINE(message_expand, "ExpandRequest", REQUIRED("tuple_key", "TupleKey", expand_key), MODEL_ID, CONSISTENCY,
       MESSAGE("contextual_tuples", "ContextualTuples", contextual));

/* ---- tuples of a store ---- */

DEFINE_STATIC(writes, "WriteRequestWrites", LIST("tuple_keys", "TupleKeys", tuple_key, 1, 0),
              TEXT_MAX("on_duplicate", "OnDuplicate", 0));
DEFINE_STATIC(deletes, "WriteRequestDeletes", LIST("tuple_keys", "TupleKeys", bare_tuple_key, 1, 0),
              TEXT_MAX("on_missing", "OnMissing", 0));
DEFINE(message_write, "WriteRequest", MESSAGE("writes", "Writes", writes), MESSAGE("deletes", "Deletes", deletes),
       MODEL_ID);
DEFINE_STATIC(read_key, "ReadRequestTupleKey",
              {.name = "user",
               .label = "User",
               .kind = FIELD_STRING,
               .bytes_max = 512,
               .pattern = PATTERN_READ_USER,
               .may_be_empty = true},
              TEXT_OR_EMPTY("relation", "Relation", PATTERN_RELATION),
              TEXT_OR_EMPTY("object", "Object", PATTERN_OBJECT));
DEFINE(message_read, "ReadRequest", MESSAGE("tuple_key", "TupleKey", read_key),
       {.name = "page_size", .label = "PageSize", .kind = FIELD_INT, .items_min = 1, .items_max = 100}, TOKEN,
       CONSISTENCY);

/* ---- stores, assertions ---- */

DEFINE(message_create_store, "CreateStoreRequest", TEXT("name", "Name", PATTERN_STORE_NAME));
DEFINE_STATIC(assertion_key, "AssertionTupleKey", TEXT("object", "Object", PATTERN_OBJECT),
              TEXT("relation", "Relation", PATTERN_RELATION), TEXT("user", "User", PATTERN_USER));
DEFINE_STATIC(assertion, "Assertion", REQUIRED("tuple_key", "TupleKey", assertion_key),
              {.name = "expectation", .label = "Expectation", .kind = FIELD_BOOL},
              LIST("contextual_tuples", "ContextualTuples", tuple_key, 0, 20), CONTEXT);
DEFINE(message_write_assertions, "WriteAssertionsRequest", LIST("assertions", "Assertions", assertion, 0, 100));
DEFINE(message_assertions, "Assertions", LIST("assertions", "Assertions", assertion, 0, 0));

/* ---- models ---- */

static const struct message userset;
DEFINE_STATIC(nothing, "Nothing", END);
DEFINE_STATIC(source_info, "SourceInfo", TEXT_OR_EMPTY("file", "File", PATTERN_FILE));
#define MODULE TEXT_OR_EMPTY("module", "Module", PATTERN_RELATION), MESSAGE("source_info", "SourceInfo", source_info)
DEFINE_STATIC(relation_reference, "RelationReference", TEXT("type", "Type", PATTERN_TYPE),
              {.name = "relation",
               .label = "Relation",
               .kind = FIELD_STRING,
               .pattern = PATTERN_RELATION,
               .may_be_empty = true,
               .one_of = true},
              ONE_OF("wildcard", "Wildcard", nothing), TEXT_OR_EMPTY("condition", "Condition", PATTERN_RELATION));
DEFINE_STATIC(relation_metadata, "RelationMetadata",
              LIST("directly_related_user_types", "DirectlyRelatedUserTypes", relation_reference, 0, 0), MODULE);
DEFINE_STATIC(metadata, "Metadata",
              {.name = "relations", .label = "Relations", .kind = FIELD_MAP, .of = &relation_metadata}, MODULE);
DEFINE_STATIC(object_relation, "ObjectRelation", TEXT_MAX("object", "Object", 256),
              TEXT_MAX("relation", "Relation", 50));
DEFINE_STATIC(tuple_to_userset, "TupleToUserset", REQUIRED("tupleset", "Tupleset", object_relation),
              REQUIRED("computedUserset", "ComputedUserset", object_relation));
DEFINE_STATIC(usersets, "Usersets", LIST("child", "Child", userset, 0, 0));
DEFINE_STATIC(difference, "Difference", REQUIRED("base", "Base", userset), REQUIRED("subtract", "Subtract", userset));
static const struct field userset_fields[] = {ONE_OF("this", "This", nothing),
                                              ONE_OF("computedUserset", "ComputedUserset", object_relation),
                                              ONE_OF("tupleToUserset", "TupleToUserset", tuple_to_userset),
                                              ONE_OF("union", "Union", usersets),
                                              ONE_OF("intersection", "Intersection", usersets),
                                              ONE_OF("difference", "Difference", difference),
                                              END};
static const struct message userset = {"Userset", userset_fields};
DEFINE_STATIC(type_definition, "TypeDefinition", TEXT("type", "Type", PATTERN_TYPE),
              MAP("relations", "Relations", userset, 0), MESSAGE("metadata", "Metadata", metadata));
static const char *const type_names[] = {"TYPE_NAME_UNSPECIFIED",
                                         "TYPE_NAME_ANY",
                                         "TYPE_NAME_BOOL",
                                         "TYPE_NAME_STRING",
                                         "TYPE_NAME_INT",
                                         "TYPE_NAME_UINT",
                                         "TYPE_NAME_DOUBLE",
                                         "TYPE_NAME_DURATION",
                                         "TYPE_NAME_TIMESTAMP",
                                         "TYPE_NAME_MAP",
                                         "TYPE_NAME_LIST",
                                         "TYPE_NAME_IPADDRESS",
                                         NULL};
static const struct message parameter;
static const struct field parameter_fields[] = {
    {.name = "type_name", .label = "TypeName", .kind = FIELD_ENUM, .names = type_names},
    LIST("generic_types", "GenericTypes", parameter, 0, 5),
    END};
static const struct message parameter = {"ConditionParamTypeRef", parameter_fields};
DEFINE_STATIC(condition_metadata, "ConditionMetadata", MODULE);
DEFINE_STATIC(condition, "Condition", TEXT("name", "Name", PATTERN_RELATION), TEXT_MAX("expression", "Expression", 512),
              MAP("parameters", "Parameters", parameter, 25), MESSAGE("metadata", "Metadata", condition_metadata));
#define SCHEMA_VERSION                                                                                                 \
    {                                                                                                                  \
        .name = "schema_version", .label = "SchemaVersion", .kind = FIELD_STRING, .pattern = PATTERN_SCHEMA            \
    }
DEFINE(message_write_model, "WriteAuthorizationModelRequest",
       LIST("type_definitions", "TypeDefinitions", type_definition, 1, 0), SCHEMA_VERSION,
       MAP("conditions", "Conditions", condition, 25));
DEFINE(message_model, "AuthorizationModel", TEXT("id", "Id", PATTERN_NONE), SCHEMA_VERSION,
       LIST("type_definitions", "TypeDefinitions", type_definition, 0, 0),
       MAP("conditions", "Conditions", condition, 25));
