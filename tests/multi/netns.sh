#!/bin/sh
# netns.sh CORE_SUITE - two network namespaces as two hosts: the core's suite between them over tcp, and with a PE killed in the middle.
# PEs 0 and 1 live on "host" a, 2 and 3 on b; only two veth pairs connect the two, so whatever uses loopback or the wrong interface fails.
# Needs root and ip(8); without them it is skipped (77) and says why. Leaves no namespace and no process behind.
set -u
suite=$1
a=unfence-a-$$ b=unfence-b-$$
root=10.213.7.1:$((20000 + $$ % 20000))
work=$(mktemp -d)
pids=

cleanup() {
    for pid in $pids; do kill -KILL "$pid" 2>/dev/null; done
    ip netns del "$a" 2>/dev/null
    ip netns del "$b" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

skip() {
    echo "skipped: $1"
    exit 77
}
command -v ip >/dev/null || skip "ip(8) of iproute2 is not installed"
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
ip netns add "$a" 2>"$work/why" || skip "ip netns add: $(cat "$work/why")"
ip netns add "$b" || exit 1
for nic in 0 1; do
    ip link add nic$nic netns "$a" type veth peer name nic$nic netns "$b" 2>"$work/why" || skip "a veth pair: $(cat "$work/why")"
done
host=1
for ns in "$a" "$b"; do
    for nic in 0 1; do
        ip -n "$ns" addr add "10.213.$((7 + nic)).$host/24" dev nic$nic && ip -n "$ns" link set nic$nic up || exit 1
    done
    ip -n "$ns" link set lo up || exit 1
    host=$((host + 1))
done

# A link is up a moment after both of its ends are; until then it has no address that anybody could use.
for ns in "$a" "$b"; do
    for nic in 0 1; do
        looks=0
        until ip -n "$ns" link show nic$nic | grep -q "state UP"; do
            looks=$((looks + 1))
            [ $looks -lt 5000 ] || skip "the veth pair does not come up"
        done
    done
done

# start LOG ARGUMENTS...: four PEs with the settings in $settings; their ids in $pids
start() {
    log=$1
    shift
    pids=
    for pe in 0 1 2 3; do
        ns=$a
        [ $pe -ge 2 ] && ns=$b
        # env and ip netns exec replace themselves, so the id is that of the PE
        ip netns exec "$ns" env UNFENCE_PE=$pe UNFENCE_N_PES=4 UNFENCE_ROOT="$root" UNFENCE_NODE_SIZE=2 UNFENCE_JOB="netns-$$" $settings \
            "$suite" --mode pe "$@" >"$log.$pe" 2>&1 &
        pids="$pids $!"
    done
}

# all_pass NAME: waits for the four; prints what they said if one failed
all_pass() {
    failed=0
    for pid in $pids; do wait "$pid" || failed=1; done
    pids=
    if [ $failed = 0 ]; then
        echo "ok      $1: $(tail -n 1 "$work/log.0")"
    else
        echo "FAILED  $1"
        cat "$work"/log.*
        exit 1
    fi
}

settings=UNFENCE_FABRIC=ofi:tcp
start "$work/log" --fabric ofi:tcp --small
all_pass "tcp between all PEs"

settings=UNFENCE_FABRIC=auto
start "$work/log" --fabric auto --small
all_pass "mapped memory inside a host, tcp between hosts"

# Two network cards in each host, and each carries its part: what a card has sent is counted by the kernel.
settings="UNFENCE_FABRIC=auto UNFENCE_RAILS=2 UNFENCE_STRIPE=8K"
sent() {
    ip -n "$a" -s -o link show nic$1 | sed 's/.*TX: *[a-z ]*\\ *\([0-9]*\).*/\1/'
}
before=$(sent 0):$(sent 1)
start "$work/log" --fabric auto --small
all_pass "two network cards in each host"
after=$(sent 0):$(sent 1)
for nic in 1 2; do
    carried=$(($(echo "$after" | cut -d: -f$nic) - $(echo "$before" | cut -d: -f$nic)))
    if [ $carried -lt 1000000 ]; then
        echo "FAILED  network card $((nic - 1)) has carried $carried bytes only"
        exit 1
    fi
    echo "ok      network card $((nic - 1)) has carried $carried bytes"
done

# A PE is killed once the suite runs: the others end with an error that names it, and do not hang.
settings="UNFENCE_FABRIC=ofi:tcp UNFENCE_LOG=error"
start "$work/log" --fabric ofi:tcp --small
until grep -q "^ok" "$work/log.0" 2>/dev/null; do
    kill -0 "${pids##* }" 2>/dev/null || break
done
victim=${pids##* }
kill -KILL "$victim"
survivors_well=0
for pid in $pids; do
    wait "$pid" && survivors_well=1
done
pids=
if [ $survivors_well = 1 ] || ! grep -q "PE 3" "$work/log.0" || ! grep -q "PE 3" "$work/log.1"; then
    echo "FAILED  a killed PE: it is not named, or somebody did not notice"
    cat "$work"/log.*
    exit 1
fi
echo "ok      a killed PE is named by the others: $(grep -m 1 -h "PE 3" "$work/log.1" | cut -c 1-160)"
