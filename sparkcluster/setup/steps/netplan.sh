SHADOW=/run/netplan/${NETPLAN##*/}

# The guard runs these functions as well. A link is a line of NAME MTU ADDR_GEN_MODE ADDRESS..., the addresses without those
# that come and go by themselves; the mode is how IPv6 link-local ones come to be (Linux, networking/ip-sysctl.rst).
GUARD='
addresses() { ip -o -4 addr show dev "$1" | grep -v " dynamic " | awk "\$4 !~ /^169\\.254\\./ { print \$4 }"; }

# set_links: standard input are links as they are to be
set_links() {
  while read -r name mtu mode wanted; do
    [ -e "/sys/class/net/$name" ] || continue
    ip link set dev "$name" mtu "$mtu"
    file=/proc/sys/net/ipv6/conf/$name/addr_gen_mode
    [ "$(cat "$file")" = "$mode" ] || echo "$mode" >"$file"
    for each in $(addresses "$name"); do
      case " $wanted " in
        *" $each "*) ;;
        *) ip addr del "$each" dev "$name" ;;
      esac
    done
    for each in $wanted; do ip addr add "$each" dev "$name"; done
  done 2>/dev/null
}

# take_back MARK SHADOW: links as MARK has them, unless that was done or MARK is gone
take_back() {
  mv "$1" "$1.back" 2>/dev/null || return 0
  rm -f "$2"
  set_links <"$1.back"
  timeout 60 netplan apply >/dev/null 2>&1
  set_links <"$1.back"
  rm -f "$1.back"
  rmdir "${2%/*}" "${1%/*}" 2>/dev/null
}
'
eval "$GUARD"

# links NAME...: as they are
links() {
  for each; do
    mode=$(cat "/proc/sys/net/ipv6/conf/$each/addr_gen_mode" 2>/dev/null) || mode=1
    echo "$each $(cat "/sys/class/net/$each/mtu")" "$mode" $(addresses "$each")
  done
}

# others [FLAG]: addresses, IPv4 and IPv6, of interfaces that are not in $names, without those of containers, those that
# are replaced by themselves (RFC 8981), those that cannot be used yet, and those with FLAG
others() {
  ip -o addr show | awk -v names=" $names " -v flags=" (temporary|tentative|dadfailed${1:+|$1}) " '
    $3 ~ /^inet6?$/ && $2 !~ /^(lo|docker|br-|veth)/ && !index(names, " " $2 " ") && $0 !~ flags { print $2 "=" $4 }' | sort
}

# Those of $others that have to stay: neither those that expire (RFC 4862, 5.5.4), nor link-local ones, which come and go
# on ports where no DHCP server answers; whether a controller comes in by one is seen when it confirms.
management() { others deprecated | grep -v -e '=fe80:' -e '=169\.254\.'; }

complaint() {
  others >"$saved/added"
  comm -23 "$saved/others" "$saved/added" | sed 's/\(.*\)=\(.*\)/\1 has lost its address \2/'
  while read -r name mtu _ wanted; do
    now=" $(links "$name") "
    for each in $wanted; do
      case $now in
        *" $each "*) ;;
        *) echo "$name has no address $each" ;;
      esac
    done
    [ "${now#" $name $mtu "}" != "$now" ] || echo "the MTU of $name is not $mtu"
  done <"$saved/wanted"
}

no_complaint() { [ -z "$(complaint)" ]; }

is_gone() { [ ! -e "$1" ]; }

# wait_for SECONDS COMMAND...
wait_for() {
  seconds=$1
  shift
  until "$@"; do
    [ "$seconds" -gt 0 ] || return 1
    seconds=$((seconds - 1))
    sleep 1
  done
}

# What a run that was killed did not keep is taken back first.
take_back_all() {
  for mark in "$PENDING"/*; do
    case $mark in
      *.back) wait_for 90 is_gone "$mark" || mv "$mark" "${mark%.back}" ;;
      *.kept) rm -f "$mark" ;;
    esac
  done
  for mark in "$PENDING"/*; do
    take_back "$mark" "$SHADOW"
  done
}

# start_guard MARK: takes back what has MARK in $CONFIRM_S seconds. It is in no session, since logind may end all processes
# of one with the login (logind.conf(5), KillUserProcesses). systemd would expand a $ in its arguments (systemd.service(5)).
start_guard() {
  rm -f "$saved/guard"
  printf '%s\n' "PATH='$PATH' LC_ALL=C" 'export PATH LC_ALL' "$GUARD" 'sleep "$3"' 'take_back "$1" "$2"' >"$saved/guard" ||
    bad "cannot write $saved/guard"
  set -- /bin/sh "$saved/guard" "$1" "$SHADOW" "$CONFIRM_S"
  # sd_booted(3); without systemd as the init, netplan's generator makes that directory all the same
  if [ -d /run/systemd/system ] &&
    systemd-run --quiet --collect --service-type=exec "--unit=sparkcluster-setup-${3##*/}" -- "$@" 2>/dev/null; then
    return
  fi
  setsid "$@" </dev/null >/dev/null 2>&1 9<&- &
}

# try_netplan COMMAND: $saved/new is in effect in place of $NETPLAN, by a file in /run that a reboot removes, and COMMAND gets
# the links as they are $saved/wanted. If one of them or an address of another interface is missing, or nobody confirms, all
# is as before: the guard, which outlives this script, takes care of it.
try_netplan() {
  say "apply the netplan files; they are taken back in $CONFIRM_S s unless all is well"
  names=$(cut -d ' ' -f 1 "$saved/wanted" | tr '\n' ' ')
  management >"$saved/others"
  mark=$PENDING/$(date +%s)-$$
  start_guard "$mark"
  mkdir -p "$PENDING" "${SHADOW%/*}"
  links $names >"$PENDING/.part" && mv "$PENDING/.part" "$mark" || bad "cannot write $mark"
  replace "$SHADOW" "$saved/new" 600 0:0
  "$1" <"$saved/wanted"
  reason=
  if timeout 60 netplan apply >"$saved/output" 2>&1; then
    "$1" <"$saved/wanted"
    wait_for 15 no_complaint || reason=$(complaint | head -n 1)
  else
    reason="netplan apply: $(grep . "$saved/output" | tail -n 1)"
  fi
  # Whoever confirms takes MARK from the guard: this script, or the controller, who connects anew to say that it can.
  if [ -z "$reason" ] && [ "$CONFIRM" = controller ]; then
    say "confirm: ${mark##*/}"
    wait_for "$CONFIRM_S" is_gone "$mark"
  elif [ -z "$reason" ]; then
    mv "$mark" "$mark.kept" 2>/dev/null
  fi
  [ ! -e "$mark.kept" ] || return 0
  take_back "$mark" "$SHADOW"
  wait_for 90 is_gone "$mark.back"
  bad "${reason:-no confirmation within $CONFIRM_S s}; the network is as before"
}

end_try() {
  rm -f "$SHADOW" "$mark.kept"
  rmdir "${SHADOW%/*}" "$PENDING" 2>/dev/null
}

prepare() {
  no_ranks
  command -v netplan >/dev/null || bad "netplan is missing: sudo apt-get install -y netplan.io"
  take_back_all
  : >"$saved/wanted"
}

# set_netplan INTERFACE=ADDRESS...: standard input is the text of $NETPLAN
set_netplan() {
  cat >"$saved/new" || bad "cannot write $saved/new"
  prepare
  for each; do
    name=${each%%=*} wanted="$MTU 1 ${each#*=}"
    [ -e "/sys/class/net/$name" ] || bad "there is no interface $name"
    now=$(links "$name")
    [ "$now" = "$name $wanted" ] || record link "$name" "${now#* }" "$wanted"
    echo "$name $wanted" >>"$saved/wanted"
  done
  try_netplan true
  put "$NETPLAN" 600 0:0
  end_try
}

# The file decides whether the network is as setup left it. Of a link the addresses that setup gave it go, those that it had
# come back, and others stay.
undo_netplan() {
  prepare
  text=$NETPLAN
  entries >"$saved/entries"
  while IFS='	' read -r number kind target before after <&3; do
    if [ "$kind" = file ]; then
      now=$(get_file "$target") text=$saved/$number was=$before
      case "$before $after" in
        *"$now "*) ;;
        *) leave ;;
      esac
    elif [ -e "/sys/class/net/$target" ]; then
      other=
      for each in $(addresses "$target"); do
        case " $before $after" in
          *" $each "*) ;;
          *) other="$other $each" ;;
        esac
      done
      echo "$target $before$other" >>"$saved/wanted"
    fi
  done 3<"$saved/entries"
  cp -- "$text" "$saved/new" 2>/dev/null || echo 'network: {version: 2}' >"$saved/new"
  try_netplan set_links
  [ "$text" = "$NETPLAN" ] || restore "$NETPLAN" "${text##*/}" "$was"
  end_try
  for number in $(cut -f 1 "$saved/entries"); do
    forget "$number"
  done
  say done
}
