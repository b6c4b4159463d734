#!/bin/sh
# Prepares an installation: creates the key of the wire and the user `admin`, with a password from a file or a random
# one, which is printed once. A second run changes nothing, unless the file has another password.
set -eu
umask 077

key=/run/lightrail/wire.key
passwords=/run/passwords
given=/run/secrets/admin-password
owner=10001:10001 # the brokers; Grafana reads its password as a member of the group

keep() { # keep FILE MODE: what stdin says, there as a whole or not at all
    cat >"$1.new"
    chmod "$2" "$1.new"
    chown "$owner" "$1.new"
    mv "$1.new" "$1"
}

draw() { python -c 'import secrets; print(secrets.token_urlsafe(18))'; }

if [ ! -s "$key" ]; then
    rm -f "$key.made"
    lightrail wire-key "$key.made"
    keep "$key" 0400 <"$key.made"
    rm -f "$key.made"
    echo "init: made the key of the wire"
fi

[ -s "$passwords/grafana" ] || draw | keep "$passwords/grafana" 0440

drawn=
if [ -s "$given" ]; then
    head -n 1 "$given" >/tmp/password
elif [ -s "$passwords/admin" ]; then
    cat "$passwords/admin" >/tmp/password
else
    draw >/tmp/password
    drawn=yes
fi

users=$(lightrail-admin user list)
if ! printf '%s\n' "$users" | grep -qx admin; then
    lightrail-admin user add admin --password-file /tmp/password
    keep "$passwords/admin" 0400 </tmp/password
    if [ "$drawn" ]; then
        echo "init: the password of the user admin is $(cat /tmp/password)"
        echo "init: it is not said again; see it with: docker compose run --rm --entrypoint cat admin /run/passwords/admin"
    fi
elif ! cmp -s /tmp/password "$passwords/admin"; then
    [ -z "$drawn" ] || { echo "init: the user admin is there, its password is not in $passwords/admin" >&2; exit 0; }
    lightrail-admin user password admin --password-file /tmp/password
    keep "$passwords/admin" 0400 </tmp/password
    echo "init: the user admin has the password of the given file now"
fi
