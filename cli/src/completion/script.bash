# bash completion for @PROGRAM@. Every candidate comes from the program itself.
_@PROGRAM@() {
    local line=${COMP_LINE:0:COMP_POINT} typed before= candidate
    local -a words
    COMPREPLY=()
    # Not COMP_WORDS: bash parts those at ':' and '=', as in pytorch:2.4-cuda12.4.
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    typed=${words[${#words[@]} - 1]}
    # What bash took for earlier words is not to be given again.
    if [[ $typed == *[:=]* && ${COMP_WORDBREAKS-} == *[:=]* ]]; then
        before=${typed%"${typed##*[:=]}"}
    fi
    while IFS= read -r candidate; do
        if [[ $candidate == :files ]]; then
            while IFS= read -r candidate; do COMPREPLY+=("$candidate"); done < <(compgen -f -- "${typed#"$before"}")
            compopt -o filenames 2>/dev/null
            return
        fi
        candidate=${candidate%%$'\t'*}
        COMPREPLY+=("${candidate#"$before"}")
    done < <("${words[0]}" __complete -- "${words[@]:1}" 2>/dev/null)
}
complete -F _@PROGRAM@ @PROGRAM@
