# shellcheck shell=bash
# writer.sh - tuple-writer drains the demo's inventory into OpenFGA, beside a client that sends the same Writes only.
#
# Each run has an empty store of its own, and the writer a copy of one database whose outbox holds the inventory. The
# writer's time is from its start until its outbox is empty; the client has read the tuples before its clock starts.

WRITER_SCALE=3
WRITER_LANES=16

writer_backlog() {
    progress "making the inventory, scale $WRITER_SCALE"
    database inventory
    sql inventory -f demo/inventory.sql -f demo/track.sql >/dev/null
    PGOPTIONS='-c client_min_messages=warning -c synchronous_commit=off' sql inventory -v scale="$WRITER_SCALE" \
        -f demo/generate.sql
    TUPLES=$(ask inventory 'SELECT count(*) FROM relata.outbox')
    ((TUPLES == 740 + 12700 * WRITER_SCALE)) || fail "the inventory is $TUPLES tuples"
    sql inventory -c 'VACUUM ANALYZE'
}

# all_stored WHO: nothing is missing.
all_stored() {
    local n
    n=$(stored_tuples)
    ((n == TUPLES)) || fail "$1 brought $n of $TUPLES tuples to the store"
}

run_client() {
    progress "run $1 of $RUNS: the same Writes only"
    new_store
    checkpoint
    RELATA_PG_DSN=$(dsn inventory) run "$BIN/bench-store-writes" --set store.url="$SERVICES_OPENFGA_URL" \
        --set bench.store_id="$STORE_ID" --set bench.model_id="$MODEL_ID" --set bench.lanes="$WRITER_LANES" >"$DIR/client" ||
        fail "bench-store-writes failed"
    all_stored bench-store-writes
    sample client.rate "$(jq '.tuples / .seconds' "$DIR/client")"
    sample client.cpu "$(jq '.cpu_seconds * 1e6 / .tuples' "$DIR/client")"
}

run_writer() {
    local began
    progress "run $1 of $RUNS: tuple-writer"
    new_store
    sql postgres -c "CREATE DATABASE drain_$1 TEMPLATE inventory STRATEGY file_copy"
    pin "drain_$1"
    checkpoint
    began=$(now)
    start_writer writer "drain_$1" --set nats.url="$SERVICES_NATS_URL" --set writer.lanes="$WRITER_LANES"
    until_metric writer relata_writer_tuples_total "$TUPLES" --every-ms 250
    until_sql writer "drain_$1" 'SELECT NOT EXISTS (SELECT FROM relata.outbox)' --every-ms 5
    stop writer
    all_stored tuple-writer
    sql postgres -c "DROP DATABASE drain_$1"
    sample writer.rate "$(calc "$TUPLES / ($AT - $began)")"
    sample writer.cpu "$(calc "$CPU * 1e6 / $TUPLES")"
    sample writer.mib "$MIB"
}

bench_writer_drain() {
    local i versus='the same Writes only'
    servers postgres nats openfga
    writer_backlog
    for ((i = 1; i <= RUNS; i++)); do
        run_client "$i"
        run_writer "$i"
    done
    result 'tuple-writer drains the outbox' tuples/s "$(median writer.rate)" "$versus" "$(median client.rate)" "$RUNS" 'ratio>=' 0.8
    result 'tuple-writer: CPU' us/tuple "$(median writer.cpu)" "$versus" "$(median client.cpu)" "$RUNS" 'value<=' 20
    result 'tuple-writer: peak RSS' MiB "$(largest writer.mib)" '' '' "$RUNS" -
}
