# Defines missing users: users.sh DIRECTORY 'NAME RIGHTS PREFIX'...; the password of NAME is in DIRECTORY/NAME.
# With RESET=true the password of existing users is set, too.
set -euf
directory=$1
shift
IFS='
' # between names: they may have spaces
known=$(lightrail-admin user list)
defined() {
  for each in $known; do
    [ "$each" != "$1" ] || return 0
  done
  return 1
}
for user in "$@"; do
  name=${user%% *} rest=${user#* }
  if ! defined "$name"; then
    lightrail-admin user add "$name" --password-file "$directory/$name" --rights "${rest%% *}" --prefix "${rest#* }"
  elif [ "${RESET:-false}" = true ]; then
    lightrail-admin user password "$name" --password-file "$directory/$name"
  else
    echo "user $name is defined already and stays as it is"
  fi
done
