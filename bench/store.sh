# shellcheck shell=bash disable=SC2034
# store.sh - authz-store beside OpenFGA (Postgres, caches on), on the same Postgres: the same tuples, the same requests.

# Its caches, and time for what takes it seconds.
STORE_FLAGS=(--check-query-cache-enabled --check-iterator-cache-enabled --cache-controller-enabled --request-timeout=30s
    --http-upstream-timeout=35s)

# store_stage MODEL_FILE TUPLES: the file of tab-separated object, relation, subject goes into both, past their APIs, for it
# is not loading that is measured; authz-store reads it as it starts.
store_stage() {
    local model=$1 tuples=$2 json='Content-Type: application/json' side
    local -A url=([fga]=$SERVICES_OPENFGA_URL [ours]=$SERVICES_AUTHZ_STORE_URL)
    for side in fga ours; do
        STORE[$side]=$(curl -sf -H "$json" -d '{"name": "bench"}' "${url[$side]}/stores" | jq -r .id)
        curl -sf -H "$json" -d @"$model" "${url[$side]}/stores/${STORE[$side]}/authorization-models" >/dev/null || fail "the model was refused"
    done
    sql openfga -c "CREATE TEMP TABLE t (o text, r text, s text)" -c "\\copy t FROM '$tuples'" \
        -c "INSERT INTO tuple (store, object_type, object_id, relation, _user, user_type, ulid, inserted_at)
            SELECT '${STORE[fga]}', split_part(o, ':', 1), split_part(o, ':', 2), r, s, CASE WHEN s LIKE '%#%' OR s LIKE '%:*' THEN 'userset' ELSE 'user' END,
                   '01' || upper(lpad(to_hex(row_number() OVER ()), 24, '0')), now() FROM t" -c "ANALYZE tuple"
    run scripts/services stop "$DIR/services" authz-store || fail "authz-store did not stop"
    sql authz -c "CREATE TEMP TABLE t (o text, r text, s text)" -c "\\copy t FROM '$tuples'" \
        -c "INSERT INTO relata_store.tuple (store, object, relation, subject, inserted_at) SELECT '${STORE[ours]}', o, r, s, now() FROM t"
    run scripts/services start "$DIR/services" authz-store || fail "authz-store did not start"
    # shellcheck disable=SC1091
    source "$DIR/services/env"
    checkpoint
}

# Requests with {store} for the store's id, by side. asked NAME SIDE CONNECTIONS SECONDS [REQUESTS]: samples NAME.SIDE.p50, .p99, .rate.
asked() {
    local name=$1 side=$2 url=$SERVICES_OPENFGA_URL
    [[ $side == fga ]] || url=$SERVICES_AUTHZ_STORE_URL
    sed "s/{store}/${STORE[$side]}/" "$DIR/scratch/$name.requests" >"$DIR/scratch/$name.$side"
    run "$BIN/bench-decisions" --set bench.url="$url" --set bench.file="$DIR/scratch/$name.$side" --set bench.connections="$3" \
        --set bench.seconds="$4s" --set bench.requests="${5:-0}" >"$DIR/asked" || fail "$name could not be measured"
    [[ $(jq .wrong "$DIR/asked") == 0 ]] || fail "$name: $(jq .wrong "$DIR/asked") of $(jq .requests "$DIR/asked") answers of $side are wrong"
    sample "$name.$side.p50" "$(jq .p50_ms "$DIR/asked")"
    sample "$name.$side.p99" "$(jq .p99_ms "$DIR/asked")"
    sample "$name.$side.rate" "$(jq .per_second "$DIR/asked")"
}
# both NAME SECONDS: one after the other on one connection, both sides in turn.
both() {
    local i
    for ((i = 1; i <= RUNS; i++)); do
        progress "run $i of $RUNS: $1"
        asked "$1" fga 1 "$2"
        asked "$1" ours 1 "$2"
    done
}
faster() { result "$1: p50" ms "$(median "$2.fga.p50")" 'authz-store' "$(median "$2.ours.p50")" "$RUNS" 'ratio>=' "$3"; }

# capacity NAME SIDE CONNECTIONS SECONDS: as many as there can be, by a load generator that costs next to nothing (wrk); samples NAME.SIDE.rate, .p99.
capacity() {
    local name=$1 side=$2 url=$SERVICES_OPENFGA_URL
    [[ $side == fga ]] || url=$SERVICES_AUTHZ_STORE_URL
    sed "s/{store}/${STORE[$side]}/" "$DIR/scratch/$name.requests" >"$DIR/scratch/$name.$side"
    REQUESTS=$DIR/scratch/$name.$side run wrk -t 1 -c "$3" -d "$4s" --timeout 10s --latency -s bench/requests.lua "$url" >"$DIR/wrk" || fail "wrk failed"
    ! grep -q 'Non-2xx' "$DIR/wrk" || fail "$name: $(grep 'Non-2xx' "$DIR/wrk") of $side"
    sample "$name.$side.rate" "$(awk '/^Requests\/sec/ { print $2 }' "$DIR/wrk")"
    sample "$name.$side.p99" "$(awk '$1 == "99%" { v = $2; sub(/[a-z]+$/, "", v); print v * ($2 ~ /us$/ ? 0.001 : $2 ~ /ms$/ ? 1 : 1000) }' "$DIR/wrk")"
}

# ---- the Inari inventory ----

bench_store_inari() {
    local -A STORE=()
    local scale=${BENCH_STORE_SCALE:-$([[ -n $QUICK ]] && echo 1 || echo 10)} seconds=$([[ -n $QUICK ]] && echo 1 || echo 10)
    OPENFGA_FLAGS=("${STORE_FLAGS[@]}")
    servers postgres openfga authz-store
    progress "making the inventory, scale $scale"
    database inari
    sql inari -f demo/inventory.sql -f demo/track.sql -f demo/expected.sql >/dev/null
    PGOPTIONS='-c client_min_messages=warning -c synchronous_commit=off' sql inari -v scale="$scale" -f demo/generate.sql
    sql inari -c "\\copy (SELECT object, relation, subject FROM relata.tuple) TO '$DIR/scratch/inari'"
    store_stage demo/model-deep.json "$DIR/scratch/inari"
    # 50 random instances for one random person, as a page of a list asks.
    sql inari -c "\\copy (
        SELECT '/stores/{store}/batch-check', NULL, json_build_object('checks', json_agg(json_build_object('correlation_id', 'c' || n,
               'tuple_key', json_build_object('user', u, 'relation', 'viewer', 'object', o))))
        FROM (SELECT b, n, (SELECT 'user:' || id FROM inventory.users ORDER BY hashtextextended(id, b) LIMIT 1) AS u,
                     'resource_instance:' || (1 + ((hashint8(b * 1000 + n)::bigint + 2147483648) % (5000 * $scale))) AS o
              FROM generate_series(1, 40) b, generate_series(1, 50) n) q GROUP BY b, u) TO '$DIR/scratch/batch.requests' (FORMAT csv, DELIMITER E'\\t', QUOTE E'\\b')"
    sql inari -c "\\copy (
        SELECT '/stores/{store}/check', NULL, json_build_object('tuple_key', json_build_object('user', u, 'relation', r, 'object', o))
        FROM (SELECT n, (ARRAY['viewer', 'editor'])[1 + n % 2] AS r, (SELECT 'user:' || id FROM inventory.users ORDER BY hashtextextended(id, n) LIMIT 1) AS u,
                     'resource_instance:' || (1 + ((hashint8(n)::bigint + 2147483648) % (5000 * $scale))) AS o
              FROM generate_series(1, 400) n) q) TO '$DIR/scratch/check.requests' (FORMAT csv, DELIMITER E'\\t', QUOTE E'\\b')"
    both batch "$seconds"
    both check "$seconds"
    progress 'as many as there can be, 16 connections'
    rm -f "$DIR"/samples/check.*.rate
    capacity check fga 16 "$seconds"
    capacity check ours 16 "$seconds"
    faster "Inari scale $scale, deep model, viewer: BatchCheck of 50" batch 500
    faster "Inari scale $scale, deep model: Check viewer, editor" check 5
    result "Inari scale $scale, deep model: Checks at 16 connections" 1/s "$(tail -n 1 "$DIR/samples/check.ours.rate")" OpenFGA \
        "$(tail -n 1 "$DIR/samples/check.fga.rate")" 1 'ratio>=' 20
}

# ---- a policy decision point: roles, and chains of folders ----

PDP_MODEL='{"schema_version":"1.1","type_definitions":[{"type":"user"},
 {"type":"tenant","relations":{"viewer":{"this":{}}},"metadata":{"relations":{"viewer":{"directly_related_user_types":[{"type":"user"}]}}}},
 {"type":"file","relations":{"tenant":{"this":{}},"parent":{"this":{}},"viewer":{"union":{"child":[{"this":{}},
   {"tupleToUserset":{"tupleset":{"relation":"parent"},"computedUserset":{"relation":"viewer"}}},
   {"tupleToUserset":{"tupleset":{"relation":"tenant"},"computedUserset":{"relation":"viewer"}}}]}}},
  "metadata":{"relations":{"tenant":{"directly_related_user_types":[{"type":"tenant"}]},"parent":{"directly_related_user_types":[{"type":"file"}]},
   "viewer":{"directly_related_user_types":[{"type":"user"}]}}}}]}'

bench_store_pdp() {
    local -A STORE=()
    local kind seconds=$([[ -n $QUICK ]] && echo 1 || echo 8)
    OPENFGA_FLAGS=("${STORE_FLAGS[@]}")
    servers postgres openfga authz-store
    printf '%s' "$PDP_MODEL" >"$DIR/scratch/pdp.json"
    # 100 tenants of 30 people and 31 chains of four files: 12,400 files. A role on the tenant; or on the file, one, two, three above.
    sql postgres -c "\\copy (
        SELECT 'tenant:' || t, 'viewer', 'user:t' || t || 'u' || u FROM generate_series(1, 100) t, generate_series(1, 15) u
        UNION ALL SELECT 'file:' || t || '-' || c || '-' || d, 'tenant', 'tenant:' || t FROM generate_series(1, 100) t, generate_series(1, 31) c, generate_series(0, 3) d WHERE c <= 10
        UNION ALL SELECT 'file:' || t || '-' || c || '-' || d, 'parent', 'file:' || t || '-' || c || '-' || d + 1 FROM generate_series(1, 100) t, generate_series(1, 31) c, generate_series(0, 2) d
        UNION ALL SELECT 'file:' || t || '-' || c || '-' || c % 4, 'viewer', 'user:t' || t || 'u' || (16 + c % 15) FROM generate_series(1, 100) t, generate_series(11, 31) c
        ) TO '$DIR/scratch/pdp'"
    store_stage "$DIR/scratch/pdp.json" "$DIR/scratch/pdp"
    # 1,000 checks with known answers each, half of them no.
    sql postgres -c "\\copy (
        SELECT '/stores/{store}/check', '\"allowed\":' || CASE WHEN n % 2 = 0 THEN 'true' ELSE 'false' END, json_build_object('tuple_key',
               json_build_object('user', 'user:t' || CASE WHEN n % 2 = 0 THEN t ELSE 1 + t % 100 END || 'u' || 1 + n % 15, 'relation', 'viewer',
                                 'object', 'file:' || t || '-' || 1 + n % 10 || '-' || n % 4))
        FROM (SELECT n, 1 + n * 37 % 100 AS t FROM generate_series(1, 1000) n) q) TO '$DIR/scratch/rbac.requests' (FORMAT csv, DELIMITER E'\\t', QUOTE E'\\b')"
    sql postgres -c "\\copy (
        SELECT '/stores/{store}/check', '\"allowed\":' || CASE WHEN n % 2 = 0 THEN 'true' ELSE 'false' END, json_build_object('tuple_key',
               json_build_object('user', 'user:t' || CASE WHEN n % 2 = 0 THEN t ELSE 1 + t % 100 END || 'u' || 16 + c % 15, 'relation', 'viewer',
                                 'object', 'file:' || t || '-' || c || '-0'))
        FROM (SELECT n, 1 + n * 37 % 100 AS t, 11 + n / 2 % 21 AS c FROM generate_series(1, 1000) n) q) TO '$DIR/scratch/chains.requests' (FORMAT csv, DELIMITER E'\\t', QUOTE E'\\b')"
    for kind in rbac chains; do
        progress "$kind: 1,000 known answers"
        asked "$kind" fga 1 120 1000
        asked "$kind" ours 1 120 1000
        rm -f "$DIR"/samples/"$kind".*
        both "$kind" "$seconds"
        rm -f "$DIR"/samples/"$kind".*.{rate,p99}
        for ((i = 1; i <= RUNS; i++)); do
            progress "run $i of $RUNS: $kind, 10 connections"
            capacity "$kind" fga 10 "$seconds"
            capacity "$kind" ours 10 "$seconds"
        done
    done
    result 'roles on a tenant: Checks at 10 connections' 1/s "$(median rbac.ours.rate)" OpenFGA "$(median rbac.fga.rate)" "$RUNS" 'ratio>=' 10
    result 'chains of folders: Checks at 10 connections' 1/s "$(median chains.ours.rate)" OpenFGA "$(median chains.fga.rate)" "$RUNS" 'ratio>=' 20
    result 'roles on a tenant: Checks at 10 connections, p99' ms "$(median rbac.ours.p99)" OpenFGA "$(median rbac.fga.p99)" "$RUNS" 'value<=' 2
    result 'chains of folders: Checks at 10 connections, p99' ms "$(median chains.ours.p99)" OpenFGA "$(median chains.fga.p99)" "$RUNS" 'value<=' 2
}

# ---- lists, and Write ----

bench_store_lists() {
    local -A STORE=()
    local i side url seconds=$([[ -n $QUICK ]] && echo 1 || echo 6)
    OPENFGA_FLAGS=("${STORE_FLAGS[@]}")
    servers postgres openfga authz-store
    printf '%s' "$PDP_MODEL" >"$DIR/scratch/pdp.json"
    # One person sees 1,000 files by 10 folders; 186 people see one file by its tenant; 100,000 other tuples.
    sql postgres -c "\\copy (
        SELECT 'file:f' || f, 'viewer', 'user:lister' FROM generate_series(1, 10) f
        UNION ALL SELECT 'file:f' || f || '-' || n, 'parent', 'file:f' || f FROM generate_series(1, 10) f, generate_series(1, 99) n
        UNION ALL SELECT 'file:shared', 'tenant', 'tenant:big'
        UNION ALL SELECT 'tenant:big', 'viewer', 'user:m' || n FROM generate_series(1, 186) n
        UNION ALL SELECT 'file:o' || n, 'viewer', 'user:o' || n % 5000 FROM generate_series(1, 100000) n
        ) TO '$DIR/scratch/lists'"
    store_stage "$DIR/scratch/pdp.json" "$DIR/scratch/lists"
    printf '/stores/{store}/list-objects\t\t{"type":"file","relation":"viewer","user":"user:lister"}\n' >"$DIR/scratch/objects.requests"
    printf '/stores/{store}/list-users\t\t{"object":{"type":"file","id":"shared"},"relation":"viewer","user_filters":[{"type":"user"}]}\n' \
        >"$DIR/scratch/users.requests"
    both objects "$seconds"
    both users "$seconds"
    faster 'ListObjects of 1,000' objects 50
    faster 'ListUsers of 186' users 10
    progress 'Write: batches of 100, 8 in flight'
    database drain
    outbox_rows drain "$([[ -n $QUICK ]] && echo 2000 || echo 40000)"
    for ((i = 1; i <= RUNS; i++)); do
        for side in fga ours; do
            url=$SERVICES_OPENFGA_URL
            [[ $side == fga ]] || url=$SERVICES_AUTHZ_STORE_URL
            store_new "$url"
            RELATA_PG_DSN=$(dsn drain) RELATA_STORE_URL=$url run "$BIN/bench-store-writes" --set bench.store_id="$STORE_ID" \
                --set bench.model_id="$MODEL_ID" --set bench.lanes=8 >"$DIR/writes" || fail 'the writes could not be measured'
            sample "writes.$side" "$(jq '.tuples / .seconds' "$DIR/writes")"
        done
    done
    result 'Write, batches of 100, 8 in flight, durable' tuples/s "$(median writes.ours)" OpenFGA "$(median writes.fga)" "$RUNS" 'ratio>=' 5
}
# store_new URL: a fresh store with the demo's deep model there.
store_new() {
    local SERVICES_OPENFGA_URL=$1
    new_store deep
}

# ---- in process ----

bench_engine() {
    local scale small=$([[ -n $QUICK ]] && echo 1 || echo 10) large=$([[ -n $QUICK ]] && echo 2 || echo 100)
    for scale in "$small" "$large"; do
        for ((i = 1; i <= RUNS; i++)); do
            progress "run $i of $RUNS: scale $scale"
            run "$BIN/bench-engine" --set bench.scale="$scale" >"$DIR/engine" || fail 'bench-engine failed'
            sample "$scale.p50" "$(jq .check_us.p50 "$DIR/engine")"
            sample "$scale.p99" "$(jq .check_us.p99 "$DIR/engine")"
            sample "$scale.batch" "$(jq .batch_of_50_us.p50 "$DIR/engine")"
            sample "$scale.writing" "$(jq .check_while_writing_us.p99 "$DIR/engine")"
            sample "$scale.bytes" "$(jq .bytes_a_tuple "$DIR/engine")"
            sample "$scale.load" "$(jq '.collect_seconds + .load_end_seconds' "$DIR/engine")"
        done
        result "in process, Inari scale $scale: Check viewer, p50" us "$(median "$scale.p50")" '' '' "$RUNS" 'value<=' 10
        result "in process, Inari scale $scale: Check viewer, p99" us "$(median "$scale.p99")" '' '' "$RUNS" 'value<=' 50
        result "in process, Inari scale $scale: 50 instances, one subject, p50" us "$(median "$scale.batch")" '' '' "$RUNS" 'value<=' 100
        result "in process, Inari scale $scale: p99 while 5,000 tuples/s are applied" us "$(median "$scale.writing")" 'without' \
            "$(median "$scale.p99")" "$RUNS" 'ratio<=' 2
        result "in process, Inari scale $scale: memory of a tuple" bytes "$(median "$scale.bytes")" '' '' "$RUNS" 'value<=' 100
        result "in process, Inari scale $scale: loading" s "$(median "$scale.load")" '' '' "$RUNS" -
    done
}
