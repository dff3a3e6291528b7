# change_owners LIST FROM TO: LIST has "UID:GID PATH" for each file, ended by a null byte. Without FROM each file goes
# from its listed owner to TO, with it from FROM back to its listed owner. Others have been changed since.
change_owners() {
  cut -z -d ' ' -f 1 "$1" | sort -zu | tr '\0' '\n' | while read -r owner; do
    grep -az "^$owner " "$1" | cut -z -d ' ' -f 2- |
      xargs -0 -r chown -h "--from=${2:-$owner}" "${3:-$owner}" --
  done 2>/dev/null
}

# own_tree PATH USER: PATH and all below belong to USER
own_tree() {
  case $(readlink -f -- "$1") in
    '' | / | /bin | /boot | /dev | /etc | /home | /lib | /lib64 | /opt | /proc | /root | /run | /sbin | /srv | /sys | \
      /usr | /var | /var/lib | /bin/* | /boot/* | /dev/* | /etc/* | /lib/* | /lib64/* | /proc/* | /run/* | /sbin/* | \
      /sys/* | /usr/*)
      bad "$1 is a directory of the system"
      ;;
  esac
  find -H "$1" ! -user "$2" -printf '%U:%G %p\0' >"$saved/new" || bad "cannot list $1"
  [ -s "$saved/new" ] || return 0
  record owner "$1" "$(sha256sum <"$saved/new" | cut -c 1-64)" "$2" "$saved/new"
  change_owners "$saved/new" '' "$2:"
  [ -z "$(find -H "$1" ! -user "$2" -print -quit)" ] || bad "some files in $1 cannot be given to $2"
}
