# Completion of sparkcluster for fish 3.1 and newer.
function __sparkcluster_complete
    set -l program (commandline -opc)[1]
    set -l current (commandline -ct)
    set -l flag (string match -r -- '^-[^=]*=' $current)
    set program (string replace -r '^~/' "$HOME/" -- $program)
    set -l answer ($program __complete (commandline -cp) 2>/dev/null </dev/null)
    for value in $answer[2..-1]
        echo "$flag$value"
    end
    switch "$answer[1]"
        case yaml
            __fish_complete_suffix .yaml
            __fish_complete_suffix .yml
        case files
            __fish_complete_path $current
    end
end
complete -c sparkcluster -f -a '(__sparkcluster_complete)'
