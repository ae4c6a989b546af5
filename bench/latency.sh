# shellcheck shell=bash
# latency.sh - from a commit to the store at 200 changes a second, without and with a broker, beside direct Write calls.
#
# "Applied" is the arrival of the event, which leaves after the store's answer: the truth is a little earlier.

LATENCY_SECONDS=$([[ -n $QUICK ]] && echo 3 || echo 20)
LATENCY_WARM_UP=2

# run_latency KIND RUN, with the pipeline of that kind running on the database KIND.
run_latency() {
    local kind=$1 n
    progress "run $2 of $RUNS: 200 changes a second, $kind"
    checkpoint
    RELATA_PG_DSN=$(dsn "$kind") RELATA_NATS_URL=$SERVICES_NATS_URL run "$BIN/bench-latency" \
        --set store.url="$SERVICES_OPENFGA_URL" --set bench.store_id="$STORE_ID" --set bench.model_id="$MODEL_ID" \
        --set bench.seconds="$LATENCY_SECONDS" --set bench.warm_up="$LATENCY_WARM_UP" --set bench.prefix="$kind-$2" \
        >"$DIR/latency" || fail "bench-latency failed"
    jq -e ".rate > 195 and .superseded < .changes / 100" "$DIR/latency" >/dev/null || [[ -n $QUICK ]] ||
        fail "the machine cannot sustain 200 changes a second: $(jq -c . "$DIR/latency")"
    for n in p50_ms p99_ms direct_p50_ms direct_p99_ms commit_ms; do sample "$kind.$n" "$(jq ".$n" "$DIR/latency")"; done
}

# used_before LABEL.., used KIND LABEL: what a program has used meanwhile, for each change.
declare -A CPU_BEFORE
used_before() {
    local label
    for label in "$@"; do
        until_sql "$label" postgres 'SELECT true'
        CPU_BEFORE[$label]=$CPU
    done
}
used() {
    until_sql "$2" postgres 'SELECT true'
    sample "$1.$2.cpu" "$(calc "($CPU - ${CPU_BEFORE[$2]}) * 1e6 / (200 * ($LATENCY_SECONDS + $LATENCY_WARM_UP))")"
    sample "$1.$2.mib" "$MIB"
}

run_no_broker() {
    start_writer writer outbox --set nats.url="$SERVICES_NATS_URL"
    ready writer
    used_before writer
    run_latency outbox "$1"
    used outbox writer
    stop writer
}

run_broker() {
    start_relay relay kafka main
    start_writer writer kafka --set nats.url="$SERVICES_NATS_URL" --set writer.source=kafka \
        --set kafka.bootstrap.servers="$SERVICES_KAFKA_BROKERS"
    ready relay
    ready writer
    used_before writer relay
    run_latency kafka "$1"
    used kafka writer
    used kafka relay
    stop relay
    stop writer
}

bench_commit_to_applied() {
    local i kind versus='one Write call'
    servers postgres nats openfga kafka
    new_store
    for kind in outbox kafka; do
        database "$kind"
        pin "$kind"
    done
    for ((i = 1; i <= RUNS; i++)); do
        run_no_broker "$i"
        run_broker "$i"
    done
    result 'commit to applied, no broker: p50' ms "$(median outbox.p50_ms)" "$versus" "$(median outbox.direct_p50_ms)" "$RUNS" 'more<=' 3
    result 'commit to applied, no broker: p99' ms "$(median outbox.p99_ms)" "$versus" "$(median outbox.direct_p99_ms)" "$RUNS" -
    result 'commit to applied, Kafka: p50' ms "$(median kafka.p50_ms)" "$versus" "$(median kafka.direct_p50_ms)" "$RUNS" 'more<=' 6
    result 'commit to applied, Kafka: p99' ms "$(median kafka.p99_ms)" "$versus" "$(median kafka.direct_p99_ms)" "$RUNS" -
    result 'tuple-writer at 200/s, no broker: CPU' us/change "$(median outbox.writer.cpu)" '' '' "$RUNS" -
    result 'tuple-writer at 200/s, Kafka: CPU' us/change "$(median kafka.writer.cpu)" '' '' "$RUNS" -
    result 'outbox-relay at 200/s: CPU' us/change "$(median kafka.relay.cpu)" '' '' "$RUNS" -
    result 'tuple-writer at 200/s, Kafka: peak RSS' MiB "$(largest kafka.writer.mib)" '' '' "$RUNS" -
    result 'outbox-relay at 200/s: peak RSS' MiB "$(largest kafka.relay.mib)" '' '' "$RUNS" -
}
