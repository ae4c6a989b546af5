#!/usr/bin/env bash
# install.sh - the tree of make install: programs that find their migrations, documentation without dead links, examples
# that are configuration files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${BIN:?}" "${TEST_DIR:?}"
unset "${!RELATA_@}" MAKEFLAGS MAKELEVEL
ROOT=$TEST_DIR/root/usr
DOC=$ROOT/share/doc/relata

check() { # text, command...
    local what=$1
    shift
    if "$@"; then echo "ok $what"; else echo "not ok $what"; fi
}

make -s install-files BIN="$BIN" DESTDIR="$TEST_DIR/root" PREFIX=/usr >"$TEST_DIR/out"
PROGRAMS=$(ls "$ROOT/bin")

says_where() { grep -q "^installed: $ROOT/bin: .*relatactl" "$TEST_DIR/out"; }
same_pages() { diff -r docs/reference "$DOC/docs/reference" && diff <(cd docs && ls ./*.md) <(cd "$DOC/docs" && ls ./*.md); }
migrations() { diff <(ls migrations) <(ls "$ROOT/share/relata/migrations"); }
# Relative links of the pages lead to something that was installed.
links_work() {
    local page target dead=0
    while IFS=: read -r page target; do
        [[ -e $(dirname "$page")/${target%%#*} ]] || { echo "$page: $target leads nowhere" && dead=1; }
    done < <(grep -roE '\]\([^)]*\)' --include='*.md' "$DOC" | sed -E 's/\]\(([^)#]*)[^)]*\)$/\1/' | grep -vE ':(https?:.*)?$')
    return "$dead"
}
runs() { [[ $("$ROOT/bin/$1" --version) == "$1 "* ]]; }
# As it is, it passes; with every setting taken from it, it gives the same.
example() { # program
    local file=$TEST_DIR/$1.ini shipped=$DOC/examples/$1.ini
    sed -E '/^#name = value$/d; s/^#([a-z_.]+ =)/\1/' "$shipped" >"$file"
    [[ $(grep -c '^[a-z]' "$file") -gt 5 && $("$BIN/$1" --config "$shipped" --check-config) == "configuration ok" ]] &&
        diff <("$BIN/$1" --config "$shipped" --print-config | grep -v '^#') <("$BIN/$1" --config "$file" --print-config | grep -v '^#')
}

check "it says what went where" says_where
check "reference and manual pages" same_pages
check "migrations" migrations
check "no dead links" links_work
for program in $PROGRAMS; do
    check "$program runs" runs "$program"
    check "an example of $program's settings" example "$program"
done

# Builds take all cores.
for target in all demo up test bench install; do
    check "make $target uses all cores" grep -qE -- " -j$(nproc) (build|tests-build|bench-build)" <(make -n "$target" 2>&1 | grep -- ' -j' || true)
done
