#!/bin/sh
# moe_layer.sh UNFENCE MOE_LAYER FABRICS - the example as a user runs it: right answers, small and odd input, and clear refusals.
set -u
unfence=$1 moe=$2 fabrics=$3
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0

# expect CODE TEXT PES ARGUMENTS...: runs it; both the exit code and a piece of the output must be as said.
expect() {
    code=$1 text=$2 pes=$3
    shift 3
    "$unfence" run -n "$pes" -- "$moe" "$@" >"$dir/out" 2>&1
    got=$?
    if { [ "$code" = 0 ] && [ $got -ne 0 ]; } || { [ "$code" != 0 ] && [ $got -eq 0 ]; } || ! grep -q -- "$text" "$dir/out"; then
        echo "FAILED: moe-layer $* on $pes PEs: exit code $got, expected $code and \"$text\":"
        cat "$dir/out"
        failed=1
    fi
}

i=0
while [ $i -lt 300 ]; do
    echo "Line $i of a text that is split over PEs, some of which get more of it than others."
    i=$((i + 1))
done >"$dir/text.md"
: >"$dir/empty.md"
printf 'ab' >"$dir/two.md"
mkdir "$dir/none"
small="--layers 2 --hidden 64 --inner 16 --experts 12 --top-k 3 --tokens 100 --batches 3"

expect 0 "check: passed" 4 $small --fabrics "$fabrics" --text "$dir/text.md"
expect 0 "bitwise the same" 3 $small --fabrics "$fabrics,$fabrics" --text "$dir/text.md"
expect 0 "check: passed" 4 $small --fabrics "$fabrics" --text "$dir/two.md"
expect 0 "0 bytes of text from 1 file over" 4 $small --fabrics "$fabrics" --text "$dir/empty.md"
expect 0 "nothing to compare: there was no text" 2 $small --fabrics "$fabrics" --text "$dir/empty.md"
expect 0 "top 4 of 33 experts" 3 --layers 1 --hidden 64 --inner 16 --tokens 8 --fabrics "$fabrics" --text "$dir/two.md"
expect 0 "3 batches (--batches 0 takes the whole text)" 2 $small --fabrics "$fabrics" --text "$dir/text.md"
expect 0 "0 bytes of text" 2 $small --fabrics "$fabrics" --tokens 0 --text "$dir/text.md"
expect 0 "check: passed" 1 $small --fabrics "$fabrics" --text "$dir/text.md"
expect 0 "not checked" 2 $small --fabrics "$fabrics" --no-check "$dir/text.md" "$dir/two.md"
expect 1 "cannot find $dir/absent" 2 $small --fabrics "$fabrics" --text "$dir/absent"
expect 1 "no text found" 2 $small --fabrics "$fabrics" --text "$dir/none"
expect 1 "not a multiple of the 2 PEs" 2 $small --fabrics "$fabrics" --experts 7 --text "$dir/text.md"
expect 1 "no fabric 'carrier-pigeon'" 2 $small --fabrics carrier-pigeon --text "$dir/text.md"
expect 1 "a whole number from 1 to 32" 2 --top-k many
expect 1 "multiple of 8" 2 --hidden 12

if "$unfence" run -n 2 -- "$moe" $small --fabrics "$fabrics" --json --text "$dir/text.md" >"$dir/json" 2>"$dir/err"; then
    grep -q '"passed":true' "$dir/json" || { echo "FAILED: JSON does not say that it passed"; cat "$dir/json"; failed=1; }
else
    echo "FAILED: --json"
    cat "$dir/err"
    failed=1
fi
exit $failed
