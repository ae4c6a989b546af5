"""authz_sdk.py STORE_URL - a scenario with OpenFGA's Python SDK, over all that it can ask. Prints one line a step, without ids and
times, so that two stores can be compared line by line."""

import json
import re
import sys

from openfga_sdk import ReadRequestTupleKey
from openfga_sdk.client import ClientConfiguration
from openfga_sdk.client.models import (
    ClientReadChangesRequest,
    ClientAssertion,
    ClientBatchCheckItem,
    ClientBatchCheckRequest,
    ClientCheckRequest,
    ClientExpandRequest,
    ClientListObjectsRequest,
    ClientListRelationsRequest,
    ClientTuple,
    ClientWriteRequest,
)
from openfga_sdk.client.models.list_users_request import ClientListUsersRequest
from openfga_sdk.exceptions import ApiException
from openfga_sdk.models import CreateStoreRequest, FgaObject, UserTypeFilter
from openfga_sdk.models.write_authorization_model_request import WriteAuthorizationModelRequest
from openfga_sdk.sync import OpenFgaClient

MODEL = json.loads("""{"schema_version": "1.1", "type_definitions": [{"type": "user"},
 {"type": "team", "relations": {"member": {"this": {}}}, "metadata": {"relations": {"member": {"directly_related_user_types":
   [{"type": "user"}, {"type": "team", "relation": "member"}]}}}},
 {"type": "doc", "relations": {"editor": {"this": {}}, "viewer": {"union": {"child": [{"this": {}}, {"computedUserset":
   {"relation": "editor"}}]}}}, "metadata": {"relations": {"editor": {"directly_related_user_types": [{"type": "user"}]},
   "viewer": {"directly_related_user_types": [{"type": "user"}, {"type": "user", "wildcard": {}}, {"type": "team",
   "relation": "member"}]}}}}]}""")


def say(step, value):
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    print(step, re.sub(r"[0-9A-HJKMNP-TV-Z]{26}", "ID", text))


def plain(value):
    """What the SDK gives, as JSON, without what differs between stores."""
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, dict):
        return {k: "-" if k in ("id", "created_at", "updated_at", "timestamp", "continuation_token") else plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def fails(step, call):
    try:
        call()
        say(step, "no error")
    except ApiException as e:
        say(step, "%s %s" % (e.status, getattr(e, "code", "")))


with OpenFgaClient(ClientConfiguration(api_url=sys.argv[1])) as c:
    store = c.create_store(CreateStoreRequest(name="sdk"))
    c.set_store_id(store.id)
    say("store", plain(c.get_store()))
    model = c.write_authorization_model(WriteAuthorizationModelRequest(**{k: MODEL[k] for k in MODEL}))
    c.set_authorization_model_id(model.authorization_model_id)
    say("model", plain(c.read_authorization_model()))
    say("models", len(c.read_authorization_models().authorization_models))
    tuples = [ClientTuple(user="user:anne", relation="editor", object="doc:1"), ClientTuple(user="team:a#member", relation="viewer", object="doc:2"),
              ClientTuple(user="user:bob", relation="member", object="team:a"), ClientTuple(user="user:*", relation="viewer", object="doc:3")]
    c.write(ClientWriteRequest(writes=tuples))
    fails("write twice", lambda: c.write(ClientWriteRequest(writes=tuples[:1])))
    fails("write nonsense", lambda: c.write(ClientWriteRequest(writes=[ClientTuple(user="doc:1", relation="viewer", object="doc:1")])))
    for user in ("user:anne", "user:bob", "user:carl"):
        for doc in ("doc:1", "doc:2", "doc:3"):
            say("check %s %s" % (user, doc), c.check(ClientCheckRequest(user=user, relation="viewer", object=doc)).allowed)
    say("contextual", c.check(ClientCheckRequest(user="user:carl", relation="viewer", object="doc:1", contextual_tuples=[
        ClientTuple(user="user:carl", relation="editor", object="doc:1")])).allowed)
    batch = c.batch_check(ClientBatchCheckRequest(checks=[ClientBatchCheckItem(user="user:bob", relation="viewer", object="doc:%d" % i,
                                                                               correlation_id="c%d" % i) for i in range(1, 4)]))
    say("batch", sorted((r.correlation_id, r.allowed) for r in batch.result))
    say("objects", sorted(c.list_objects(ClientListObjectsRequest(user="user:bob", relation="viewer", type="doc")).objects))
    say("streamed", sorted(r.object for r in c.streamed_list_objects(ClientListObjectsRequest(user="user:anne", relation="viewer", type="doc"))))
    say("relations", sorted(c.list_relations(ClientListRelationsRequest(user="user:anne", object="doc:1", relations=["viewer", "editor"]))))
    users = c.list_users(ClientListUsersRequest(object=FgaObject(type="doc", id="2"), relation="viewer", user_filters=[UserTypeFilter(type="user")]))
    say("users", plain(users))
    say("expand", plain(c.expand(ClientExpandRequest(relation="viewer", object="doc:1"))))
    say("read", sorted((t.key.object, t.key.relation, t.key.user) for t in c.read(ReadRequestTupleKey()).tuples))
    say("read one", plain(c.read(ReadRequestTupleKey(user="user:anne", relation="editor", object="doc:1")).tuples))
    c.write(ClientWriteRequest(deletes=[ClientTuple(user="user:*", relation="viewer", object="doc:3")]))
    say("after", c.check(ClientCheckRequest(user="user:carl", relation="viewer", object="doc:3")).allowed)
    say("changes", [(ch.operation, ch.tuple_key.object, ch.tuple_key.user) for ch in c.read_changes(ClientReadChangesRequest("doc")).changes][-1:])
    c.write_assertions([ClientAssertion(user="user:anne", relation="viewer", object="doc:1", expectation=True)])
    say("assertions", plain(c.read_assertions().assertions))
    fails("check of no relation", lambda: c.check(ClientCheckRequest(user="user:anne", relation="nope", object="doc:1")))
    fails("model of no use", lambda: c.read_authorization_model({"authorization_model_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}))
    c.delete_store()
    fails("store that is gone", c.get_store)
