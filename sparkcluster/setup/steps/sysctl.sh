# A state is NAME=VALUE. Of vm.dirty_bytes and vm.dirty_ratio the kernel clears the one that is not set (Linux,
# admin-guide/sysctl/vm.rst).
get_sysctl() {
  now=$1=$(sysctl -n "$1")
  [ "$now" != vm.dirty_bytes=0 ] || now=vm.dirty_ratio=$(sysctl -n vm.dirty_ratio)
  echo "$now"
}

set_sysctl() { run sysctl -q -w "$2"; }
