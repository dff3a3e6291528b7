SHADOW=/run/netplan/${NETPLAN##*/}

# The guard runs these functions as well. Addresses are INTERFACE=ADDRESS, links INTERFACE=MTU=ADDR_GEN_MODE.
GUARD='
remove() { for each in $1; do ip addr del "${each#*=}" dev "${each%%=*}"; done 2>/dev/null; }
add() { for each in $1; do ip addr add "${each#*=}" dev "${each%%=*}"; done 2>/dev/null; }
set_links() {
  for each in $1; do
    name=${each%%=*} mode=${each##*=} mtu=${each#*=}
    ip link set dev "$name" mtu "${mtu%=*}"
    file=/proc/sys/net/ipv6/conf/$name/addr_gen_mode
    [ "$(cat "$file")" = "$mode" ] || echo "$mode" >"$file"
  done 2>/dev/null
}

# take_back MARK SHADOW: as before, unless that was done or MARK is gone
take_back() {
  mv "$1" "$1.back" 2>/dev/null || return 0
  { read -r given; read -r lost; read -r were; } <"$1.back"
  rm -f "$2"
  remove "$given"
  set_links "$were"
  timeout 60 netplan apply >/dev/null 2>&1
  add "$lost"
  rm -f "$1.back" "$1.confirmed"
  rmdir "${2%/*}" "${1%/*}" 2>/dev/null
}
'
eval "$GUARD"

addresses() { ip -o -4 addr show ${1:+dev "$1"}; }

mtu() { cat "/sys/class/net/$1/mtu"; }

# How IPv6 link-local addresses come to be (Linux, networking/ip-sysctl.rst); 1 is not at all.
addr_gen_mode() { cat "/proc/sys/net/ipv6/conf/$1/addr_gen_mode" 2>/dev/null || echo 1; }

# others [FLAG]: addresses, IPv4 and IPv6, of interfaces that are not in $names, without those of containers, those that
# are replaced by themselves (RFC 8981), those that cannot be used yet, and those with FLAG
others() {
  ip -o addr show | awk -v names=" $names " -v flags=" (temporary|tentative|dadfailed${1:+|$1}) " '
    $3 ~ /^inet6?$/ && $2 !~ /^(lo|docker|br-|veth)/ && !index(names, " " $2 " ") && $0 !~ flags { print $2 "=" $4 }' | sort
}

# Those of $others that have to stay: not those that expire (RFC 4862, 5.5.4); link-local ones where a connection uses
# them, since they come and go on ports where no DHCP server answers. sshd may have an IPv4 address as ::ffff:ADDRESS.
management() {
  connections=$(ss -Htn state established 2>/dev/null)
  others deprecated | while read -r each; do
    address=${each#*=}
    case $address/$connections in
      fe80:*"[${address%/*}]%${each%%=*}:"* | 169.254.*[\ :]"${address%/*}"[]%:]*) echo "$each" ;;
      fe80:* | 169.254.*) ;;
      *) echo "$each" ;;
    esac
  done
}

complaint() {
  others >"$saved/added"
  comm -23 "$saved/others" "$saved/added" | sed 's/\(.*\)=\(.*\)/\1 has lost its address \2/'
  for each in $expected; do
    name=${each%%=*}
    addresses "$name" | grep -qF " ${each#*=} " || echo "$name has no address ${each#*=}"
    [ "$(mtu "$name")" = "$MTU" ] || echo "the MTU of $name is not $MTU"
  done
}

no_complaint() { [ -z "$(complaint)" ]; }

is_gone() { [ ! -e "$1" ]; }

is_answered() { [ -e "$mark.confirmed" ] || [ ! -e "$mark" ]; }

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
      *.kept) mv "$mark" "${mark%.kept}" ;;
      *.part | *.confirmed) rm -f "$mark" ;;
    esac
  done
  for mark in "$PENDING"/*; do
    take_back "$mark" "$SHADOW"
  done
  rmdir "${SHADOW%/*}" "$PENDING" 2>/dev/null
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

# try_netplan: $saved/new is in effect in place of $NETPLAN, by a file in /run that a reboot removes. If $expected or an
# address of another interface is missing, or nobody confirms, all is as before: the guard, which outlives this script,
# takes care of it. Before netplan runs $remove and $links are applied, after it $add; if it is taken back $given is
# removed, $lost added, and links are as they $were.
try_netplan() {
  management >"$saved/others"
  mark=$PENDING/$(date +%s)-$$
  start_guard "$mark"
  mkdir -p "$PENDING" "${SHADOW%/*}"
  printf '%s\n' "$given" "$lost" "$were" >"$mark.part" && mv "$mark.part" "$mark" || bad "cannot write $mark"
  replace "$SHADOW" "$saved/new" 600 0:0
  remove "$remove"
  set_links "$links"
  reason=
  if timeout 60 netplan apply >"$saved/output" 2>&1; then
    add "$add"
    wait_for 15 no_complaint || reason=$(complaint | head -n 1)
  else
    reason="netplan apply: $(grep . "$saved/output" | tail -n 1)"
  fi
  if [ -z "$reason" ] && [ "$CONFIRM" = controller ]; then
    # The controller connects anew to say that it can.
    say "confirm: ${mark##*/}"
    wait_for "$CONFIRM_S" is_answered
    [ -e "$mark.confirmed" ] || reason="no confirmation within $CONFIRM_S s"
  fi
  if [ -z "$reason" ] && ! mv "$mark" "$mark.kept" 2>/dev/null; then
    reason="not done within $CONFIRM_S s"
  fi
  [ -z "$reason" ] || give_up "$reason"
}

# give_up REASON
give_up() {
  [ ! -e "$mark.kept" ] || mv "$mark.kept" "$mark"
  take_back "$mark" "$SHADOW"
  wait_for 90 is_gone "$mark.back"
  clear_run
  bad "$1; the network is as before"
}

clear_run() {
  rm -f "$SHADOW" "$mark.kept" "$mark.confirmed"
  rmdir "${SHADOW%/*}" "$PENDING" 2>/dev/null
}

# set_netplan INTERFACE=ADDRESS...: standard input is the text of $NETPLAN
set_netplan() {
  cat >"$saved/new" || bad "cannot write $saved/new"
  no_ranks
  command -v netplan >/dev/null || bad "netplan is missing: sudo apt-get install -y netplan.io"
  take_back_all
  names='' expected="$*" remove='' links='' add='' given='' lost='' were=''
  for each; do
    interface=${each%%=*}
    names="$names $interface"
    [ -e "/sys/class/net/$interface" ] || bad "there is no interface $interface"
    old=$(mtu "$interface") mode=$(addr_gen_mode "$interface")
    were="$were $interface=$old=$mode"
    [ "$old $mode" = "$MTU 1" ] || record link "$interface" "mtu=$old mode=$mode" "mtu=$MTU"
    for address in $(addresses "$interface" | awk '!/ dynamic / && $4 !~ /^169\.254\./ { print $4 }'); do
      [ "$address" != "${each#*=}" ] || continue
      record address "$interface $address" present absent
      lost="$lost $interface=$address"
    done
    if ! addresses "$interface" | grep -qF " ${each#*=} "; then
      record address "$interface ${each#*=}" absent present
      given="$given $each"
    fi
  done
  say "apply $NETPLAN; it is taken back in $CONFIRM_S s unless all is well"
  try_netplan
  (put netplan "$NETPLAN" 600 0:0) || give_up "$NETPLAN cannot be written"
  clear_run
}
