#!/usr/bin/env bash
# openapi.sh - inventory-lister against its own OpenAPI document: schemathesis makes requests from it, right ones and
# wrong ones, and compares each answer with what the document says.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
BIN=$(cd "${BIN:-build/gcc/bin}" && pwd)
DIR=$(cd "${TEST_DIR:?an empty folder}" && pwd)
SCHEMATHESIS=$PWD/build/tools/schemathesis/bin/schemathesis
EXAMPLES=15 # random ones of each operation
[[ ${RELATA_SOAK:-} != 1 ]] || EXAMPLES=300
SEED=${RELATA_SEED:-1}
DSN=${SERVICES_PG_DSN%/*}/openapi_$$
unset "${!RELATA_@}" "${!PG@}"
LISTER=''
# shellcheck disable=SC2317 # the trap calls it
finish() { [[ -z $LISTER ]] || kill "$LISTER" 2>/dev/null || true; }
trap finish EXIT

sql() { "$SERVICES_PG_BINDIR/psql" -XAtq -v ON_ERROR_STOP=1 "$@"; }
ctl() { "$BIN/relatactl" "$@" --set "pg.dsn=$DSN" --set "store.url=$SERVICES_OPENFGA_URL" >>"$DIR/ctl" 2>&1; }

# ---- an inventory of 300 things in a store that shows two thirds of them ----
sql "$SERVICES_PG_DSN" -c "CREATE DATABASE openapi_$$ TEMPLATE template0 LOCALE 'C.UTF-8'"
ctl migrate
sql "$DSN" >/dev/null <<'END'
CREATE TABLE public.things(id bigint PRIMARY KEY, name text NOT NULL, size int, tenant text NOT NULL, price numeric,
    active boolean NOT NULL, uid uuid NOT NULL, extra jsonb, day date, at timestamptz NOT NULL);
INSERT INTO public.things
SELECT n, 'thing ' || n % 40, nullif(n % 7, 0), 't' || n % 2, n / 3.0, n % 2 = 0, md5(n::text)::uuid,
    jsonb_build_object('n', n), date '2026-01-01' + n, timestamptz '2026-01-02 03:04:05.5+00' + n * interval '1 h'
FROM generate_series(1, 300) n;
CREATE INDEX ON public.things(name COLLATE "C", id);
CREATE INDEX ON public.things(at, id);
SELECT relata.write_tuple('doc:' || n, 'viewer', 'user:anne') FROM generate_series(1, 300) n WHERE n % 3 > 0;
END
cat >"$DIR/model.json" <<'END'
{"schema_version": "1.1", "type_definitions": [{"type": "user"}, {"type": "doc",
  "relations": {"viewer": {"union": {"child": [{"this": {}}, {"computedUserset": {"relation": "editor"}}]}},
    "editor": {"this": {}}},
  "metadata": {"relations": {"viewer": {"directly_related_user_types": [{"type": "user"}]},
    "editor": {"directly_related_user_types": [{"type": "user"}]}}}}]}
END
ctl seed --create --model "$DIR/model.json" || { cat "$DIR/ctl" && exit 1; }

# ---- the lister ----
hash_of() { printf '%s' "$1" | sha256sum | cut -d' ' -f1; }
printf '%s %s %s\n' anne "$(hash_of t-anne)" subject=user:anne >"$DIR/callers"
printf '%s %s %s\n' operator "$(hash_of t-operator)" 'subject=user:anne rights=list,name-subject,diagnose' >>"$DIR/callers"
chmod 600 "$DIR/callers"
cat >"$DIR/lister.ini" <<END
[pg]
dsn = $DSN
[store]
url = $SERVICES_OPENFGA_URL
request_timeout = 30s
[http]
request_timeout = 60s
listen = 127.0.0.1:0
url_file = $DIR/url
[admin]
listen = 127.0.0.1:0
[callers]
tokens_file = $DIR/callers
[lister]
min_token_wait = 50ms
[collection]
things.table = public.things
things.type = doc
things.id = id
things.columns = id, name, size, tenant, price, active, uid, extra, day, at
things.sort = name, at, size
things.filter = name, size, price, active, uid, day, at
things.relation = viewer
END
"$BIN/inventory-lister" --config "$DIR/lister.ini" >"$DIR/lister.log" 2>&1 &
LISTER=$!
until [[ -s $DIR/url ]]; do
    kill -0 "$LISTER" || { cat "$DIR/lister.log" && exit 1; }
    sleep 0.05
done
URL=$(cat "$DIR/url")

# ---- the comparison ----

# All checks. `wide` takes the document as it is: most of its strings name no collection, relation or token here, and
# 400 and 404 are right for them (so no positive_data_acceptance). `narrow` is the same with this inventory's names in
# place of strings: whatever fits it, but for NUL in JSON, must be answered 200.
run() { # NAME TOKEN DOCUMENT ARGS..
    local name=$1 token=$2 document=$3 rc=0
    shift 3
    (cd "$DIR" && env -i PATH="$PATH" HOME="$DIR" NO_COLOR=1 "$SCHEMATHESIS" --config-file "$DIR/schemathesis.toml" \
        run "$document" --url "$URL" --no-color --header "Authorization: Bearer $token" --seed "$SEED" \
        --max-examples "$EXAMPLES" --generation-database none --request-timeout 20 --warnings off \
        --suppress-health-check all "$@") >"$DIR/$name.out" 2>&1 || rc=$?
    if ((rc == 0)); then
        printf 'ok - %s: %s\n' "$name" "$(sed -n 's/^ *\([0-9]* generated.*\)/\1/p' "$DIR/$name.out")"
    else
        printf 'not ok - %s: exit %s\n' "$name" "$rc"
        cat "$DIR/$name.out"
        FAILED=1
    fi
}

narrow() {
    jq '
        def parameter($name; $schema): (.parameters[] | select(.name == $name)) |= (.schema = $schema | del(.example));
        def without($names): .parameters |= map(select(.name as $n | $names | index($n) | not));
        def relations: {enum: ["viewer", "editor"]};
        .paths |= with_entries(select(.key | startswith("/v1/inventory") or startswith("/access"))) |
        (.paths[][] | select(.parameters)) |= without(["subject", "min_token", "Relata-Min-Token", "page_token"]) |
        (.paths["/v1/inventory/{collection}"].get, .paths["/v1/inventory/{collection}/{id}"].get) |= (
            parameter("collection"; {enum: ["things"]}) | parameter("relation"; relations) |
            parameter("with_relations"; {enum: ["viewer", "editor", "editor,viewer"]})) |
        .paths["/v1/inventory/{collection}/{id}"].get |= parameter("id"; {enum: ["1", "2", "100", "299"]}) |
        .paths["/v1/inventory/{collection}"].get |= (
            parameter("page_size"; {type: "integer", minimum: 0, maximum: 400}) |
            parameter("order_by"; {enum: ["name", "-at,name", "size desc", "-id"]}) |
            .parameters += [
                {name: "filter.size.gte", in: "query", schema: {type: "integer", minimum: -9, maximum: 9}},
                {name: "filter.name.prefix", in: "query", schema: {enum: ["thing", "thing 1", "x"]}},
                {name: "filter.active", in: "query", schema: {enum: ["true", "false"]}},
                {name: "filter.at.lt", in: "query", schema: {enum: ["2026-01-05T00:00:00Z", "2026-01-05T00:00:00.5+02:00"]}},
                {name: "filter.size.null", in: "query", schema: {enum: ["true", "false"]}}]) |
        .components.schemas.Entity.properties.type = {enum: ["user", "doc"]} |
        .components.schemas.Entity.properties.id = {type: "string", pattern: "^[a-z0-9]{1,40}$"} |
        .components.schemas |= (.EntityPart = .Entity | .ActionPart = .Action) |
        .components.schemas.Evaluations.required = ["subject", "action", "resource"]' "$DIR/openapi.json"
}

FAILED=0
: >"$DIR/schemathesis.toml"
curl -sSf "$URL/openapi.json" >"$DIR/openapi.json"
narrow >"$DIR/narrow.json"
run wide t-operator "$DIR/openapi.json" --checks all --exclude-checks positive_data_acceptance \
    --phases coverage,fuzzing
run reader t-anne "$DIR/openapi.json" --checks all --exclude-checks positive_data_acceptance --phases coverage
run narrow t-operator "$DIR/narrow.json" --checks all --mode positive --phases fuzzing \
    --generation-allow-x00 false
kill -0 "$LISTER" || { echo 'not ok - the lister has ended' && tail -n 20 "$DIR/lister.log" && exit 1; }
kill "$LISTER"
wait "$LISTER" || { echo "not ok - the lister ended with $?" && tail -n 20 "$DIR/lister.log" && exit 1; }
LISTER=''
echo 'ok - drained'
exit "$FAILED"
