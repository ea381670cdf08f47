# Completion of @NAME@ in fish: `@NAME@ completion fish` has made it.
function __@NAME@_complete
    set -l words (commandline --current-process --tokenize --cut-at-cursor)
    set -l index (count $words)
    $words[1] complete fish $index -- $words (commandline --current-token --cut-at-cursor) 2>/dev/null </dev/null
end
complete --command @NAME@ --no-files --keep-order --arguments '(__@NAME@_complete)'
