# undo_line NUMBER KIND PATH BEFORE AFTER SEEN: where the file was changed since, the line alone is removed
undo_line() {
  ! undo_whole "$@" && [ "$now" != absent ] || return 0
  [ -s "$saved/$1.added" ] || leave "$3"
  grep -vxFf "$saved/$1.added" -- "$3" >"$saved/new"
  [ $? -le 1 ] || bad "cannot copy $3"
  if [ "$4" = absent ] && [ ! -s "$saved/new" ]; then
    rm -f -- "$3"
  else
    replace "$3" "$saved/new" "$(stat -c %a -- "$3")" "$(stat -c %u:%g -- "$3")"
  fi
}
