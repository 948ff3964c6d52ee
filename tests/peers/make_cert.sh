#!/usr/bin/env bash
# Makes a throw-away authority (ca.pem) and a server certificate (cert.pem, key.pem) for localhost and 127.0.0.1 in DIR.
# The authority's key is not kept.
set -euo pipefail
dir=${1:?usage: make_cert.sh DIR}
mkdir -p "$dir"
cd "$dir"

new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
openssl req -x509 "${new_key[@]}" -keyout ca-key.pem -out ca.pem -days 30 -subj "/CN=Posthaste test authority" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign 2>openssl.log
openssl req "${new_key[@]}" -keyout key.pem -out request.pem -subj "/CN=localhost" 2>>openssl.log
openssl x509 -req -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 30 -out cert.pem \
    -extfile <(printf '%s\n' basicConstraints=critical,CA:FALSE subjectAltName=DNS:localhost,IP:127.0.0.1 \
        keyUsage=critical,digitalSignature extendedKeyUsage=serverAuth) 2>>openssl.log
rm -f ca-key.pem request.pem ca.srl openssl.log
