#!/usr/bin/env bash
# docs/reference is what the programs say about themselves.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if scripts/reference --check; then
    echo "ok reference pages are up to date"
else
    echo "not ok reference pages are out of date"
fi
