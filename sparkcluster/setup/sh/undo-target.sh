# undo_target NUMBER KIND default.target BEFORE AFTER
undo_target() {
  now=$(boot_target)
  if [ "$now" != "$5" ]; then
    [ "${now:-absent}" = "$4" ] || leave "$3"
  elif [ "$4" = absent ]; then
    rm -f /etc/systemd/system/default.target
  else
    run systemctl set-default "$4"
  fi
}
