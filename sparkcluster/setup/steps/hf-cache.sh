# of_root ACTION...: find's ACTION for what root owns here and below on the same file system
of_root() { find . -xdev -user 0 \( ! -type d -o -path . -o ! -execdir mountpoint -q {} \; \) "$@"; }

# own_tree PATH USER: what root owns at PATH and below belongs to USER
own_tree() {
  enter "$1" || bad "$1 leads to $here: set hf_home to that in the inventory"
  of_root -printf '%i\n' >"$saved/new" || bad "cannot list $1"
  [ -s "$saved/new" ] || return 0
  record owner "$1" root "$2" '' "$saved/new"
  of_root -execdir chown -h --from=+0 "$2" -- {} + 2>/dev/null
  [ -z "$(of_root -print -quit)" ] || bad "some files in $1 cannot be given to $2"
}

# What still belongs to the user goes back to root: of the inodes that were saved, those that are not newer
undo_owner() {
  uid=$(id -u -- "${after%% *}") || leave
  [ -d "$target" ] || return 0
  enter "$target" || leave "leads to $here"
  sed "s/.*/-o -inum & -execdir chown -h --from=$uid root -- {} ;/" "$saved/$number.added" |
    xargs -r -L 500 find . -xdev -newer "$saved/$number.added"
}
