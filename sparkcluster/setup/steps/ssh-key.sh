# add_key FILE LINE: authorize a public key
add_key() {
  mode=$(stat -c %a -- "$1" 2>/dev/null) || mode=600
  # sshd ignores a file that others can write (sshd_config(5), StrictModes).
  case $mode in
    *[2367]? | *[2367]) mode=600 ;;
  esac
  : >"$saved/new"
  if [ -e "$1" ]; then
    [ -O "$1" ] || bad "$1 belongs to another user"
    cat -- "$1" >"$saved/new" || bad "cannot read $1"
  fi
  key=$(printf '%s\n' "$2" | cut -d ' ' -f 1,2)
  if ! grep -v '^[[:space:]]*#' "$saved/new" | grep -qF -- "$key"; then
    [ -z "$(tail -c 1 "$saved/new")" ] || echo >>"$saved/new"
    printf '%s\n' "$2" >>"$saved/new" || bad "cannot write $saved/new"
  fi
  printf '%s\n' "$2" >"$saved/added"
  directory "${1%/*}" 700
  put "$1" "$mode" "$(id -u):$(id -g)" "$saved/added"
}
