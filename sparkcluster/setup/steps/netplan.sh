SHADOW=/run/netplan/${NETPLAN##*/} CONFIRM_S=60

# The guard runs these functions, too. A link is a line of NAME MTU ADDR_GEN_MODE ADDRESS... without dynamic and link-local
# addresses. ADDR_GEN_MODE selects how the kernel makes IPv6 link-local addresses (Linux, networking/ip-sysctl.rst).
GUARD='
addresses() { ip -o -4 addr show dev "$1" | grep -v " dynamic " | awk "\$4 !~ /^169\\.254\\./ { print \$4 }"; }

# set_links: apply the links on standard input
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

# in_effect LINKS: apply netplan files and LINKS
in_effect() {
  set_links <"$1"
  timeout 60 netplan apply 2>&1
  code=$?
  set_links <"$1"
  return "$code"
}

# roll_back PENDING SHADOW SECONDS: unless confirmed, restore PENDING/links after SECONDS or once PENDING/back exists
roll_back() {
  seconds=$3
  while [ "$seconds" -gt 0 ] && [ -e "$1/links" ] && [ ! -e "$1/back" ]; do
    seconds=$((seconds - 1))
    sleep 1
  done
  mv "$1/links" "$1/taken" 2>/dev/null || return 0
  rm -f "$2"
  in_effect "$1/taken" >/dev/null
  rm -rf "$1"
  rmdir "${2%/*}" 2>/dev/null
}
'
eval "$GUARD"

# links NAME...: print the present links
links() {
  for each; do
    mode=$(cat "/proc/sys/net/ipv6/conf/$each/addr_gen_mode" 2>/dev/null) || mode=1
    echo "$each $(cat "/sys/class/net/$each/mtu")" "$mode" $(addresses "$each")
  done
}

# present [FLAG]: print a line for each IPv4 and IPv6 address, and for the MTU of each of $names. Omits addresses of
# containers, temporary (RFC 8981) and tentative addresses, and addresses with FLAG.
present() {
  ip -o addr show | awk -v flags=" (temporary|tentative|dadfailed${1:+|$1}) " '
    $3 ~ /^inet6?$/ && $2 !~ /^(lo|docker|br-|veth)/ && $0 !~ flags { print $2, "has", $4 }'
  for each in $names; do echo "$each has MTU $(cat "/sys/class/net/$each/mtu")"; done
}

# Addresses that must be present: $saved/wanted, and addresses of other interfaces except deprecated ones (RFC 4862, 5.5.4)
# and link-local ones, which change on ports without a DHCP server. The confirmation covers a controller that uses one.
expected() {
  present deprecated | awk -v names=" $names " '!index(names, " " $1 " ") && $3 !~ /^(fe80:|169\.254\.)/'
  awk '{ print $1, "has MTU", $2; for (at = 4; at <= NF; at++) print $1, "has", $at }' "$saved/wanted"
}

complaint() { present | sort | comm -23 "$saved/expected" - | sed -n '1s/ has / has no /p'; }

# try_netplan LINKS: apply $saved/new in place of $NETPLAN, from a file in /run that a reboot removes, and apply LINKS.
# The guard rolls back if a link differs from $saved/wanted, an address of another interface is missing, or the confirmation
# is missing. It runs in its own session, so it survives this script, and holds the lock until it ends.
try_netplan() {
  say "apply the netplan files; rolled back after $CONFIRM_S s unless confirmed"
  names=$(cut -d ' ' -f 1 "$saved/wanted" | tr '\n' ' ')
  expected | sort >"$saved/expected"
  mkdir -p "$PENDING" "${SHADOW%/*}"
  links $names >"$PENDING/part" && mv "$PENDING/part" "$PENDING/links" || bad "cannot write $PENDING/links"
  setsid sh -c "$GUARD"'roll_back "$@"' guard "$PENDING" "$SHADOW" "$CONFIRM_S" </dev/null >/dev/null 2>&1 &
  replace "$SHADOW" "$saved/new" 600 0:0
  if in_effect "$1" >"$saved/output"; then
    seconds=15
    until reason=$(complaint) && [ -z "$reason" ] || [ "$seconds" = 0 ]; do
      seconds=$((seconds - 1))
      sleep 1
    done
  else
    reason="netplan apply: $(grep . "$saved/output" | tail -n 1)"
  fi
  # Confirming renames the marker of the guard. This script does it, or the controller over a new connection.
  if [ -n "$reason" ]; then
    touch "$PENDING/back"
  elif [ "${CONFIRM-}" = controller ]; then
    say "confirm: by a new connection"
  else
    mv "$PENDING/links" "$PENDING/kept" 2>/dev/null
  fi
  wait "$!"
  [ -e "$PENDING/kept" ] || bad "${reason:-no confirmation within $CONFIRM_S s}; network rolled back"
}

end_try() {
  rm -rf "$SHADOW" "$PENDING"
  rmdir "${SHADOW%/*}" 2>/dev/null
}

prepare() {
  no_ranks
  roll_back "$PENDING" "$SHADOW" 0 # of a guard that was killed
  rm -rf "$PENDING"
  : >"$saved/wanted"
}

# set_netplan INTERFACE=ADDRESS...: write standard input to $NETPLAN and apply it
set_netplan() {
  cat >"$saved/new" || bad "cannot write $saved/new"
  prepare
  for each; do
    name=${each%%=*} wanted="$MTU 1 ${each#*=}"
    now=$(links "$name")
    [ "$now" = "$name $wanted" ] || record link "$name" "${now#* }" "$wanted"
    echo "$name $wanted" >>"$saved/wanted"
  done
  try_netplan /dev/null
  put "$NETPLAN" 600 0:0
  end_try
}

# Undo only if $NETPLAN is as setup wrote it. On each link, addresses from setup are removed, earlier ones restored, and
# others kept.
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
      echo "$target $before" $(addresses "$target" | grep -vxF -- "$(printf '%s\n' $after)") >>"$saved/wanted"
    fi
  done 3<"$saved/entries"
  cp -- "$text" "$saved/new" 2>/dev/null || echo 'network: {version: 2}' >"$saved/new"
  try_netplan "$saved/wanted"
  [ "$text" = "$NETPLAN" ] || restore "$NETPLAN" "${text##*/}" "$was"
  end_try
  for number in $(cut -f 1 "$saved/entries"); do
    forget "$number"
  done
  say done
}
