#!/usr/bin/env bash
# The dashboard of the real binary in a real, headless Chromium: every page, and hostile emails in every view.
#
#   tests/browser/run.sh target/debug/posthaste [ARGS of pytest]
#
# Screenshots of every page are in target/browser afterwards. POSTHASTE_TEST_CHROMIUM names another browser.
set -euo pipefail
binary=$(realpath "${1:?usage: tests/browser/run.sh BINARY [ARGS]}")
shift
here=$(realpath "$(dirname "$0")")
python=${POSTHASTE_TEST_PYTHON:-$here/../../target/peers/venv/bin/python}
[ -x "$python" ] || { echo "no test peers at $python: run ./test once, it installs them" >&2; exit 2; }

# shellcheck source=tests/peers/apt.sh
. "$here/../peers/apt.sh"
if [ -z "${POSTHASTE_TEST_CHROMIUM-}" ] && ! command -v chromium chromium-browser google-chrome >/dev/null; then
    echo "== chromium: installing it"
    apt_install chromium
fi
export POSTHASTE_BIN=$binary PYTHONDONTWRITEBYTECODE=1
cd "$here"
exec "$python" -m pytest -q -p no:cacheprovider --rootdir "$here" "${@:-$here}" </dev/null
