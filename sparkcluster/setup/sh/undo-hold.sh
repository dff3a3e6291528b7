# undo_hold NUMBER KIND PACKAGE
undo_hold() {
  ! is_held "$3" || run apt-mark unhold "$3"
}
