# What postgres.sh, mariadb.sh and mysql.sh have in common: the verbs, and how a server is found again, waited for and ended.
# Sourced. The sourcing script sets
#   name, process     what people and /proc/PID/comm call it
#   stop_signal       ends it at once, in good order
#   run_as            prefix that runs a command as the server's user (an empty array: as ourselves)
# and defines find_programs, install_programs, place_data, make_data, launch, print_url.
#
# In DIR: data (the server's files, perhaps a link to them), log, pid, url, tls (ca.pem, cert.pem, key.pem).
# shellcheck shell=bash
# shellcheck disable=SC2154 # set by the sourcing script

peers=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
# shellcheck source=tests/peers/apt.sh
. "$peers/apt.sh"

fail() { echo "$name: $*" >&2; exit 1; }

fail_with_log() {
    echo "$name: $*; the end of $dir/log:" >&2
    tail -n 20 "$dir/log" >&2
    exit 1
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# All processes of DIR's server, its children included: those of its name that work in its data folder. A number from a
# file proves nothing, after a crash it may have gone to somebody else. The folder is asked for as the server's user:
# without CAP_SYS_PTRACE, root may not see it.
our_pids() {
    local comm_file comm pids=()
    for comm_file in /proc/[0-9]*/comm; do
        { read -r comm <"$comm_file"; } 2>/dev/null || continue
        [ "$comm" != "$process" ] || pids+=("${comm_file//[!0-9]/}")
    done
    [ ${#pids[@]} -gt 0 ] || return 0
    # shellcheck disable=SC2016 # expanded by that shell
    "${run_as[@]}" sh -c 'data=$1; shift
        for pid; do if [ "$(readlink "/proc/$pid/cwd")" = "$data" ]; then echo "$pid"; fi; done' \
        sh "$data" "${pids[@]}"
}

print_pid() { [ -e "$dir/pid" ] && grep -Fx -f "$dir/pid" <(our_pids); }

# Waits until no process of DIR's server is left, up to $1 seconds.
wait_until_gone() {
    local deadline=$((SECONDS + $1))
    while [ -n "$(our_pids)" ]; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.05
    done
}

# For the launch of servers that say which folder is theirs (ask_for_folder, by the sourcing script): on a port that is taken,
# somebody else answers. Waits for the answer of process $1, up to a minute.
await_its_answer() {
    local deadline=$((SECONDS + 60))
    echo "$1" >"$dir/pid"
    until [ "$(ask_for_folder)" = "$data/" ]; do
        kill -0 "$1" 2>/dev/null || return 1
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.05
    done
}

kill_the_rest() {
    local pid
    for pid in $(our_pids); do
        kill -KILL "$pid" 2>/dev/null || true
    done
    wait_until_gone 10 || fail "processes in $data survive SIGKILL"
}

install() {
    command -v openssl >/dev/null || apt_install openssl
    find_programs && return
    echo "== $name: installing it"
    install_programs
    find_programs || fail "cannot install it"
}

# The data folder gets its name when it is complete: a first start that was interrupted is made anew.
make_instance() {
    delete "$dir/data.new"
    "$peers/make_cert.sh" "$dir/tls"
    place_data "$dir/data.new"
    make_data "$dir/data.new" >>"$dir/log" 2>&1 || fail_with_log "cannot make its data folder"
    mv -T "$dir/data.new" "$dir/data"
    find_data
}

start() {
    find_programs || fail "not installed: run $0 install"
    mkdir -p "$dir"
    # Just after a SIGKILL the server itself, or children that have not noticed yet, may still be there.
    if ! wait_until_gone 5; then
        ! print_pid >/dev/null || fail "already runs in $dir as process $(print_pid)"
        kill_the_rest
    fi
    rm -f "$dir/pid"
    [ -e "$dir/data" ] || make_instance
    launch || fail_with_log "does not start on port $port"
    print_url >"$dir/url"
}

stop() {
    local pid
    if pid=$(print_pid); then
        kill "-$stop_signal" "$pid" 2>/dev/null || true
        wait_until_gone 30 || echo "$name: process $pid did not end in 30 seconds, killing it" >&2
    fi
    kill_the_rest
    rm -f "$dir/pid"
}

# Puts the data into the folder that PEERS_IN_MEMORY names, if it names one.
place_in_memory() {
    [ -n "${PEERS_IN_MEMORY-}" ] || return 1
    ln -s "$(mktemp -d "$PEERS_IN_MEMORY/posthaste-$2.XXXXXX")" "$1"
}

# A folder, or a link and the folder it leads to.
delete() {
    if [ -L "$1" ]; then rm -rf "$(realpath -m "$1")"; fi
    rm -rf "$1"
}

# Only what is ours, in case DIR is somebody's folder by mistake.
remove() {
    stop
    delete "$dir/data"
    delete "$dir/data.new"
    rm -rf "$dir/tls" "$dir/tmp"
    rm -f "$dir/log" "$dir/url"
    [ ! -d "$dir" ] || rmdir --ignore-fail-on-non-empty "$dir"
}

find_data() { data=$(realpath -m "$dir/data"); }

usage() {
    cat >&2 <<END
usage: $0 install          from Debian's packages, if it is missing
       $0 start DIR PORT   on 127.0.0.1; makes DIR if there is none, recovers it after a crash
       $0 pid DIR          of the running server; fails if it does not run
       $0 stop DIR
       $0 remove DIR       stops it and deletes DIR
       $0 port             a port nobody uses just now
       $0 url PORT
END
    exit 2
}

main() {
    case "$#:${1-}" in
        1:install) install; return ;;
        1:port) free_port; return ;;
        2:url) port=$2; print_url; return ;;
        3:start) port=$3 ;;
        2:pid | 2:stop | 2:remove) ;;
        *) usage ;;
    esac
    dir=$(realpath -m "$2")
    find_data
    # The server's user may not be allowed into the current folder, and should be into new ones.
    cd /
    umask 022
    # The server must not hold the locks of the run that starts it (databases.sh).
    exec 8>&- 9>&-
    case $1 in
        pid) print_pid ;;
        *) "$1" ;;
    esac
}
