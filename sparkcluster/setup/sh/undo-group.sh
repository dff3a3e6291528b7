# undo_group NUMBER KIND GROUP:USER
undo_group() {
  ! in_group "${3#*:}" "${3%%:*}" || run gpasswd -d "${3#*:}" "${3%%:*}"
}
