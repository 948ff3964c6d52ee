#!/usr/bin/env bash
# Holds the running API against its own OpenAPI document with generated requests (schemathesis).
#
#   tests/api-schema.sh target/debug/posthaste
#
# POSTHASTE_SCHEMA_EXAMPLES   requests generated for each operation (2000 for the long version)
# POSTHASTE_SCHEMA_SEED       another seed than the fixed one
set -euo pipefail
binary=$(realpath "${1:?usage: tests/api-schema.sh BINARY}")
examples=${POSTHASTE_SCHEMA_EXAMPLES:-100}
seed=${POSTHASTE_SCHEMA_SEED:-20261115}
root=$(realpath "$(dirname "$0")/..")
python=${POSTHASTE_TEST_PYTHON:-$root/target/peers/venv/bin/python}
[ -x "$python" ] || { echo "no test peers at $python: run ./test once, it installs them" >&2; exit 2; }
# A proxy set in the environment has no business between us and the loopback.
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
cd "$work"

port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$binary" dev --listen "127.0.0.1:$port" --data-dir "$work/data" >server.log 2>&1 </dev/null &
server=$!

fail() {
    echo "$1; the server said:" >&2
    tail -n 40 server.log >&2
    exit 1
}
ready() {
    "$python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)' \
        "http://127.0.0.1:$port/readyz" 2>/dev/null
}
deadline=$((SECONDS + 30))
until ready; do
    kill -0 "$server" 2>/dev/null || fail "the server ended before it was ready"
    [ "$SECONDS" -lt "$deadline" ] || fail "the server was not ready after 30 seconds"
    sleep 0.1
done
key=$(sed -n 's/^ *key  *\(test_[^ ]*\).*/\1/p' server.log | head -n 1)
[ -n "$key" ] || fail "the server printed no line with a key"

echo "seed $seed, $examples examples for each operation"
status=0
PYTHONPATH=$root/tests/peers SCHEMATHESIS_HOOKS=schema_hooks \
    "$(dirname "$python")/schemathesis" run "http://127.0.0.1:$port/openapi.json" \
    --header "X-API-Key: $key" \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance \
    --max-redirects 0 \
    --max-examples "$examples" --seed "$seed" --generation-database none --suppress-health-check too_slow \
    --workers 1 --request-timeout 10 --no-color </dev/null || status=$?
kill -0 "$server" 2>/dev/null || fail "the server ended during the run"
[ "$status" = 0 ] || fail "schemathesis failed with status $status"
