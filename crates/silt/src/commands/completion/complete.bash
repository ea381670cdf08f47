# Completion of @NAME@ in bash: `@NAME@ completion bash` has made it.
_@NAME@() {
    local line=${COMP_LINE:0:COMP_POINT} word rest candidate i
    local -a words=()
    # Bash splits words at colons and the like as well; what no blank separates is one word.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        rest=${line#"${line%%[![:space:]]*}"}
        if ((i == COMP_CWORD)); then word=$rest; fi
        if ((i == 0)) || [[ $rest != "$line" ]]; then
            words+=("$word")
        else
            words[${#words[@]}-1]+=$word
        fi
        line=${rest#"$word"}
    done
    local last=${#words[@]}-1
    local current=${words[last]} given=
    # What readline replaces may be only the end of the word.
    if [[ -n $2 && $current == *"$2" ]]; then given=${current%"$2"}; elif [[ -z $2 ]]; then given=$current; fi
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("${candidate#"$given"}")
    done < <("${words[0]}" complete bash "$((last))" -- "${words[@]}" 2>/dev/null </dev/null)
    if ((${#COMPREPLY[@]} == 1)) && [[ ${COMPREPLY[0]} == *[/@=] ]]; then
        compopt -o nospace
    fi
}
complete -o bashdefault -o default -F _@NAME@ @NAME@
