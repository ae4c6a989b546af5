#!/usr/bin/env bash
# console.sh - the console page of `make up`, in a browser (headless Chromium), as a person uses it; by keyboard alone too.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
BIN=$(cd "${BIN:-build/gcc/bin}" && pwd)
TEST_DIR=$(cd "${TEST_DIR:?an empty folder}" && pwd)
unset "${!RELATA_@}" "${!SERVICES_@}"
export BIN STACK_DIR=$TEST_DIR/stack STACK_ENV=$TEST_DIR/env MODEL=flat
DRIVER=''
finish() {
    [[ -z $DRIVER ]] || kill "$DRIVER" 2>/dev/null || true
    scripts/stack down >/dev/null 2>&1 || true
}
trap finish EXIT

scripts/stack up >"$TEST_DIR/up" 2>&1 || {
    cat "$TEST_DIR/up"
    exit 1
}
# Of its own port, and with a home that goes with the test.
mkdir -p "$TEST_DIR/home"
env -i PATH="$PATH" HOME="$TEST_DIR/home" TMPDIR="$TEST_DIR/home" chromedriver --port=0 >"$TEST_DIR/driver" 2>&1 &
DRIVER=$!
until port=$(sed -n 's/^ChromeDriver was started successfully on port \([0-9]*\).*/\1/p' "$TEST_DIR/driver") && [[ -n $port ]]; do
    kill -0 "$DRIVER" || {
        cat "$TEST_DIR/driver"
        exit 1
    }
    sleep 0.05
done
# shellcheck disable=SC1090
source "$STACK_ENV"
python3 tests/cli/console.py "http://127.0.0.1:$port" "$STACK_DIR/secrets/lister.callers"
