#!/usr/bin/env bash
# demo_sql.sh - the demo's inventory: the generator's counts, and the expected tuples against what the triggers record.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$ROOT"
BIN=$(cd "${BIN:-build/gcc/bin}" && pwd)
URL=${SERVICES_PG_DSN%/*}
DATABASES=()
FAILED=0

ok() { # NAME WANTED GOT
    if [[ $2 == "$3" ]]; then
        printf 'ok - %s\n' "$1"
    else
        printf 'not ok - %s: wanted "%s", got "%s"\n' "$1" "$2" "$3"
        FAILED=$((FAILED + 1))
    fi
}

db() { printf 'demo_%s_%s\n' "$1" $$; }
sql() { # NAME ARGS...
    local name=$1
    shift
    PGOPTIONS='-c client_min_messages=warning' psql -XAtq -v ON_ERROR_STOP=1 "$URL/$(db "$name")" "$@"
}
new_database() { # NAME: with the inventory's tables
    psql -XAtq "$SERVICES_PG_DSN" -c "CREATE DATABASE $(db "$1")"
    DATABASES+=("$(db "$1")")
    sql "$1" -f demo/inventory.sql -f demo/expected.sql
}
drop_databases() {
    local d
    for d in "${DATABASES[@]}"; do psql -XAtq "$SERVICES_PG_DSN" -c "DROP DATABASE IF EXISTS $d WITH (FORCE)"; done
}
trap drop_databases EXIT
migrate() { "$BIN/relatactl" migrate --set "pg.dsn=$URL/$(db "$1")" >/dev/null; }

# Tuples on one side only: 0 if the ledger is what the inventory stands for.
DIFFERENT="WITH ledger AS (SELECT object, relation, subject FROM relata.tuple WHERE present AND store = 'default'),
                expected AS (SELECT object, relation, subject FROM inventory.expected_tuples)
           SELECT count(*) FROM ((TABLE ledger EXCEPT TABLE expected) UNION ALL (TABLE expected EXCEPT TABLE ledger)) d"
EXPECTED='SELECT count(*) FROM inventory.expected_tuples'

# The counts, without triggers.
new_database small
sql small -v scale=1 -f demo/generate.sql
ok "scale 1 stands for 13,440 tuples" 13440 "$(sql small -c "$EXPECTED")"
ok "no tuple is expected twice" 13440 \
    "$(sql small -c 'SELECT count(DISTINCT (object, relation, subject)) FROM inventory.expected_tuples')"
ok "520 people, 100 teams, 5,000 instances" "520 100 5000" "$(sql small -F ' ' -c "SELECT
    (SELECT count(*) FROM inventory.users), (SELECT count(*) FROM inventory.teams),
    (SELECT count(*) FROM inventory.resource_instances)")"
new_database large
sql large -v scale=10 -f demo/generate.sql
ok "scale 10 stands for 127,740 tuples" 127740 "$(sql large -c "$EXPECTED")"

# The same through relata.track.
new_database tracked
migrate tracked
sql tracked -f demo/track.sql >/dev/null
sql tracked -v scale=1 -f demo/generate.sql
DIGEST="SELECT md5(string_agg(t::text, ',' ORDER BY t::text)) FROM inventory.expected_tuples t"
ok "the generator is deterministic" "$(sql small -c "$DIGEST")" "$(sql tracked -c "$DIGEST")"
ok "the triggers record exactly the expected tuples" 0 "$(sql tracked -c "$DIFFERENT")"
ok "one pending row a tuple" 13440 "$(sql tracked -c 'SELECT count(*) FROM relata.outbox')"

# after NAME SQL WANTED: the statement is done in one transaction; wanted is the change of the number of tuples.
after() {
    local before
    before=$(sql tracked -c "$EXPECTED")
    sql tracked -1 -c "$2" >/dev/null
    ok "$1" "$3 0" "$(($(sql tracked -c "$EXPECTED") - before)) $(sql tracked -c "$DIFFERENT")"
}
after "a person joins a team" \
    "INSERT INTO inventory.memberships (team_id, user_id) VALUES ('org-02-apps', 'ada.costa')" 1
after "the directory names the membership too" "INSERT INTO inventory.memberships (team_id, user_id, source)
    VALUES ('org-02-apps', 'ada.costa', 'directory')" 0
after "one of the two reasons goes" \
    "DELETE FROM inventory.memberships WHERE team_id = 'org-02-apps' AND user_id = 'ada.costa' AND source = 'manual'" 0
after "the last reason goes" \
    "DELETE FROM inventory.memberships WHERE team_id = 'org-02-apps' AND user_id = 'ada.costa'" -1
after "an instance is shared" \
    "INSERT INTO inventory.instance_shares (resource_instance_id, user_id, relation) VALUES (7, 'ada.costa', 'viewer')" 1
after "an instance goes into the bin, its share with it" \
    "UPDATE inventory.resource_instances SET deleted_at = now() WHERE id = 7" -3
after "it is restored" "UPDATE inventory.resource_instances SET deleted_at = NULL WHERE id = 7" 3
after "it is moved and handed over at once" "UPDATE inventory.resource_instances
    SET catalog_item_id = 99, owner_team_id = 'org-09-apps' WHERE id = 7" 0
after "the same grant is given twice" "INSERT INTO inventory.team_grants (team_id, relation, cluster_id)
    VALUES ('org-01-apps', 'viewer', 3), ('org-01-apps', 'viewer', 3)" 1
after "a team gets another key" "UPDATE inventory.teams SET id = 'renamed' WHERE id = 'org-01-apps'" 0
after "a user is erased" "SELECT relata.erase_subject('user:ada.costa');
    DELETE FROM inventory.users WHERE id = 'ada.costa'" -2
after "a cluster is closed: accounts, items, instances and grants go by cascade" \
    "DELETE FROM inventory.clusters WHERE id = 3" -128
sql tracked -1 -c "DELETE FROM inventory.organizations WHERE id = 'org-02'"
ok "an organization goes with all it has" "0 0" "$(sql tracked -c "SELECT count(*) FROM relata.tuple
    WHERE present AND (object ~ ':org-02' OR subject ~ ':org-02')") $(sql tracked -c "$DIFFERENT")"

# Tables that were full before they were tracked.
migrate small
sql small -f demo/track.sql >/dev/null
for table in $(sql small -c "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'inventory'
    AND tablename NOT IN ('organizations', 'users', 'teams') ORDER BY 1"); do
    sql small -c "CALL relata.backfill('$table', 1000)" >/dev/null
done
ok "backfill records exactly the expected tuples" 0 "$(sql small -c "$DIFFERENT")"

((FAILED == 0))
