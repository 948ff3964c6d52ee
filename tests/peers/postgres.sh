#!/usr/bin/env bash
# A private PostgreSQL for tests, durable as by default, with and without TLS; `postgres.sh` alone lists the verbs.
# Superuser posthaste, trusted on the loopback.
set -euo pipefail

name=PostgreSQL
process=postgres
stop_signal=INT
run_as=()
# PostgreSQL refuses to run as root; Debian's package makes this user.
[ "$(id -u)" != 0 ] || run_as=(runuser -u postgres --)
# Settings for somebody's own server have no business here.
unset "${!PG@}"

# shellcheck source=tests/peers/server.sh
. "$(dirname "$0")/server.sh"

# Debian keeps the programs of each version in a folder of their own, off the PATH: the newest one.
find_programs() {
    bin=$(printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort -V | tail -n 1)
    [ -x "$bin" ] || bin=$(command -v initdb) || return 1
    bin=$(dirname "$(realpath "$bin")")
    [ -x "$bin/postgres" ]
}

# Debian's package would make a database of its own and run it as a service: not for as long as this file is there.
install_programs() {
    local sudo=() settings=/etc/postgresql-common/createcluster.d
    [ "$(id -u)" = 0 ] || sudo=(sudo)
    "${sudo[@]}" mkdir -p "$settings"
    echo 'create_main_cluster = false' | "${sudo[@]}" tee "$settings/posthaste-tests.conf" >/dev/null
    local status=0
    apt_install postgresql || status=$?
    "${sudo[@]}" rm -f "$settings/posthaste-tests.conf"
    "${sudo[@]}" rmdir --ignore-fail-on-non-empty "$settings"
    return "$status"
}

# As root, the data goes where user postgres can get at it.
place_data() {
    if place_in_memory "$1" postgres; then
        [ ${#run_as[@]} = 0 ] || chown postgres: "$(realpath "$1")"
    elif [ ${#run_as[@]} = 0 ]; then
        mkdir "$1"
    elif "${run_as[@]}" test -x "$dir"; then
        mkdir "$1"
        chown postgres: "$1"
    else
        local place
        place=$(mktemp -d /tmp/posthaste-postgres.XXXXXX)
        chown postgres: "$place"
        ln -s "$place" "$1"
        echo "$name: user postgres cannot get into $dir, its data is in $place" >&2
    fi
}

make_data() {
    local place
    place=$(realpath "$1")
    # Not synced: that protects from a power cut only.
    "${run_as[@]}" "$bin/initdb" --pgdata="$place" --username=posthaste --auth=trust --encoding=UTF8 \
        --locale=C.UTF-8 --no-sync || return 1
    # Written by its user: the server wants to own the key, alone.
    "${run_as[@]}" tee "$place/server.crt" <"$dir/tls/cert.pem" >/dev/null || return 1
    "${run_as[@]}" tee "$place/server.key" <"$dir/tls/key.pem" >/dev/null || return 1
    chmod 600 "$place/server.key"
    # No unix socket: its path may be 107 bytes long, that of a test's folder is often longer.
    cat >>"$place/postgresql.conf" <<END
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 300
max_wal_size = 1GB
ssl = on
END
}

launch() {
    # No process of the old server is left, start made sure; but if its number has gone to another process, the new
    # server would take that one for the old.
    rm -f "$data/postmaster.pid"
    # The log is opened here: the server's user may not be allowed to.
    "${run_as[@]}" "$bin/pg_ctl" --pgdata="$data" --options="-p $port" --wait --timeout=60 --silent start \
        >>"$dir/log" 2>&1 </dev/null || return 1
    head -n 1 "$data/postmaster.pid" >"$dir/pid"
}

print_url() { echo "postgres://posthaste@127.0.0.1:$port/postgres"; }

main "$@"
