get_ntp() { timedatectl show -p NTP | sed -n 's/^NTP=//p'; }

set_ntp() { run timedatectl set-ntp "$2"; }
