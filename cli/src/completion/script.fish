# fish completion for @PROGRAM@. Every candidate comes from the program itself.
function __@PROGRAM@_candidates
    set -l words (commandline -opc)
    set -l program $words[1]
    set -e words[1]
    set -l current (commandline -ct)
    set -l found ($program __complete -- $words "$current" 2>/dev/null)
    if test "$found[1]" = ':files'
        __fish_complete_path "$current"
        return
    end
    printf '%s\n' $found
end
complete -c @PROGRAM@ -f -a '(__@PROGRAM@_candidates)'
