# undo_runtime NUMBER KIND PATH BEFORE AFTER SEEN
undo_runtime() {
  now=$(content "$3")
  [ "$now" = "$5" ] || {
    undo_file "$@"
    return
  }
  no_ranks
  record restart docker due done
  due=$number
  undo_file "$@"
  run systemctl restart docker
  forget "$due"
}

# undo_restart: daemon.json is as before, and Docker was not restarted since
undo_restart() {
  no_ranks
  run systemctl restart docker
}
