# of_root ACTION...: run find with ACTION on root's files here and below, on the same file system
of_root() { find . -xdev -user 0 \( ! -type d -o -path . -o ! -execdir mountpoint -q {} \; \) "$@"; }

# own_tree PATH USER: give root's files at PATH and below to USER
own_tree() {
  enter "$1" || bad "$1 is a link to $here: set hf_home in the inventory to $here"
  of_root -printf '%i\n' >"$saved/new" || bad "cannot list $1"
  [ -s "$saved/new" ] || return 0
  record owner "$1" root "$2" '' "$saved/new"
  of_root -execdir chown -h --from=+0 "$2" -- {} + 2>/dev/null
  [ -z "$(of_root -print -quit)" ] || bad "cannot change the owner of some files in $1 to $2"
}

# Give files back to root if their inode was saved, they are not newer, and they still belong to the user
undo_owner() {
  uid=$(id -u -- "${after%% *}") || leave
  [ -d "$target" ] || return 0
  enter "$target" || leave "is a link to $here"
  sed "s/.*/-o -inum & -execdir chown -h --from=$uid root -- {} ;/" "$saved/$number.added" |
    xargs -r -L 500 find . -xdev -newer "$saved/$number.added"
}
