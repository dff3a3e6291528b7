# Where the link leads that systemctl set-default writes; nothing where there is none
boot_target() { basename "$(readlink /etc/systemd/system/default.target)" 2>/dev/null; }

# set_target TARGET
set_target() {
  now=$(boot_target)
  [ "$now" != "$1" ] || return 0
  record target default.target "${now:-absent}" "$1"
  run systemctl set-default "$1"
}
