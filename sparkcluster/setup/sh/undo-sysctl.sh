# undo_sysctl NUMBER KIND NAME BEFORE AFTER SEEN
undo_sysctl() {
  if is_set "$5"; then
    run sysctl -q -w "$4"
    return
  fi
  for each in $6; do
    ! is_set "$each" || return 0
  done
  leave "$3"
}
