# undo_whole NUMBER KIND PATH BEFORE AFTER SEEN: whether PATH, in state $now, is as setup left it, and is now as before, or
# as it was at another time that the journal has: SEEN are all states there
undo_whole() {
  rm -f "${3%/*}/.${3##*/}.sparkcluster"
  now=$(content "$3")
  case " $6 " in
    *" $now "*) ;;
    *) return 1 ;;
  esac
  [ "$now" != "$5" ] || restore "$3" "$1" "$4"
}

# undo_file NUMBER KIND PATH BEFORE AFTER SEEN
undo_file() { undo_whole "$@" || leave "$3"; }

# undo_directory NUMBER KIND PATH: unless something is in it
undo_directory() {
  ! rmdir -- "$3" 2>/dev/null || sync "${3%/*}"
}
