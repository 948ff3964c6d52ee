# The databases of one run of tests. start_databases exports POSTHASTE_TEST_POSTGRES and POSTHASTE_TEST_MYSQL, URLs of
# a superuser; it starts servers for those that are not set. stop_databases ends what was started. Sourced by ./test
# and run.sh, which call stop_databases from their EXIT trap.
#
# Also exported: POSTHASTE_TEST_PEERS, this folder, for tests that start, kill and start again a server of their own;
# POSTHASTE_TEST_PEERS_RUN, a folder of this run: servers in its folders postgres*, mariadb* and mysql* are ended with the
# run, even if the test that started them could not; POSTHASTE_TEST_MYSQL_SERVER, "mariadb" unless it is set to "mysql".
# shellcheck shell=bash

POSTHASTE_TEST_PEERS=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
export POSTHASTE_TEST_PEERS
export POSTHASTE_TEST_MYSQL_SERVER=${POSTHASTE_TEST_MYSQL_SERVER:-mariadb}
case $POSTHASTE_TEST_MYSQL_SERVER in
    mariadb | mysql) ;;
    *) echo "POSTHASTE_TEST_MYSQL_SERVER must be mariadb or mysql" >&2; exit 2 ;;
esac
all_runs=$(realpath -m "${CARGO_TARGET_DIR:-$POSTHASTE_TEST_PEERS/../../target}")/peers
run=
# The Python with the other peers, if ./test has made it already.
if [ -z "${POSTHASTE_TEST_PYTHON-}" ] && [ -x "$all_runs/venv/bin/python" ]; then
    export POSTHASTE_TEST_PYTHON=$all_runs/venv/bin/python
fi

say() { echo "== $*"; }

# Ends the servers in the folder of a run and deletes it.
remove_run() {
    local dir script
    for script in postgres mariadb mysql; do
        for dir in "$1/$script"*/; do
            [ ! -d "$dir" ] || "$POSTHASTE_TEST_PEERS/$script.sh" remove "$dir" || return 1
        done
    done
    rm -rf "$1"
}

# Makes a folder for this run and holds a lock on it for as long as this shell or what it runs is there. A folder
# without its lock is of a run that could not clean up after itself, because of kill -9 for example.
make_run() {
    local old
    mkdir -p "$all_runs"
    exec 8>"$all_runs/lock"
    flock 8
    for old in "$all_runs"/run.*/; do
        if [ -O "$old" ] && flock --nonblock "$old/lock" true; then
            say "databases: removing $old, left by a run that was killed"
            remove_run "${old%/}" || true
        fi
    done
    run=$(mktemp -d "$all_runs/run.XXXXXX")
    # PostgreSQL's own user must get in.
    chmod 755 "$run"
    exec 9>"$run/lock"
    flock 9
    exec 8>&-
    export POSTHASTE_TEST_PEERS_RUN=$run
}

# One run at a time: the second would find apt-get locked.
install_server() { flock --close "$all_runs/lock" "$POSTHASTE_TEST_PEERS/$1.sh" install; }

# A folder in memory, where there is room: thousands of small databases come and go on the servers that tests share, and
# most of what that costs is syncing them. Servers that tests kill, and those that are measured, have theirs on disk.
folder_in_memory() {
    local room memory
    [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] && [ -w /dev/shm ] || return 0
    room=$(df --output=avail -k /dev/shm | tail -n 1)
    memory=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
    if [ "$room" -gt 4000000 ] && [ "${memory:-0}" -gt 8000000 ]; then echo /dev/shm; fi
}

# start_server postgres|mariadb|mysql
start_server() {
    local PEERS_IN_MEMORY
    PEERS_IN_MEMORY=$(folder_in_memory)
    export PEERS_IN_MEMORY
    local script=$POSTHASTE_TEST_PEERS/$1.sh port
    port=$("$script" port)
    "$script" start "$run/$1" "$port" && return
    # Again if somebody took the port in between.
    (exec 7<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || return 1
    "$script" start "$run/$1" "$("$script" port)"
}

# Both at a time: that is one second instead of two.
start_databases() {
    local postgres='' mysql='' mysql_server=$POSTHASTE_TEST_MYSQL_SERVER
    make_run
    # Also where servers are named: some tests kill theirs, and start one of their own.
    install_server postgres
    install_server "$mysql_server"
    if [ -n "${POSTHASTE_TEST_POSTGRES-}" ]; then
        say "PostgreSQL: the one POSTHASTE_TEST_POSTGRES names"
    else
        start_server postgres &
        postgres=$!
    fi
    if [ -n "${POSTHASTE_TEST_MYSQL-}" ]; then
        say "MySQL: the one POSTHASTE_TEST_MYSQL names"
    else
        start_server "$mysql_server" &
        mysql=$!
    fi
    if [ -n "$postgres" ]; then
        wait "$postgres"
        POSTHASTE_TEST_POSTGRES=$(cat "$run/postgres/url")
        say "PostgreSQL: $POSTHASTE_TEST_POSTGRES"
    fi
    if [ -n "$mysql" ]; then
        wait "$mysql"
        POSTHASTE_TEST_MYSQL=$(cat "$run/$mysql_server/url")
        say "$mysql_server: $POSTHASTE_TEST_MYSQL"
    fi
    export POSTHASTE_TEST_POSTGRES POSTHASTE_TEST_MYSQL
}

stop_databases() {
    local status=$? log
    [ -n "$run" ] || return 0
    # An impatient second Ctrl-C must not leave servers behind. A start may still be under way.
    trap '' INT TERM
    wait
    if [ "$status" != 0 ]; then
        for log in "$run"/*/log; do
            [ -e "$log" ] || continue
            mv "$log" "$all_runs/$(basename "$(dirname "$log")").log"
            say "databases: a log of this run is $all_runs/$(basename "$(dirname "$log")").log"
        done
    fi
    remove_run "$run"
    run=
}
