#!/usr/bin/env bash
# docs.sh - every command that README.md and docs/quickstart.md show is run, in order, and says what is shown there.
# Numbers of two digits and more, ids, times and ages may differ. What is printed only a moment later is waited for.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
BIN=$(cd "${BIN:-build/gcc/bin}" && pwd)
TEST_DIR=$(cd "${TEST_DIR:?an empty folder}" && pwd)
WAIT_SECONDS=$((60 * ${RELATA_TEST_SLOWNESS:-1}))
unset "${!RELATA_@}" "${!SERVICES_@}"
export BIN STACK_DIR=$TEST_DIR/stack STACK_ENV=$TEST_DIR/env PATH=$BIN:$PATH
JOBS=()
finish() {
    for pid in "${JOBS[@]}"; do kill "$pid" 2>/dev/null || true; done
    scripts/stack down >/dev/null 2>&1 || true
    [[ ! -d $TEST_DIR/try ]] || scripts/services stop "$TEST_DIR/try" >/dev/null 2>&1 || true
}
trap finish EXIT

# blocks FILE: its code blocks as "LANGUAGE<TAB>LINE" lines, each block ended by an empty one with language "-".
blocks() {
    awk '/^ *```/ { if (open) { print "-\t"; open = 0 } else { open = 1; sub(/^ *```/, ""); lang = $0 == "" ? "sh" : $0 } next }
         open { print lang "\t" $0 }' "$1"
}
# shape TEXT...: lines without what differs from run to run.
shape() {
    sed -E 's/ +/ /g; s/ $//; s/[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z/TIME/g; s/\b[0-9A-HJKMNP-TV-Z]{26}\b/ID/g
            s/\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}\b/UUID/g; s/\b[0-9]+(\.[0-9]+)? (ms|s|min)\b/AGE/g
            s/\br1(\.[0-9]+){3}\b/TOKEN/g; /^relata\.tuples/s/[0-9]+ ([-+]) /N \1 /; s/=[0-9.]+/=N/g
            s/[0-9][0-9.,]*[0-9]/N/g; s/\(0\/s\)/(N\/s)/' "$@"
}
# lacking EXPECTED ACTUAL: the lines of the one that the other has not; "..." within a line stands for anything.
lacking() {
    local line
    while IFS= read -r line; do
        [[ -n $line && $line != ... && ! $line =~ ^-+$ ]] || continue
        # shellcheck disable=SC1003
        line=${line//'\'/'\\'} line=${line//'['/'\['} line=${line//'*'/'\*'} line=${line//'?'/'\?'}
        line=${line//.../*}
        local seen=0 got
        while IFS= read -r got; do
            # shellcheck disable=SC2053 # a pattern
            if [[ $got == $line ]]; then seen=1 && break; fi
        done < <(shape "$2")
        ((seen)) || printf '%s\n' "$line"
    done < <(shape "$1")
}

here() { # The commands' places are those of this test.
    sed -e "s|^make up\$|scripts/stack up|; s|^make down\$|scripts/stack down|; s|build/run/env|$STACK_ENV|g" \
        -e "s|build/run/stack|${STACK_DIR#"$PWD"/}|g" \
        -e "s|build/run/try|$TEST_DIR/try|g; s|PATH=\$PWD/build/bin:|PATH=$BIN:|g; s|\bmodel.json\b|$TEST_DIR/model.json|g" \
        -e "s#\blister\.\(ini\|url\)\b#$TEST_DIR/lister.\1#g" <<<"$1"
}

# try COMMAND EXPECTED INPUT: once; what only reads is tried until it says what is shown.
try() {
    local command=$1 shown=$2 input=$3 rc=0 end=$((SECONDS + WAIT_SECONDS)) missing
    here "$shown" >"$TEST_DIR/shown"
    if [[ $command == *' &' ]]; then
        : >"$TEST_DIR/background"
        eval "${command% &} >>\"\$TEST_DIR/background\" 2>&1 &"
        JOBS+=($!)
        return 0
    fi
    while :; do
        rc=0
        if [[ -n $input ]]; then
            eval "$command" <<<"$input" >"$TEST_DIR/got" 2>&1 || rc=$?
        else
            eval "$command" >"$TEST_DIR/got" 2>&1 </dev/null || rc=$?
        fi
        while :; do
            cat "$TEST_DIR/got" "$TEST_DIR/background" >"$TEST_DIR/all" 2>/dev/null || cp "$TEST_DIR/got" "$TEST_DIR/all"
            missing=$(lacking "$TEST_DIR/shown" "$TEST_DIR/all")
            # shellcheck disable=SC2015
            [[ -n $missing && $command != relatactl* && $shown == *relata.tuples* ]] && ((SECONDS < end)) || break
            sleep 0.1
        done
        # shellcheck disable=SC2015
        [[ -n $missing ]] && ((SECONDS < end)) || break
        case $command in relatactl\ lag* | relatactl\ trace* | relatactl\ dead-letters\ list* | curl\ *) sleep 0.2 ;; *) break ;; esac
    done
    if [[ $rc == 0 && -z $missing ]]; then
        printf 'ok - %s: %s\n' "$PAGE" "${command//$'\n'/ }"
    else
        printf 'not ok - %s: %s: exit %s, not said: %s\n' "$PAGE" "${command//$'\n'/ }" "$rc" "$missing"
        sed 's/^/    | /' "$TEST_DIR/all"
    fi
}

# run_block LANGUAGE LINES: SQL goes to psql; in others "$ " begins a command, the rest is what it says. After a bare psql
# come the lines that are typed into it, up to an empty one. A block without "$ " is commands, a line each.
run_block() {
    local lang=$1 text=$2 line command='' shown='' input='' typing=0
    if [[ $lang == sql ]]; then
        # A result that is shown ends the statements.
        input=$(sed '/^ \+[a-z_]\+$/,$d' <<<"$text")
        shown=$(sed -n '/^ \+[a-z_]\+$/,$p' <<<"$text")
        # shellcheck disable=SC2016
        try 'psql -X -v ON_ERROR_STOP=1 "$RELATA_PG_DSN"' "$shown" "$(here "$input")"
        return
    fi
    # shellcheck disable=SC2001
    [[ $text == *'$ '* ]] || text=$(sed 's/^/$ /' <<<"$text")
    while IFS= read -r line; do
        if [[ $line == '$ '* ]]; then
            [[ -z $command ]] || try "$(here "$command")" "$shown" "$input"
            command=${line#'$ '} shown='' input='' typing=0
            [[ ! $command =~ ^psql\ [^\ ]*$ ]] || typing=1
        elif [[ $command == *\\ ]]; then
            command+=$'\n'$line
        elif ((typing)); then
            [[ -n $line ]] || typing=0
            input+=$line$'\n'
        else
            shown+=$line$'\n'
        fi
    done <<<"$text"
    [[ -z $command ]] || try "$(here "$command")" "$shown" "$input"
}

# run_page FILE FIRST LAST: the blocks between two headings.
run_page() {
    local lang line text='' last=''
    PAGE=$1
    while IFS=$'\t' read -r lang line; do
        if [[ $lang == - ]]; then
            case $last in
                json) ;;
                ini) here "$text" >"$TEST_DIR/lister.ini" ;;
                *) run_block "$last" "${text%$'\n'}" ;;
            esac
            text=''
        else
            text+=$line$'\n' last=$lang
        fi
    done < <(blocks <(sed -n "/^## $2/,/^## $3/p" "$1"))
}

run_page README.md 'A tour' 'In your service'
for pid in "${JOBS[@]}"; do kill "$pid" 2>/dev/null || true; done
JOBS=()

# shellcheck disable=SC2016
sed -n '/^```json/,/^```/{/^```/d;p}' docs/quickstart.md >"$TEST_DIR/model.json"
unset "${!RELATA_@}"
run_page docs/quickstart.md 'Start' 'For real'
