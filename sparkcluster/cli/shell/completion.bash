# Completion of sparkcluster for bash 4.4 and newer.
_sparkcluster() {
  local line=${COMP_LINE:0:COMP_POINT} program=$1 kind= value= before
  [[ $program != '~/'* ]] || program=$HOME/${program#'~/'}
  # bash splits words at = and :, and keeps what stands before the last one
  before=${line##*[[:space:]]} before=${before#-*=}
  before=${before%"$2"}
  COMPREPLY=()
  {
    read -r kind
    while IFS=$'\t' read -r value _; do COMPREPLY+=("${value#"$before"}"); done
  } < <("$program" __complete "$line" 2>/dev/null </dev/null)
  case $kind in
    yaml)
      compopt -o filenames
      while read -r value; do COMPREPLY+=("$value"); done < <(
        compgen -d -- "$2"
        compgen -f -X '!*.yaml' -- "$2"
        compgen -f -X '!*.yml' -- "$2"
      )
      [[ ${#COMPREPLY[@]} != 0 ]] || compopt -o default
      ;;
    files) compopt -o default ;;
  esac
}
complete -F _sparkcluster sparkcluster
