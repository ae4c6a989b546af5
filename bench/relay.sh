# shellcheck shell=bash
# relay.sh - outbox-relay, mode wal: a backlog to Kafka, beside pg_recvlogical and Debezium.
#
# Every run of every contender has a slot of its own, made before the one backlog was inserted, so that all decode the
# same WAL. A relay is done when it has confirmed the backlog's end to Postgres: that is after Kafka's acknowledgement.

RELAY_ROWS=$([[ -n $QUICK ]] && echo 20000 || echo 1000000)
DEBEZIUM=$ROOT/build/tools/debezium/lib

# A slot for each run, made by the relay itself and recorded as its own.
relay_slots() {
    local i
    for ((i = 1; i <= RUNS; i++)); do
        start_relay relay relay "r$i"
        until_sql relay relay "SELECT handover = 'complete' FROM relata.relay WHERE name = 'r$i'"
        stop relay
    done
}
# plain_slots PREFIX: for the others.
plain_slots() {
    local i
    for ((i = 1; i <= RUNS; i++)); do
        ask relay "SELECT pg_create_logical_replication_slot('$1_$i', 'pgoutput')" >/dev/null
    done
}

relay_backlog() {
    progress "inserting $RELAY_ROWS rows"
    outbox_rows relay "$RELAY_ROWS"
    END_LSN=$(ask relay 'SELECT pg_current_wal_insert_lsn()')
    sql relay -c 'VACUUM ANALYZE relata.outbox, relata.tuple'
    checkpoint
}

run_relay() {
    local began rows
    progress "run $1 of $RUNS: outbox-relay"
    began=$(now)
    start_relay relay relay "r$1" --set relay.resend_after=0
    until_sql relay relay "SELECT confirmed_flush_lsn >= '$END_LSN' FROM pg_replication_slots WHERE slot_name = 'relata_r$1'" \
        --every-ms 50
    rows=$(metric relay relata_relay_rows_total)
    stop relay
    ((rows == RELAY_ROWS)) || fail "the relay carried $rows of $RELAY_ROWS rows"
    sample relay.rate "$(calc "$RELAY_ROWS / ($AT - $began)")"
    sample relay.cpu "$(calc "$CPU * 1e6 / $RELAY_ROWS")"
    sample relay.mib "$MIB"
}

run_recvlogical() {
    local began
    progress "run $1 of $RUNS: pg_recvlogical"
    began=$(now)
    run "$SERVICES_PG_BINDIR/pg_recvlogical" -d "$(dsn relay)" -S "recv_$1" --start -f /dev/null --endpos "$END_LSN" --no-loop -o proto_version=1 \
        -o publication_names=relata_outbox -o binary=true -o messages=true >>"$DIR/log/recvlogical.log" 2>&1 ||
        fail "pg_recvlogical failed: $(last_words recvlogical)"
    sample recv.rate "$(calc "$RELAY_ROWS / ($(now) - $began)")"
}

# The engine's clock starts with its first row, ours with the process.
run_debezium() {
    local seconds cpu kib password=${SERVICES_PG_DSN#*:*:}
    progress "run $1 of $RUNS: Debezium"
    PGPASSWORD=${password%%@*} run java -Xmx256m -XX:-UsePerfData -cp "$DEBEZIUM/*:$ROOT/build/bench-classes" Engine 127.0.0.1 \
        "$SERVICES_PG_PORT" postgres relay "dbz_$1" "$SERVICES_KAFKA_BROKERS" relata.tuple-changes "$RELAY_ROWS" \
        "$DIR/scratch/offsets_$1" >"$DIR/debezium" 2>>"$DIR/log/debezium.log" || fail "Debezium failed: $(last_words debezium)"
    read -r seconds cpu kib <"$DIR/debezium"
    sample dbz.rate "$(calc "$RELAY_ROWS / $seconds")"
    sample dbz.cpu "$(calc "$cpu * 1e6 / $RELAY_ROWS")"
    sample dbz.mib "$(calc "$kib / 1024")"
}

bench_relay_wal() {
    local i
    servers postgres kafka
    database relay
    relay_slots
    plain_slots recv
    relay_backlog
    for ((i = 1; i <= RUNS; i++)); do
        run_recvlogical "$i"
        run_relay "$i"
    done
    result 'outbox-relay, wal, backlog to Kafka' rows/s "$(median relay.rate)" pg_recvlogical "$(median recv.rate)" "$RUNS" 'ratio>=' 0.9
    result 'outbox-relay, wal: CPU' us/row "$(median relay.cpu)" '' '' "$RUNS" -
    result 'outbox-relay, wal: peak RSS' MiB "$(largest relay.mib)" '' '' "$RUNS" 'value<=' 32
}

bench_relay_debezium() {
    local i name='outbox-relay beside Debezium' versus='Debezium 3.6.1'
    mkdir -p build/bench-classes
    run javac -d build/bench-classes -cp "$DEBEZIUM/*" bench/debezium/src/Engine.java ||
        fail "bench/debezium does not compile: scripts/install-deps bench fetches its jars"
    servers postgres kafka
    database relay
    relay_slots
    plain_slots dbz
    relay_backlog
    for ((i = 1; i <= RUNS; i++)); do
        run_debezium "$i"
        run_relay "$i"
    done
    result "$name" rows/s "$(median relay.rate)" "$versus" "$(median dbz.rate)" "$RUNS" 'ratio>=' 1.5
    result "$name: CPU" us/row "$(median relay.cpu)" "$versus" "$(median dbz.cpu)" "$RUNS" 'ratio<=' 0.2
    result "$name: peak RSS" MiB "$(largest relay.mib)" "$versus" "$(median dbz.mib)" "$RUNS" 'ratio<=' 0.1667
}
