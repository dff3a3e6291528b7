content() {
  if [ ! -e "$1" ]; then
    echo absent
  else
    sha256sum <"$1" | cut -c 1-64
  fi
}

# replace PATH FILE MODE UID:GID: whole or not at all
replace() {
  part=${1%/*}/.${1##*/}.sparkcluster
  rm -f "$part"
  reason=$({ (umask 077 && cp -- "$2" "$part") && chmod "$3" "$part" && chown "$4" "$part" && sync "$part" &&
    mv -f -- "$part" "$1" && sync "${1%/*}"; } 2>&1) || {
    rm -f "$part"
    bad "cannot write $1: $reason"
  }
}

# restore PATH NUMBER BEFORE: as it was saved, or absent
restore() {
  part=${1%/*}/.${1##*/}.sparkcluster
  rm -f "$part"
  if [ "$3" = absent ]; then
    rm -f -- "$1"
  else
    cp -p -- "$saved/$2" "$part" && sync "$part" && mv -f -- "$part" "$1"
  fi && sync "${1%/*}" || bad "cannot restore $1"
}

# directory PATH MODE
directory() {
  [ ! -d "$1" ] || return 0
  (directory "${1%/*}" 755) || exit 1
  record directory "$1" absent made
  mkdir -m "$2" -- "$1" && sync "${1%/*}" || bad "cannot create $1"
}

# put KIND PATH MODE UID:GID [ADDED]: $saved/new becomes PATH
put() {
  [ ! -L "$2" ] || bad "$2 is a symbolic link"
  [ ! -e "$2" ] || [ -f "$2" ] || bad "$2 is not a file"
  before=$(content "$2") after=$(content "$saved/new")
  [ -n "$before" ] && [ -n "$after" ] || bad "cannot read $2"
  [ "$before" != "$after" ] || [ "$(stat -c '%a %u:%g' -- "$2")" != "$3 $4" ] || return 0
  record "$1" "$2" "$before" "$after" "$2" "${5-}"
  replace "$2" "$saved/new" "$3" "$4"
}
