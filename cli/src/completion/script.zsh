#compdef @PROGRAM@
# zsh completion for @PROGRAM@. Every candidate comes from the program itself.
_@PROGRAM@() {
    local -a found described
    local candidate
    found=("${(@f)$("${words[1]}" __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ ${found[1]-} == :files ]]; then
        _files
        return
    fi
    for candidate in "${found[@]}"; do
        [[ -n $candidate ]] || continue
        # A colon parts word and description, so one inside the word is written \:
        if [[ $candidate == *$'\t'* ]]; then
            described+=("${${candidate%%$'\t'*}//:/\\:}:${candidate#*$'\t'}")
        else
            described+=("${candidate//:/\\:}")
        fi
    done
    (( $#described )) && _describe -t values '@PROGRAM@' described
}
if [[ $funcstack[1] == _@PROGRAM@ ]]; then
    _@PROGRAM@ "$@"
else
    compdef _@PROGRAM@ @PROGRAM@
fi
