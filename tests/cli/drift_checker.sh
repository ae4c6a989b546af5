#!/usr/bin/env bash
# drift_checker.sh - drift-checker from a shell: options, exit codes, what it prints, records and writes, and that it leaves
# nothing behind when it is interrupted, killed, or not alone.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
BIN=$(cd "${BIN:-build/gcc/bin}" && pwd)
DIR=${TEST_DIR:-$(mktemp -d)}
DATABASE=drift_$$
DSN=${SERVICES_PG_DSN%/*}/$DATABASE
WAIT=$((60 * ${RELATA_TEST_SLOWNESS:-1}))
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
has() { # NAME TEXT FILE
    if grep -qF -- "$2" "$3"; then
        printf 'ok - %s\n' "$1"
    else
        printf 'not ok - %s: "%s" is not in: %s\n' "$1" "$2" "$(tr '\n' '|' <"$3")"
        FAILED=$((FAILED + 1))
    fi
}
check() { # ARGS...: an audit of the test's database, to $rc, $DIR/out and $DIR/err.
    rc=0
    "$BIN/drift-checker" --no-progress --set "pg.dsn=$DSN" --set "store.url=$SERVICES_OPENFGA_URL" --set store.late_window=100ms \
        --set store.request_timeout=20s --set audit.settle=0s "$@" >"$DIR/out" 2>"$DIR/err" || rc=$?
}
# One line on standard error that holds TEXT, nothing on standard output, exit code 2.
refused() { # TEXT ARGS...
    local text=$1
    shift
    check "$@"
    ok "refused: $*" '2 0 1' "$rc $(wc -c <"$DIR/out") $(wc -l <"$DIR/err")"
    has "refused: $*, says" "$text" "$DIR/err"
}
sql() { psql -XAtq -v ON_ERROR_STOP=1 "$DSN" -c "$1"; }
# Behind the triggers' back.
behind() { sql "BEGIN; SET LOCAL session_replication_role = replica; $1; COMMIT"; }
until_is() { # WANTED COMMAND...
    local wanted=$1 end=$((SECONDS + WAIT))
    shift
    until [[ $("$@") == "$wanted" ]]; do
        ((SECONDS < end)) || { printf 'not ok - "%s" did not become %s\n' "$*" "$wanted" && return 1; }
        sleep 0.1
    done
}
last_run() { sql "SELECT state FROM relata.audit_run ORDER BY id DESC LIMIT 1"; }
why() { sql "SELECT why FROM relata.audit_run ORDER BY id DESC LIMIT 1" >"$DIR/why"; }
LOCKS="FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint = 1380270088 AND granted
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
sessions() { sql "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'drift-checker' AND datname = current_database()"; }

# ---- the command line ----
"$BIN/drift-checker" --help >"$DIR/help"
for code in 0 1 2 3; do has "--help, exit code $code" "  $code  " "$DIR/help"; done
for option in type object subject full repair plan apply max-repairs max-deletions accept-shrink json textfile no-progress; do
    has "--help, --$option" "--$option" "$DIR/help"
done
refused 'unknown option --typ: did you mean --type?' --typ doc
refused 'exclude each other' --type doc --object doc:1
refused 'audit.object = doc:' --object doc
refused 'audit.subject = anne:' --subject anne
refused 'a type holds none of' --type 'a b'
refused '"many" is not a number, a share such as 0.1%' --max-repairs many
refused 'audit.max_deletions: "1%,2%" is not a number' --max-deletions 1%,2%
refused 'audit.max_repairs' --max-repairs 101%
refused 'repair, plan, full and scopes do not go with it' --apply x --repair
refused 'unexpected argument "now"' now
check --max-repairs 5,0.5% --max-deletions 1 --type doc --check-config
ok '--check-config' '0 configuration ok' "$rc $(<"$DIR/out")"

# ---- before there is anything ----
refused 'Connection refused' --set 'pg.dsn=host=127.0.0.1 port=1'
psql -XAtq "$SERVICES_PG_DSN" -c "CREATE DATABASE $DATABASE"
BACKGROUND=()
finish() {
    for pid in "${BACKGROUND[@]}"; do kill "$pid" 2>/dev/null || true; done
    psql -XAtq "$SERVICES_PG_DSN" -c "DROP DATABASE IF EXISTS $DATABASE WITH (FORCE)"
}
trap finish EXIT
refused 'relatactl migrate'
"$BIN/relatactl" --set "pg.dsn=$DSN" migrate >/dev/null
refused 'is not pinned: relatactl store pin'

# ---- a world: three shares and a grant that is in no table ----
sql "CREATE TABLE public.shares (doc text, person text, PRIMARY KEY (doc, person));
     INSERT INTO public.shares VALUES ('1', 'anne'), ('2', 'ben'), ('3', 'cleo');
     SELECT relata.track('public.shares', '[{\"object\": \"doc:{doc}\", \"relation\": \"viewer\", \"subject\": \"user:{person}\"}]');
     SELECT relata.write_tuple('doc:1', 'editor', 'user:anne')" >/dev/null
sql "CALL relata.backfill('public.shares', 100)"
cat >"$DIR/model.json" <<'END'
{"schema_version": "1.1", "type_definitions": [{"type": "user"}, {"type": "doc",
 "relations": {"viewer": {"this": {}}, "editor": {"this": {}}},
 "metadata": {"relations": {"viewer": {"directly_related_user_types": [{"type": "user"}]},
                            "editor": {"directly_related_user_types": [{"type": "user"}]}}}}]}
END
"$BIN/relatactl" --set "pg.dsn=$DSN" --set "store.url=$SERVICES_OPENFGA_URL" seed --create --model "$DIR/model.json" >"$DIR/seed" 2>&1
# What is pending is applied by a writer that then ends.
applied() {
    local writer
    "$BIN/tuple-writer" --set "pg.dsn=$DSN" --set "store.url=$SERVICES_OPENFGA_URL" --set nats.url= --set admin.listen=127.0.0.1:0 \
        >"$DIR/writer.log" 2>&1 &
    writer=$!
    BACKGROUND+=("$writer")
    until_is 0 sql "SELECT count(*) FROM relata.outbox"
    kill "$writer"
    wait "$writer" || true
}
applied
check
ok 'clean: exit code' 0 "$rc"
has 'clean: says so' 'clean: run 1,' "$DIR/out"
ok 'clean: on record' clean "$(last_run)"
STORE_ID=$(sql "SELECT store_id FROM relata.store")
check --set "openfga.dsn=${SERVICES_PG_DSN%/*}/openfga"
ok "clean, by the store's table" '0 1' "$rc $(grep -c "read from OpenFGA's table" "$DIR/out")"
check --json
ok 'clean: --json' 'run summary clean 4 3' "$(jq -rs '[.[].type, .[-1].state, .[-1].counts.ledger, .[-1].sources["public.shares"]] | join(" ")' "$DIR/out")"

# ---- drift ----
behind "DELETE FROM public.shares WHERE doc = '1'; INSERT INTO public.shares VALUES ('it''s', 'dan')"
check --textfile "$DIR/audit.prom"
ok 'drift: exit code' '1 drift' "$rc $(last_run)"
has 'drift: too much, in words' 'user:anne can be viewer of doc:1: ledger and store have it' "$DIR/out"
has 'drift: too little, in words' "user:dan should be viewer of doc:it's" "$DIR/out"
has 'drift: the command, quoted' "repair: drift-checker --repair --object 'doc:it'\\''s'" "$DIR/out"
ok 'drift: too much comes first' 'orphan never_emitted' "$(grep -oE '^      (orphan|never_emitted)' "$DIR/out" | xargs)"
ok 'textfile: nothing else is left' audit.prom "$(cd "$DIR" && ls audit.prom*)"
# Prometheus' text format, strictly: HELP and TYPE once before a family's samples, each sample once.
strictly() {
    awk '/^# HELP relata_audit_[a-z_]+ .+$/ { if (seen[$3]++) exit 1; help = $3; next }
         /^# TYPE relata_audit_[a-z_]+ gauge$/ { if ($3 != help) exit 1; type = $3; next }
         /^relata_audit_[a-z_]+\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\} -?[0-9.e+]+$/ {
             name = $1; sub(/\{.*/, "", name); if (name != type || sample[$1]++) exit 1; n++; next }
         { exit 1 } END { if (!n) exit 1 }' "$1" && echo valid
}
ok 'textfile: format' valid "$(strictly "$DIR/audit.prom")"
ok 'textfile: values' '1 1 1 0 1' "$(sed -n 's/^relata_audit_\(complete{.*\|findings{.*orphan"\|findings{.*lost"\|findings{.*never_emitted"\|excess{.*\)} //p' "$DIR/audit.prom" | xargs)"
while read -r name; do has "docs know $name" "$name" docs/drift-checker.md; done < <(sed -n 's/^# TYPE \([a-z_]*\) .*/\1/p' "$DIR/audit.prom")
check --json
ok 'drift: --json' '["orphan",true,"doc:1"] ["never_emitted",false,"doc:it'"'"'s"]' \
    "$(jq -c 'select(.type == "finding") | [.cause, .excess, .object]' "$DIR/out" | xargs -d '\n')"
check --type doc
ok 'a scope by type' '1 type doc' "$rc $(sql "SELECT scope FROM relata.audit_run ORDER BY id DESC LIMIT 1")"
check --object doc:2
ok 'another object is clean, and its audit ends no finding of others' '0 2' \
    "$rc $(sql "SELECT count(*) FROM relata.audit_finding WHERE closed_at IS NULL")"
check --subject user:dan --json
ok 'a scope by subject' '1 never_emitted' "$rc $(jq -r 'select(.type == "finding").cause' "$DIR/out")"
ok 'first seen in the first run that saw it' 1 "$(sql "SELECT count(DISTINCT first_run) FROM relata.audit_finding")"

# ---- a shrunken source ----
behind "DELETE FROM public.shares"
refused 'public.shares'
ok 'a source that is empty: nothing is judged' '2 incomplete' "$rc $(last_run)"
ok 'nor is a finding ended' 2 "$(sql "SELECT count(*) FROM relata.audit_finding WHERE closed_at IS NULL")"
behind "INSERT INTO public.shares VALUES ('2', 'ben'), ('3', 'cleo'), ('it''s', 'dan')"

# ---- caps, plan, apply ----
check --repair --max-repairs 100% --max-deletions 0
ok 'a cap: exit code, record, nothing done' '3 refused 0' "$rc $(last_run) $(sql "SELECT count(*) FROM relata.outbox")"
has 'a cap: says which' '--max-deletions 0 allows 0' "$DIR/out"
check --repair --max-repairs 1
ok 'the other cap' '3 0' "$rc $(sql "SELECT count(*) FROM relata.outbox")"
check --plan "$DIR/plan"
ok 'a plan' '1 3 0' "$rc $(wc -l <"$DIR/plan") $(sql "SELECT count(*) FROM relata.outbox")"
ok 'a plan: JSON lines' 3 "$(jq -s length "$DIR/plan")"
refused '/nonexistent/plan' --plan /nonexistent/plan
refused '/nonexistent' --apply /nonexistent
echo '{' >"$DIR/broken"
refused "$DIR/broken" --apply "$DIR/broken"
behind "DELETE FROM public.shares WHERE person = 'dan'"
check --apply "$DIR/plan" --max-repairs 2 --max-deletions 1
ok 'a plan of what has moved: nothing is done' '3 0' "$rc $(sql "SELECT count(*) FROM relata.outbox")"
has 'a plan of what has moved: names it' "doc:it's#viewer@user:dan" "$DIR/out"
ok 'its audit ends no finding' 2 "$(sql "SELECT count(*) FROM relata.audit_finding WHERE closed_at IS NULL")"
behind "INSERT INTO public.shares VALUES ('it''s', 'dan')"
check --apply "$DIR/plan" --max-repairs 2 --max-deletions 1 --json
ok 'a plan applied' '1 delete write' "$rc $(sql "SELECT string_agg(op, ' ' ORDER BY op) FROM relata.outbox")"
ok 'who did it' 1 "$(sql "SELECT count(DISTINCT actor) FROM relata.outbox WHERE actor LIKE 'drift-checker run %'")"
ok 'findings know their token' '2 2' "$(jq -r 'select(.type == "finding").token' "$DIR/out" | grep -c '^r1\.') $(sql "SELECT count(token) FROM relata.audit_finding WHERE closed_at IS NULL")"
check --json
ok 'while it is pending it is in flight' '0 2 2' \
    "$rc $(jq -r 'select(.type == "summary").counts.in_flight' "$DIR/out") $(sql "SELECT count(*) FROM relata.audit_finding WHERE closed_at IS NULL")"
applied
check
ok 'then it is clean, and the findings are closed' '0 0' "$rc $(sql "SELECT count(*) FROM relata.audit_finding WHERE closed_at IS NULL")"

# ---- what fails is on record ----
refused 'no connection' --set store.url=http://127.0.0.1:1
why
has 'no store: on record' 'no connection' "$DIR/why"
ok 'no store: on record as incomplete' incomplete "$(last_run)"
check --set store.url=http://127.0.0.1:1 --json --textfile "$DIR/audit.prom"
ok 'no store: --json' '2 incomplete' "$rc $(jq -r 'select(.type == "summary").state' "$DIR/out")"
ok 'no store: textfile' 'valid 0 0' "$(strictly "$DIR/audit.prom") $(sed -n 's/^relata_audit_complete{.*} //p' "$DIR/audit.prom") $(grep -c findings "$DIR/audit.prom" || true)"
sql "UPDATE relata.store SET store_id = '01ARZ3NDEKTSV4RRFFQ69G5FAV'"
refused 'is pinned to 01ARZ3NDEKTSV4RRFFQ69G5FAV, which is not at'
sql "UPDATE relata.store SET store_id = '$STORE_ID'"
refused 'audit.textfile: cannot write /nonexistent/audit.prom' --textfile /nonexistent/audit.prom
mkdir "$DIR/taken.prom"
check --textfile "$DIR/taken.prom"
ok 'a textfile that cannot be replaced' '2 0' "$rc $(find "$DIR" -name 'taken.prom?*' | wc -l)"
has 'a textfile that cannot be replaced, says' "audit.textfile: $DIR/taken.prom cannot be written" "$DIR/err"

# ---- not alone ----
psql -XAtq "$DSN" -c "SELECT pg_advisory_lock(1380270088, hashtext('default')), pg_sleep(600)" >/dev/null 2>&1 &
HOLDER=$!
BACKGROUND+=("$HOLDER")
until_is 1 sql "SELECT count(*) $LOCKS"
before=$(sql "SELECT count(*) FROM relata.audit_run")
cp "$DIR/audit.prom" "$DIR/audit.before"
refused 'another audit of store "default" is running' --textfile "$DIR/audit.prom"
has 'it says who' "(backend $(sql "SELECT pid $LOCKS"))" "$DIR/err"
ok "the other's record and textfile are left alone" "$before same" \
    "$(sql "SELECT count(*) FROM relata.audit_run") $(cmp -s "$DIR/audit.before" "$DIR/audit.prom" && echo same)"
sql "SELECT pg_terminate_backend(pid) $LOCKS" >/dev/null
wait "$HOLDER" || true

# ---- interrupted and killed, while it waits for a table ----
started() { # an audit that waits, its process to $CHECKER
    psql -XAtq "$DSN" -c "BEGIN; LOCK TABLE public.shares IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(600)" >/dev/null 2>&1 &
    HOLDER=$!
    BACKGROUND+=("$HOLDER")
    until_is 1 sql "SELECT count(*) FROM pg_locks WHERE relation = 'public.shares'::regclass AND mode = 'AccessExclusiveLock' AND granted"
    "$BIN/drift-checker" --no-progress --set "pg.dsn=$DSN" --set "store.url=$SERVICES_OPENFGA_URL" >"$DIR/out" 2>"$DIR/err" &
    CHECKER=$!
    BACKGROUND+=("$CHECKER")
    until_is t sql "SELECT count(*) > 0 FROM pg_locks WHERE relation = 'public.shares'::regclass AND NOT granted"
}
released() {
    sql "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND datname = current_database() AND pid <> pg_backend_pid()" >/dev/null
    wait "$HOLDER" || true
}
for signal in TERM INT; do
    started
    kill -"$signal" "$CHECKER"
    rc=0
    wait "$CHECKER" || rc=$?
    ok "SIG$signal: exit code, record" '2 incomplete' "$rc $(last_run)"
    why
    has "SIG$signal: why" 'interrupted' "$DIR/why"
    released
    until_is 0 sessions
done
started
kill -KILL "$CHECKER"
wait "$CHECKER" 2>/dev/null || true
ok 'killed: it was running' running "$(last_run)"
released
until_is 0 sessions
ok 'killed: no lock' 0 "$(sql "SELECT count(*) $LOCKS")"
ok 'killed: no temporary table' 0 "$(sql "SELECT count(*) FROM pg_class WHERE relpersistence = 't'")"
check
ok 'the next audit' '0 clean' "$rc $(last_run)"
ok 'and the killed one is incomplete' 'it ended without a word: killed, or cut off from Postgres' \
    "$(sql "SELECT why FROM relata.audit_run WHERE state = 'incomplete' ORDER BY id DESC LIMIT 1")"
ok 'nothing is running' 0 "$(sql "SELECT count(*) FROM relata.audit_run WHERE state = 'running'")"

# ---- an object under another id (D22): missing here and too much there is one thing to look at ----
behind "UPDATE public.shares SET doc = '20' WHERE doc = '2'; INSERT INTO public.shares VALUES ('7', 'eve')"
check
ok 'renamed: exit code' 1 "$rc"
ok 'renamed: said once, of what was' 'doc:2 -> doc:20 (1 tuples)' "$(sed -n '/^Renamed/,/^$/s/^  \(doc.*\)/\1/p' "$DIR/out")"
# At most 50 of a kind are shown; all of them are counted, recorded and in the JSON lines.
behind "INSERT INTO public.shares SELECT 'm' || i, 'eve' FROM generate_series(1, 60) i"
check
ok 'many: shown, and the rest counted' '50 and 12 more' \
    "$(grep -c '^      never_emitted' "$DIR/out") $(grep -o 'and [0-9]* more' "$DIR/out")"
check --json
ok 'many: in JSON, on record' '63 63' \
    "$(jq -s 'map(select(.type == "finding")) | length' "$DIR/out") $(sql "SELECT count(*) FROM relata.audit_finding WHERE closed_at IS NULL")"

[[ $FAILED == 0 ]]
