# Neither Docker nor the network is touched under ranks.
no_ranks() {
  ranks=$(docker ps --filter "label=$LABEL" --format '{{.Names}}' 2>/dev/null | tr '\n' ' ')
  [ -z "$ranks" ] || bad "ranks of a cluster run here: $ranks"
}
