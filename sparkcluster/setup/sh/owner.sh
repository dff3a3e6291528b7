# own_tree PATH USER: what root owns at PATH and below belongs to USER. chown -R follows no link, also not one that USER puts
# in the place of a directory meanwhile.
own_tree() {
  place=$(readlink -f -- "$1")
  [ "$place" = "$1" ] || bad "$1 leads to $place: set hf_home to that in the inventory"
  case $1 in
    / | /bin | /boot | /dev | /etc | /home | /lib | /lib64 | /opt | /proc | /root | /run | /sbin | /srv | /sys | /usr | /var | \
      /bin/* | /boot/* | /dev/* | /etc/* | /lib/* | /lib64/* | /proc/* | /root/* | /run/* | /sbin/* | /sys/* | /usr/* | /var/*)
      bad "$1 is a directory of the system"
      ;;
  esac
  find -P "$1" -xdev -user 0 -printf '%U:%G %p\0' >"$saved/new" || bad "cannot list $1"
  [ -s "$saved/new" ] || return 0
  record owner "$1" "$(sha256sum <"$saved/new" | cut -c 1-64)" "$2" "$saved/new"
  chown -R -P -h --from=+0 "$2:" -- "$1" 2>/dev/null
  [ -z "$(find -P "$1" -xdev -user 0 -print -quit)" ] || bad "some files in $1 cannot be given to $2"
}
