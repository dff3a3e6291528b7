# Root's programs are those of the system, whatever PATH sudo left: these directories are secure_path of Ubuntu's sudoers.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin LC_ALL=C
export PATH LC_ALL
umask 022
step=setup stop='' failed=0
trap '' PIPE
trap 'stop=1' HUP INT TERM

say() { printf '%s: %s\n' "$step" "$*" 2>/dev/null || stop=1; }

bad() {
  say "failed: $*"
  exit 1
}

# act COMMAND...: one change, which neither a lost connection nor Ctrl-C interrupts
act() {
  [ -z "$stop" ] || return 1
  (
    trap '' HUP INT TERM
    "$@"
  )
  code=$?
  case $code in
    0 | 1 | 3) ;;
    *) say "failed: $1 ended with exit code $code" ;;
  esac
  return "$code"
}

# run COMMAND...: its last line of output is the reason if it fails
run() {
  "$@" >"$saved/output" 2>&1 && return
  reason=$(grep . "$saved/output" | tail -n 1)
  bad "$1: ${reason#"$1: "}"
}

# One setup at a time, on the machine and as the user that it is for; the lock ends with this shell.
begin() {
  if [ "$(id -un)" != "$RUN_AS" ]; then
    echo "setup: run this as $RUN_AS, not as $(id -un)" >&2
    exit 2
  fi
  if [ -n "$MACHINE" ] && [ "$(printf %s "$(cat /etc/machine-id)" | sha256sum | cut -c 1-64)" != "$MACHINE" ]; then
    echo "setup: this is $(uname -n), not the machine that this script is for" >&2
    exit 2
  fi
  saved=$dir/saved
  mkdir -p "$saved" && chmod 700 "$saved" || exit 1
  exec 9<"$dir"
  if ! flock -n 9; then
    echo "setup: another setup runs on $(uname -n)" >&2
    exit 75
  fi
}

# attempt STEP: steps are independent
attempt() {
  "$1" || failed=1
  if [ -n "$stop" ]; then
    echo "setup: interrupted; run it again to continue" >&2
    exit 1
  fi
}

end() {
  rm -f "$dir/part" "$saved/new" "$saved/added" "$saved/output" "$saved/entries" "$saved/others" "$saved/guard"
  # A journal that is missing beside what was saved was not removed by this script.
  if [ ! -s "$dir/journal" ] && { [ -e "$dir/journal" ] || [ -z "$(ls -A "$saved")" ]; }; then
    rm -rf "$dir"
    parent=${dir%/*}
    while [ "$parent" != "$TOP" ] && rmdir "$parent" 2>/dev/null; do parent=${parent%/*}; done
  fi
  exit "$failed"
}

# save FILE NUMBER
save() {
  rm -f "$saved/$2"
  [ -n "$1" ] && [ -e "$1" ] || return 0
  cp -p -- "$1" "$saved/$2" && sync "$saved/$2" || bad "cannot save $1 in $saved"
}

# record KIND TARGET BEFORE AFTER [FILE [ADDED]]: a change is in the journal, and FILE as it was is saved, before it is
# made. $number is its number; one that an interrupted run recorded keeps its number and what was saved.
record() {
  number=$(
    KIND=$1 TARGET=$2 BEFORE=$3 AFTER=$4
    export KIND TARGET BEFORE AFTER
    [ ! -e "$dir/journal" ] || awk -F '\t' '
      $1 + 0 > most { most = $1 + 0 }
      $5 "" == ENVIRON["KIND"] "" && $6 "" == ENVIRON["TARGET"] "" {
        same = $7 "" == ENVIRON["BEFORE"] "" && $8 "" == ENVIRON["AFTER"] "" ? $1 : ""
      }
      END { print same != "" ? same : "new " most + 1 }' "$dir/journal"
  )
  case $number in
    '') number=1 ;;
    new*) number=${number#new } ;;
    *) return 0 ;;
  esac
  save "${5-}" "$number"
  save "${6-}" "$number.added"
  {
    { [ ! -e "$dir/journal" ] || cat "$dir/journal"; } &&
      printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$number" "$(date +%s)" "$OPERATOR" "$step" "$1" "$2" "$3" "$4"
  } >"$dir/part" && sync "$dir/part" && mv "$dir/part" "$dir/journal" && sync "$saved" "$dir" ||
    bad "cannot write $dir/journal"
}

# forget NUMBER: its change is undone
forget() {
  awk -F '\t' -v number="$1" '$1 != number' "$dir/journal" >"$dir/part" && sync "$dir/part" &&
    mv "$dir/part" "$dir/journal" && sync "$dir" || bad "cannot write $dir/journal"
  rm -f "$saved/$1" "$saved/$1.added"
}
