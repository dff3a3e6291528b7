# undo_block NUMBER KIND PATH BEFORE AFTER SEEN: where the file was changed since, the block alone is removed
undo_block() {
  ! undo_whole "$@" && [ "$now" != absent ] || return 0
  with_block "$3" /dev/null >"$saved/new" || leave "$3"
  [ "$(content "$saved/new")" = "$now" ] ||
    replace "$3" "$saved/new" "$(stat -c %a -- "$3")" "$(stat -c %u:%g -- "$3")"
}
