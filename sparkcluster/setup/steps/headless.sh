LINK=/etc/systemd/system/default.target

# Target of the link that systemctl set-default writes
get_target() { basename "$(readlink "$LINK" || echo absent)"; }

set_target() {
  if [ "$2" = absent ]; then
    rm -f "$LINK"
  else
    run systemctl set-default "$2"
  fi
}
