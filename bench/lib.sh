# shellcheck shell=bash disable=SC2034
# lib.sh - what the benchmarks share: servers, programs, samples and results. Sourced by scripts/bench.
# BENCH is the benchmark's name, DIR its folder; CHILD a command under way.

BENCH='' DIR='' CHILD=''
declare -A PID=()
OPENFGA_FLAGS=()
BEGAN=$SECONDS

fail() {
    printf 'bench: %s%s\n' "${BENCH:+$BENCH: }" "$*" >&2
    exit 1
}
bad_usage() {
    printf 'bench: %s (scripts/bench --help)\n' "$*" >&2
    exit 2
}
progress() { printf '[%4d s] %s: %s\n' $((SECONDS - BEGAN)) "$BENCH" "$*" >&2; }

# run COMMAND...: in the background and waited for, because bash acts upon a signal only between foreground commands.
run() {
    local rc=0
    "$@" </dev/null &
    CHILD=$!
    wait "$CHILD" || rc=$?
    CHILD=''
    return "$rc"
}
pause() { run sleep "$1"; }
now() { printf '%s' "${EPOCHREALTIME/,/.}"; }
# calc EXPRESSION: awk's arithmetic.
calc() { awk "BEGIN { printf \"%.9g\", $1 }"; }

# ---- the end ----

end() {
    local rc=$?
    trap - EXIT
    trap '' INT TERM
    [[ -z $CHILD ]] || kill "$CHILD" 2>/dev/null || true
    stop_all --now || rc=1
    if ((rc != 0)) && [[ -n $DIR ]]; then
        printf 'bench: %s: its logs: %s\n' "$BENCH" "${DIR#"$ROOT"/}/log" >&2
    fi
    exit "$rc"
}

# stop_all [--now]
stop_all() {
    local label
    for label in "${!PID[@]}"; do stop "$label"; done
    [[ -z $DIR || ! -d $DIR/services ]] || scripts/services "$@" stop "$DIR/services"
}

# ---- servers and databases ----

# servers NAME...: OpenFGA with OPENFGA_FLAGS besides; Postgres with fsync, and with room enough that no checkpoint falls into a measurement by chance.
servers() {
    progress "starting $*"
    run scripts/services --fsync=on --pg-set=shared_buffers=1GB --pg-set=max_wal_size=16GB --pg-set=checkpoint_timeout=1h \
        --pg-set=max_connections=400 "${OPENFGA_FLAGS[@]/#/--openfga-flag=}" start "$DIR/services" "$@" || fail "servers could not be started"
    # shellcheck disable=SC1091
    source "$DIR/services/env"
}

dsn() { printf '%s/%s\n' "${SERVICES_PG_DSN%/*}" "$1"; }
# sql DATABASE ARGUMENT...: psql's, quietly; any error ends the benchmark.
sql() {
    local database=$1
    shift
    run "$SERVICES_PG_BINDIR/psql" -XAtq -v ON_ERROR_STOP=1 "$@" "$(dsn "$database")" || fail "a statement failed in $database"
}
# ask DATABASE SQL: one value, quickly.
ask() { "$SERVICES_PG_BINDIR/psql" -XAtq -v ON_ERROR_STOP=1 -c "$2" "$(dsn "$1")"; }

# database NAME: with schema relata.
database() {
    sql postgres -c "CREATE DATABASE $1"
    RELATA_PG_DSN=$(dsn "$1") run "$BIN/relatactl" migrate >>"$DIR/log/relatactl.log" 2>&1 || fail "relatactl migrate failed"
}

# outbox_rows DATABASE ROWS [PER_TRANSACTION] [PREFIX]: pending grants, one an object.
outbox_rows() {
    PGOPTIONS='-c synchronous_commit=off' sql "$1" -c "DO \$\$
        DECLARE per constant int := ${3:-1000};
        BEGIN
            FOR b IN 0 .. $2 / per - 1 LOOP
                PERFORM relata.write_tuples(array_agg('resource_instance:${4:-}' || i), array_agg('editor'::text),
                                            array_agg('team:org-' || i % 20 || '-platform#member'))
                FROM generate_series(b * per + 1, (b + 1) * per) i;
                COMMIT;
            END LOOP;
        END \$\$"
}

checkpoint() { sql postgres -c CHECKPOINT; }

# new_store [deep|flat]: an empty store with the demo's model at OpenFGA; sets STORE_ID and MODEL_ID.
new_store() {
    local json='Content-Type: application/json'
    STORE_ID=$(curl -sf -H "$json" -d '{"name": "bench"}' "$SERVICES_OPENFGA_URL/stores" | jq -r .id)
    MODEL_ID=$(curl -sf -H "$json" -d @"demo/model-${1:-deep}.json" "$SERVICES_OPENFGA_URL/stores/$STORE_ID/authorization-models" |
        jq -r .authorization_model_id)
    [[ -n $STORE_ID && -n $MODEL_ID ]] || fail "OpenFGA made no store"
}
# pin DATABASE: its writers write to the new store.
pin() {
    RELATA_PG_DSN=$(dsn "$1") RELATA_STORE_URL=$SERVICES_OPENFGA_URL run "$BIN/relatactl" store pin --force --model "$MODEL_ID" \
        "$STORE_ID" >>"$DIR/log/relatactl.log" 2>&1 || fail "relatactl store pin failed"
}
stored_tuples() { ask openfga "SELECT count(*) FROM tuple WHERE store = '$STORE_ID'"; }

# ---- programs ----

# start LABEL COMMAND...: sets PID[LABEL]; the address of its admin port comes to conf/LABEL.url.
start() {
    local label=$1
    shift
    rm -f "$DIR/conf/$label.url"
    "$@" </dev/null >>"$DIR/log/$label.log" 2>&1 &
    PID[$label]=$!
}
# start_relay LABEL DATABASE NAME [--set KEY=VALUE]...
start_relay() {
    local label=$1 database=$2 name=$3
    shift 3
    start "$label" env RELATA_PG_DSN="$(dsn "$database")" "$BIN/outbox-relay" --set admin.url_file="$DIR/conf/$label.url" \
        --set kafka.bootstrap.servers="$SERVICES_KAFKA_BROKERS" --set relay.topic_partitions=4 --set relay.name="$name" "$@"
}
# start_writer LABEL DATABASE [--set KEY=VALUE]...
start_writer() {
    local label=$1 database=$2
    shift 2
    start "$label" env RELATA_PG_DSN="$(dsn "$database")" RELATA_STORE_URL="$SERVICES_OPENFGA_URL" "$BIN/tuple-writer" \
        --set admin.url_file="$DIR/conf/$label.url" "$@"
}
last_words() { tail -n 3 "$DIR/log/$1.log"; }
# url LABEL: waits for the admin port; sets URL.
url() {
    local deadline=$((SECONDS + 30))
    until [[ -s $DIR/conf/$1.url ]]; do
        kill -0 "${PID[$1]}" 2>/dev/null || fail "$1 has ended: $(last_words "$1")"
        ((SECONDS < deadline)) || fail "$1 opens no admin port: $(last_words "$1")"
        sleep 0.02
    done
    URL=$(<"$DIR/conf/$1.url")
}
ready() {
    local deadline=$((SECONDS + 60))
    url "$1"
    until curl -sf -m 2 -o /dev/null "$URL/readyz"; do
        kill -0 "${PID[$1]}" 2>/dev/null || fail "$1 has ended: $(last_words "$1")"
        ((SECONDS < deadline)) || fail "$1 is not ready: $(curl -s -m 2 "$URL/readyz")"
        sleep 0.05
    done
}
# metric LABEL NAME: its value now, labels summed.
metric() {
    url "$1"
    curl -sf -m 10 "$URL/metrics" | awk -v name="$2" '{ split($1, n, "{") } n[1] == name { sum += $NF } END { printf "%.10g", sum }'
}
# stop LABEL: drained, or killed after 30 s.
stop() {
    local pid=${PID[$1]:-}
    [[ -n $pid ]] || return 0
    unset "PID[$1]"
    kill -TERM "$pid" 2>/dev/null || true
    "$BIN/bench-until" --gone "$pid" --timeout-s 30 >/dev/null 2>&1 || kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
}

# until_so ARGUMENT...: of bench-until; sets AT (seconds since the epoch), CPU (seconds) and MIB (largest resident memory)
# of the first --pid.
until_so() {
    local kib
    run "$BIN/bench-until" "$@" >"$DIR/until" || fail "what was waited for did not come"
    read -r AT CPU kib _ <"$DIR/until" || true
    MIB=$(calc "${kib:-0} / 1024")
}
# until_sql LABEL DATABASE SQL [ARGUMENT]...
until_sql() {
    local label=$1 database=$2 text=$3
    shift 3
    BENCH_DSN=$(dsn "$database") until_so --sql "$text" --pid "${PID[$label]}" "$@"
}
# until_metric LABEL NAME N [ARGUMENT]...
until_metric() {
    local label=$1 name=$2 n=$3
    shift 3
    url "$label"
    until_so --url "$URL/metrics" --metric "$name" --at-least "$n" --pid "${PID[$label]}" "$@"
}

# ---- samples and results ----

sample() { printf '%s\n' "$2" >>"$DIR/samples/$1"; }
median() {
    sort -g "$DIR/samples/$1" |
        awk '{ v[NR] = $1 } END { printf "%.16g", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}
largest() { sort -g "$DIR/samples/$1" | tail -n 1; }

# result NAME UNIT VALUE VERSUS VERSUS_VALUE RUNS RULE [LIMIT]
# RULE says what LIMIT bounds: ratio>= ratio<= value<= more<= (value - versus), or is - for a figure without a goal.
# VERSUS and its value may be empty.
result() {
    jq -cn --arg name "$1" --arg unit "$2" --argjson value "$3" --arg versus "$4" --argjson theirs "${5:-null}" \
        --argjson runs "$6" --arg rule "$7" --argjson limit "${8:-null}" --arg reason "$(reason "$1")" \
        -f bench/result.jq >>"$DIR/results"
}
# Why a figure is missed, as far as it was found out: a line "NAME = reason" of bench/reasons.
reason() { awk -v name="$1" 'index($0, name " = ") == 1 { print substr($0, length(name) + 4) }' bench/reasons; }

# ---- telling ----

about() {
    {
        printf 'Relata %s, %s; PostgreSQL %s, OpenFGA %s, Kafka %s, %s\n' "$("$BIN/relatactl" --version | awk '{ print $NF }')" \
            "$(date -u +%F)" "$(pg_config --version | awk '{ print $2 }')" \
            "$(sed -n 's/^OPENFGA_VERSION=v//p' scripts/install-deps)" \
            "$(sed -n 's/.*<version>\([0-9.]*\)<.*/\1/p' scripts/kafka-pom.xml | sed -n 2p)" "$(nats-server -v)"
        printf '%s, %s cores, load %s; medians of %s runs%s\n' "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)" \
            "$(nproc)" "$(cut -d' ' -f1-3 /proc/loadavg)" "$RUNS" "${QUICK:+; BENCH_QUICK: these figures say nothing}"
    } | tee "$OUT/about.txt"
}

table() {
    local name files=()
    for name in "$@"; do files+=("$OUT/$name.json"); done
    printf '\n'
    jq -rs -f bench/table.jq "${files[@]}"
    jq -rs '.[][] | select(.met == false) | "missed: \(.name): \(.reason // "the reason is not known")"' "${files[@]}"
    printf 'Results: %s\n' "${OUT#"$ROOT"/}/*.json"
}
