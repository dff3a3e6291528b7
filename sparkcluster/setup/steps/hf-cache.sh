# of_root PATH ACTION...: find's ACTION for what root owns at PATH and below on the same file system. With -xdev alone it
# finds the directories, too, on which others are mounted.
of_root() {
  place=$1
  shift
  find -P "$place" -xdev -user 0 \( ! -type d -o \
    -execdir sh -c '[ "$(stat -c %d -- "$1")" = "$0" ]' "$(stat -c %d -- "$place")" {} \; \) "$@"
}

# own_tree PATH USER: what root owns at PATH and below belongs to USER. With -execdir no link is followed, also not one that
# USER puts in the place of a directory meanwhile.
own_tree() {
  place=$(readlink -f -- "$1")
  [ "$place" = "$1" ] || bad "$1 leads to $place: set hf_home to that in the inventory"
  of_root "$1" -print0 >"$saved/new" || bad "cannot list $1"
  [ -s "$saved/new" ] || return 0
  record owner "$1" root "$2" '' "$saved/new"
  of_root "$1" -execdir chown -h --from=+0 "$2" -- {} + 2>/dev/null
  [ -z "$(of_root "$1" -print -quit)" ] || bad "some files in $1 cannot be given to $2"
}

# What still belongs to the user goes back to root: of the paths that were saved, each ended by a null byte, those that are
# found in the directory without following a link.
undo_owner() {
  uid=$(id -u -- "${after%% *}") || leave
  [ -d "$target" ] || return 0
  find -P "$target" -xdev -user "$uid" -print0 | sort -z >"$saved/found"
  sort -zu "$saved/$number.added" | comm -z -12 - "$saved/found" | xargs -0 -r chown -h "--from=$uid" root -- 2>/dev/null
}
