# entries: print the journal entries of $step, newest first: NUMBER KIND TARGET BEFORE AFTER... BEFORE is the state before
# the first change of TARGET; there is one AFTER per change.
entries() {
  awk -F '\t' -v step="$step" '
    $4 "" == step "" {
      if (!($1 in first)) first[$1] = $1 "\t" $5 "\t" $6 "\t" $7 "\t"
      made[$1] = made[$1] $8 " "
    }
    END { for (number in first) print first[number] made[number] }' "$dir/journal" 2>/dev/null | sort -rn
}

# Undo all changes of $step, or leave them
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

# Restore $target if it is as setup wrote it; succeeds if it has its original state afterwards
undo_value() {
  now=$("get_$kind" "$target")
  case " $after" in
    *" $now "*) "set_$kind" "$target" "$before" ;;
    *) [ "$now" = "$before" ] ;;
  esac
}

# leave [REASON]: keep $target and its journal entry; it has neither the state that setup wrote nor the original state
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

# A directory that is not empty stays.
set_directory() {
  ! rmdir -- "$1" 2>/dev/null || sync "${1%/*}"
}

# If the file was changed since, remove only the lines that setup added.
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
