#!/usr/bin/env bash
# Runs a command with the databases that tests need, and ends them after it. For example:
#
#   tests/peers/run.sh cargo nextest run -p store-postgres
#
# A database that POSTHASTE_TEST_POSTGRES or POSTHASTE_TEST_MYSQL names (URL of a superuser) is used instead.
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }

# shellcheck source=tests/peers/databases.sh
. "$(dirname "$0")/databases.sh"
trap stop_databases EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
start_databases
"$@"
