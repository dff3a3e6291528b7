# undo_netplan NUMBER...: standard input are lines of NUMBER KIND TARGET BEFORE AFTER, of which the last ones count, and
# the arguments all entries that end with them
undo_netplan() {
  cat >"$saved/entries" || bad "cannot write $saved/entries"
  no_ranks
  command -v netplan >/dev/null || bad "netplan is missing"
  take_back_all
  now=$(content "$NETPLAN") restored='' kept=''
  names='' expected='' remove='' links='' add='' given='' lost='' were=''
  rm -f "${NETPLAN%/*}/.${NETPLAN##*/}.sparkcluster"
  while IFS='	' read -r entry kind target before after; do
    interface=${target%% *} address=${target#* }
    noted "$entry" "$kind" "$target" "$before" "$after" || continue
    if [ "$kind" = netplan ]; then
      if [ "$now" = "$after" ]; then
        now=$before restored=$entry
      else
        grep "^[0-9]*	netplan	" "$saved/entries" | grep -qF "$now" || leave "$NETPLAN"
      fi
    elif [ -e "/sys/class/net/$interface" ]; then
      case " $names " in
        *" $interface "*) ;;
        *)
          names="$names $interface"
          were="$were $interface=$(mtu "$interface")=$(addr_gen_mode "$interface")"
          ;;
      esac
      is=absent
      ! addresses "$interface" | grep -qF " $address " || is=present
      case $kind/$before/$is in
        address/absent/present) remove="$remove $interface=$address" lost="$lost $interface=$address" ;;
        address/present/absent) add="$add $interface=$address" given="$given $interface=$address" ;;
        link/*)
          old=${before#mtu=}
          old=${old%% *} mode=${before##*=}
          if [ "mtu=$(mtu "$interface")" != "$after" ] && [ "$(mtu "$interface")" != "$old" ]; then
            say "left the MTU of $interface: changed since setup set it"
            kept="$kept $entry "
          elif [ "$(mtu "$interface") $(addr_gen_mode "$interface")" != "$old $mode" ]; then
            links="$links $interface=$old=$mode"
          fi
          ;;
      esac
    fi
  done <"$saved/entries"
  if [ -n "$restored$remove$add$links" ]; then
    case $now in
      absent) echo 'network: {version: 2}' >"$saved/new" ;;
      *) cp -- "${restored:+$saved/}${restored:-$NETPLAN}" "$saved/new" || bad "cannot read what was saved" ;;
    esac
    say "apply the netplan files without that of setup; it is taken back in $CONFIRM_S s unless all is well"
    try_netplan
    if [ -n "$restored" ]; then
      (restore "$NETPLAN" "$restored" "$now") || give_up "$NETPLAN cannot be restored"
    fi
    clear_run
  fi
  for entry; do
    case $kept in
      *" $entry "*) ;;
      *) forget "$entry" ;;
    esac
  done
  [ -z "$kept" ] || exit 3
}
