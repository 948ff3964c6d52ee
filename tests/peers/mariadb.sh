#!/usr/bin/env bash
# A private MariaDB for tests, durable as by default, with and without TLS; `mariadb.sh` alone lists the verbs.
# User root without a password, on the loopback.
set -euo pipefail

name=MariaDB
process=mariadbd
stop_signal=TERM
run_as=()
# Root has to say that it means it; others have no choice.
user=()
[ "$(id -u)" != 0 ] || user=(--user=root)

# shellcheck source=tests/peers/server.sh
. "$(dirname "$0")/server.sh"

find_programs() {
    # The server is in sbin, which ordinary users may not have on their PATH.
    PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
    command -v mariadbd >/dev/null && command -v mariadb-install-db >/dev/null && command -v mariadb >/dev/null
}

# The -core packages are the programs alone, without a system service that would start.
install_programs() { apt_install mariadb-server-core mariadb-client-core; }

place_data() { place_in_memory "$1" mariadb || mkdir "$1"; }

# From inside the folder: mariadb-install-db does not quote its path, which may have a space.
make_data() {
    cd "$1" && mariadb-install-db --no-defaults "${user[@]}" --datadir=./ --skip-name-resolve --skip-test-db \
        --auth-root-authentication-method=normal
}

# The folder of the server that answers.
ask_for_folder() {
    mariadb --no-defaults --host=127.0.0.1 --port="$port" --user=root --connect-timeout=5 --skip-ssl --batch \
        --skip-column-names --execute='SELECT @@datadir' 2>/dev/null </dev/null
}

launch() {
    # In a session of its own: Ctrl-C is for the tests, which end the server when they are done. No unix socket: its
    # path may be 107 bytes long, that of a test's folder is often longer. Temporary files of its own: servers that share
    # a folder for them clear it away under each other when one starts.
    mkdir -p "$dir/tmp"
    setsid mariadbd --no-defaults "${user[@]}" --datadir="$data" --pid-file="$data/pid" --socket= \
        --tmpdir="$dir/tmp" \
        --bind-address=127.0.0.1 --port="$port" --skip-name-resolve \
        --character-set-server=utf8mb4 --max-connections=300 --innodb-buffer-pool-size=256M \
        --ssl-cert="$dir/tls/cert.pem" --ssl-key="$dir/tls/key.pem" >>"$dir/log" 2>&1 </dev/null &
    await_its_answer $!
}

print_url() { echo "mysql://root@127.0.0.1:$port/mysql"; }

main "$@"
