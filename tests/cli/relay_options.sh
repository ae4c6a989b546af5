#!/usr/bin/env bash
# outbox-relay: each bad setting gives one line on standard error that names it, and exit code 2.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${BIN:?}" "${TEST_DIR:?}"

KAFKA=(--set kafka.bootstrap.servers=127.0.0.1:1)

refused() { # pattern, options...
    local pattern=$1 code=0
    shift
    timeout 20 "$BIN/outbox-relay" "$@" >"$TEST_DIR/out" 2>"$TEST_DIR/err" </dev/null || code=$?
    if [[ $code == 2 && ! -s $TEST_DIR/out && $(wc -l <"$TEST_DIR/err") == 1 ]] && grep -q -- "$pattern" "$TEST_DIR/err"; then
        echo "ok refused: $*"
    else
        echo "not ok refused: $* (exit $code)"
        cat "$TEST_DIR/err"
    fi
}

refused 'kafka.bootstrap.servers is not set' --check-config
refused 'kafka.acks cannot be set' "${KAFKA[@]}" --set kafka.acks=1 --check-config
refused 'kafka.enable.idempotence cannot be set' "${KAFKA[@]}" --set kafka.enable.idempotence=false --check-config
refused 'kafka.partitioner cannot be set' "${KAFKA[@]}" --set kafka.partitioner=random --check-config
refused 'No such configuration property' "${KAFKA[@]}" --set kafka.nope=1 --check-config
refused 'kafka.message.timeout.ms' "${KAFKA[@]}" --set kafka.message.timeout.ms=soon --check-config
refused 'relay.slot = "Bad-Name"' "${KAFKA[@]}" --set relay.slot=Bad-Name --check-config
refused 'relay.name = ""' "${KAFKA[@]}" --set relay.name= --check-config
refused 'relay.publication' "${KAFKA[@]}" --set "relay.publication=a'b" --check-config
refused 'relay.topic = "a b"' "${KAFKA[@]}" --set 'relay.topic=a b' --check-config
refused 'relay.writer_group' "${KAFKA[@]}" --set relay.writer_group=%d --check-config
refused 'relay.writer_group' "${KAFKA[@]}" --set relay.writer_group=%s%s --check-config
refused 'relay.mode' "${KAFKA[@]}" --set relay.mode=both --check-config
refused 'relay.in_flight' "${KAFKA[@]}" --set relay.in_flight=0 --check-config
refused 'relay.topic_replication' "${KAFKA[@]}" --set relay.topic_replication=0 --check-config
