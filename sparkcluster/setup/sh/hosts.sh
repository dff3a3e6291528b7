export BEGIN END

# with_block FILE BLOCK: FILE with what is in BLOCK in place of the lines from BEGIN to END; fails if END is missing
with_block() {
  awk '
    FILENAME == ARGV[1] { block = block $0 "\n"; next }
    $0 == ENVIRON["BEGIN"] { printf "%s", block; inside = 1 }
    !inside
    $0 == ENVIRON["END"] { inside = 0 }
    END { exit inside }' "$2" "$1"
}

# set_hosts: standard input are the lines of the block in /etc/hosts
set_hosts() {
  { echo "$BEGIN" && cat && echo "$END"; } >"$saved/added" || bad "cannot write $saved/added"
  if grep -qxF "$BEGIN" /etc/hosts; then
    with_block /etc/hosts "$saved/added" >"$saved/new" || bad "/etc/hosts has the line '$BEGIN' without '$END'"
  else
    {
      cat /etc/hosts
      [ -z "$(tail -c 1 /etc/hosts)" ] || echo
      cat "$saved/added"
    } >"$saved/new" || bad "cannot write $saved/new"
  fi
  put block /etc/hosts "$(stat -c %a /etc/hosts)" "$(stat -c %u:%g /etc/hosts)"
}
