# is_set NAME=VALUE
is_set() { [ "$(sysctl -n "${1%%=*}")" = "${1#*=}" ]; }

# set_sysctl NAME VALUE
set_sysctl() {
  now=$(sysctl -n "$1") && [ -n "$now" ] || bad "the kernel has no $1"
  [ "$now" != "$2" ] || return 0
  before=$1=$now
  # Of these two the kernel clears the one that is not set (Linux, admin-guide/sysctl/vm.rst).
  [ "$before" != vm.dirty_bytes=0 ] || before=vm.dirty_ratio=$(sysctl -n vm.dirty_ratio)
  record sysctl "$1" "$before" "$1=$2"
  run sysctl -q -w "$1=$2"
}
