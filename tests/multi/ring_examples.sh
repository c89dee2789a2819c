#!/bin/sh
# ring_examples.sh UNFENCE RING_ATTENTION ALLGATHER_GEMM FABRIC - the examples as a user runs them: right answers, odd input, clear refusals.
set -u
unfence=$1 attention=$2 gemm=$3
export UNFENCE_FABRIC="$4"
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0

# expect CODE TEXT PES PROGRAM ARGUMENTS...: runs it; both the exit code and a piece of the output must be as said.
expect() {
    code=$1 text=$2 pes=$3
    shift 3
    "$unfence" run -n "$pes" -- "$@" >"$dir/out" 2>&1
    got=$?
    if { [ "$code" = 0 ] && [ $got -ne 0 ]; } || { [ "$code" != 0 ] && [ $got -eq 0 ]; } || ! grep -q -- "$text" "$dir/out"; then
        echo "FAILED: $* on $pes PEs: exit code $got, expected $code and \"$text\":"
        cat "$dir/out"
        failed=1
    fi
}

i=0
while [ $i -lt 12 ]; do
    echo "Line $i of a text that is split over PEs, some of which get more of it than others."
    i=$((i + 1))
done >"$dir/text.md"
: >"$dir/empty.md"
printf 'ab' >"$dir/two.md"
small="--tokens 300 --layers 2 --heads 3 --dim 8 --text $dir/text.md"

for pes in 1 2 3 4 7; do
    expect 0 "is right: passed" $pes "$attention" $small
done
expect 0 "is right: passed" 4 "$attention" $small --dtype f32
expect 0 "is right: passed" 4 "$attention" $small --dtype f32 --no-causal
expect 0 "is right: passed" 3 "$attention" $small --no-causal --slots 5
expect 0 "is right: passed" 4 "$attention" --text "$dir/two.md" --dtype f32
expect 0 "of 0 tokens" 2 "$attention" --text "$dir/empty.md"
expect 0 "not checked" 2 "$attention" $small --no-check
expect 0 '"passed":true' 2 "$attention" $small --json
expect 0 "timeline: $dir/trace.json" 3 "$attention" $small --trace "$dir/trace.json"
for row in compute puts signals waits; do
    grep -q "\"cat\":\"$row\",\"ph\":\"X\",\"pid\":2" "$dir/trace.json" || { echo "FAILED: the timeline has no $row of PE 2"; failed=1; }
done
grep -q '"ph":"f"' "$dir/trace.json" || { echo "FAILED: no put leads to its signal"; failed=1; }
expect 1 "cannot write the timeline" 2 "$attention" $small --trace "$dir/absent/trace.json"
expect 1 "cannot find $dir/absent" 2 "$attention" --text "$dir/absent"
expect 1 "from 2 to 64" 2 "$attention" --slots 1
expect 1 "bf16 or f32" 2 "$attention" --dtype f64

expect 0 "bitwise differences: 0" 4 "$gemm"
expect 0 "bitwise differences: 0" 1 "$gemm" --rows 30
expect 0 "bitwise differences: 0" 7 "$gemm" --rows 5 --tile 3
expect 0 "bitwise differences: 0" 3 "$gemm" --rows 100 --tile 7 --ahead 1
expect 0 "bitwise differences: 0" 2 "$gemm" --rows 0
expect 0 '"wrong":0' 2 "$gemm" --rows 64 --json
expect 1 "a whole number from 1" 2 "$gemm" --tile 0
exit $failed
