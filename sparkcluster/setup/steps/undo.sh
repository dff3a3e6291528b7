# entries: of $step in the journal, newest first: NUMBER KIND TARGET BEFORE AFTER..., BEFORE as it was before the first
# change of TARGET, AFTER what every one made of it
entries() {
  awk -F '\t' -v step="$step" '
    $4 "" == step "" {
      if (!($1 in first)) first[$1] = $1 "\t" $5 "\t" $6 "\t" $7 "\t"
      made[$1] = made[$1] $8 " "
    }
    END { for (number in first) print first[number] made[number] }' "$dir/journal" 2>/dev/null | sort -rn
}

# Everything of $step is undone, or left
undo_step() {
  left=''
  entries >"$saved/entries"
  while IFS='	' read -r number kind target before after <&3; do
    act undo_entry && continue
    [ "$code" = 3 ] || return 1
    left=1
  done 3<"$saved/entries"
  [ -n "$left" ] || say done
}

undo_entry() {
  case $step/$kind in
    ssh-key/file) undo_lines ;;
    nvidia-runtime/file) undo_daemon ;;
    hf-cache/owner) undo_owner ;;
    *) undo_value || leave ;;
  esac
  forget "$number"
}

# Whether $target was as setup left it, or as before, and is now as before
undo_value() {
  now=$("get_$kind" "$target")
  case " $after" in
    *" $now "*) "set_$kind" "$target" "$before" ;;
    *) [ "$now" = "$before" ] ;;
  esac
}

# leave [REASON]: it is neither as setup left it nor as it was before, so it stays, and stays in the journal
leave() {
  say "left $target: ${1:-changed since setup wrote it}"
  exit 3
}

get_file() {
  rm -f "${1%/*}/.${1##*/}.sparkcluster"
  content "$1"
}

set_file() { restore "$1" "$number" "$2"; }

get_directory() { [ -d "$1" ] && echo made || echo absent; }

# It stays where something is in it.
set_directory() {
  ! rmdir -- "$1" 2>/dev/null || sync "${1%/*}"
}

# Where the file was changed since, only the lines that were added are removed.
undo_lines() {
  ! undo_value && [ "$now" != absent ] || return 0
  grep -vxFf "$saved/$number.added" -- "$target" >"$saved/new"
  [ $? -le 1 ] || bad "cannot copy $target"
  if [ "$before" = absent ] && [ ! -s "$saved/new" ]; then
    rm -f -- "$target"
  else
    replace "$target" "$saved/new" "$(stat -c %a -- "$target")" "$(stat -c %u:%g -- "$target")"
  fi
}
