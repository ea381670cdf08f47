#compdef @NAME@
# Completion of @NAME@ in zsh: `@NAME@ completion zsh` has made it.
_@NAME@() {
    local line value help
    local -a ended open
    for line in "${(@f)$("${(Q)words[1]}" complete zsh $((CURRENT - 1)) -- "${(@Q)words[1,CURRENT]}" 2>/dev/null </dev/null)}"; do
        [[ -n $line ]] || continue
        value=${line%%$'\t'*} help=${line#*$'\t'}
        line="${value//:/\\:}:${help:-$value}"
        if [[ $value == *[/@=] ]]; then open+=("$line"); else ended+=("$line"); fi
    done
    local found=1
    (( $#open )) && _describe -V '@NAME@' open -S '' && found=0
    (( $#ended )) && _describe -V '@NAME@' ended && found=0
    (( found )) && _files
}
if [ "$funcstack[1]" = "_@NAME@" ]; then _@NAME@ "$@"; else compdef _@NAME@ @NAME@; fi
