# shellcheck shell=bash
# sql.sh - what the outbox costs the services that write it, beside a plain table with the same columns and primary key.

PGBENCH_SECONDS=$([[ -n $QUICK ]] && echo 1 || echo 10)
BULK_ROWS=$([[ -n $QUICK ]] && echo 20000 || echo 200000)

sql_database() {
    servers postgres
    database service
    sql service -f bench/sql/plain.sql
}

# empty_tables: nothing is left of the contender before, and nothing is dirty.
empty_tables() {
    sql service -c 'TRUNCATE relata.outbox, relata.tuple, bench.plain'
    checkpoint
}

# clients NAME CLIENTS: bench/sql/NAME.sql by pgbench; samples the transactions a second, and the milliseconds of one.
clients() {
    progress "run $RUN_NUMBER of $RUNS: $1"
    empty_tables
    run "$SERVICES_PG_BINDIR/pgbench" -n -M prepared -c "$2" -j 2 -T "$PGBENCH_SECONDS" -f "bench/sql/$1.sql" "$(dsn service)" \
        >"$DIR/pgbench" 2>>"$DIR/log/pgbench.log" || fail "pgbench failed: $(last_words pgbench)"
    sample "$1.tps" "$(awk '/^tps = / { print $3 }' "$DIR/pgbench")"
    sample "$1.ms" "$(awk '/^latency average = / { print $4 }' "$DIR/pgbench")"
}

bench_service_transaction() {
    local kind versus='plain table'
    sql_database
    for ((RUN_NUMBER = 1; RUN_NUMBER <= RUNS; RUN_NUMBER++)); do
        for kind in plain-ten outbox-ten set-ten plain-ten-statements outbox-ten-statements; do clients "$kind" 1; done
    done
    result 'transaction with 10 outbox rows' ms "$(median outbox-ten.ms)" "$versus" "$(median plain-ten.ms)" "$RUNS" 'ratio<=' 2
    result 'the same, by relata.write_tuples' ms "$(median set-ten.ms)" "$versus" "$(median plain-ten.ms)" "$RUNS" 'ratio<=' 2
    result 'the same, ten statements' ms "$(median outbox-ten-statements.ms)" "$versus" \
        "$(median plain-ten-statements.ms)" "$RUNS" 'ratio<=' 2
}

bench_sixteen_clients() {
    local kind versus='plain table'
    sql_database
    for ((RUN_NUMBER = 1; RUN_NUMBER <= RUNS; RUN_NUMBER++)); do
        for kind in plain-one outbox-one set-one; do clients "$kind" 16; done
    done
    result '16 clients, one outbox row each' tx/s "$(median outbox-one.tps)" "$versus" "$(median plain-one.tps)" "$RUNS" 'ratio>=' 0.7
    result '16 clients, relata.write_tuple' tx/s "$(median set-one.tps)" "$versus" "$(median plain-one.tps)" "$RUNS" -
}

# bulk NAME SQL: samples the microseconds of one row.
bulk() {
    progress "run $RUN_NUMBER of $RUNS: $1"
    empty_tables
    sql service -c '\timing on' -c "$2" >"$DIR/psql"
    sample "bulk.$1" "$(awk -v n="$BULK_ROWS" '/^Time: / { print $2 * 1000 / n }' "$DIR/psql")"
}

bench_bulk() {
    local columns='(op, object, relation, subject)' rows versus='plain table'
    rows="SELECT 'write', object, relation, subject FROM bench.source"
    sql_database
    sql service -v rows="$BULK_ROWS" -f bench/sql/source.sql
    for ((RUN_NUMBER = 1; RUN_NUMBER <= RUNS; RUN_NUMBER++)); do
        bulk plain "INSERT INTO bench.plain $columns $rows"
        bulk set 'SELECT relata.write_tuples(array_agg(object), array_agg(relation), array_agg(subject)) FROM bench.source'
        bulk select "INSERT INTO relata.outbox $columns $rows"
    done
    result 'bulk, relata.write_tuples' us/row "$(median bulk.set)" "$versus" "$(median bulk.plain)" "$RUNS" 'more<=' 12
    result 'bulk, INSERT .. SELECT' us/row "$(median bulk.select)" "$versus" "$(median bulk.plain)" "$RUNS" 'more<=' 30
}
