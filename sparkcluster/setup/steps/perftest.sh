installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

quiet_apt() {
  DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 --no-install-recommends "$@" \
    >"$saved/output" 2>&1
}

# install_package PACKAGE: install it and record new dependencies with it
install_package() {
  ! installed "$1" || return 0
  quiet_apt update || : # without a network, the package may be in the cache
  quiet_apt -s install "$1" || bad "apt-get: $(grep . "$saved/output" | tail -n 1)"
  # "Inst NAME (VERSION" is a new package, "Inst NAME [VERSION] (VERSION" an upgrade.
  new=$(sed -n 's/^Inst \([^ ]*\) (.*/\1/p' "$saved/output" | grep -vxF -- "$1" | sort | tr '\n' ' ')
  new="$1${new:+ ${new% }}"
  record package "$new" absent installed
  quiet_apt install "$1" || bad "apt-get: $(grep . "$saved/output" | tail -n 1)"
}

get_package() {
  for each in $1; do
    ! installed "$each" || { echo installed && return; }
  done
  echo absent
}

# set_package PACKAGES absent: dpkg refuses if other packages need them
set_package() { dpkg --purge $1 >"$saved/output" 2>&1 || leave "$(grep . "$saved/output" | tail -n 1)"; }
