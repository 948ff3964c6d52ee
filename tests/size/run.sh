#!/usr/bin/env bash
# How long each page of the dashboard and each list of the API takes on a store that is full. It prints a table of the
# median and the worst of five calls, marks what took longer than 200 ms, and prints the plan of an entity's summary.
#
#   tests/size/run.sh [sqlite|postgres] [EMAILS] [EVENTS]      (1,000,000 emails and 5,000,000 events of 80 days)
#
# POSTHASTE_BIN        the binary (target/release/posthaste)
# POSTHASTE_SIZE_KEEP  a folder in which the filled store stays, and is found by the next run
# It takes a few minutes, two gigabytes of disk, and a machine that does nothing else.
set -euo pipefail
store=${1:-sqlite} emails=${2:-1000000} events=${3:-5000000}
here=$(realpath "$(dirname "$0")")
root=$(realpath "$here/../..")
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
export POSTHASTE_BIN=${POSTHASTE_BIN:-$target/release/posthaste} PYTHONDONTWRITEBYTECODE=1
[ -x "$POSTHASTE_BIN" ] || { echo "no binary at $POSTHASTE_BIN: cargo build --release -p posthaste" >&2; exit 2; }

if [ -n "${POSTHASTE_SIZE_KEEP-}" ]; then
    mkdir -p "$POSTHASTE_SIZE_KEEP"
    work=$(realpath "$POSTHASTE_SIZE_KEEP")
else
    mkdir -p "$target/size"
    work=$(mktemp -d "$target/size/run.XXXXXX")
fi
chmod 755 "$work"
postgres=$root/tests/peers/postgres.sh
clean_up() {
    trap '' INT TERM
    if [ "$store" = postgres ]; then
        if [ -n "${POSTHASTE_SIZE_KEEP-}" ]; then "$postgres" stop "$work/postgres"; else "$postgres" remove "$work/postgres"; fi
    fi
    [ -n "${POSTHASTE_SIZE_KEEP-}" ] || rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

case $store in
    sqlite) url=sqlite:$work/posthaste.db ;;
    postgres)
        "$postgres" install
        "$postgres" start "$work/postgres" "$("$postgres" port)"
        url=$(cat "$work/postgres/url")
        ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
cd "$work"
python3 "$here/fill.py" "$url" "$emails" "$events"
python3 "$here/measure.py" "$url"
