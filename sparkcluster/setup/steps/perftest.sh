DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

quiet_apt() { apt-get -q -y -o DPkg::Lock::Timeout=120 --no-install-recommends "$@" >"$saved/output" 2>&1; }

# after_repair COMMAND...: where apt-get fails, once more after what was interrupted is finished and the lists are new
after_repair() {
  "$@" || { dpkg --configure -a >/dev/null 2>&1 && quiet_apt update && "$@"; } ||
    bad "apt-get: $(grep . "$saved/output" | tail -n 1)"
}

# install_package PACKAGE: the packages that come with it are recorded with it
install_package() {
  ! installed "$1" || return 0
  after_repair try_install "$1"
}

try_install() {
  quiet_apt -s install "$1" || return
  # "Inst NAME (VERSION" is a new one, "Inst NAME [VERSION] (VERSION" is replaced by another version.
  new=$(sed -n 's/^Inst \([^ ]*\) (.*/\1/p' "$saved/output" | grep -vxF -- "$1" | sort | tr '\n' ' ')
  new="$1${new:+ ${new% }}"
  record package "$new" absent installed
  quiet_apt install "$1"
}

get_package() {
  for each in $1; do
    ! installed "$each" || { echo installed && return; }
  done
  echo absent
}

# set_package PACKAGES absent: unless others need them
set_package() {
  after_repair quiet_apt -s purge $1
  for each in $(sed -n 's/^\(Remv\|Purg\) \([^ ]*\) .*/\2/p' "$saved/output"); do
    case " $1 " in
      *" $each "*) ;;
      *) leave "$each needs it" ;;
    esac
  done
  quiet_apt purge $1 || bad "apt-get purge $1: $(grep . "$saved/output" | tail -n 1)"
}
