#!/usr/bin/env bash
# free-port.sh - sourced by scripts that start servers, which have a function fail.

# free_port: below the ephemeral range, so that no outgoing connection takes it while its server is down.
free_port() {
    local low used port try
    read -r low _ </proc/sys/net/ipv4/ip_local_port_range || low=32768
    ((low > 20000)) || low=60000
    used=$(awk 'FNR > 1 { sub(/.*:/, "", $2); print $2 }' /proc/net/tcp /proc/net/tcp6 2>/dev/null || true)
    for try in {1..200}; do
        port=$((10240 + (RANDOM * 32768 + RANDOM) % (low - 10240)))
        grep -qx "$(printf '%04X' "$port")" <<<"$used" || break
    done
    ((try < 200)) || fail "no free port found"
    printf '%s\n' "$port"
}
