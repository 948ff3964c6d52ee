# Installs Debian packages without a question and almost without a word. Sourced by ./test and the servers' scripts.
# shellcheck shell=bash

apt_install() {
    local sudo=()
    [ "$(id -u)" = 0 ] || sudo=(sudo)
    "${sudo[@]}" apt-get update -qq </dev/null
    # --no-remove: a test must not take away a database server somebody uses because it conflicts with ours.
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends --no-remove "$@" </dev/null
}
