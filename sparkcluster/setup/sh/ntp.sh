ntp() { timedatectl show -p NTP | sed -n 's/^NTP=//p'; }

set_ntp() {
  [ "$(ntp)" != yes ] || return 0
  record ntp clock no yes
  run timedatectl set-ntp true
}
