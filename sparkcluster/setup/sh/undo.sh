# take COMMAND...: one change is undone, or left
take() {
  act "$@"
  code=$?
  [ "$code" != 3 ] || left=1
  [ "$code" = 0 ] || [ "$code" = 3 ]
}

# noted NUMBER KIND TARGET BEFORE AFTER: the journal still has it
noted() {
  (
    NUMBER=$1 KIND=$2 TARGET=$3 BEFORE=$4 AFTER=$5
    export NUMBER KIND TARGET BEFORE AFTER
    awk -F '\t' '
      $1 == ENVIRON["NUMBER"] && $5 "" == ENVIRON["KIND"] "" && $6 "" == ENVIRON["TARGET"] "" &&
        $7 "" == ENVIRON["BEFORE"] "" && $8 "" == ENVIRON["AFTER"] "" { found = 1 }
      END { exit !found }' "$dir/journal" 2>/dev/null
  )
}

# undo FUNCTION NUMBER KIND TARGET BEFORE AFTER...
undo() {
  action=$1 entry=$2
  shift
  noted "$1" "$2" "$3" "$4" "$5" || return 0
  "$action" "$@"
  forget "$entry"
}

# leave TARGET: it is neither as setup left it nor as it was before, so it stays, and stays in the journal
leave() {
  say "left $1: changed since setup wrote it"
  exit 3
}

# undone: the last line of a step, unless that names what is left
undone() { [ -n "$left" ] || say done; }
