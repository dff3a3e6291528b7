#compdef sparkcluster
# Completion of sparkcluster for zsh 5.3 and newer.
_sparkcluster() {
  local kind= value= about= program=${(Q)words[1]}
  local -a values abouts
  [[ $program != '~/'* ]] || program=$HOME/${program#'~/'}
  {
    read -r kind
    while IFS=$'\t' read -r value about; do
      values+=("$value") abouts+=("${value//:/\\:}${about:+:$about}")
    done
  } < <("$program" __complete "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null </dev/null)
  [[ $PREFIX != -*=* ]] || compset -P '*='
  (( ! $#values )) || _describe -V value abouts
  case $kind in
    yaml) _files -g '*.(yaml|yml)(-.)' ;;
    files) _files ;;
  esac
}
# in a file of $fpath this is the body of the function; in .zshrc it only registers it
if [[ ${funcstack[1]-} == _sparkcluster ]]; then _sparkcluster "$@"; else compdef _sparkcluster sparkcluster; fi
