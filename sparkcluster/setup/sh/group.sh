in_group() { id -nG "$1" | tr ' ' '\n' | grep -qxF -- "$2"; }

# join_group USER GROUP
join_group() {
  getent group "$2" >/dev/null || bad "there is no group $2"
  ! in_group "$1" "$2" || return 0
  record group "$2:$1" absent member
  run usermod -aG "$2" "$1"
}
