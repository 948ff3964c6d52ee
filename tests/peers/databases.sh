# The databases of one run of tests: start_databases exports POSTHASTE_TEST_POSTGRES and POSTHASTE_TEST_MYSQL, the URLs
# of a superuser on servers of its own, unless they are set already; stop_databases ends those it started. Sourced by
# ./test and run.sh, which has to call stop_databases from an EXIT trap.
#
# Also exported: POSTHASTE_TEST_PEERS, this folder, so that a test that kills a server can start one of its own;
# POSTHASTE_TEST_PEERS_RUN, a folder of this run: a server that a test starts in a folder in there is ended with it.
# shellcheck shell=bash

POSTHASTE_TEST_PEERS=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
export POSTHASTE_TEST_PEERS

say() { echo "== $*"; }

# The script that runs the server in folder $1; nothing for other folders.
script_of() {
    case ${1##*/} in
        postgres*) echo "$POSTHASTE_TEST_PEERS/postgres.sh" ;;
        mariadb*) echo "$POSTHASTE_TEST_PEERS/mariadb.sh" ;;
    esac
}

# Ends the servers in the folder of a run and deletes it.
remove_run() {
    local server script
    for server in "$1"/*/; do
        server=${server%/}
        script=$(script_of "$server")
        if [ -n "$script" ]; then "$script" remove "$server" || true; fi
    done
    rm -rf "$1"
}

# Makes a folder for this run and holds a lock on it for as long as this shell lives. Folders without their lock are
# of runs that could not clean up after themselves, such as after kill -9.
make_run() {
    local peers old
    peers=$(realpath -m "${CARGO_TARGET_DIR:-$POSTHASTE_TEST_PEERS/../../target}")/peers
    mkdir -p "$peers"
    exec 8>"$peers/lock"
    flock 8
    for old in "$peers"/run.*/; do
        old=${old%/}
        if [ -e "$old/lock" ] && flock --nonblock "$old/lock" true; then remove_run "$old" 8>&-; fi
    done
    POSTHASTE_TEST_PEERS_RUN=$(mktemp -d "$peers/run.XXXXXX")
    # The user PostgreSQL runs as must get in.
    chmod 755 "$POSTHASTE_TEST_PEERS_RUN"
    exec 9>"$POSTHASTE_TEST_PEERS_RUN/lock"
    flock 9
    exec 8>&-
    export POSTHASTE_TEST_PEERS_RUN
    made_run=$POSTHASTE_TEST_PEERS_RUN
}

# start_server postgres|mariadb: starts it and leaves its URL in the file `url` of its folder.
start_server() {
    local script=$POSTHASTE_TEST_PEERS/$1.sh dir=$POSTHASTE_TEST_PEERS_RUN/$1 port try
    for try in 1 2 3; do
        port=$("$script" port)
        # Somebody may take the port in between: hence three times.
        if "$script" start "$dir" "$port"; then
            "$script" url "$port" >"$dir/url"
            return
        fi
    done
    return 1
}

start_databases() {
    local postgres='' mariadb=''
    made_run=
    if [ -z "${POSTHASTE_TEST_PEERS_RUN-}" ]; then make_run; fi
    if [ -n "${POSTHASTE_TEST_POSTGRES-}" ]; then
        say "PostgreSQL: the one POSTHASTE_TEST_POSTGRES names"
    else
        "$POSTHASTE_TEST_PEERS/postgres.sh" install
        start_server postgres &
        postgres=$!
    fi
    if [ -n "${POSTHASTE_TEST_MYSQL-}" ]; then
        say "MySQL: the one POSTHASTE_TEST_MYSQL names"
    else
        "$POSTHASTE_TEST_PEERS/mariadb.sh" install
        start_server mariadb &
        mariadb=$!
    fi
    if [ -n "$postgres" ]; then
        wait "$postgres"
        POSTHASTE_TEST_POSTGRES=$(cat "$POSTHASTE_TEST_PEERS_RUN/postgres/url")
        say "PostgreSQL: $POSTHASTE_TEST_POSTGRES"
    fi
    if [ -n "$mariadb" ]; then
        wait "$mariadb"
        POSTHASTE_TEST_MYSQL=$(cat "$POSTHASTE_TEST_PEERS_RUN/mariadb/url")
        say "MariaDB: $POSTHASTE_TEST_MYSQL"
    fi
    export POSTHASTE_TEST_POSTGRES POSTHASTE_TEST_MYSQL
}

stop_databases() {
    # A start may still be under way.
    wait
    if [ -n "${made_run-}" ]; then remove_run "$made_run"; fi
}
