# A member is GROUP:USER.
get_group() { id -nG "${1#*:}" | tr ' ' '\n' | grep -qxF -- "${1%%:*}" && echo member || echo absent; }

set_group() {
  case $2 in
    member) run usermod -aG "${1%%:*}" "${1#*:}" ;;
    absent) run gpasswd -d "${1#*:}" "${1%%:*}" ;;
  esac
}
