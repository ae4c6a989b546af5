# shellcheck shell=bash disable=SC2034
# audit.sh - drift-checker over the inventory at AUDIT_SCALE (100: 1.27 million tuples), OpenFGA on Postgres.

AUDIT_SCALE=${BENCH_AUDIT_SCALE:-$([[ -n $QUICK ]] && echo 1 || echo 100)}
AUDIT_INJURIES=$([[ -n $QUICK ]] && echo 30 || echo 1000)

# The inventory, its ledger, and a store that agrees: its rows are copied past OpenFGA, for it is not OpenFGA that is measured.
audit_stage() {
    servers postgres nats openfga
    progress "making the inventory, scale $AUDIT_SCALE"
    database inari
    sql inari -f demo/inventory.sql -f demo/track.sql -f demo/expected.sql >/dev/null
    PGOPTIONS='-c client_min_messages=warning -c synchronous_commit=off' sql inari -v scale="$AUDIT_SCALE" -f demo/generate.sql
    new_store deep
    pin inari
    progress "copying the ledger into the store"
    sql inari -c "DELETE FROM relata.outbox" \
        -c "\\copy (SELECT '$STORE_ID', split_part(object, ':', 1), split_part(object, ':', 2), relation, subject,
                CASE WHEN subject LIKE '%#%' THEN 'userset' ELSE 'user' END,
                '01' || upper(lpad(to_hex(row_number() OVER ()), 24, '0')), now() FROM relata.tuple) TO '$DIR/scratch/tuples'"
    sql openfga -c "\\copy tuple (store, object_type, object_id, relation, _user, user_type, ulid, inserted_at) FROM '$DIR/scratch/tuples'"
    rm -f "$DIR/scratch/tuples"
    sql inari -c 'VACUUM (ANALYZE, FREEZE)'
    sql openfga -c 'VACUUM (ANALYZE, FREEZE)'
    TUPLES=$(stored_tuples)
    checkpoint
}

# audit WANTED_EXIT SAMPLE tables|pages [ARGUMENT]...: one run; samples SAMPLE.s and SAMPLE.mib.
audit() {
    local wanted=$1 name=$2 rc=0 seconds _ mib openfga=''
    [[ $3 != tables ]] || openfga=$(dsn openfga)
    shift 3
    RELATA_PG_DSN=$(dsn inari) RELATA_STORE_URL=$SERVICES_OPENFGA_URL RELATA_OPENFGA_DSN=$openfga run python3 bench/measure.py \
        "$DIR/measured" "$BIN/drift-checker" --no-progress "$@" >"$DIR/log/audit.log" 2>&1 || rc=$?
    ((rc == wanted)) || fail "drift-checker ended with $rc, not $wanted: $(tail -n 3 "$DIR/log/audit.log")"
    read -r seconds _ mib <"$DIR/measured"
    sample "$name.s" "$seconds"
    sample "$name.mib" "$mib"
}

# The same digests over the same three sides, as somebody would write them in psql, one after the other.
DIGEST='count(*), sum(hashtextextended(object || $$#$$ || relation || $$@$$ || subject, 7))'
plain_digest() {
    local began=$EPOCHREALTIME
    sql inari -c "SELECT $DIGEST FROM inventory.expected_tuples" -c "SELECT $DIGEST FROM relata.tuple WHERE store = 'default' AND present" \
        >"$DIR/digests"
    sql openfga -c "SELECT $DIGEST FROM (SELECT object_type || ':' || object_id AS object, relation, _user AS subject FROM tuple
                    WHERE store = '$STORE_ID') t" >>"$DIR/digests"
    sample digest.s "$(calc "$EPOCHREALTIME - $began")"
    [[ $(sort -u "$DIR/digests" | wc -l) == 1 ]] || fail "the sides are not equal: $(paste -sd' ' "$DIR/digests")"
}

# As many missing as there are too many, in the store.
audit_injure() {
    sql openfga -c "CREATE TABLE IF NOT EXISTS spare AS SELECT * FROM tuple LIMIT 0" \
        -c "WITH gone AS (DELETE FROM tuple WHERE store = '$STORE_ID' AND ulid IN (SELECT ulid FROM tuple WHERE store = '$STORE_ID'
                ORDER BY hashtextextended(ulid, 1) LIMIT $((AUDIT_INJURIES / 2))) RETURNING *) INSERT INTO spare SELECT * FROM gone" \
        -c "INSERT INTO tuple SELECT '$STORE_ID', 'resource_instance', n, 'viewer', 'user:mallory', 'user', '02' || lpad(n::text, 24, '0'), now()
            FROM generate_series(1, $((AUDIT_INJURIES / 2))) n"
}
audit_heal() {
    sql openfga -c "DELETE FROM tuple WHERE _user = 'user:mallory'" -c "INSERT INTO tuple SELECT * FROM spare" -c "TRUNCATE spare"
    sql inari -c "DELETE FROM relata.audit_finding"
}

bench_audit() {
    local i began
    audit_stage
    audit 0 warm tables # caches
    for ((i = 1; i <= RUNS; i++)); do
        progress "run $i of $RUNS: a clean audit, plain digests"
        plain_digest
        audit 0 clean tables
    done
    for ((i = 1; i <= RUNS; i++)); do
        progress "run $i of $RUNS: $AUDIT_INJURIES injuries"
        audit_injure
        audit 1 injured tables --set store.late_window=100ms
        audit_heal
    done
    for ((i = 1; i <= RUNS; i++)); do
        progress "run $i of $RUNS: by Read pages"
        RELATA_STORE_URL=$SERVICES_OPENFGA_URL run "$BIN/bench-store-reads" --set bench.store_id="$STORE_ID" >"$DIR/reads"
        sample reads.s "$(figure reads .seconds)"
        audit 0 pages pages
    done
    progress "a script with an SDK: minutes, so once"
    audit_script
    result "audit of $TUPLES tuples, clean" s "$(median clean.s)" 'plain digests in psql' "$(median digest.s)" "$RUNS" 'ratio<=' 1.3
    result 'the same, largest resident memory' MiB "$(largest clean.mib)" '' '' "$RUNS" 'value<=' 32
    result "the same, $AUDIT_INJURIES injuries" s "$(median injured.s)" 'clean' "$(median clean.s)" "$RUNS" 'ratio<=' 2
    result 'the same, by Read pages' s "$(median pages.s)" 'reading all pages' "$(median reads.s)" "$RUNS" 'ratio<=' 1.1
    result 'a script with an SDK' s "$(median script.s)" 'clean audit' "$(median clean.s)" 1 'ratio>=' 20
    result 'a script with an SDK, memory' MiB "$(median script.mib)" 'clean audit' "$(median clean.mib)" 1 'ratio>=' 10
    audit_one
    audit_load
}

audit_script() {
    local seconds _ mib
    sql inari -F $'\t' -c "SELECT object, relation, subject FROM inventory.expected_tuples" >"$DIR/scratch/expected"
    run python3 bench/measure.py "$DIR/measured" build/tools/openfga-sdk/bin/python bench/audit-script.py "$SERVICES_OPENFGA_URL" \
        "$STORE_ID" "$DIR/scratch/expected" >"$DIR/script" 2>>"$DIR/log/script.log" || fail "the script failed: $(last_words script)"
    [[ $(<"$DIR/script") == 0 ]] || fail "the script found $(<"$DIR/script") differences"
    read -r seconds _ mib <"$DIR/measured"
    sample script.s "$seconds"
    sample script.mib "$mib"
}

# All that one person holds, and all of one object; a process each.
audit_one() {
    local i objects subjects n=20
    [[ -z $QUICK ]] || n=3
    mapfile -t objects < <(ask inari "SELECT DISTINCT ON (h) object FROM (SELECT object, hashtextextended(object, 5) AS h FROM relata.tuple
                                      WHERE object LIKE 'resource_instance:%') t ORDER BY h LIMIT $n")
    mapfile -t subjects < <(ask inari "SELECT 'user:' || id FROM inventory.users ORDER BY hashtextextended(id, 5) LIMIT $n")
    progress "audits of one object, of one subject"
    for ((i = 0; i < n; i++)); do
        audit 0 object tables --object "${objects[i]}"
        audit 0 subject tables --subject "${subjects[i]}"
    done
    result "one object's audit: p50" ms "$(calc "$(median object.s) * 1000")" '' '' "$n" 'value<=' 50
    result "one subject's audit: p50" ms "$(calc "$(median subject.s) * 1000")" '' '' "$n" 'value<=' 50
}

# service_p99 SAMPLE: a service's transactions of one share at 100 a second, the 99th percentile.
service_p99() {
    rm -f "$DIR"/scratch/pgbench_log*
    run "$SERVICES_PG_BINDIR/pgbench" -n -M prepared -c 4 -j 1 -R 100 -T "$AUDIT_LOAD_SECONDS" -f bench/sql/outbox-one.sql -l \
        --log-prefix="$DIR/scratch/pgbench_log" "$(dsn inari)" >>"$DIR/log/pgbench.log" 2>&1 || fail "pgbench failed: $(last_words pgbench)"
    sample "$1.p99" "$(cat "$DIR"/scratch/pgbench_log* | awk '{ print $3 / 1000 }' | sort -g | awk '{ v[NR] = $1 } END { print v[int(NR * 0.99)] }')"
}
audit_load() {
    local i audits
    AUDIT_LOAD_SECONDS=$([[ -n $QUICK ]] && echo 2 || echo 20)
    for ((i = 1; i <= RUNS; i++)); do
        progress "run $i of $RUNS: a service's transactions without an audit, and with one after the other"
        service_p99 alone
        (
            trap - EXIT
            while :; do
                RELATA_PG_DSN=$(dsn inari) RELATA_STORE_URL=$SERVICES_OPENFGA_URL RELATA_OPENFGA_DSN=$(dsn openfga) \
                    "$BIN/drift-checker" --no-progress --set audit.settle=0s >>"$DIR/log/audit.log" 2>&1 || true
            done
        ) &
        audits=$!
        PID[audits]=$audits
        service_p99 beside
        stop audits
    done
    result "a service's transaction during audits: p99" ms "$(median beside.p99)" 'without' "$(median alone.p99)" "$RUNS" 'ratio<=' 1.3
}
