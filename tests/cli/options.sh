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

# What can be known without connecting: --check-config and the start refuse it in the same words.
refused_both() { # pattern, program, settings...
    local pattern=$1 program=$2 value settings=()
    shift 2
    for value in "$@"; do settings+=(--set "$value"); done
    refused "$pattern" "$program" "${settings[@]}" --check-config || return 1
    cp "$TEST_DIR/err" "$TEST_DIR/check"
    if [[ $program == relatactl ]]; then settings+=(lag); fi
    refused "$pattern" "$program" "${settings[@]}" && diff "$TEST_DIR/check" "$TEST_DIR/err"
}

taken() { # program, settings...
    local program=$1 value settings=()
    shift
    for value in "$@"; do settings+=(--set "$value"); done
    printed 'configuration ok' "$BIN/$program" "${settings[@]}" --check-config
}

closed_output() { # program
    run bash -c '"$1" --help >/dev/full' _ "$BIN/$1"
    [[ $code == 2 ]] && grep -q 'cannot write to standard output' "$TEST_DIR/err"
}

version=$(sed -n 's/^VERSION := //p' Makefile)
# needs PROGRAM: the settings that it cannot be without, to $needed; as options to $more.
needs() {
    local value
    needed=()
    case $1 in
        outbox-relay | tuple-writer) needed=(kafka.bootstrap.servers=127.0.0.1:1) ;;
        inventory-lister)
            needed=(callers.anonymous=true collection.things.{table=public.t,type=doc,id=id,columns=id,relation=viewer})
            ;;
    esac
    more=()
    for value in "${needed[@]}"; do more+=(--set "$value"); done
}
for program in outbox-relay tuple-writer inventory-lister drift-checker relatactl; do
    needs "$program"
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
for program in outbox-relay tuple-writer inventory-lister drift-checker; do
    check "$program takes no arguments" refused 'unexpected argument "start"' "$program" start
done

# Programs, a setting that each refuses, and what it says.
printf 'nothing\n' >"$TEST_DIR/text"
K=kafka.bootstrap.servers=127.0.0.1:1
while IFS='|' read -r programs setting pattern; do
    for program in $programs; do
        needs "$program"
        [[ $program != tuple-writer ]] || needed+=(writer.source=kafka)
        check "$program refuses $setting" refused_both "$pattern" "$program" "${needed[@]}" "$setting"
    done
done <<END
relatactl tuple-writer outbox-relay inventory-lister drift-checker|pg.dsn=bogus://x|bad Postgres DSN: unknown scheme "bogus"
relatactl tuple-writer outbox-relay inventory-lister drift-checker|pg.dsn=hots=x|bad Postgres DSN: invalid connection option "hots"
relatactl tuple-writer outbox-relay inventory-lister drift-checker|pg.dsn=host=x sslmode=yes|bad Postgres DSN: sslmode = "yes": must be one of
relatactl tuple-writer outbox-relay inventory-lister drift-checker|pg.dsn=host=x port=ten|bad Postgres DSN: port = "ten"
relatactl tuple-writer outbox-relay inventory-lister drift-checker|pg.dsn=host=a,b port=1,2,3|
relatactl tuple-writer outbox-relay inventory-lister drift-checker|pg.dsn=host=x sslmode=verify-full sslrootcert=/nonexistent|sslrootcert "/nonexistent" cannot be read
relatactl tuple-writer inventory-lister drift-checker|store.url=gopher://x|store.url: "gopher://x": unknown scheme; give http://
relatactl tuple-writer inventory-lister drift-checker|store.url=http://h:99999|store.url: "http://h:99999": the port is no number from 1 to 65535
relatactl tuple-writer inventory-lister drift-checker|store.url=http://u:p@x|store.url: "[*][*][*]": credentials do not belong into the URL
relatactl tuple-writer inventory-lister drift-checker|store.name=|store.name is empty
relatactl tuple-writer inventory-lister drift-checker|store.ca_file=/nonexistent|store.ca_file: cannot read "/nonexistent"
relatactl tuple-writer inventory-lister drift-checker|store.ca_file=$TEST_DIR/text|holds no PEM certificate
relatactl tuple-writer inventory-lister drift-checker|store.cert_file=$TEST_DIR/text|store.cert_file and store.key_file are given together
relatactl tuple-writer inventory-lister drift-checker|store.oidc_client_id=x|store.oidc_client_id is set without store.oidc_token_url
relatactl tuple-writer inventory-lister|nats.url=gopher://x|nats.url: "gopher://x" is no address of a NATS server
relatactl tuple-writer inventory-lister|nats.url=nats://|nats.url: "nats://" is no address
relatactl tuple-writer inventory-lister|nats.url=nats://me:hush@:::|nats.url: "[*][*][*]@:::" is no address
relatactl tuple-writer inventory-lister|nats.url=nats://h:1,nats://h:99999|nats.url: "nats://h:99999" is no address
relatactl tuple-writer inventory-lister|nats.url=,|names no server
tuple-writer outbox-relay inventory-lister|admin.listen=nowhere|admin.listen = "nowhere": the port is missing; give host:port
tuple-writer outbox-relay inventory-lister|admin.listen=::1:80|an IPv6 address stands in brackets
tuple-writer outbox-relay inventory-lister|admin.url_file=/nonexistent/url|cannot write admin.url_file /nonexistent/url: No such file
tuple-writer outbox-relay|kafka.nope=1|No such configuration property: "nope"
tuple-writer outbox-relay|kafka.linger.ms=soon|kafka.linger.ms
tuple-writer outbox-relay|kafka.acks=1|kafka.acks cannot be set
tuple-writer outbox-relay|kafka.bootstrap.servers=|kafka.bootstrap.servers is not set
tuple-writer outbox-relay|kafka.max.poll.interval.ms=26000|max.poll.interval.ms
tuple-writer outbox-relay|kafka.security.protocol=nope|kafka.security.protocol
inventory-lister|callers.anonymous=false|nobody could call: set callers.tokens_file
inventory-lister|callers.tokens_file=/nonexistent|callers.tokens_file: cannot open /nonexistent
inventory-lister|lister.token_keys_file=/nonexistent|lister.token_keys_file: cannot open /nonexistent
inventory-lister|lister.token_keys_file=$TEST_DIR/text|lister.token_keys_file: $TEST_DIR/text:1: not 64 hex digits
inventory-lister|http.listen=nowhere|http.listen = "nowhere": the port is missing
inventory-lister|http.listen=|http.listen and http.unix_socket are both empty
inventory-lister|http.cert_file=/nonexistent|http.key_file is empty
inventory-lister|http.url_file=/nonexistent/url|http.url_file
inventory-lister|cache.deny_ttl=10s|cache.deny_ttl is above cache.allow_ttl
inventory-lister|lister.public_url=here|neither http:// nor https://
inventory-lister|lister.min_token_wait=20s|lister.min_token_wait must be below http.request_timeout
inventory-lister|collection.things.table=t|must be named with its schema
inventory-lister|collection.things.columns=|collection.things.columns
inventory-lister|collection.things.colour=red|colour
drift-checker|pg.read_dsn=bogus://x|pg.read_dsn: bad Postgres DSN
drift-checker|openfga.dsn=hots=x|openfga.dsn: bad Postgres DSN
drift-checker|audit.max_repairs=many|audit.max_repairs: "many" is not a number
drift-checker|audit.max_deletions=5,101%|audit.max_deletions: "5,101%" is not a number
drift-checker|audit.max_shrink=101|audit.max_shrink
drift-checker|audit.object=doc|audit.object = doc
drift-checker|audit.subject=anne|audit.subject = anne
drift-checker|audit.skip=doc#a, doc|audit.skip = "doc#a, doc": "doc" is no TYPE#RELATION
drift-checker|audit.skip=doc#a#b|"doc#a#b" is no TYPE#RELATION
drift-checker|audit.apply=/nonexistent|audit.apply: cannot open /nonexistent: No such file
drift-checker|audit.plan=/nonexistent/plan|audit.plan: cannot write /nonexistent/plan: No such file
drift-checker|audit.textfile=/nonexistent/x.prom|audit.textfile: cannot write /nonexistent/x.prom: No such file
drift-checker|expected.doc=shares|expected.doc = "shares": must be named with its schema
drift-checker|expected.doc=,|expected.doc names no view
drift-checker|expected.a:b=public.shares|a type holds none of
END
needs inventory-lister
for setting in jwks_file=/nonexistent jwks_ca_file=/nonexistent "jwks_ca_file=$TEST_DIR/text"; do
    check "inventory-lister refuses $setting" refused_both "callers.${setting%%=*}: .*${setting##*=}" inventory-lister \
        "${needed[@]}" callers.issuer=i callers.audience=a \
        callers.jwks_"$([[ $setting == jwks_file* ]] && echo file=/nonexistent || echo url=https://h/keys)" "callers.$setting"
done
check "outbox-relay refuses a missing CA of Kafka" refused_both 'ssl.ca.location' outbox-relay "$K" \
    kafka.security.protocol=ssl kafka.ssl.ca.location=/nonexistent
check "relatactl refuses a NATS file that is not there" refused_both 'nats.ca_file "/nonexistent" cannot be read' \
    relatactl nats.url=tls://h nats.ca_file=/nonexistent
for dsn in 'dbname=x' inventory '' 'postgresql://me@[::1]:5433,h:5434/x?sslmode=require&target_session_attrs=read-write'; do
    check "relatactl takes the DSN '$dsn'" taken relatactl "pg.dsn=$dsn"
done
check "tuple-writer takes servers of NATS" taken tuple-writer 'nats.url=tls://u:p@h:1, nats://[::1]:2,h:3'
check "tuple-writer takes a socket" taken tuple-writer store.url=unix:/run/store.sock

# An empty variable takes nothing away.
printf '[pg]\ndsn = host=/from-the-file\n' >"$TEST_DIR/pg.ini"
empty_is_unset() {
    RELATA_PG_DSN='' run "$BIN/relatactl" --config "$TEST_DIR/pg.ini" lag
    [[ $code == 4 ]] && grep -q '/from-the-file' "$TEST_DIR/err"
}
check "an empty variable counts as unset" empty_is_unset
