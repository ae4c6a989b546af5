# shellcheck shell=bash
# backlog.sh - rate and memory beside 5 million pending rows, and beside 5 thousand.
#
# The writer's backlog is kept at its size while it is measured: for every 5,000 tuples applied, 5,000 rows are inserted,
# in both cases the same. The relays carry the first million of the large backlog, and batches of 5,000 as they come.

BACKLOG_BIG=$([[ -n $QUICK ]] && echo 50000 || echo 5000000)
BACKLOG_SMALL=5000
BACKLOG_FEEDS=$([[ -n $QUICK ]] && echo 3 || echo 20)
BACKLOG_CARRIED=$([[ -n $QUICK ]] && echo 20000 || echo 1000000)
FED=0

# feed DATABASE ROWS PER_TRANSACTION: rows that nobody has seen before.
feed() { outbox_rows "$1" "$2" "$3" "f$((++FED))-"; }

# Brings what an earlier run has taken back to SIZE.
top_up() {
    local missing
    missing=$(($2 - $(ask "$1" 'SELECT count(*) FROM relata.outbox')))
    ((missing <= 0)) || feed "$1" $((missing + 999)) 1000
}

# backlog_writer DATABASE SIZE RUN
backlog_writer() {
    local i began
    progress "run $3 of $RUNS: tuple-writer, $1"
    top_up "$1" "$2"
    checkpoint
    start_writer writer "$1" --set nats.url="$SERVICES_NATS_URL"
    until_metric writer relata_writer_tuples_total $((BACKLOG_SMALL / 2)) --every-ms 5
    began=$AT
    for ((i = 1; i <= BACKLOG_FEEDS; i++)); do
        feed "$1" "$BACKLOG_SMALL" "$BACKLOG_SMALL"
        until_metric writer relata_writer_tuples_total $((BACKLOG_SMALL / 2 + i * BACKLOG_SMALL)) --every-ms 5
    done
    stop writer
    sample "$1.writer.rate" "$(calc "$BACKLOG_FEEDS * $BACKLOG_SMALL / ($AT - $began)")"
    sample "$1.writer.mib" "$MIB"
}

# relay_big MODE RUN: from the process's start.
relay_big() {
    local began
    progress "run $2 of $RUNS: outbox-relay $1, big"
    checkpoint
    began=$(now)
    start_relay relay big "big_$1$2" --set relay.mode="$1" --set relay.resend_after=0
    until_metric relay relata_relay_rows_total "$BACKLOG_CARRIED"
    stop relay
    sample "big.$1.rate" "$(calc "$BACKLOG_CARRIED / ($AT - $began)")"
    sample "big.$1.mib" "$MIB"
}

# relay_small MODE RUN: from each commit.
relay_small() {
    local i before
    progress "run $2 of $RUNS: outbox-relay $1, small"
    checkpoint
    start_relay relay small "small_$1$2" --set relay.mode="$1" --set relay.resend_after=0
    ready relay
    pause 1
    before=$(metric relay relata_relay_rows_total)
    for ((i = 1; i <= BACKLOG_FEEDS; i++)); do
        feed small "$BACKLOG_SMALL" "$BACKLOG_SMALL"
        began=$(now)
        until_metric relay relata_relay_rows_total $((before + i * BACKLOG_SMALL)) --every-ms 2
        sample "small.$1.rate" "$(calc "$BACKLOG_SMALL / ($AT - $began)")"
    done
    stop relay
    sample "small.$1.mib" "$MIB"
}

# The slots of the runs in mode wal, made before the rows are inserted.
backlog_slots() {
    local i
    for ((i = 1; i <= RUNS; i++)); do
        start_relay relay big "big_wal$i"
        until_sql relay big "SELECT handover = 'complete' FROM relata.relay WHERE name = 'big_wal$i'"
        stop relay
    done
}

bench_backlog_size() {
    local i kind name versus='5 k pending'
    servers postgres nats openfga kafka
    new_store
    for kind in big small; do
        database "$kind"
        pin "$kind"
    done
    backlog_slots
    progress "inserting $BACKLOG_BIG rows"
    outbox_rows big "$BACKLOG_BIG"
    sql big -c 'VACUUM ANALYZE relata.outbox, relata.tuple'
    for ((i = 1; i <= RUNS; i++)); do
        for kind in poll wal; do
            relay_small "$kind" "$i"
            relay_big "$kind" "$i"
        done
    done
    for ((i = 1; i <= RUNS; i++)); do
        backlog_writer small "$BACKLOG_SMALL" "$i"
        backlog_writer big "$BACKLOG_BIG" "$i"
    done
    for kind in writer poll wal; do
        name='tuple-writer'
        [[ $kind == writer ]] || name="outbox-relay $kind"
        result "5 M pending rows: $name" rows/s "$(median "big.$kind.rate")" "$versus" "$(median "small.$kind.rate")" "$RUNS" 'ratio>=' 0.8
        result "5 M pending rows: $name: peak RSS" MiB "$(median "big.$kind.mib")" "$versus" "$(median "small.$kind.mib")" "$RUNS" 'ratio<=' 1.1
    done
}
