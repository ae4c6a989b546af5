#!/usr/bin/env bash
# migrate_cluster.sh - several databases of one fresh cluster are migrated at the same time: roles are the cluster's, so
# each migration may find what another one is just making. As superuser and as a role that may only create roles.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$ROOT"
CTL=$(cd "${BIN:-build/gcc/bin}" && pwd)/relatactl
DIR=${TEST_DIR:-$(mktemp -d)}
FAILED=0
unset "${!RELATA_@}" "${!PG@}" 2>/dev/null || true

trap 'scripts/services --now stop "$DIR/cluster" >/dev/null 2>&1 || true' EXIT
scripts/services start "$DIR/cluster" postgres >/dev/null
# shellcheck source=/dev/null
. "$DIR/cluster/env"

psql -qX "$SERVICES_PG_DSN" -c "CREATE ROLE migrator LOGIN CREATEROLE PASSWORD 'migrator'"
for ((i = 1; i <= 6; i++)); do psql -qX "$SERVICES_PG_DSN" -c "CREATE DATABASE d$i OWNER migrator"; done

# dsn DATABASE: d1 .. d3 by the superuser, the others by the migrator.
dsn() {
    case $1 in
        d[123]) printf '%s/%s' "${SERVICES_PG_DSN%/*}" "$1" ;;
        *) printf 'postgresql://migrator:migrator@127.0.0.1:%s/%s' "$SERVICES_PG_PORT" "$1" ;;
    esac
}

PIDS=()
for ((i = 1; i <= 6; i++)); do
    RELATA_PG_DSN=$(dsn "d$i") "$CTL" migrate >"$DIR/d$i" 2>&1 &
    PIDS+=($!)
done
for ((i = 1; i <= 6; i++)); do
    rc=0
    wait "${PIDS[i - 1]}" || rc=$?
    if [[ $rc == 0 ]]; then
        printf 'ok - database %s\n' "$i"
    else
        printf 'not ok - database %s: exit %s: %s\n' "$i" "$rc" "$(tail -n 1 "$DIR/d$i")"
        FAILED=$((FAILED + 1))
    fi
done
[[ $FAILED == 0 ]]
