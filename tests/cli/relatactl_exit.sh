#!/usr/bin/env bash
# relatactl_exit.sh - one cause, one exit code, in every command; what lag and trace say of each store; one form of times.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
CTL=$(cd "${BIN:-build/gcc/bin}" && pwd)/relatactl
DIR=${TEST_DIR:?}
DATABASE=relatactl_exit_$$
ROLE=relatactl_exit_$$
FAILED=0
unset "${!RELATA_@}" "${!PG@}" 2>/dev/null || true

ok() { # NAME WANTED GOT
    if [[ $2 == "$3" ]]; then
        printf 'ok - %s\n' "$1"
    else
        printf 'not ok - %s: wanted "%s", got "%s"\n' "$1" "$2" "$3"
        FAILED=$((FAILED + 1))
    fi
}
sql() { PGOPTIONS="-c client_min_messages=error" psql -XAtq -v ON_ERROR_STOP=1 "$DSN" -c "$1"; }
ctl() { # ARGS...: exit code; output in $DIR/out and $DIR/err
    local rc=0
    "$CTL" "$@" >"$DIR/out" 2>"$DIR/err" </dev/null || rc=$?
    printf '%s\n' "$rc"
}

DSN=${SERVICES_PG_DSN%/*}/$DATABASE
NOWHERE=01ARZ3NDEKTSV4RRFFQ69G5FAV
KEY='doc:1#viewer@user:a'
psql -XAtq "$SERVICES_PG_DSN" -c "CREATE DATABASE $DATABASE" -c "CREATE ROLE $ROLE LOGIN PASSWORD 'x'"
trap 'psql -XAtq "$SERVICES_PG_DSN" -c "DROP DATABASE IF EXISTS $DATABASE WITH (FORCE)" -c "DROP ROLE $ROLE"' EXIT

# ---- the table: what needs the database alone, and what needs the store as well ----
DATABASE_ONLY=(lag 'store show' 'store own doc#viewer' 'store disown doc#viewer' 'dead-letters list' 'dead-letters show 1'
    'dead-letters replay --all' 'dead-letters drop --all --yes')
WITH_STORE=("trace $KEY" 'store verify' 'model show' 'model list' "model use $NOWHERE" 'adopt' 'adopt --dry-run' 'seed')
PINNING=("store pin $NOWHERE" "seed --store-id $NOWHERE")

every() { # NAME CODE COMMANDS...  with the settings in SET
    local name=$1 code=$2 command
    shift 2
    for command in "$@"; do
        # shellcheck disable=SC2086 # words
        ok "$name: $command" "$code" "$(ctl "${SET[@]}" $command)"
        [[ $code == 0 || $command == trace* || $command == dead-letters\ show* ]] ||
            ok "$name: $command: one line" 1 "$(wc -l <"$DIR/err")"
    done
}
ALL=("${DATABASE_ONLY[@]}" "${WITH_STORE[@]}" "${PINNING[@]}")
at() { SET=(--set "pg.dsn=$1" --set "store.url=${2:-$SERVICES_OPENFGA_URL}" --set store.late_window=100ms); }

at 'bogus://x' && every 'bad DSN' 2 "${ALL[@]}" migrate
at 'host=127.0.0.1 port=1' && every 'no Postgres' 4 "${ALL[@]}" migrate
at "${SERVICES_PG_DSN%/*}/no_such_database" && every 'no such database' 3 "${ALL[@]}" migrate
at "host=127.0.0.1 port=$SERVICES_PG_PORT user=nobody_here password=x dbname=postgres" &&
    every 'login refused' 3 "${ALL[@]}" migrate
at "$DSN" && every 'not migrated' 3 "${ALL[@]}"
ok migrate 0 "$(ctl "${SET[@]}" migrate)"
at "host=127.0.0.1 port=$SERVICES_PG_PORT user=$ROLE password=x dbname=$DATABASE" &&
    every 'no right' 3 "${ALL[@]}"
at "$DSN" gopher://x && every 'bad URL' 2 "${ALL[@]}"

at "$DSN"
every 'not pinned' 3 "${WITH_STORE[@]}"
ok 'not pinned: seed --create needs the model' 2 "$(ctl "${SET[@]}" seed --create)"
every 'no such store' 3 "${PINNING[@]}"
ok 'an unknown id' 1 "$(ctl "${SET[@]}" dead-letters show 17)"
ok 'an unknown name' 1 "$(ctl "${SET[@]}" lag --store nowhere)"

# ---- states ----
state() { # what lag says of the store "default"
    local rc
    rc=$(ctl "${SET[@]}" lag --json)
    printf '%s %s\n' "$rc" "$(jq -r '.[] | select(.store == "default") | .state' "$DIR/out")"
}
verdict() { # exit code and verdict of trace
    local rc
    rc=$(ctl "${SET[@]}" trace "$KEY" --json)
    printf '%s %s\n' "$rc" "$(jq -r .verdict "$DIR/out")"
}
pin() { sql "INSERT INTO relata.store (name, store_id, model_id) VALUES ('default', '$1', '$2') ON CONFLICT (name)
    DO UPDATE SET store_id = excluded.store_id, model_id = excluded.model_id"; }
ok 'lag: not pinned' '0 not pinned' "$(state)"
ok 'trace: not pinned' '3 no store' "$(verdict)"

ok 'seed --create' 0 "$(ctl "${SET[@]}" seed --create --model demo/model-flat.json)"
STORE=$(sql "SELECT store_id FROM relata.store") MODEL=$(sql "SELECT model_id FROM relata.store")
ok 'lag: pinned' '0 pinned' "$(state)"
ok 'trace: nothing anywhere' '0 agree' "$(verdict)"
at "$DSN" http://127.0.0.1:1
every 'no store at the URL' 4 "${WITH_STORE[@]}" "store pin $STORE"
ok 'lag: unreachable' '0 store unreachable' "$(state)"
ok 'trace: unreachable' '4 unknown' "$(verdict)"
at "$DSN"
pin "$NOWHERE" "$MODEL"
every 'store gone' 3 "${WITH_STORE[@]}"
ok 'lag: gone' '0 store gone' "$(state)"
ok 'lag: gone, as a table' 1 "$("$CTL" "${SET[@]}" lag | grep -c '^default .* store gone$')"
ok 'store show: gone' 'store gone' "$("$CTL" "${SET[@]}" store show --json | jq -r '.[0].state')"
ok 'trace: gone' '3 no store' "$(verdict)"
ok 'trace: it says where it was looked for' 1 \
    "$("$CTL" "${SET[@]}" trace "$KEY" | grep -c "^store .*pinned to $NOWHERE, which is not at $SERVICES_OPENFGA_URL")"
pin "$STORE" "$NOWHERE"
every 'no such model' 3 "trace $KEY" 'store verify' 'model show' 'model list' 'adopt' 'seed'
pin "$STORE" "$MODEL"

# A wiped or restored store has the id and nothing of what was last applied.
sql "SELECT relata.write_tuple('team:' || g, 'member', 'user:a') FROM generate_series(1, 3) AS g" >/dev/null
sql "INSERT INTO relata.probe (store, slot, object, relation, subject, version, applied_at)
    SELECT store, version % 16, object, relation, subject, version, now() FROM relata.tuple; DELETE FROM relata.outbox"
ok 'trace: wiped' '3 other store' "$(verdict)"
ok 'store verify: wiped' 3 "$(ctl "${SET[@]}" store verify)"
ok 'seed fills it' 0 "$(ctl "${SET[@]}" seed --merge)"
ok 'store verify: filled' 0 "$(ctl "${SET[@]}" store verify)"

# Refused tuples.
sql "SELECT relata.write_tuple('team:4', 'no_such_relation', 'user:a')" >/dev/null
ok 'seed: done, but for what was parked' 5 "$(ctl "${SET[@]}" seed --merge)"
ok 'which it says' 1 "$(grep -c '1 refused by the store and parked' "$DIR/out")"
ok 'seed: not empty' 3 "$(ctl "${SET[@]}" seed)"

# Changes under a mistyped name wait for ever: shown, as not pinned.
sql "SELECT relata.write_tuple('team:5', 'member', 'user:a', store => 'defualt')" >/dev/null
ok 'lag: a mistyped store' 'defualt 1 not pinned' "$("$CTL" "${SET[@]}" lag --json |
    jq -r '.[] | select(.store != "default") | "\(.store) \(.pending) \(.state)"')"
ok 'store show: a mistyped store' 'not pinned' "$("$CTL" "${SET[@]}" store show --json |
    jq -r '.[] | select(.store == "defualt") | .state')"

# ---- models, page by page ----
for _ in {1..11}; do ctl "${SET[@]}" model use --file demo/model-flat.json >/dev/null; done
ok 'model use' 0 "$(ctl "${SET[@]}" model use "$MODEL")"
"$CTL" "${SET[@]}" model list --json >"$DIR/models"
ok 'model list: all of them' '12 12 true false' \
    "$(jq -r '"\(.models | length) \(.models | map(.model_id) | unique | length) \(.models[11].in_force) \(.more)"' "$DIR/models")"
ok 'model list: in force and newest' "$MODEL true" "$(jq -r '"\(.in_force) \(.newest == .models[0].model_id)"' "$DIR/models")"
ok 'model list: made today' "$(date -u +%F)" "$(jq -r '.models[0].created_at[0:10]' "$DIR/models")"
ok 'model list --limit' 3 "$("$CTL" "${SET[@]}" model list --limit 2 2>"$DIR/err" | wc -l)"
ok 'model list --limit says so' 'the newest 2 are shown (--limit)' "$(cat "$DIR/err")"

# ---- times: RFC 3339 with Z, everywhere ----
{
    for command in 'dead-letters list' "dead-letters show $(sql 'SELECT max(id) FROM relata.dead_letter')" 'store show' \
        'trace team:4#no_such_relation@user:a' 'trace team:5#member@user:a --set store.name=defualt' 'model list'; do
        # shellcheck disable=SC2086
        "$CTL" "${SET[@]}" $command || true
        # shellcheck disable=SC2086
        "$CTL" "${SET[@]}" $command --json || true
    done
} >"$DIR/out" 2>/dev/null
ok 'times are told' true "$( (($(grep -cE '[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{3}Z' "$DIR/out") > 12)) && echo true)"
ok 'in one form' '' "$(grep -E '[0-9]{2}:[0-9]{2}:[0-9]{2}' "$DIR/out" | grep -vE 'T[0-9:]{8}\.[0-9]{3}Z' || true)"

# ---- told alike in --help and in the manual ----
"$CTL" lag --help >"$DIR/out"
for code in 0 1 2 3 4 5; do
    ok "exit code $code in --help" 1 "$(grep -c "^  $code  " "$DIR/out")"
    ok "exit code $code in docs/relatactl.md" 1 "$(grep -c "^| $code | " docs/relatactl.md)"
done
((FAILED == 0))
