#!/usr/bin/env bash
# stack.sh - the stack of `make up`: starts, tells its settings, lives, notices what is wrong, and ends without a trace.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
BIN=$(cd "${BIN:-build/gcc/bin}" && pwd)
TEST_DIR=$(cd "${TEST_DIR:?an empty folder}" && pwd)
export BIN STACK_DIR=$TEST_DIR/stack STACK_ENV=$TEST_DIR/env
unset "${!RELATA_@}" "${!SERVICES_@}"
FAILED=0
trap "scripts/stack down >/dev/null" EXIT

ok() { # NAME WANTED GOT
    if [[ $2 == "$3" ]]; then
        printf 'ok - %s\n' "$1"
    else
        printf 'not ok - %s: wanted "%s", got "%s"\n' "$1" "$2" "$3"
        FAILED=$((FAILED + 1))
    fi
}
rc() { # COMMAND...: its exit code; what it says goes to $TEST_DIR/out
    local rc=0
    "$@" >"$TEST_DIR/out" 2>&1 || rc=$?
    printf '%s\n' "$rc"
}
says() { # PATTERN: whether the command of rc said so
    if grep -qE -- "$1" "$TEST_DIR/out"; then printf 'yes\n'; else tail -n 5 "$TEST_DIR/out"; fi
}
running() { # Command lines that name the stack's folder.
    local f
    for f in /proc/[0-9]*/cmdline; do
        tr '\0' ' ' 2>/dev/null <"$f" | grep -F -- "$STACK_DIR" || true
    done
}

for bad in SCALE=x BROKER=rabbit STORE=ldap MODEL=none; do
    ok "$bad is refused" 2 "$(rc env "$bad" scripts/stack up)"
    ok "$bad is named" yes "$(says "^stack: ${bad/=/=?}")"
done
ok "without programs it says what to do" 1 "$(rc env BIN=/nonexistent scripts/stack up)"
ok "make" yes "$(says 'no programs in /nonexistent: run make')"

ok "the stack starts" 0 "$(rc scripts/stack up)"
ok "the inventory is loaded" yes "$(says 'inventory +scale 1: 13440 tuples')"
ok "starting again changes nothing" 0 "$(rc scripts/stack up)"
ok "and says so" yes "$(says 'runs already')"
ok "all of it runs" 0 "$(rc scripts/stack check)"
ok "passwords are for their owner alone" 600 "$(stat -c %a "$STACK_DIR"/secrets/* "$STACK_ENV" | sort -u)"
(
    # shellcheck disable=SC1090
    source "$STACK_ENV"
    [[ $("$BIN/relatactl" lag --json | jq -r '.[0].pending') == 0 ]]
    curl -sf "$RELATA_STORE_URL/stores/$RELATA_STORE_ID/authorization-models/$RELATA_MODEL_ID" >/dev/null
    curl -sf "$RELATA_TUPLE_WRITER_URL/readyz" >/dev/null
)
ok "its environment file leads to database, store, model and writer" 0 $?
# answers URL: the HTTP status, asked with the lister's token
answers() { curl -s -o "$TEST_DIR/answer" -w '%{http_code}' -m 20 -H "Authorization: Bearer ${TOKEN:-}" "$1"; }
setting() { # NAME: of the environment file
    # shellcheck disable=SC1090
    (source "$STACK_ENV" && printf '%s\n' "${!1}")
}
TOKEN=$(setting RELATA_LISTER_TOKEN)
ok "and to the lister" 200 "$(answers "$(setting RELATA_LISTER_URL)/v1/inventory/tenants?subject=user:ada.costa&page_size=1")"
ok "which shows a row" org-01-prod "$(jq -r '.items[].id' "$TEST_DIR/answer")"
ok "and to a page for it" 200 "$(answers "$(setting RELATA_CONSOLE_URL)/")"
ok "the page's link is told" 0 "$(rc scripts/stack up)"
ok "with all that it needs" yes "$(says "$(setting RELATA_CONSOLE_URL)/#url=$(setting RELATA_LISTER_URL)&token=$TOKEN")"
ok "without the token there is nothing" 401 "$(TOKEN=wrong answers "$(setting RELATA_LISTER_URL)/v1/inventory")"
ok "indexes serve every order of the lists" 0 "$(grep -c 'no index gives rows' "$STACK_DIR/log/inventory-lister.log" || true)"
ok "the lister reads what it lists, and no more" 1 \
    "$(rc psql -XAtq "$(<"$STACK_DIR/secrets/inari_lister.dsn")" -c 'SELECT FROM inventory.resource_instances; SELECT FROM inventory.users')"
ok "not even who there is" yes "$(says 'permission denied for table users')"
for program in tuple-writer inventory-lister; do
    # shellcheck disable=SC1090
    ok "$program takes nothing of the environment file amiss" 0 \
        "$(source "$STACK_ENV" && rc "$BIN/$program" --config "$STACK_DIR/conf/$program.ini" --check-config)"
done

LIFE=("$BIN/demo-life" --config "$STACK_DIR/conf/demo-life.ini" --set life.json="$TEST_DIR/life.json")
COMPARE=("$BIN/demo-compare" --config "$STACK_DIR/conf/demo-compare.ini" --set compare.json="$TEST_DIR/compare.json")
ok "inventory, ledger and store are equal" 0 "$(rc "${COMPARE[@]}")"
ok "13,440 tuples each" "13440 13440 13440 0" "$(jq -r '"\(.expected) \(.ledger) \(.store) \(.differences)"' "$TEST_DIR/compare.json")"
ok "life goes on" 0 "$(rc "${LIFE[@]}" --set life.seconds=4s --set life.rate=40)"
ok "people did things, which were applied, measured and told" true "$(jq '.transactions.committed > 20
    and .transactions_applied > 0 and .events > 0 and .commit_to_applied_us.n > 0' "$TEST_DIR/life.json")"
ok "no event was missed, none is of a rolled back transaction" "0 0" \
    "$(jq -r '"\(.event_gaps) \(.events_of_rolled_back)"' "$TEST_DIR/life.json")"
ok "life without NATS is measured by the outbox" 0 "$(rc "${LIFE[@]}" --set life.seconds=2s --set life.rate=20 --set nats.url=)"
ok "and has measured" "outbox true" "$(jq -r '"\(.measured_by) \(.commit_to_applied_us.n > 0)"' "$TEST_DIR/life.json")"
ok "they are equal after all that" 0 "$(rc "${COMPARE[@]}")"

LISTS=("$BIN/demo-lists" --config "$STACK_DIR/conf/demo-lists.ini" --set lists.json="$TEST_DIR/lists.json"
    --set lists.relation=can_edit --set lists.rows=100 --set lists.rounds=1)
ok "lists are those of plain SQL" 0 "$(rc "${LISTS[@]}" --set lister.url="$(setting RELATA_LISTER_URL)")"
ok "who sees all walks as many as it says" "$(sed -nE 's/.*walked are the newest ([0-9]+),.*/\1/p' "$TEST_DIR/out")" \
    "$(sed -nE 's/^ *kim.nord +newest first +([0-9]+) rows.*/\1/p' "$TEST_DIR/out")"
ok "seven walks, and rights that came and went" "0 7 3 true" "$(jq -r '[.lists_that_differ, (.walks | length),
    (.changes | length), (.rows > 100 and all(.changes[]; .gone_us.p50 > 0 and .back_us.p50 > 0))] | join(" ")' "$TEST_DIR/lists.json")"
ok "the inventory is as it was" 0 "$(rc "${COMPARE[@]}")"

# One tuple too many in the store, one too few in it, one that the ledger alone lacks.
(
    # shellcheck disable=SC1090
    source "$STACK_ENV"
    curl -sf "$RELATA_STORE_URL/stores/$RELATA_STORE_ID/write" -o /dev/null -d '{
        "writes": {"tuple_keys": [{"object": "team:org-01-apps", "relation": "member", "user": "user:nobody"}]},
        "deletes": {"tuple_keys": [{"object": "tenant:org-01-prod", "relation": "parent", "user": "organization:org-01"}]}}'
    psql -Xq "$RELATA_PG_DSN" -c "UPDATE relata.tuple SET present = false WHERE object = 'tenant:org-02-prod' AND relation = 'parent'"
)
ok "differences are a failure" 1 "$(rc "${COMPARE[@]}")"
ok "three of them" 3 "$(jq .differences "$TEST_DIR/compare.json")"
ok "what the store has too much" yes "$(says 'team:org-01-apps#member@user:nobody: inventory NO, ledger NO, store yes')"
ok "what the store lacks" yes "$(says 'tenant:org-01-prod#parent@organization:org-01: inventory yes, ledger yes, store NO')"
ok "what the ledger lacks" yes "$(says 'tenant:org-02-prod#parent@organization:org-02: inventory yes, ledger NO, store yes')"

# A right in the store that the inventory does not give.
ROW=$(psql -XAtq "$(setting RELATA_PG_DSN)" -c "SELECT id FROM inventory.resource_instances WHERE deleted_at IS NULL
    AND id NOT IN (SELECT inventory.visible('lea.gast', 'editor')) ORDER BY created_at DESC, id DESC LIMIT 1")
curl -sf "$(setting RELATA_STORE_URL)/stores/$(setting RELATA_STORE_ID)/write" -o /dev/null -d '{"writes": {"tuple_keys": [
    {"object": "resource_instance:'"$ROW"'", "relation": "editor", "user": "user:lea.gast"}]}}'
ok "a list that differs is a failure" 1 "$(rc "${LISTS[@]}" --set lister.url="$(setting RELATA_LISTER_URL)")"
ok "and told" yes "$(says "row [0-9]+ of the list is \"$ROW ")"

cp "$STACK_ENV" "$TEST_DIR/env.before"
read -r pid _ <"$STACK_DIR/pid/tuple-writer"
kill -KILL "$pid"
while [[ -d /proc/$pid ]] && ! grep -q '^State:.Z' "/proc/$pid/status"; do sleep 0.05; done
ok "a program that died is noticed" 1 "$(rc scripts/stack check)"
ok "and named" yes "$(says 'tuple-writer has ended')"
ok "changes that stay pending are a failure" 1 \
    "$(rc "${LIFE[@]}" --set life.seconds=1s --set life.rate=20 --set life.patience=2s)"
ok "and told" yes "$(says 'changes stay pending')"

ok "up starts it again" 0 "$(rc scripts/stack up)"
ok "and says so" yes "$(says 'tuple-writer had ended, and is started again')"
ok "then all runs" 0 "$(rc scripts/stack check)"
page=$(setting RELATA_CONSOLE_URL)
for program in console inventory-lister; do
    read -r pid _ <"$STACK_DIR/pid/$program"
    kill -KILL "$pid"
    while [[ -d /proc/$pid ]] && ! grep -q '^State:.Z' "/proc/$pid/status"; do sleep 0.05; done
done
ok "so are the lister and its page" 0 "$(rc scripts/stack up)"
ok "the lister answers where the environment file says" 200 "$(answers "$(setting RELATA_LISTER_URL)/v1/inventory")"
ok "to the page, whose origin it knows" "$page" "$(setting RELATA_CONSOLE_URL)"
ok "all at the addresses that they had" 0 "$(rc diff "$TEST_DIR/env.before" "$STACK_ENV")"
ok "the writer too" 200 "$(curl -s -o "$TEST_DIR/answer" -w '%{http_code}' -m 20 "$(setting RELATA_TUPLE_WRITER_URL)/readyz")"

ok "the stack stops" 0 "$(rc scripts/stack down)"
ok "and says what it stopped" yes "$(says '^stopped: console, inventory-lister, tuple-writer, .*postgres.*; data and logs stay in ')"
ok "nothing of it runs" "" "$(running 2>/dev/null | grep -v '^grep' || true)"
ok "stopping again is harmless" 0 "$(rc scripts/stack down)"
ok "and says so" yes "$(says '^nothing runs in ')"
((FAILED == 0))
