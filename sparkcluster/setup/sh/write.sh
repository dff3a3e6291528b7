# write_file PATH MODE: standard input is its content; root owns it
write_file() {
  cat >"$saved/new" || bad "cannot write $saved/new"
  directory "${1%/*}" 755
  put file "$1" "$2" 0:0
}
