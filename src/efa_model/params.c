/* params.c - the profiles: numbers of the reference, 6.5. None was measured on hardware by us [W]. */
#include "base/error.h"
#include "efa_model/model.h"
#include <string.h>

static const uf_model_params base = {
    .latency_ns = 8000,
    .jitter_ns = 2000,
    .tail_ppm = 1000,
    .tail_min_ns = 50000,
    .tail_max_ns = 500000,
    .paths = 32,
    .drop_ppm = 10,
    .rto_ns = 100000,
    .unresponsive_ns = 20000000,
    .mtu = UF_EFA_MTU,
    .gbps = 200,
    .message_rate = 10000000,
    .fetch_ns = 700,
    .cqe_ns = 500,
    .rnr_ns = 50000,
    .grain = 64,
    .split_ns = 500,
    .stall_ns = 100000,
    .delay_ns = 50000,
    .qkey_answers = true,
    .can_read = true,
    .can_write = true,
    .can_unsolicited = true,
    .wide_ids = true,
    .max_qps = 256,
    .max_cqs = 512,
    .max_counters = 512,
    .max_mrs = 262143,
    .max_ahs = 65535,
    .max_sq = 4096,
    .max_rq = 32768,
    .max_cq = 32768,
    .max_batch = 16,
    .max_rdma = (uint64_t)1 << 30,
};

int uf_model_profile(const char *name, uf_model_params *params)
{
    uf_model_params p = base;
    if (strcmp(name, "p5") == 0) {
        p.gbps = 100;
        p.jitter_ns = 3000;
        p.grain = 128;
        p.can_unsolicited = false; /* the third generation brought it [I] */
        p.wide_ids = false;
        p.whole_sq = true;
    } else if (strcmp(name, "p5en") == 0) {
        p.duplicate_ppm = 1000;
        p.split_ppm = 10000;
    } else if (strcmp(name, "p6-b200") == 0) {
        p.gbps = 400;
        p.message_rate = 20000000;
        p.split_ppm = 10000;
        p.grain = 128;
    } else if (strcmp(name, "chaos") == 0) {
        p.mtu = 256;
        p.paths = 64;
        p.jitter_ns = 10000;
        p.tail_ppm = 10000;
        p.drop_ppm = 50000;
        p.rto_ns = 50000;
        p.stall_ppm = 100;
        p.delay_every = 16;
        p.split_ppm = 200000;
        p.split_ns = 2000;
        p.grain = 8;
        p.duplicate_ppm = 50000;
        p.rnr_storm_ppm = 2000;
        p.rnr_places = true;
        p.bad_key_places = true;
        p.max_batch = 4;
    } else if (strcmp(name, "fifo") == 0) {
        p.paths = 1;
        p.jitter_ns = 0;
        p.tail_ppm = 0;
        p.drop_ppm = 0;
        p.grain = 128;
    } else {
        return uf_fail(UF_EINVAL, "There is no EFA model profile \"%s\": p5, p5en, p6-b200, chaos and fifo are known.", name);
    }
    *params = p;
    return UF_OK;
}
