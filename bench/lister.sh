# shellcheck shell=bash
# lister.sh - inventory-lister beside the same SQL and BatchChecks sent directly, on OpenFGA with its caches on.
#
# The inventory of demo/ at scale BENCH_SCALE, on the deep model by relation can_edit and on the flattened one by can_view.
# user:all-N, of whom there are many, may see all rows; user:some the newest hundred, by a tuple each. tuple-writer runs
# meanwhile: without its heartbeats and events the lister would ask for higher consistency.

LISTER_SCALE=${BENCH_SCALE:-1}
LISTER_SUBJECTS=200
LISTER_CALLERS=8
LISTER_MEMORY_SECONDS=${BENCH_MEMORY_SECONDS:-$([[ -n $QUICK ]] && echo 4 || echo 60)}
declare -A RELATION=([deep]=can_edit [flat]=can_view)
LISTER_FLAGS=(--check-query-cache-enabled --check-iterator-cache-enabled --cache-controller-enabled --check-cache-limit=100000
    --listObjects-deadline=60s --request-timeout=60s --http-upstream-timeout=70s)

# ---- the stage ----

lister_callers() {
    local i token names=()
    : >"$DIR/conf/callers"
    for ((i = 1; i <= LISTER_CALLERS; i++)); do
        token=$(od -An -tx1 -N16 /dev/urandom | tr -d ' \n')
        printf 'caller-%s %s rights=list,name-subject,diagnose\n' "$i" "$(printf %s "$token" | sha256sum | cut -d' ' -f1)" \
            >>"$DIR/conf/callers"
        names+=("$token")
    done
    chmod 600 "$DIR/conf/callers"
    LISTER_TOKEN=${names[0]}
    LISTER_TOKENS=$(IFS=, && printf '%s' "${names[*]}")
}

lister_conf() {
    cat >"$DIR/conf/lister-$1.ini" <<END_OF_CONF
[callers]
tokens_file = $DIR/conf/callers
[collection]
instances.table    = inventory.resource_instances
instances.type     = resource_instance
instances.id       = id
instances.columns  = id, name, owner_team_id, created_at
instances.sort     = created_at
instances.order    = -created_at
instances.relation = ${RELATION[$1]}
instances.where    = deleted_at
[admin]
listen = 127.0.0.1:0
END_OF_CONF
}

# lister_inventory MODEL: database, store and writer of that name, everything applied.
lister_inventory() {
    progress "making the inventory, scale $LISTER_SCALE, $1 model"
    database "$1"
    sql "$1" -f demo/inventory.sql -f demo/track.sql >/dev/null
    PGOPTIONS='-c client_min_messages=warning -c synchronous_commit=off' sql "$1" -v scale="$LISTER_SCALE" -f demo/generate.sql
    # Whole lists take minutes.
    [[ -z $QUICK ]] || sql "$1" -c 'DELETE FROM inventory.resource_instances WHERE id > 300'
    sql "$1" -v subjects="$LISTER_SUBJECTS" -f bench/sql/lister-subjects.sql
    new_store "$1"
    pin "$1"
    start_writer "writer-$1" "$1" --set nats.url="$SERVICES_NATS_URL"
    until_sql "writer-$1" "$1" 'SELECT NOT EXISTS (SELECT FROM relata.outbox)' --timeout-s 600
    sql "$1" -c 'VACUUM ANALYZE'
    sql openfga -c 'VACUUM ANALYZE'
    lister_conf "$1"
}

lister_stage() {
    local model
    # shellcheck disable=SC2034
    OPENFGA_FLAGS=("${LISTER_FLAGS[@]}")
    servers postgres nats openfga
    lister_callers
    for model in "$@"; do lister_inventory "$model"; done
}

# hears LABEL: waits until it hears the writer's heartbeats.
hears() {
    local deadline=$((SECONDS + 60))
    until [[ $(metric "$1" relata_lister_events_blind) == 0 ]]; do
        ((SECONDS < deadline)) || fail "$1 hears no heartbeat of the writer"
        sleep 0.1
    done
}
# start_lister MODEL [--set KEY=VALUE]...: ready, and past the time after its start in which it asks for higher consistency.
start_lister() {
    local model=$1
    shift
    rm -f "$DIR/conf/lister.http"
    start lister env RELATA_PG_DSN="$(dsn "$model")" RELATA_STORE_URL="$SERVICES_OPENFGA_URL" \
        RELATA_NATS_URL="$SERVICES_NATS_URL" "$BIN/inventory-lister" --config "$DIR/conf/lister-$model.ini" \
        --set admin.url_file="$DIR/conf/lister.url" --set http.url_file="$DIR/conf/lister.http" "$@"
    ready lister
    LISTER_URL=$(<"$DIR/conf/lister.http")
    LISTER_MODEL=$model
    STORE_ID=$(ask "$model" "SELECT store_id FROM relata.store WHERE name = 'default'")
    MODEL_ID=$(ask "$model" "SELECT model_id FROM relata.store WHERE name = 'default'")
    hears lister
    [[ -n $QUICK ]] || pause 16
    checkpoint
    HIGHER=$(metric lister relata_lister_batches_higher_total)
}
# sure: the lister missed no events meanwhile, which would have made its checks dearer.
sure() {
    [[ -n $QUICK || $(metric lister relata_lister_batches_higher_total) == "$HIGHER" ]] ||
        fail "the lister asked for higher consistency meanwhile: it heard nothing of the writer for some time"
}

# lists MODE [--set KEY=VALUE]...: bench-lists; its figures come to $DIR/lists.
lists() {
    local mode=$1
    shift
    RELATA_PG_DSN=$(dsn "$LISTER_MODEL") RELATA_NATS_URL=$SERVICES_NATS_URL run "$BIN/bench-lists" \
        --set store.url="$SERVICES_OPENFGA_URL" --set store.request_timeout=60s --set bench.store_id="$STORE_ID" \
        --set bench.model_id="$MODEL_ID" \
        --set bench.relation="${RELATION[$LISTER_MODEL]}" --set bench.url="$LISTER_URL" --set bench.token="$LISTER_TOKEN" \
        --set bench.mode="$mode" "$@" >"$DIR/lists" || fail "bench-lists failed"
}
# pages PHASES [--set KEY=VALUE]...: bench-pages; its figures come to $DIR/pages.
pages() {
    local phases=$1
    shift
    run "$BIN/bench-pages" --set bench.url="$LISTER_URL" --set bench.tokens="$LISTER_TOKENS" --set bench.phases="$phases" \
        --set bench.path="/v1/inventory/instances?page_size=50&relation=${RELATION[$LISTER_MODEL]}&subject=user:all-" \
        "$@" >"$DIR/pages" || fail "bench-pages failed"
}
figure() { jq "$2" "$DIR/$1"; }
# keep SAMPLE FILE PATH
keep() { sample "$1" "$(figure "$2" "$3")"; }

# ---- one page ----

bench_lister_cold() {
    local i model rounds=300 n
    [[ -z $QUICK ]] || rounds=6
    lister_stage deep flat
    for model in deep flat; do
        start_lister "$model"
        for ((i = 0; i < RUNS; i++)); do
            progress "run $((i + 1)) of $RUNS: pages that nothing is known of, $model model"
            lists cold --set bench.rounds="$rounds" --set bench.first=$((1 + i % 10 * 20))
            for n in lister_p50_ms lister_p99_ms direct_p50_ms direct_p99_ms; do keep "$model.$n" lists ".$n"; done
        done
        sure
        stop lister
        n="page of 50, cold, $model model"
        result "$n: p50" ms "$(median "$model.lister_p50_ms")" 'SQL, then one BatchCheck' "$(median "$model.direct_p50_ms")" \
            "$RUNS" 'ratio<=' 1.2
        result "$n: p99" ms "$(median "$model.lister_p99_ms")" 'SQL, then one BatchCheck' "$(median "$model.direct_p99_ms")" \
            "$RUNS" -
    done
}

# Decisions live longer than by default, so that all are known while it is measured.
bench_lister_warm() {
    local i n rounds=5000 seconds=10
    [[ -z $QUICK ]] || rounds=50 seconds=1
    lister_stage deep
    start_lister deep --set cache.allow_ttl=60s
    for ((i = 1; i <= RUNS; i++)); do
        progress "run $i of $RUNS: pages that are known, one by one, then 500 a second"
        lists warm --set bench.rounds="$rounds"
        for n in lister_p50_ms lister_p99_ms sql_p50_ms sql_p99_ms; do keep "$n" lists ".$n"; done
        pages "500:1,500:$seconds"
        [[ -n $QUICK ]] || jq -e '.[1] | .errors == 0 and .refused == 0 and .served_rate > 495' "$DIR/pages" >/dev/null ||
            fail "500 pages a second were not served: $(jq -c . "$DIR/pages")"
        keep open.p50 pages '.[1].served_p50_ms'
        keep open.p99 pages '.[1].served_p99_ms'
    done
    sure
    stop lister
    result 'page of 50, warm: p50' ms "$(median lister_p50_ms)" 'the SQL alone' "$(median sql_p50_ms)" "$RUNS" 'more<=' 0.3
    result 'page of 50, warm: p99' ms "$(median lister_p99_ms)" 'the SQL alone' "$(median sql_p99_ms)" "$RUNS" -
    result 'page of 50, warm, 500 a second: p50' ms "$(median open.p50)" '' '' "$RUNS" -
    result 'page of 50, warm, 500 a second: p99' ms "$(median open.p99)" '' '' "$RUNS" 'value<=' 5
}

# ---- whole lists ----

# walk LABEL [--set KEY=VALUE]...: each time by a subject of whom nothing is known.
walk() {
    local label=$1
    shift
    lists walk --set bench.first=$((1 + WALKS++ % LISTER_SUBJECTS)) "$@"
    keep "$LISTER_MODEL.$label" lists .ms
}
walk_all() {
    walk lister --set bench.page_size=1000
    walk lister-50
    walk objects --set bench.way=objects
    for n in 1 2 4 8; do walk "checks-$n" --set bench.way=checks --set bench.concurrency="$n"; done
}

bench_lister_walk() {
    local i model best n WALKS=0 rows
    lister_stage deep flat
    rows=$(ask deep 'SELECT count(*) FROM inventory.resource_instances')
    for model in deep flat; do
        start_lister "$model"
        walk warm-up --set bench.way=checks --set bench.concurrency=2
        for ((i = 1; i <= RUNS; i++)); do
            progress "run $i of $RUNS: whole lists of $rows rows, $model model"
            walk_all
        done
        sure
        stop lister
        best=1
        for n in 2 4 8; do
            (($(calc "$(median "$model.checks-$n") < $(median "$model.checks-$best")") == 0)) || best=$n
        done
        n="$rows rows, cold, $model model"
        result "$n" ms "$(median "$model.lister")" "BatchChecks of 50, $best at once" "$(median "$model.checks-$best")" "$RUNS" \
            'ratio<=' 1.15
        result "$n, pages of 50" ms "$(median "$model.lister-50")" 'BatchChecks of 50, 1 at once' \
            "$(median "$model.checks-1")" "$RUNS" -
        result "$n, by ListObjects and IN" ms "$(median "$model.objects")" 'by the lister' "$(median "$model.lister")" "$RUNS" -
    done
}

# ---- a change ----

bench_lister_revoke() {
    local i n rounds=60 model
    [[ -z $QUICK ]] || rounds=3
    lister_stage deep flat
    for model in deep flat; do
        start_lister "$model"
        for ((i = 1; i <= RUNS; i++)); do
            progress "run $i of $RUNS: revokes, $model model"
            lists revoke --set bench.rounds="$rounds"
            for n in applied_p50_ms applied_p99_ms gone_p50_ms gone_p99_ms shown_p50_ms; do keep "$model.$n" lists ".$n"; done
        done
        stop lister
        result "revoke to row gone, $model model: p50" ms "$(median "$model.gone_p50_ms")" 'commit to applied' \
            "$(median "$model.applied_p50_ms")" "$RUNS" 'more<=' 5
        result "revoke to row gone, $model model: p99" ms "$(median "$model.gone_p99_ms")" 'commit to applied' \
            "$(median "$model.applied_p99_ms")" "$RUNS" -
        result "grant to row shown, $model model: p50" ms "$(median "$model.shown_p50_ms")" '' '' "$RUNS" -
    done
}

# ---- too much ----

# overload LABEL: what the lister can do, half of it, twice of it, and half of it again.
overload() {
    local label=$1 capacity long=30 short=10 rest=5
    [[ -z $QUICK ]] || long=2 short=1 rest=1
    pages "0:$rest,0:$short" --set bench.connections=16
    capacity=$(figure pages '.[1].served_rate')
    sample "$label.capacity" "$capacity"
    pages "$(calc "$capacity / 2"):$short,$(calc "$capacity * 2"):$long,$(calc "$capacity / 2"):$rest,$(calc "$capacity / 2"):$short" \
        --set bench.connections=512
    [[ -n $QUICK ]] || jq -e 'all(.[]; .errors == 0)' "$DIR/pages" >/dev/null || fail "errors: $(jq -c . "$DIR/pages")"
    keep "$label.before" pages '.[0].served_p99_ms'
    keep "$label.served" pages '.[1].served_rate'
    keep "$label.refused50" pages '.[1].refused_p50_ms'
    keep "$label.refused99" pages '.[1].refused_p99_ms'
    keep "$label.after" pages '.[3].served_p99_ms'
}
overload_results() {
    local n="twice the capacity, $2"
    result "$n: served" pages/s "$(median "$1.served")" 'capacity' "$(median "$1.capacity")" "$RUNS" 'ratio>=' 0.9
    result "$n: refusals p50" ms "$(median "$1.refused50")" '' '' "$RUNS" 'value<=' 5
    result "$n: refusals p99" ms "$(median "$1.refused99")" '' '' "$RUNS" 'value<=' 50
    result "$n: served p99, from 5 s after" ms "$(median "$1.after")" 'before' "$(median "$1.before")" "$RUNS" 'ratio<=' 1.5
}

# Cold pages: no decision is remembered, so that each page costs the same. Warm ones: the load's own work is a part of it.
bench_lister_overload() {
    local i label
    local -A settings=([cold]=cache.size=0 [warm]=cache.allow_ttl=60s)
    lister_stage deep
    for label in cold warm; do
        start_lister deep --set "${settings[$label]}"
        for ((i = 1; i <= RUNS; i++)); do
            progress "run $i of $RUNS: capacity and overload, $label pages"
            overload "$label"
        done
        stop lister
        overload_results "$label" "$label pages"
    done
}

# ---- memory ----

# run_out PID: waits until it has ended by itself; $HIGHEST is what the lister occupied at most meanwhile. With the load its
# connections end, and what they took is given back.
run_out() {
    local now
    HIGHEST=0
    while kill -0 "$1" 2>/dev/null; do
        now=$(rss_mib)
        (($(calc "$HIGHEST < $now") == 0)) || HIGHEST=$now
        pause 0.5
    done
    wait "$1"
}
rss_mib() { awk '/^VmRSS:/ { printf "%.3f", $2 / 1024 }' "/proc/${PID[lister]}/status"; }

# A small cache, so that all of it is in use and can be taken off what the process uses.
bench_lister_memory() {
    local cache=8 subjects=20 middle peak tables load HIGHEST
    [[ -z $QUICK ]] || subjects=2
    lister_stage deep
    # Connections stay, even if a busy machine makes a round of them take longer than it should.
    start_lister deep --set cache.size=${cache}MiB --set cache.allow_ttl=60s --set http.idle_timeout=10min
    progress "1,000 connections, 100 pages a second, $LISTER_MEMORY_SECONDS s"
    "$BIN/bench-pages" --set bench.url="$LISTER_URL" --set bench.tokens="$LISTER_TOKENS" --set bench.idle=1000 \
        --set bench.subjects=$subjects --set bench.phases="100:$LISTER_MEMORY_SECONDS" \
        --set bench.path="/v1/inventory/instances?page_size=50&relation=can_edit&subject=user:all-" >"$DIR/pages" &
    load=$!
    PID[load]=$load # stopped if this fails
    until_metric lister relata_lister_http_connections 1000 --timeout-s 300
    pause $((LISTER_MEMORY_SECONDS / 4))
    middle=$(rss_mib)
    run_out "$load" || fail "bench-pages failed"
    unset 'PID[load]'
    until_sql lister postgres 'SELECT true'
    peak=$MIB
    # Stamps: three tables of one slot of 8 bytes for four entries, within bounds: see cache.h.
    tables=$(calc "$cache / 32 / 4 * 24")
    sample rss "$(calc "$peak - $cache - $tables")"
    result 'lister, 1,000 connections, beside the cache' MiB "$(largest rss)" '' '' 1 'value<=' 64
    result "lister, growth after the first quarter of $LISTER_MEMORY_SECONDS s" MiB "$(calc "$HIGHEST - $middle")" '' '' 1 'value<=' 2
    result 'cache: a decision' bytes "$(calc "$cache * 1048576 * (1 + 24 / 128) / $(metric lister relata_lister_cache_capacity)")" \
        '' '' 1 -
    stop lister
}

# ---- the two sockets ----

bench_lister_sockets() {
    local i n seconds=5
    local -A door
    [[ -z $QUICK ]] || seconds=1
    lister_stage deep
    start_lister deep --set cache.allow_ttl=60s --set http.unix_socket="$DIR/lister.sock"
    door=([tcp]=$LISTER_URL [unix]=unix:$DIR/lister.sock)
    for ((i = 1; i <= RUNS; i++)); do
        progress "run $i of $RUNS: TCP and Unix socket"
        for n in tcp unix; do
            LISTER_URL=${door[$n]}
            pages "0:1,0:$seconds" --set bench.connections=1
            keep "$n.p50" pages '.[1].served_p50_ms'
            pages "0:1,0:$seconds" --set bench.connections=8
            keep "$n.rate" pages '.[1].served_rate'
        done
    done
    sure
    stop lister
    result 'page of 50, warm, Unix socket: p50' ms "$(median unix.p50)" 'TCP' "$(median tcp.p50)" "$RUNS" -
    result 'page of 50, warm, Unix socket, 8 at once' pages/s "$(median unix.rate)" 'TCP' "$(median tcp.rate)" "$RUNS" -
}
