#!/bin/sh
# make_run.sh - `make run` and `make bench` pass on what they were given and add nothing: standard output is the program's alone, though ninja writes
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

# expect OUTPUT TARGET ARGUMENTS...: make TARGET writes OUTPUT and nothing else.
expect() {
    wanted=$1
    shift
    got=$(env -u MAKEFLAGS -u TEXT UNFENCE_NO_INSTALL=1 PATH="$dir/bin:$PATH" make -s "$@" BUILD="$dir/build" 2>"$dir/err")
    if [ "$got" != "$wanted" ]; then
        printf 'make %s\n  wrote  %s\n  wanted %s\n' "$*" "$got" "$wanted"
        cat "$dir/err"
        failed=1
    fi
}

start="<run><-n><4><--no-prefix><--><moe-layer>"
expect "$start" run
expect "$start<--json>" run ARGS=--json
expect "$start<--text><a file of mine>" run "TEXT=a file of mine"
expect "$start<--text><it's \"mine\">" run "TEXT=it's \"mine\""
expect "<bench><targets>" bench
expect "<bench><floor><--json>" bench "ARGS=floor --json"
exit $failed
