#!/usr/bin/env bash
# relatactl.sh - every bad input of relatactl gives one clear line and the documented exit code; --help and --json.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$ROOT"
CTL=$(cd "${BIN:-build/gcc/bin}" && pwd)/relatactl
DIR=${TEST_DIR:-$(mktemp -d)}
DATABASE=relatactl_$$
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

# One line on standard error that holds TEXT, nothing on standard output, and the exit code.
refused() { # CODE TEXT ARGS...
    local code=$1 text=$2 rc=0 lines
    shift 2
    "$CTL" "$@" >"$DIR/out" 2>"$DIR/err" || rc=$?
    lines=$(wc -l <"$DIR/err")
    if [[ $rc == "$code" && $lines == 1 && ! -s $DIR/out ]] && grep -qF -- "$text" "$DIR/err"; then
        printf 'ok - %s\n' "$*"
    else
        printf 'not ok - %s: exit %s (wanted %s), %s lines, wanted "%s": %s\n' "$*" "$rc" "$code" "$lines" "$text" \
            "$(cat "$DIR/out" "$DIR/err" | tr '\n' '|')"
        FAILED=$((FAILED + 1))
    fi
}

# ---- the command line ----
refused 2 'which command?'
refused 2 'no command "sed"' sed
refused 2 'unknown option --foo' lag --foo
refused 2 'unknown option -x' lag -x
refused 2 'unexpected argument "now"' lag now
refused 2 '--max-age needs a value' lag --max-age
refused 2 '"ten" is no whole number' lag --max-age ten
refused 2 '"-2" is no whole number' lag --max-age=-2
refused 2 '--none-parked takes no value' lag --none-parked=yes
refused 2 'needs OBJECT#RELATION@SUBJECT' trace
refused 2 'needs STORE_ID' store pin
refused 2 'needs ID' dead-letters show
refused 2 '"x" is no id of a dead letter' dead-letters show x
refused 2 'unknown key' lag --set pg.dns=x
refused 2 'unknown section' lag --set gp.dsn=x
refused 2 'statement_timeout' lag --set pg.statement_timeout=soon
refused 2 '/nowhere.ini' lag --config /nowhere.ini
refused 2 '--create needs the model' seed --create --set "pg.dsn=$SERVICES_PG_DSN"
refused 2 '--model goes with --create' seed --model x --set "pg.dsn=$SERVICES_PG_DSN"
refused 2 '--model-id goes with --store-id' seed --model-id x --set "pg.dsn=$SERVICES_PG_DSN"
refused 2 'is no whole number from 1 to 64' seed --in-flight 0
refused 2 'nats.url is empty' events
refused 2 'needs OBJECT RELATION' who-could doc:1
refused 2 '"0" is no whole number' who-could doc:1 viewer --max-depth 0
refused 2 'unexpected argument "b"' history a b

# ---- Postgres ----
refused 4 'Connection refused' lag --set 'pg.dsn=host=127.0.0.1 port=1'
refused 4 'No such file or directory' lag --set 'pg.dsn=host=/nowhere'
refused 2 'bad Postgres DSN' lag --set 'pg.dsn=hots=127.0.0.1'
refused 2 'bad Postgres DSN' lag --set 'pg.dsn=postgresql://me:s3cret%zz@127.0.0.1/x'
ok 'a password is not shown' 0 "$(grep -c s3cret "$DIR/err" || true)"
refused 3 'does not exist [3D000]' lag --set "pg.dsn=${SERVICES_PG_DSN%/*}/no_such_database"
refused 3 'authentication failed' lag --set "pg.dsn=host=127.0.0.1 port=$SERVICES_PG_PORT user=nobody_here password=s3cret dbname=postgres"
ok 'nor after a refusal' 0 "$(grep -c s3cret "$DIR/err" || true)"

psql -XAtq "$SERVICES_PG_DSN" -c "CREATE DATABASE $DATABASE"
trap 'psql -XAtq "$SERVICES_PG_DSN" -c "DROP DATABASE IF EXISTS $DATABASE WITH (FORCE)"' EXIT
DSN=${SERVICES_PG_DSN%/*}/$DATABASE
refused 3 'is this database migrated? relatactl migrate' lag --set "pg.dsn=$DSN"
refused 3 'is this database migrated?' dead-letters list --set "pg.dsn=$DSN"

# ---- a migrated database, by the environment ----
export RELATA_PG_DSN=$DSN
rc=0
"$CTL" migrate >/dev/null || rc=$?
ok 'migrate' 0 "$rc"
# An installed program finds its migrations beside itself, whatever the working folder is.
mkdir -p "$DIR/prefix/bin" "$DIR/prefix/share/relata"
cp "$CTL" "$DIR/prefix/bin/"
cp -r migrations "$DIR/prefix/share/relata/migrations"
ok 'migrate, installed' 'schema relata is up to date' "$(cd / && "$DIR/prefix/bin/relatactl" migrate | sed 's/:.*//')"
rm -r "$DIR/prefix/share"
rc=0
(cd "$ROOT" && "$DIR/prefix/bin/relatactl" migrate) >"$DIR/out" 2>"$DIR/err" || rc=$?
ok 'migrate, installed without migrations' '2 1' "$rc $(grep -c 'name their folder with --dir' "$DIR/err")"

# A list that is cut says so, and where.
psql -XAtq "$DSN" -c "INSERT INTO relata.dead_letter (store, op, object, relation, subject, code, reason) SELECT 'default',
    'write', 'doc:' || g, 'viewer', 'user:a', 'x', 'y' FROM generate_series(1, 5) AS g"
"$CTL" dead-letters list --limit 2 --json >"$DIR/out" 2>"$DIR/err"
ok 'dead-letters list --limit' '2 2 of 5 shown (--limit)' "$(jq length "$DIR/out") $(cat "$DIR/err")"
"$CTL" dead-letters drop --all --yes >/dev/null

refused 1 'no store "x"' lag --store x
refused 3 'is not pinned' store verify
refused 3 'is not pinned' model show
refused 3 'is not pinned' adopt
refused 3 'is not pinned' seed
refused 1 'no dead letter 17' dead-letters show 17
refused 1 'no open dead letter 17' dead-letters replay 17
refused 1 'no open dead letter 17' dead-letters drop 17 --yes
refused 2 'give ids, or --all' dead-letters replay
refused 2 'give ids, or --all' dead-letters drop 1 --all
refused 2 '"doc" is no TYPE#RELATION' store own doc
refused 2 '"a:b#c" is no TYPE#RELATION' store own 'a:b#c'
refused 2 'give a MODEL_ID, or --file' model use
refused 2 'must be type:id#relation@subject' trace 'doc:1'
refused 2 "subject \"\" must be type:id: it has no ':'" trace 'doc:1#viewer@'
ok 'the part that is wrong is named once' '' "$(grep -F '[subject]' "$DIR/err" || true)"
refused 2 'store.url' store pin 01ARZ3NDEKTSV4RRFFQ69G5FAV --set store.url=gopher://x
refused 2 'not a store id' store pin short
refused 4 '' store pin 01ARZ3NDEKTSV4RRFFQ69G5FAV --set store.url=http://127.0.0.1:1

# ---- history ----
refused 3 'history was never on' history 'doc:1#viewer@user:anne'
refused 3 'history was never on' who-could doc:1 viewer
refused 2 'give one of --on, --off and a tuple' history --on --off
refused 2 'must be type:id#relation@subject' history 'doc:1'
ok 'history, off' 'history is off; 0 rows' "$("$CTL" history | sed -n '1s/,.*//p')"
refused 3 'permission denied for procedure history_on' history --on --set "pg.dsn=$DSN?options=-c%20role%3Drelata_auditor"
"$CTL" history --on --json >"$DIR/out" 2>"$DIR/err"
ok 'history --on --json' 'true 1 0' "$(jq -r '"\(.on) \(.periods | length)"' "$DIR/out") $(wc -l <"$DIR/err")"
psql -XAtq "$DSN" -c "SELECT relata.write_tuple('doc:1', 'viewer', 'user:anne', actor => 'boss')" >/dev/null
ok 'history KEY --json' 'granted boss pending' \
    "$("$CTL" history 'doc:1#viewer@user:anne' --json | jq -r '.states[0] | "\(.what) \(.actor) \(.state)"')"
refused 2 'is no point in time' who-could doc:1 viewer --at soon
refused 2 'lies in the future' who-could doc:1 viewer --at 2999-01-01T00:00:00Z
refused 2 'lies in the future' who-could doc:1 viewer --at infinity
refused 3 'history does not reach to 2001-01-01' who-could doc:1 viewer --at 2001-01-01T00:00:00Z
refused 3 'is not pinned' who-could doc:1 viewer
"$CTL" history --off >/dev/null
ok 'history --off' 0 "$(psql -XAtq "$DSN" -c "SELECT count(*) FROM pg_trigger WHERE tgname = 'zz_history'")"

# ---- errors as JSON: the same line, and an object on standard output ----
rc=0
"$CTL" store verify --json >"$DIR/out" 2>"$DIR/err" || rc=$?
ok 'an error with --json: exit code' 3 "$rc"
ok 'an error with --json: status' missing "$(jq -r .error.status "$DIR/out")"
ok 'an error with --json: one line' 1 "$(wc -l <"$DIR/err")"

# ---- every command has --help and is listed ----
"$CTL" --help >"$DIR/help"
while read -r name; do
    rc=0
    # shellcheck disable=SC2086 # two words
    "$CTL" $name --help >"$DIR/out" 2>"$DIR/err" || rc=$?
    ok "$name --help" "0 0 1" "$rc $(wc -l <"$DIR/err") $(grep -c -- '^  --json ' "$DIR/out")"
done < <(sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\( [a-z]*\)\?\)  .*/\1/p' "$DIR/help")
ok 'there are commands' 20 "$(grep -c ' --help' <(sed -n '/^Commands:/,/^$/s/^  [a-z].*/x --help/p' "$DIR/help"))"
ok 'dead-letters --help' 4 "$("$CTL" dead-letters --help | grep -c '^  dead-letters ')"

# ---- every query has --json ----
for command in lag history 'dead-letters list' 'store show' 'migrate' 'migrate --dry-run' 'dead-letters replay --all' \
    'dead-letters drop --all --yes' 'store own doc#viewer' 'store disown doc#viewer'; do
    rc=0
    # shellcheck disable=SC2086
    "$CTL" $command --json >"$DIR/out" 2>"$DIR/err" || rc=$?
    ok "$command --json" "0 0 ok" "$rc $(wc -l <"$DIR/err") $(jq -r '"ok"' "$DIR/out")"
done

[[ $FAILED == 0 ]]
