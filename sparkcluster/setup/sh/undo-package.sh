# undo_package NUMBER KIND NAME BEFORE AFTER OURS: OURS are all packages that setup installed
undo_package() {
  installed "$3" || return 0
  quiet_apt -s purge "$3" || { dpkg --configure -a >/dev/null 2>&1 && quiet_apt -s purge "$3"; } ||
    bad "apt-get purge $3: $(grep . "$saved/output" | tail -n 1)"
  for each in $(sed -n 's/^\(Remv\|Purg\) \([^ ]*\) .*/\2/p' "$saved/output"); do
    case " $6 " in
      *" $each "*) ;;
      *)
        say "left $3: $each needs it"
        exit 3
        ;;
    esac
  done
  quiet_apt purge "$3" || bad "apt-get purge $3: $(grep . "$saved/output" | tail -n 1)"
}
