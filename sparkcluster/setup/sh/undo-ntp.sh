undo_ntp() {
  [ "$(ntp)" != yes ] || run timedatectl set-ntp false
}
