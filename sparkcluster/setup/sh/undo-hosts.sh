# undo_block NUMBER KIND PATH BEFORE AFTER SEEN: where the file was changed since, the block alone is removed
undo_block() {
  rm -f "${3%/*}/.${3##*/}.sparkcluster"
  now=$(content "$3")
  if [ "$now" = "$5" ]; then
    restore "$3" "$1" "$4"
  elif [ "$now" != absent ]; then
    case " $6 " in
      *" $now "*) return ;;
    esac
    with_block "$3" /dev/null >"$saved/new" || leave "$3"
    [ "$(content "$saved/new")" = "$now" ] ||
      replace "$3" "$saved/new" "$(stat -c %a -- "$3")" "$(stat -c %u:%g -- "$3")"
  fi
}
