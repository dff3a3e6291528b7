DAEMON=/etc/docker/daemon.json

# configure_runtime: add NVIDIA's runtime to Docker, or restore its configuration
configure_runtime() {
  no_ranks
  command -v nvidia-ctk >/dev/null || bad "nvidia-ctk is missing: sudo apt-get install -y nvidia-container-toolkit"
  rm -f "$saved/new"
  [ ! -e "$DAEMON" ] || cp -- "$DAEMON" "$saved/new" || bad "cannot read $DAEMON"
  run nvidia-ctk runtime configure --runtime=docker "--config=$saved/new"
  [ -s "$saved/new" ] || bad "nvidia-ctk wrote nothing"
  mode=$(stat -c '%a %u:%g' "$DAEMON" 2>/dev/null) || mode='644 0:0'
  directory "${DAEMON%/*}" 755
  put "$DAEMON" "${mode% *}" "${mode#* }"
  if ! systemctl restart docker >"$saved/output" 2>&1; then
    said=$(grep . "$saved/output" | tail -n 1)
    if [ "$before" != "$after" ]; then
      restore "$DAEMON" "$number" "$before"
      systemctl restart docker >/dev/null 2>&1
      forget "$number"
    fi
    bad "Docker does not start with the nvidia runtime: $said"
  fi
}

undo_daemon() {
  no_ranks
  undo_value || leave
  run systemctl restart docker
}
