#!/usr/bin/env bash
# Checks what is in observability/: the alert rules and their unit tests, every expression of the dashboard, and that each
# metric they name is served by a running gateway.
#
#   tests/observability.sh target/debug/posthaste
#
# promtool is taken from the PATH, or out of Debian's package `prometheus`, which is unpacked and not installed: nothing is
# started by it.
set -euo pipefail
binary=$(realpath "${1:?usage: tests/observability.sh BINARY}")
root=$(realpath "$(dirname "$0")/..")
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1

work=$(mktemp -d)
server=
stop() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

peers=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")/peers
promtool=$(command -v promtool || echo "$peers/prometheus/usr/bin/promtool")
if [ ! -x "$promtool" ]; then
    echo "promtool: unpacking it from Debian's package prometheus"
    sudo=()
    [ "$(id -u)" = 0 ] || sudo=(sudo)
    (cd "$work" && apt-get download -qq prometheus) >/dev/null 2>&1 ||
        { "${sudo[@]}" apt-get update -qq </dev/null && (cd "$work" && apt-get download -qq prometheus); }
    dpkg -x "$work"/prometheus_*.deb "$peers/prometheus"
fi

cd "$root/observability"
"$promtool" check rules alerts.yml
"$promtool" test rules alerts.test.yml
python3 "$root/tests/observability.py" rules "$work/dashboard.yml"
"$promtool" check rules "$work/dashboard.yml"

# Every metric that is named is served, after an email of each kind.
cd "$work"
"$binary" dev --listen 127.0.0.1:0 --data-dir "$work/data" --json >greeting 2>server.log </dev/null &
server=$!
for _ in $(seq 200); do
    [ -s greeting ] && break
    kill -0 "$server" 2>/dev/null || { cat server.log >&2; exit 1; }
    sleep 0.1
done
python3 "$root/tests/observability.py" served greeting
"$promtool" check metrics <metrics.txt
