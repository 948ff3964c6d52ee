#!/usr/bin/env bash
# A private PostgreSQL for tests, durable as by default, with and without TLS; `postgres.sh` alone lists the verbs.
# Superuser posthaste, trusted on the loopback.
set -euo pipefail

name=PostgreSQL
command=postgres
stop_signal=INT
run_as=()
# PostgreSQL refuses to run as root; Debian's package makes this user.
[ "$(id -u)" != 0 ] || run_as=(runuser -u postgres --)
# Settings for somebody's own server have no business here.
unset "${!PG@}"

. "$(dirname "$0")/server.sh"

# Debian keeps the programs of each version in a folder of their own, off the PATH: the newest one.
find_programs() {
    bin=$(printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort -V | tail -n 1)
    [ -x "$bin" ] || bin=$(command -v initdb) || return 1
    bin=$(dirname "$(realpath "$bin")")
    [ -x "$bin/postgres" ]
}

install_programs() {
    apt_install postgresql-common
    apt_install postgresql
    find_programs
}

make_data() {
    local place=$dir/data
    if [ ${#run_as[@]} -gt 0 ] && ! "${run_as[@]}" test -x "$dir"; then
        place=$(mktemp -d /tmp/posthaste-postgres.XXXXXX)
        echo "$name: user postgres cannot get into $dir, so its data is in $place"
        ln -s "$place" "$dir/data"
    else
        mkdir "$place"
    fi
    chmod 700 "$place"
    # Named as the server expects them; the key must belong to its user alone.
    cp "$dir/tls/cert.pem" "$dir/server.crt"
    cp "$dir/tls/key.pem" "$dir/server.key"
    chmod 600 "$dir/server.key"
    [ ${#run_as[@]} = 0 ] || chown postgres: "$place" "$dir/server.crt" "$dir/server.key"
    # Not synced: this protects from a power cut only, and tests do not cut it.
    "${run_as[@]}" "$bin/initdb" --pgdata="$place" --username=posthaste --auth=trust --encoding=UTF8 \
        --locale=C.UTF-8 --no-sync --no-instructions
    mv "$dir/server.crt" "$dir/server.key" "$place"
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
    # No process of the old server is left, start() made sure; but if its number has gone to somebody else, the new one
    # would take that for a running server.
    rm -f "$data/postmaster.pid"
    # The log is opened here: the server's user may not be allowed to.
    "${run_as[@]}" "$bin/pg_ctl" --pgdata="$data" --options="-p $port" --wait --timeout=60 --silent start \
        >>"$dir/log" 2>&1 </dev/null || return 1
    head -n 1 "$data/postmaster.pid" >"$dir/pid"
}

print_url() { echo "postgres://posthaste@127.0.0.1:$port/postgres"; }

main "$@"
