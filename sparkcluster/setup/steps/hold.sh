get_hold() { apt-mark showhold | grep -qxF -- "$1" && echo hold || echo unhold; }

set_hold() { run apt-mark "$2" "$1"; }
