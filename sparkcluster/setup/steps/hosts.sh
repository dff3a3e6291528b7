# set_hosts: standard input is the block in /etc/hosts, which replaces one that has the same first and last line
set_hosts() {
  cat >"$saved/added" || bad "cannot write $saved/added"
  awk -v begin="$(head -n 1 "$saved/added")" -v end="$(tail -n 1 "$saved/added")" '
    FILENAME == ARGV[1] { block = block $0 "\n"; next }
    $0 == begin { printf "%s", block; inside = found = 1 }
    !inside
    $0 == end { inside = 0 }
    END {
      if (!found) printf "%s", block
      exit inside
    }' "$saved/added" /etc/hosts >"$saved/new" ||
    bad "/etc/hosts has the line '$(head -n 1 "$saved/added")' without '$(tail -n 1 "$saved/added")'"
  put /etc/hosts "$(stat -c %a /etc/hosts)" "$(stat -c %u:%g /etc/hosts)" "$saved/added"
}
