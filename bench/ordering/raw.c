/* raw.c - see raw.h. */
#include "raw.h"
#include "base/error.h"
#include <stdlib.h>
#include <string.h>

enum { RECEIVES = 4096, REMOTE = 8192 };

struct ordering_raw {
    uf_settings settings;
    uf_mr **mrs;         /* by port */
    uf_fabric_key *keys; /* by port */
    uint64_t desc;       /* of the source */
};

static uint32_t queue_depth(const ordering_options *o)
{
    uint32_t depth = 256;
    while (depth < 2 * o->inflight + 64 && depth < 4096)
        depth *= 2;
    return depth;
}

static int open_port(ordering_run *r, uint32_t i)
{
    uf_fabric *f;
    const uf_fabric_params params = {.settings = &r->raw->settings,
                                     .pe = (int)i,
                                     .n_pes = (int)r->n_ports,
                                     .provider = "",
                                     .tx_depth = queue_depth(r->o),
                                     .receives = RECEIVES,
                                     .remote_cqes = REMOTE,
                                     .arg = &r->ports[i]};
    int rc = ordering_port_ops.open(&params, &f);
    /* Second queues receive no bytes. */
    if (!rc && i < r->n_pes)
        rc = f->ops->mr_register(f, r->arena + i * r->chunk, r->chunk, i > 0, &r->raw->mrs[i]);
    if (!rc && i < r->n_pes)
        f->ops->mr_key(r->raw->mrs[i], 0, &r->raw->keys[i]);
    return rc;
}

/* The sender and everybody else: peers have nothing to tell each other. */
static int meet(ordering_run *r, uint32_t i)
{
    unsigned char ours[UF_FABRIC_ADDRESS_MAX], theirs[UF_FABRIC_ADDRESS_MAX];
    uf_fabric *f = &r->ports[0].base, *peer = &r->ports[i].base;
    int rc = f->ops->address(f, 0, ours);
    rc = rc ? rc : peer->ops->address(peer, 0, theirs);
    rc = rc ? rc : f->ops->connect(f, 0, i, theirs);
    return rc ? rc : peer->ops->connect(peer, 0, 0, ours);
}

int ordering_raw_open(ordering_run *r)
{
    r->raw = calloc(1, sizeof *r->raw);
    if (!r->raw)
        return uf_fail(UF_ENOMEM, "ordering: no memory for %u endpoints", r->n_ports);
    r->raw->mrs = calloc(r->n_ports, sizeof(uf_mr *));
    r->raw->keys = calloc(r->n_ports, sizeof *r->raw->keys);
    if (!r->raw->mrs || !r->raw->keys)
        return uf_fail(UF_ENOMEM, "ordering: no memory for %u endpoints", r->n_ports);
    int rc = uf_settings_load_from((const char *const[]){NULL}, &r->raw->settings);
    for (uint32_t i = 0; !rc && i < r->n_ports; i++)
        rc = open_port(r, i);
    for (uint32_t i = 1; !rc && i < r->n_ports; i++)
        rc = meet(r, i);
    if (!rc)
        r->raw->desc = r->ports[0].base.ops->mr_desc(r->raw->mrs[0], 0);
    return rc;
}

void ordering_raw_close(ordering_run *r)
{
    for (uint32_t i = 0; i < r->n_ports; i++)
        if (r->ports[i].inner)
            ordering_port_ops.close(&r->ports[i].base);
    if (r->raw) {
        free(r->raw->mrs);
        free(r->raw->keys);
    }
    free(r->raw);
    r->raw = NULL;
}

/* ---------------------------------------------------------------- posting */

static int post(ordering_run *r, uint32_t from, const uf_wr *wr)
{
    uf_fabric *f = &r->ports[from].base;
    return f->ops->post(f, wr);
}

int ordering_raw_put(ordering_run *r, uint64_t n, int64_t imm)
{
    uint32_t peer = ordering_peer_of(r, n);
    const uf_wr wr = {.verb = imm < 0 ? UF_VERB_WRITE : UF_VERB_WRITE_IMM,
                      .flags = UF_WR_MORE | UF_WR_PLACED,
                      .peer = peer,
                      .cookie = ordering_cookie(n, false),
                      .imm = (uint32_t)imm,
                      .bytes = r->o->bytes,
                      .local = (uint64_t)(uintptr_t)r->arena,
                      .local_desc = r->raw->desc,
                      .remote = r->raw->keys[peer].base + ordering_slot_of(r, n) * r->o->bytes,
                      .remote_key = r->raw->keys[peer].key};
    return post(r, 0, &wr);
}

int ordering_raw_signal(ordering_run *r, uint64_t n, uint32_t port, int64_t imm)
{
    const uf_wr wr = {.verb = imm < 0 ? UF_VERB_WRITE : UF_VERB_WRITE_IMM,
                      .flags = UF_WR_MORE,
                      .peer = port,
                      .cookie = ordering_cookie(n, true),
                      .imm = (uint32_t)imm};
    return post(r, 0, &wr);
}

int ordering_raw_message(ordering_run *r, uint32_t from, uint32_t to, uint32_t cookie, uint64_t value)
{
    uf_wr wr = {.verb = UF_VERB_SEND, .flags = UF_WR_MORE, .peer = to, .cookie = cookie, .bytes = UF_MESSAGE_BYTES};
    memcpy(wr.message, &value, sizeof value);
    return post(r, from, &wr);
}

/* ---------------------------------------------------------------- a turn */

int ordering_raw_turn(ordering_run *r, uint32_t pe)
{
    const ordering_scheme *s = r->scheme;
    uf_fabric *f = &r->ports[pe].base;
    uf_cqe cqes[ORDERING_TURN];
    int n = f->ops->poll(f, cqes, ORDERING_TURN), rc = UF_OK;
    if (n < 0)
        return n;
    for (int i = 0; i < n && !rc; i++) {
        if (cqes[i].status)
            rc = uf_error_set(cqes[i].status, f->ops->error(f));
        else if (cqes[i].kind != UF_CQE_SENT)
            rc = s->arrived(r, pe, &cqes[i]);
        else if (pe == 0 && s->sent)
            rc = s->sent(r, cqes[i].cookie);
    }
    if (!rc && s->step)
        rc = s->step(r, pe);
    return rc == UF_EAGAIN ? UF_OK : rc;
}

/* ---------------------------------------------------------------- lists of signals */

int ordering_list_open(ordering_list *list, const ordering_run *r)
{
    list->puts = malloc(r->o->puts * sizeof *list->puts);
    return list->puts ? UF_OK : uf_fail(UF_ENOMEM, "ordering: no memory for a list of %u puts", r->o->puts);
}

void ordering_list_close(ordering_list *list)
{
    free(list->puts);
}

int ordering_list_signal(ordering_list *list, ordering_run *r)
{
    int rc = UF_OK;
    while (list->head < list->tail && !rc) {
        uint64_t n = list->puts[list->head];
        rc = ordering_raw_signal(r, n, ordering_peer_of(r, n), ordering_slot_of(r, n));
        list->head += rc == UF_OK;
    }
    return rc;
}

int ordering_raw_saw_slot(ordering_run *r, uint32_t pe, const uf_cqe *cqe)
{
    return ordering_saw(r, ordering_put_of(r, pe, cqe->imm));
}
