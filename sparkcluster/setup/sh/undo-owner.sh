# undo_owner NUMBER KIND PATH BEFORE USER: what still belongs to USER goes back to its owner
undo_owner() {
  uid=$(id -u -- "$5") || leave "$3"
  change_owners "$saved/$1" "$uid" ''
}
