"""audit-script.py STORE_URL STORE_ID EXPECTED - an audit as a script with OpenFGA's SDK does it: reads every tuple of the
store, and compares sets in memory with the lines of a file, "object<tab>relation<tab>subject". Prints how many differ."""

import sys

from openfga_sdk import ReadRequestTupleKey
from openfga_sdk.client import ClientConfiguration
from openfga_sdk.sync import OpenFgaClient

with open(sys.argv[3], encoding="utf-8") as lines:
    expected = set(tuple(line.rstrip("\n").split("\t")) for line in lines)
observed = set()
with OpenFgaClient(ClientConfiguration(api_url=sys.argv[1], store_id=sys.argv[2])) as client:
    token = ""
    while True:
        page = client.read(ReadRequestTupleKey(), {"page_size": 100, "continuation_token": token})
        for t in page.tuples:
            observed.add((t.key.object, t.key.relation, t.key.user))
        token = page.continuation_token
        if not token:
            break
print(len(expected ^ observed))
