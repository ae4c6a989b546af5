#!/usr/bin/env bash
# authz_sdk.sh - OpenFGA's Python SDK, unchanged, does the same at authz-store as at OpenFGA.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
DIR=${TEST_DIR:-$(mktemp -d)}
PYTHON=build/tools/openfga-sdk/bin/python

"$PYTHON" tests/cli/authz_sdk.py "$SERVICES_OPENFGA_URL" >"$DIR/openfga" 2>&1 || true
"$PYTHON" tests/cli/authz_sdk.py "$SERVICES_AUTHZ_STORE_URL" >"$DIR/relata" 2>&1 || true
if [[ $(tail -n 1 "$DIR/openfga") != "store that is gone 404"* ]]; then
    printf 'not ok - the scenario ends early at OpenFGA: %s\n' "$(tail -n 1 "$DIR/openfga")"
    exit 1
fi
failed=0
while read -r line; do
    if grep -qxF -- "$line" "$DIR/relata"; then
        printf 'ok - %s\n' "${line:0:70}"
    else
        printf 'not ok - OpenFGA: %s; authz-store: %s\n' "$line" "$(grep -m 1 -F -- "${line%% *}" "$DIR/relata" || tail -n 1 "$DIR/relata")"
        failed=1
    fi
done <"$DIR/openfga"
exit $failed
