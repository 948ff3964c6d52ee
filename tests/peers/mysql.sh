#!/usr/bin/env bash
# A private MySQL for tests, in the place of MariaDB where POSTHASTE_TEST_MYSQL_SERVER is "mysql"; `mysql.sh` alone lists
# the verbs. Durable as by default, with and without TLS. User root without a password, on the loopback.
set -euo pipefail

name=MySQL
process=mysqld
stop_signal=TERM
run_as=()
# Root has to say that it means it; others have no choice.
user=()
[ "$(id -u)" != 0 ] || user=(--user=root)

# shellcheck source=tests/peers/server.sh
. "$(dirname "$0")/server.sh"

unpacked=$(realpath -m "${CARGO_TARGET_DIR:-$peers/../../target}")/peers/mysql

is_mysql() { "$1" --version 2>/dev/null | grep -qv MariaDB; }

# Programs of the machine, or those unpacked, which bring their own loader and libraries.
find_programs() {
    PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
    loader=()
    if command -v mysqld >/dev/null && is_mysql mysqld && command -v mysql >/dev/null && is_mysql mysql; then
        programs=$(dirname "$(dirname "$(realpath "$(command -v mysqld)")")")
        return
    fi
    programs=$unpacked/usr
    [ -x "$programs/sbin/mysqld" ] && [ -x "$programs/bin/mysql" ] || return 1
    local found=("$programs"/lib64/ld-linux*.so.* "$programs"/lib/*-linux-gnu/ld-linux*.so.*)
    local so
    for so in "${found[@]}"; do
        [ -x "$so" ] || continue
        loader=("$so" --library-path "$(echo "$programs"/lib/*-linux-gnu)")
        # What the kernel calls a process is the file it was started from, its first 15 letters.
        process=$(basename "$so")
        process=${process:0:15}
        return
    done
    return 1
}

# Debian has MySQL in unstable alone, from where it must not get into the machine: its packages are fetched by an apt of
# their own, from the mirror the machine uses, and unpacked beside the other things of the tests.
install_programs() {
    local site apt=$unpacked.apt options file
    site=$(apt-get indextargets --format '$(SITE)' 'Origin: Debian' 'Created-By: Packages' | grep -v security | head -n 1)
    [ -n "$site" ] || fail "apt has no Debian mirror: install mysql-server yourself"
    rm -rf "$apt" "$unpacked"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$unpacked"
    touch "$apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site sid main" >"$apt/sources.list"
    options=(-qq -o "Dir::State=$apt" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache"
        -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o APT::Install-Recommends=false -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update </dev/null
    apt-get "${options[@]}" -y --download-only install mysql-server-core mysql-client-core </dev/null
    for file in "$apt"/cache/archives/*.deb; do
        dpkg -x "$file" "$unpacked"
    done
    rm -rf "$apt"
}

place_data() { place_in_memory "$1" mysql || mkdir "$1"; }

set_server() {
    server=("${loader[@]}" "$programs/sbin/mysqld" --no-defaults "${user[@]}" --basedir="$programs"
        --lc-messages-dir="$programs/share/mysql" --secure-file-priv=NULL --mysqlx=OFF)
}

# Root may come by the loopback: without names, that is not the "localhost" MySQL makes it for.
make_data() {
    local sql=$dir/root.sql
    echo "CREATE USER root@'127.0.0.1'; GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;" >"$sql"
    set_server
    "${server[@]}" --initialize-insecure --datadir="$1" --init-file="$sql"
    rm "$sql"
}

# The folder of the server that answers.
ask_for_folder() {
    "${loader[@]}" "$programs/bin/mysql" --no-defaults --host=127.0.0.1 --port="$port" --user=root --connect-timeout=5 \
        --batch --skip-column-names --execute='SELECT @@datadir' 2>/dev/null </dev/null
}

launch() {
    # As mariadb.sh does, for the same reasons.
    mkdir -p "$dir/tmp"
    set_server
    setsid "${server[@]}" --datadir="$data" --pid-file="$data/pid" --socket= --tmpdir="$dir/tmp" \
        --bind-address=127.0.0.1 --port="$port" --skip-name-resolve \
        --character-set-server=utf8mb4 --max-connections=300 --innodb-buffer-pool-size=256M \
        --ssl-ca="$dir/tls/ca.pem" --ssl-cert="$dir/tls/cert.pem" --ssl-key="$dir/tls/key.pem" \
        >>"$dir/log" 2>&1 </dev/null &
    await_its_answer $!
}

print_url() { echo "mysql://root@127.0.0.1:$port/mysql"; }

# Also for the verbs that only look for its process.
find_programs || true
main "$@"
