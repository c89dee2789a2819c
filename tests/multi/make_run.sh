#!/bin/sh
# make_run.sh - `make run` passes on what it was given and adds nothing: its standard output is the program's alone, though ninja writes
# there, and TEXT may be any name. CMake, ninja and the command are stand-ins: nothing is built.
set -u
cd "$(dirname "$0")/../.." || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/bin" "$dir/build/tools/unfence"
for tool in cmake ninja; do
    printf '#!/bin/sh\necho chatter of %s\n' "$tool" >"$dir/bin/$tool"
done
printf '#!/bin/sh\nprintf "<%%s>" "$@"\n' >"$dir/build/tools/unfence/unfence"
chmod +x "$dir/bin/cmake" "$dir/bin/ninja" "$dir/build/tools/unfence/unfence"
failed=0

# expect OUTPUT ARGUMENTS...: make run writes OUTPUT and nothing else.
expect() {
    wanted=$1
    shift
    got=$(env -u MAKEFLAGS -u TEXT UNFENCE_NO_INSTALL=1 PATH="$dir/bin:$PATH" make -s run BUILD="$dir/build" "$@" 2>"$dir/err")
    if [ "$got" != "$wanted" ]; then
        printf 'make run %s\n  wrote  %s\n  wanted %s\n' "$*" "$got" "$wanted"
        cat "$dir/err"
        failed=1
    fi
}

start="<run><-n><4><--no-prefix><--><moe-layer>"
expect "$start"
expect "$start<--json>" ARGS=--json
expect "$start<--text><a file of mine>" "TEXT=a file of mine"
expect "$start<--text><it's \"mine\">" "TEXT=it's \"mine\""
exit $failed
