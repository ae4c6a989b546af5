#!/usr/bin/env bash
# The tools of make bench: options, verdicts, waiting. With RELATA_SOAK=1 also every benchmark, at small size.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${BIN:?}" "${TEST_DIR:?}" "${SERVICES_PG_DSN:?}"

check() { # text, command...
    local what=$1
    shift
    if "$@"; then echo "ok $what"; else echo "not ok $what"; fi
}

# ---- options ----

refused() { # pattern, environment and arguments of scripts/bench...
    local pattern=$1 code=0
    shift
    env BIN="$BIN" "$@" >"$TEST_DIR/out" 2>"$TEST_DIR/err" </dev/null || code=$?
    [[ $code == 2 && ! -s $TEST_DIR/out && $(wc -l <"$TEST_DIR/err") == 1 ]] && grep -q "^bench: .*$pattern" "$TEST_DIR/err"
}
helps() { scripts/bench --help | grep -q '^  commit-to-applied '; }

check "make bench explains itself" helps
check "an unknown benchmark is refused" refused 'ONLY=nothing' ONLY=nothing scripts/bench
check "an unknown one among known ones is refused" refused 'ONLY=nothing' ONLY='bulk,nothing' scripts/bench
check "a wrong number of runs is refused" refused 'BENCH_RUNS=0' BENCH_RUNS=0 scripts/bench
check "arguments are refused" refused 'no arguments' scripts/bench bulk

# ---- verdicts ----

verdict() { # value, versus value, rule, limit
    jq -cn --arg name n --arg unit u --argjson value "$1" --arg versus v --argjson theirs "$2" --argjson runs 3 --arg rule "$3" \
        --argjson limit "$4" --arg reason why -f bench/result.jq
}
judged() { # met, value, versus value, rule, limit
    local met=$1
    shift
    [[ $(verdict "$@" | jq .met) == "$met" ]]
}
result_is() { [[ $(verdict 1234.56 1000 'ratio>=' 2) == "$1" ]]; }

check "at least: met" judged true 90 100 'ratio>=' 0.9
check "at least: missed" judged false 89 100 'ratio>=' 0.9
check "at most: met" judged true 20 100 'ratio<=' 0.2
check "at most: missed" judged false 21 100 'ratio<=' 0.2
check "a bound on the value: met" judged true 32 null 'value<=' 32
check "a bound on the value: missed" judged false 32.1 null 'value<=' 32
check "so much more: met" judged true 13 10 'more<=' 3
check "so much more: missed" judged false 13.5 10 'more<=' 3
check "no goal, no verdict" judged null 5 10 - null
check "a missed figure says what, beside what, and why" result_is \
    '{"name":"n","unit":"u","value":1235,"versus":"v","versus_value":1000,"ratio":1.235,"runs":3,"wanted":"at least 2 x","met":false,"reason":"why"}'

table_shows_missed() {
    { verdict 2 1 'ratio<=' 1.5 && verdict 1 1 'ratio<=' 1.5; } | jq -s . >"$TEST_DIR/results.json"
    jq -rs -f bench/table.jq "$TEST_DIR/results.json" >"$TEST_DIR/table"
    [[ $(sed -n 2p "$TEST_DIR/table") == *' at most 1.5 x  MISSED' && $(sed -n 3p "$TEST_DIR/table") == *' at most 1.5 x  met' ]]
}
check "the table shows what is missed" table_shows_missed

# ---- waiting ----

until_so() { BENCH_DSN=$SERVICES_PG_DSN "$BIN/bench-until" "$@" >"$TEST_DIR/out" 2>"$TEST_DIR/err"; }
tells_use() { until_so --sql 'SELECT true' --pid $$ && grep -qxE '[0-9]{10}\.[0-9]{6} [0-9]+\.[0-9]{4} [1-9][0-9]*' "$TEST_DIR/out"; }
gives_up() { ! until_so --sql 'SELECT false' --timeout-s 0 && grep -q 'not so within 0 s' "$TEST_DIR/err"; }
sees_end() {
    sleep 600 &
    local pid=$!
    ! until_so --gone "$pid" --timeout-s 0 || return 1
    kill "$pid"
    until_so --gone "$pid" --timeout-s 10
}
needs_the_process() {
    sleep 0 &
    wait $!
    ! until_so --sql 'SELECT false' --pid $! && grep -q "process $! has ended" "$TEST_DIR/err"
}
check "bench-until tells time, CPU and memory" tells_use
check "bench-until gives up in time" gives_up
check "bench-until sees a process end" sees_end
check "bench-until fails when the process that it measures has ended" needs_the_process

# ---- load ----

load_refused() { # pattern, --set KEY=VALUE...
    local pattern=$1 code=0
    shift
    "$BIN/bench-pages" --set bench.url=http://127.0.0.1:1 --set bench.tokens=t --set bench.path=/ "$@" >"$TEST_DIR/out" \
        2>"$TEST_DIR/err" || code=$?
    [[ $code == 1 && ! -s $TEST_DIR/out ]] && grep -q "^bench-pages: .*$pattern" "$TEST_DIR/err"
}
mode_refused() {
    local code=0
    RELATA_PG_DSN=$SERVICES_PG_DSN "$BIN/bench-lists" --set bench.store_id=s --set bench.model_id=m --set bench.url=http://127.0.0.1:1 \
        --set bench.token=t --set bench.mode=fast >"$TEST_DIR/out" 2>"$TEST_DIR/err" || code=$?
    [[ $code == 2 && ! -s $TEST_DIR/out ]] && grep -q 'bench.mode: "fast"' "$TEST_DIR/err"
}
check "bench-pages refuses phases that are none" load_refused 'RATE:SECONDS' --set bench.phases=100
check "bench-pages says when nobody answers" load_refused '127.0.0.1:1/'
check "bench-lists refuses a mode that it lacks" mode_refused

# ---- every benchmark ----

all_run() {
    local only='relay-wal writer-drain commit-to-applied service-transaction sixteen-clients bulk idle backlog-size'
    local name
    only+=' lister-cold lister-warm lister-walk lister-revoke lister-overload lister-memory lister-sockets'
    [[ ! -d build/tools/debezium/lib ]] || only+=' relay-debezium'
    BIN=$BIN BENCH_DIR=$TEST_DIR/run BENCH_OUT=$TEST_DIR/results BENCH_QUICK=1 ONLY=$only scripts/bench || return 1
    for name in $only; do
        jq -e 'length > 0 and all(.[]; has("name") and has("unit") and (.value | type == "number") and has("versus")
               and has("versus_value") and has("ratio") and .runs == 1 and has("wanted") and has("met"))' \
            "$TEST_DIR/results/$name.json" >/dev/null || return 1
    done
}
nothing_left() { [[ -z $(scripts/services status "$1" | awk '$2 != "stopped"') ]]; }

if [[ ${RELATA_SOAK:-} == 1 ]]; then
    check "every benchmark runs" all_run
    for dir in "$TEST_DIR"/run/*/services; do check "$dir is stopped" nothing_left "$dir"; done
fi
