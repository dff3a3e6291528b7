# undo_file NUMBER KIND PATH BEFORE AFTER SEEN: SEEN is every state that the journal has of it
undo_file() {
  rm -f "${3%/*}/.${3##*/}.sparkcluster"
  now=$(content "$3")
  if [ "$now" = "$5" ]; then
    restore "$3" "$1" "$4"
    return
  fi
  case " $6 " in
    *" $now "*) ;;
    *) leave "$3" ;;
  esac
}

# undo_directory NUMBER KIND PATH: unless something is in it
undo_directory() {
  ! rmdir -- "$3" 2>/dev/null || sync "${3%/*}"
}
