# A state is NAME=VALUE. Setting vm.dirty_bytes clears vm.dirty_ratio and vice versa (Linux, admin-guide/sysctl/vm.rst).
get_sysctl() {
  now=$1=$(sysctl -n "$1")
  [ "$now" != vm.dirty_bytes=0 ] || now=vm.dirty_ratio=$(sysctl -n vm.dirty_ratio)
  echo "$now"
}

set_sysctl() { run sysctl -q -w "$2"; }
