# shellcheck shell=bash
# idle.sh - what the programs use when nothing happens to them, while another database of the same server writes WAL.
#
# Before it is measured, each pipeline has carried some changes, so that nothing is used for the first time.

IDLE_SECONDS=$([[ -n $QUICK ]] && echo 5 || echo 90)
IDLE_SETTLE=$([[ -n $QUICK ]] && echo 1 || echo 10)
IDLE_PROGRAMS=(relay_wal relay_poll writer_outbox writer_kafka)

idle_start() {
    local kind
    new_store
    for kind in outbox kafka poll other; do database "$kind"; done
    pin outbox
    pin kafka
    start_relay relay_wal kafka main
    start_relay relay_poll poll main --set relay.mode=poll
    ready relay_wal
    start_writer writer_outbox outbox --set nats.url="$SERVICES_NATS_URL"
    start_writer writer_kafka kafka --set nats.url="$SERVICES_NATS_URL" --set writer.source=kafka \
        --set kafka.bootstrap.servers="$SERVICES_KAFKA_BROKERS"
    for kind in "${IDLE_PROGRAMS[@]}"; do ready "$kind"; done
    for kind in outbox kafka poll; do outbox_rows "$kind" 1000; done
    until_sql writer_outbox outbox 'SELECT NOT EXISTS (SELECT FROM relata.outbox)'
    until_sql writer_kafka kafka 'SELECT NOT EXISTS (SELECT FROM relata.outbox)'
    until_metric relay_poll relata_relay_rows_total 1000
}

resident_kib() { awk '/^VmRSS:/ { print $2 }' "/proc/${PID[$1]}/status"; }
tables_kib() {
    ask "$1" "SELECT sum(pg_total_relation_size(c.oid)) / 1024 FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
              WHERE nspname = 'relata' AND relkind = 'r'"
}
retained_kib() {
    ask kafka "SELECT (pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) / 1024)::bigint FROM pg_replication_slots"
}

# idle_look WHEN: notes everything as samples named WHEN.WHAT.
idle_look() {
    local name
    for name in "${IDLE_PROGRAMS[@]}"; do
        until_sql "$name" postgres 'SELECT true'
        sample "$1.$name.cpu" "$CPU"
        sample "$1.$name.at" "$AT"
        sample "$1.$name.kib" "$(resident_kib "$name")"
    done
    for name in outbox kafka poll; do sample "$1.$name.kib" "$(tables_kib "$name")"; done
    sample "$1.slot.kib" "$(retained_kib)"
}
grown_mib() { calc "($(median "after.$1.kib") - $(median "before.$1.kib")) / 1024"; }

bench_idle() {
    local name
    servers postgres nats openfga kafka
    idle_start
    pause "$IDLE_SETTLE"
    idle_look before
    progress "idle for $IDLE_SECONDS s"
    sql other -c "SELECT pg_logical_emit_message(false, 'other', repeat('x', 1000000)) FROM generate_series(1, 200)" >/dev/null
    pause "$IDLE_SECONDS"
    idle_look after
    for name in "${IDLE_PROGRAMS[@]}"; do
        result "idle: ${name/_/ }: CPU" '% of a core' \
            "$(calc "100 * ($(median "after.$name.cpu") - $(median "before.$name.cpu")) / ($(median "after.$name.at") - $(median "before.$name.at"))")" \
            '' '' 1 'value<=' 0.5
    done
    for name in "${IDLE_PROGRAMS[@]}"; do
        result "idle: ${name/_/ }: memory grown" MiB "$(grown_mib "$name")" '' '' 1 'value<=' 0.5
    done
    for name in outbox kafka poll; do
        result "idle: tables grown, $name" MiB "$(grown_mib "$name")" '' '' 1 'value<=' 0.1
    done
    result 'idle: WAL kept by the slot, grown (others wrote 200 MiB)' MiB "$(grown_mib slot)" '' '' 1 'value<=' 16
}
