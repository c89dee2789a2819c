#!/bin/sh
# tool_cli.sh UNFENCE - the command line: every command explains itself, a wrong one is told what was meant, exit codes are as promised
# (0 done, 1 failed, 2 wrong command line), and messages about errors never reach standard output.
set -u
tool=$1
failed=0

# expect CODE TEXT ARGUMENTS...: runs the command; its exit code must be CODE and its output, both streams, must contain TEXT.
expect() {
    code=$1 text=$2
    shift 2
    output=$("$tool" "$@" 2>&1)
    got=$?
    case $output in
    *"$text"*) found=yes ;;
    *) found=no ;;
    esac
    if [ "$got" -ne "$code" ] || [ $found = no ]; then
        printf 'unfence %s\n  exit code %s, wanted %s; wanted in its output: %s\n%s\n' "$*" "$got" "$code" "$text" "$output"
        failed=1
    fi
}

# quiet ARGUMENTS...: an error writes nothing to standard output.
quiet() {
    output=$("$tool" "$@" 2>/dev/null)
    if [ -n "$output" ]; then
        printf 'unfence %s wrote its error to standard output: %s\n' "$*" "$output"
        failed=1
    fi
}

expect 0 "usage: unfence COMMAND" help
expect 0 "usage: unfence COMMAND" --help
expect 2 "usage: unfence COMMAND"
expect 0 "unfence 0." version
expect 0 "unfence 0." --version
for command in run info doctor bench selftest version; do
    expect 0 "usage: unfence $command" "$command" --help
    expect 0 "usage: unfence $command" help "$command"
done
for benchmark in put-signal atomic barrier floor ep order ordering targets; do
    expect 0 "--json" bench "$benchmark" --help
    expect 0 "$benchmark" bench --help
done

expect 2 'did you mean "bench"?' bnech
expect 2 'did you mean "info"?' help inof
expect 2 'did you mean "put-signal"?' bench put-singal
expect 2 'did you mean --sizes?' bench floor --size 8
expect 2 'did you mean --window?' bench put-signal --windw=8
expect 2 'did you mean "strong"?' bench put-signal --policy strng
expect 2 'unexpected argument' bench atomic 8
expect 2 'known are unsignalled, weak' bench put-signal --policy none-such
expect 2 'above 0 and up to 3600' bench put-signal --seconds 0
expect 2 'which benchmark?' bench
expect 2 'a value is missing' bench floor --sizes
expect 2 'not a number' bench floor --sizes 8,eight
expect 2 'must be from 1 to 1024' bench floor --window 0
expect 2 'takes no value' bench floor --json=yes
expect 2 'empty entry' bench floor --sizes 8,,9
expect 1 'multiple of the 3 PEs' bench ep --fabric local --experts 8 --peers 2 --tokens 1 --iterations 1
expect 1 'nonsense' bench put-signal --fabric nonsense --sizes 8 --iterations 1
expect 2 'did you mean "counted"?' bench ordering --policy conted
expect 2 'did you mean "chaos"?' bench ordering --model choas
expect 2 'not a time' bench ordering --rtt 20
expect 2 'not a range' bench ordering --sizes 4K..2K
expect 2 'must be from 1 to 1024' bench ordering --inflight 1..2048
expect 2 'must be from 1000' bench ordering --rtt 10ns
expect 0 'model result' bench ordering --sizes 8K --puts 64 --inflight 8 --policy drain,counted
expect 0 'by the formula' bench ordering --sizes 8K --puts 64 --inflight 8 --policy drain
expect 0 'left out' bench ordering --sizes 4M --inflight 512 --policy drain
expect 1 'cannot write' bench ordering --sizes 8K --puts 64 --inflight 8 --policy drain --plot /nowhere/at.svg
quiet bnech
quiet bench floor --windw 3
quiet bench put-signal --fabric nonsense --sizes 8 --iterations 1 --json

expect 2 'ep is known' selftest
expect 2 'did you mean "dsv3"?' selftest ep --preset dsv4
expect 1 'nonsense' selftest ep --fabric nonsense --tokens 1 --quick
expect 0 '0 failed' selftest ep --tokens 2 --quick --n-pes 2

expect 0 "settings" info
expect 0 "memory of a world of 8 PEs" info --n-pes 8
expect 2 'did you mean --n-pes?' info --npes 8
UNFENCE_WINDOW=3
export UNFENCE_WINDOW
expect 1 UNFENCE_WINDOW info
unset UNFENCE_WINDOW

# Hosts that are folders: an empty one, and one with an EFA that nothing serves.
host=$(mktemp -d) || exit 1
trap 'rm -rf "$host"' EXIT
expect 0 "no NIC that could be used" info --topo --root "$host"
expect 0 "GPUs" info --topo
expect 2 "goes with --topo" info --root "$host"
expect 0 "nothing that is needed is known to be missing" doctor --root "$host" --fabric local
expect 0 "paths asked for: local, ofi:tcp" doctor --root "$host"
expect 0 "unknown  libibverbs" doctor --root "$host" --fabric efa
mkdir -p "$host/usr/lib" "$host/sys/bus/pci/devices"
expect 3 "MISSING  libibverbs" doctor --root "$host" --fabric efa
function=$host/sys/devices/pci0000:00/0000:00:1e.0
mkdir -p "$function"
ln -s ../../../devices/pci0000:00/0000:00:1e.0 "$host/sys/bus/pci/devices/0000:00:1e.0"
echo 0x1d0f >"$function/vendor"
echo 0xefa2 >"$function/device"
expect 0 "1 EFA function without a verbs device" info --topo --root "$host"
expect 0 "EFA 3" info --topo --root "$host"
expect 3 "paths asked for: local, ofi:efa" doctor --root "$host"
expect 3 "1 of 1 EFAs have no verbs device" doctor --root "$host" --fabric auto
expect 2 'did you mean "ofi:tcp"?' doctor --fabric ofi:tpc
expect 2 'did you mean --fabric?' doctor --fabrics efa
UNFENCE_FABRIC=ofi:nonsense
export UNFENCE_FABRIC
expect 2 "UNFENCE_FABRIC=ofi:nonsense" doctor
unset UNFENCE_FABRIC
expect 0 "nothing that is needed is known to be missing" doctor --fabric local
quiet doctor --fabric nonsense

# Nothing stands in for a device model that is not there: it is refused without a word of falling back.
output=$(UNFENCE_FABRIC=efa:model-none "$tool" run -n 2 -- hello 2>&1)
got=$?
case $got,$output in
*"falling back"* | *"nor is there"* | 0,*) found=no ;;
*'no EFA model profile "none"'*) found=yes ;;
*) found=no ;;
esac
if [ $found = no ]; then
    printf 'UNFENCE_FABRIC=efa:model-none\n  exit code %s\n%s\n' "$got" "$output"
    failed=1
fi

exit $failed
