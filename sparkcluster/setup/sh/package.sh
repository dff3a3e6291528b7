DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

quiet_apt() { apt-get -q -y -o DPkg::Lock::Timeout=120 --no-install-recommends "$@" >"$saved/output" 2>&1; }

# install_package PACKAGE: the packages that come with it are recorded, too
install_package() {
  ! installed "$1" || return 0
  try_install "$1" || { dpkg --configure -a >/dev/null 2>&1 && quiet_apt update && try_install "$1"; } ||
    bad "apt-get install $1: $(grep . "$saved/output" | tail -n 1)"
}

try_install() {
  quiet_apt -s install "$1" || return
  # "Inst NAME (VERSION" is a new one, "Inst NAME [VERSION] (VERSION" is replaced by another version.
  new="$1 $(sed -n 's/^Inst \([^ ]*\) (.*/\1/p' "$saved/output" | tr '\n' ' ')"
  numbers=
  for each in $new; do
    record package "$each" absent installed
    numbers="$numbers $number"
  done
  ! quiet_apt install "$1" || return 0
  for each in $new; do
    number=${numbers# } numbers=${numbers# }
    number=${number%% *} numbers=${numbers#"$number"}
    installed "$each" || forget "$number"
  done
  return 1
}
