#!/bin/sh
# tool_readme.sh - the program in README.md is examples/hello.c, which is compiled and run: so it compiles and runs.
set -eu
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' README.md >"$folder/readme.c"
awk '/^#include/ { begun = 1 } begun' examples/hello.c >"$folder/hello.c"
diff -u "$folder/hello.c" "$folder/readme.c"
