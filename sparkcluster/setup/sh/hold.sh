is_held() { apt-mark showhold | grep -qxF -- "$1"; }

# hold PACKAGE...
hold() {
  for each; do
    is_held "$each" || record hold "$each" free held
  done
  run apt-mark hold "$@"
}
