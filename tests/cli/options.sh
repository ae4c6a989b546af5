#!/usr/bin/env bash
# Options that every program has: what they print, and how wrong ones end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${BIN:?}" "${TEST_DIR:?}"

# Settings of the surrounding environment must not take part.
while IFS='=' read -r name _; do
    [[ $name != RELATA_* ]] || unset "$name"
done < <(env)

check() { # text, command...
    local what=$1
    shift
    if "$@"; then echo "ok $what"; else echo "not ok $what"; fi
}

# Runs "$@", keeping $code, $TEST_DIR/out and $TEST_DIR/err.
run() {
    code=0
    "$@" >"$TEST_DIR/out" 2>"$TEST_DIR/err" </dev/null || code=$?
}

# Wrong use: exit code 2, nothing on standard output, one line on standard error that begins with the program's name.
refused() { # pattern, program, arguments...
    local pattern=$1 program=$2
    shift 2
    run "$BIN/$program" "$@"
    if [[ $code != 2 || -s $TEST_DIR/out || $(wc -l <"$TEST_DIR/err") != 1 ]] ||
        ! grep -q "^$program: .*$pattern" "$TEST_DIR/err"; then
        echo "exit code $code, output:" && cat "$TEST_DIR/out" "$TEST_DIR/err"
        return 1
    fi
}

printed() { # exact text, command...
    local text=$1
    shift
    run "$@"
    [[ $code == 0 && $(cat "$TEST_DIR/out") == "$text" && ! -s $TEST_DIR/err ]]
}

helps() { # program
    run "$BIN/$1" --help
    [[ $code == 0 ]] && grep -q '^\[log\]$' "$TEST_DIR/out" && grep -q "RELATA_LOG_LEVEL" "$TEST_DIR/out" &&
        [[ $(wc -L <"$TEST_DIR/out") -le 120 ]]
}

# What --print-config prints is a file that gives the same again, and holds no secret.
reads_back() { # program, settings...
    local program=$1 file=$TEST_DIR/$1.ini
    shift
    run "$BIN/$program" "$@" --set pg.dsn='host=/x password=hush' --set log.level=warn --print-config
    [[ $code == 0 ]] || return 1
    ! grep -q hush "$TEST_DIR/out" || return 1
    cp "$TEST_DIR/out" "$file"
    printed 'configuration ok' "$BIN/$program" --config "$file" --check-config &&
        run "$BIN/$program" --config "$file" --print-config && [[ $code == 0 ]] &&
        diff <(grep -v '^#' "$file") <(grep -v '^#' "$TEST_DIR/out")
}

wrong_file() { # program
    printf '[log]\nlevel = info\nlevle = x\n' >"$TEST_DIR/wrong.ini"
    refused "wrong.ini:3: unknown key \"levle\" in section \[log\]: did you mean \"level\"?" "$1" \
        --config "$TEST_DIR/wrong.ini" --check-config
}

wrong_environment() { # program
    RELATA_LOG_LEVLE=info refused 'RELATA_LOG_LEVLE names no key of section \[log\]: did you mean RELATA_LOG_LEVEL?' "$1" \
        --check-config
}

# Found when it starts: one line of its log.
wrong_address() { # program
    run "$BIN/$1" "${needed[@]}" --set pg.dsn=host=/nonexistent --set admin.listen=nowhere
    [[ $code == 2 && $(grep -c 'level=error' "$TEST_DIR/err") == 1 ]] &&
        grep -q 'admin.listen = ."nowhere.": the port is missing; give host:port' "$TEST_DIR/err"
}

closed_output() { # program
    run bash -c '"$1" --help >/dev/full' _ "$BIN/$1"
    [[ $code == 2 ]] && grep -q 'cannot write to standard output' "$TEST_DIR/err"
}

needed=(--set kafka.bootstrap.servers=127.0.0.1:1)
version=$(sed -n 's/^VERSION := //p' Makefile)
for program in outbox-relay tuple-writer relatactl; do
    more=()
    [[ $program == relatactl ]] || more=("${needed[@]}")
    check "$program --version" printed "$program $version" "$BIN/$program" --version
    check "$program --help" helps "$program"
    check "$program --print-config" reads_back "$program" "${more[@]}"
    check "$program refuses an unknown option" refused 'unknown option --confg: did you mean --config?' "$program" --confg x
    check "$program refuses an unknown key" refused 'unknown key "levl" in section \[log\]' "$program" --set log.levl=x
    check "$program refuses a bad value" refused 'log.level = "loud": must be one of' "$program" --set log.level=loud
    check "$program refuses a missing file" refused 'cannot open /nonexistent.ini' "$program" --config /nonexistent.ini
    check "$program refuses a wrong file" wrong_file "$program"
    check "$program refuses a wrong environment" wrong_environment "$program"
    check "$program tells that output failed" closed_output "$program"
done
for program in outbox-relay tuple-writer; do
    check "$program takes no arguments" refused 'unexpected argument "start"' "$program" start
    check "$program refuses a bad address" wrong_address "$program"
done
