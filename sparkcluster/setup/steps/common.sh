# Fixed PATH, whatever sudo passes: these directories are secure_path of Ubuntu's sudoers.
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

# act COMMAND...: make one change; neither a lost connection nor Ctrl-C interrupts it
act() {
  [ -z "$stop" ] || return 1
  (
    trap '' HUP INT TERM
    "$@"
  )
  code=$?
  [ "$code" -le 1 ] || [ "$code" = 3 ] || say "failed: $1 exited with code $code"
  return "$code"
}

# run COMMAND...: on failure, report its last line of output
run() {
  "$@" >"$saved/output" 2>&1 && return
  reason=$(grep . "$saved/output" | tail -n 1)
  bad "$1: ${reason#"$1: "}"
}

# Check user and machine, and allow one setup at a time; the lock ends with this shell.
begin() {
  if [ "$(id -un)" != "$RUN_AS" ]; then
    echo "setup: run this as $RUN_AS, not as $(id -un)" >&2
    exit 2
  fi
  if [ -n "$MACHINE" ] && [ "$(printf %s "$(cat /etc/machine-id)" | sha256sum | cut -c 1-64)" != "$MACHINE" ]; then
    echo "setup: this script is for another machine, not $(uname -n)" >&2
    exit 2
  fi
  dir=$TOP/$BELOW/setup
  saved=$dir/saved
  mkdir -p "$saved" && chmod 700 "$saved" || exit 1
  exec 9<"$saved" # other users cannot open this directory, so they cannot take the lock
  if ! flock -n 9; then
    echo "setup: another setup is running on $(uname -n)" >&2
    exit 75
  fi
}

# attempt STEP: run it; a failure does not stop later steps
attempt() {
  "$1" || [ $? = 3 ] || failed=1
  if [ -n "$stop" ]; then
    echo "setup: interrupted; run it again to continue" >&2
    exit 1
  fi
}

end() {
  rm -f "$dir/part" "$saved"/[a-z]*
  if [ ! -s "$dir/journal" ]; then
    rm -rf "$dir"
    cd "$TOP" && rmdir -p "$BELOW" 2>/dev/null
  fi
  exit "$failed"
}

# record KIND TARGET BEFORE AFTER [FILE [ADDED]]: write a change to the journal and save FILE, before the change is made.
# $number is the number of the first change of TARGET. FILE is saved at the first change; ADDED is appended at each.
record() {
  number=$(cat "$dir/journal" 2>/dev/null | KIND=$1 TARGET=$2 AFTER=$4 awk -F '\t' '
    $1 + 0 > most { most = $1 + 0 }
    $5 "" == ENVIRON["KIND"] "" && $6 "" == ENVIRON["TARGET"] "" { number = $1; after = $8 }
    END { print number ? (after "" == ENVIRON["AFTER"] "" ? "same " : "more ") number : "new " most + 1 }')
  known=${number% *} number=${number#* }
  if [ -n "${6-}" ]; then
    cat -- "$6" >>"$saved/$number.added" && sync "$saved/$number.added" || bad "cannot write to $saved"
  fi
  [ "$known" != same ] || return 0
  if [ "$known" = new ]; then
    rm -f "$saved/$number"
    if [ -n "${5-}" ] && [ -e "$5" ]; then
      cp -p -- "$5" "$saved/$number" && sync "$saved/$number" || bad "cannot save $5 in $saved"
    fi
  fi
  {
    { [ ! -e "$dir/journal" ] || cat "$dir/journal"; } &&
      printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$number" "$(date +%s)" "$OPERATOR" "$step" "$1" "$2" "$3" "$4"
  } >"$dir/part" && sync "$dir/part" && mv "$dir/part" "$dir/journal" && sync "$saved" "$dir" ||
    bad "cannot write $dir/journal"
}

# forget NUMBER: remove an undone change from the journal
forget() {
  awk -F '\t' -v number="$1" '$1 != number' "$dir/journal" >"$dir/part" && sync "$dir/part" &&
    mv "$dir/part" "$dir/journal" && sync "$dir" || bad "cannot write $dir/journal"
  rm -f "$saved/$1" "$saved/$1.added"
}

# change KIND TARGET WANTED: get_KIND reads the state of TARGET, set_KIND sets it (also in an undo)
change() {
  now=$("get_$1" "$2")
  [ "$now" != "$3" ] || return 0
  [ -n "$now" ] || bad "the state of $2 is unknown"
  record "$1" "$2" "$now" "$3"
  "set_$1" "$2" "$3"
}

content() {
  if [ ! -e "$1" ]; then
    echo absent
  else
    sha256sum <"$1" | cut -c 1-64
  fi
}

# replace PATH FILE MODE UID:GID: replace PATH atomically
replace() {
  part=${1%/*}/.${1##*/}.sparkcluster
  rm -f "$part"
  reason=$({ (umask 077 && cp -- "$2" "$part") && chmod "$3" "$part" && chown "$4" "$part" && sync "$part" &&
    mv -f -- "$part" "$1" && sync "${1%/*}"; } 2>&1) || {
    rm -f "$part"
    bad "cannot write $1: $reason"
  }
}

# restore PATH NUMBER BEFORE: restore the saved file, or remove PATH if it was absent
restore() {
  if [ "$3" = absent ]; then
    rm -f -- "$1" && sync "${1%/*}" || bad "cannot remove $1"
  else
    replace "$1" "$saved/$2" $(stat -c '%a %u:%g' "$saved/$2")
  fi
}

# directory PATH MODE
directory() {
  [ ! -d "$1" ] || return 0
  (directory "${1%/*}" 755) || exit 1
  record directory "$1" absent made
  mkdir -m "$2" -- "$1" && sync "${1%/*}" || bad "cannot create $1"
}

# put PATH MODE UID:GID [ADDED]: install $saved/new as PATH
put() {
  [ ! -L "$1" ] || bad "$1 is a symbolic link"
  [ ! -e "$1" ] || [ -f "$1" ] || bad "$1 is not a file"
  before=$(content "$1") after=$(content "$saved/new")
  [ -n "$before" ] && [ -n "$after" ] || bad "cannot read $1"
  [ "$before" != "$after" ] || [ "$(stat -c '%a %u:%g' -- "$1")" != "$2 $3" ] || return 0
  record file "$1" "$before" "$after" "$1" "${4-}"
  replace "$1" "$saved/new" "$2" "$3"
}

# write_file PATH: write standard input to PATH, owned by root
write_file() {
  cat >"$saved/new" || bad "cannot write $saved/new"
  directory "${1%/*}" 755
  put "$1" 644 0:0
}

# enter DIR: change to DIR and verify with the kernel that it is DIR. Another user may replace any part of the path by a
# link at any time, so later commands work on "." and follow no links.
enter() {
  here=nothing
  cd -- "$1" 2>/dev/null && here=$(readlink /proc/self/cwd) && [ "$here" = "$1" ]
}

# Do not change Docker or the network while ranks run.
no_ranks() {
  ranks=$(docker ps --filter "label=$LABEL" --format '{{.Names}}' 2>/dev/null | tr '\n' ' ')
  [ -z "$ranks" ] || bad "ranks are running: $ranks"
}
