# What postgres.sh and mariadb.sh have in common: the verbs, and how a server is found again, waited for and ended.
# Sourced. The sourcing script sets
#   name, command     how people and how /proc/PID/comm call it
#   stop_signal       ends it at once, in good order
#   run_as            prefix that runs a command as the server's user (an empty array: as ourselves)
# and defines find_programs, install_programs, make_data, launch, print_url.
#
# In DIR: data (the server's files, perhaps a link), log, pid, tls (ca.pem, cert.pem, key.pem).
# shellcheck shell=bash

peers=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
. "$peers/apt.sh"

fail() { echo "$name: $*" >&2; exit 1; }

fail_with_log() {
    echo "$name: $*; the end of $dir/log:" >&2
    tail -n 20 "$dir/log" >&2
    exit 1
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# True for a process of DIR's server. Its number alone proves nothing: after a crash it may have gone to somebody else.
# Asked as the server's user: without CAP_SYS_PTRACE, root may not read this of others.
is_ours() {
    [ "$(cat "/proc/$1/comm" 2>/dev/null)" = "$command" ] &&
        [ "$("${run_as[@]}" readlink "/proc/$1/cwd" 2>/dev/null)" = "$data" ]
}

running_pid() {
    local pid
    pid=$(cat "$dir/pid" 2>/dev/null) && [ -n "$pid" ] && is_ours "$pid" && echo "$pid"
}

# All processes of DIR's server, its children included.
our_pids() {
    local pid
    for pid in $(pgrep -x "$command"); do
        if is_ours "$pid"; then echo "$pid"; fi
    done
}

# Waits until no process of DIR's server is left, up to $1 seconds.
wait_until_gone() {
    local deadline=$((SECONDS + $1))
    while [ -n "$(our_pids)" ]; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.05
    done
}

end_the_rest() {
    local pid
    for pid in $(our_pids); do
        kill -KILL "$pid" 2>/dev/null || true
    done
    wait_until_gone 10 || fail "processes of $data survive SIGKILL"
}

start() {
    find_programs || fail "not installed: run $0 install"
    mkdir -p "$dir"
    resolve
    # Just after a SIGKILL the old server, or children that have not noticed yet, may still be there.
    if [ -n "$(our_pids)" ] && ! wait_until_gone 5; then
        [ -z "$(running_pid)" ] || fail "already runs in $dir as process $(running_pid)"
        end_the_rest
    fi
    rm -f "$dir/pid"
    if [ ! -e "$dir/ready" ]; then
        # A first start that was interrupted left half of it.
        delete_data
        "$peers/make_cert.sh" "$dir/tls"
        make_data >>"$dir/log" 2>&1 || fail_with_log "cannot make a data folder"
        resolve
        touch "$dir/ready"
    fi
    launch || fail_with_log "does not start on port $port"
}

stop() {
    local pid
    pid=$(running_pid) || true
    if [ -n "$pid" ]; then
        kill "-$stop_signal" "$pid" 2>/dev/null || true
        if ! wait_until_gone 30; then
            echo "$name: process $pid did not end in 30 seconds, killing it" >&2
        fi
    fi
    end_the_rest
    rm -f "$dir/pid"
}

# data may be a link: is_ours needs the real path.
resolve() { data=$(realpath -m "$dir/data"); }

delete_data() {
    rm -rf "$data" "$dir/data" "$dir/ready"
    resolve
}

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
        1:install) find_programs || install_programs || fail "cannot install it"; return ;;
        1:port) free_port; return ;;
        2:url) port=$2; print_url; return ;;
        3:start) port=$3 ;;
        2:pid | 2:stop | 2:remove) ;;
        *) usage ;;
    esac
    dir=$(realpath -m "$2")
    resolve
    # The server's user may not be allowed into the current folder.
    cd /
    # The server must not keep the locks of the run that starts it (databases.sh).
    exec 8>&- 9>&-
    case $1 in
        start) start ;;
        pid) running_pid ;;
        stop) stop ;;
        remove) stop; delete_data; rm -rf "$dir" ;;
    esac
}
