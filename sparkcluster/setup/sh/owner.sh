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
  case $1 in
    / | /bin | /boot | /dev | /etc | /home | /lib | /lib64 | /opt | /proc | /root | /run | /sbin | /srv | /sys | /usr | /var | \
      /bin/* | /boot/* | /dev/* | /etc/* | /lib/* | /lib64/* | /proc/* | /root/* | /run/* | /sbin/* | /sys/* | /usr/* | /var/*)
      bad "$1 is a directory of the system"
      ;;
  esac
  of_root "$1" -printf '%U:%G %p\0' >"$saved/new" || bad "cannot list $1"
  [ -s "$saved/new" ] || return 0
  record owner "$1" "$(sha256sum <"$saved/new" | cut -c 1-64)" "$2" "$saved/new"
  of_root "$1" -execdir chown -h --from=+0 "$2:" -- {} + 2>/dev/null
  [ -z "$(of_root "$1" -print -quit)" ] || bad "some files in $1 cannot be given to $2"
}
