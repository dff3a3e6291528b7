# undo_owner NUMBER KIND PATH BEFORE USER: what still belongs to USER goes back to root. The list saved has "UID:GID PATH" for
# each file, ended by a null byte; of its paths only those count that are found in PATH without following a link.
undo_owner() {
  uid=$(id -u -- "$5") || leave "$3"
  [ -d "$3" ] || return 0
  find -P "$3" -xdev -user "$uid" -printf '%p\0' | sort -z >"$saved/entries"
  cut -z -d ' ' -f 1 "$saved/$1" | sort -zu | tr '\0' '\n' | while read -r owner; do
    grep -az "^$owner " "$saved/$1" | cut -z -d ' ' -f 2- | sort -z | comm -z -12 - "$saved/entries" |
      xargs -0 -r chown -h "--from=$uid" "$owner" --
  done 2>/dev/null
}
