/* port.c - see port.h. Everything but post and poll is the fabric's below. */
#include "port.h"
#include "fabric/efa/efa.h"

static ordering_port *port_of(uf_fabric *f)
{
    return (ordering_port *)f;
}

static int port_open(const uf_fabric_params *params, uf_fabric **out)
{
    ordering_port *port = params->arg;
    uf_fabric_params inner = *params;
    inner.arg = port->place;
    inner.provider = "model";
    int rc = uf_fabric_efa.open(&inner, &port->inner);
    if (rc)
        return rc;
    port->base.ops = &ordering_port_ops;
    port->base.caps = port->inner->caps;
    *out = &port->base;
    return UF_OK;
}

static void port_close(uf_fabric *f)
{
    uf_fabric *inner = port_of(f)->inner;
    port_of(f)->inner = NULL;
    inner->ops->close(inner);
}

static int port_address(uf_fabric *f, uint32_t rail, void *address)
{
    return uf_fabric_efa.address(port_of(f)->inner, rail, address);
}

static int port_connect(uf_fabric *f, uint32_t rail, uint32_t peer, const void *address)
{
    return uf_fabric_efa.connect(port_of(f)->inner, rail, peer, address);
}

static int port_register(uf_fabric *f, void *ptr, size_t bytes, bool remote, uf_mr **mr)
{
    return uf_fabric_efa.mr_register(port_of(f)->inner, ptr, bytes, remote, mr);
}

static void port_unregister(uf_fabric *f, uf_mr *mr)
{
    uf_fabric_efa.mr_close(port_of(f)->inner, mr);
}

static int port_post(uf_fabric *f, const uf_wr *wr)
{
    ordering_port *port = port_of(f);
    int rc = uf_fabric_efa.post(port->inner, wr);
    if (rc)
        return rc;
    port->spent += port->costs.post_ns;
    port->wrs++;
    bool data = wr->verb != UF_VERB_SEND && wr->bytes;
    port->data_wrs += data;
    if (!(wr->flags & UF_WR_SILENT))
        port->is_data[wr->cookie & 0xffff] = data;
    return UF_OK;
}

static void port_flush(uf_fabric *f)
{
    uf_fabric_efa.flush(port_of(f)->inner);
}

static int port_poll(uf_fabric *f, uf_cqe *cqes, int max)
{
    ordering_port *port = port_of(f);
    int n = uf_fabric_efa.poll(port->inner, cqes, max < ORDERING_TURN ? max : ORDERING_TURN);
    for (int i = 0; i < n; i++) {
        port->spent += port->costs.cqe_ns;
        if (cqes[i].kind != UF_CQE_SENT) {
            port->arrived++;
            continue;
        }
        port->sent++;
        port->data_sent += port->is_data[cqes[i].cookie & 0xffff];
    }
    return n;
}

static const char *port_error(uf_fabric *f)
{
    return uf_fabric_efa.error(port_of(f)->inner);
}

bool ordering_port_ready(const ordering_port *port)
{
    const uf_efa_cq *cq = &((const uf_efa *)port->inner)->rails[0].cq;
    uf_efa_cqe ignored;
    return uf_efa_cq_peek(cq, cq->consumed, &ignored);
}

const struct uf_fabric_ops ordering_port_ops = {
    .name = "efa",
    .open = port_open,
    .close = port_close,
    .address = port_address,
    .connect = port_connect,
    .mr_register = port_register,
    .mr_close = port_unregister,
    .mr_key = uf_efa_fabric_mr_key,
    .mr_desc = uf_efa_fabric_mr_desc,
    .post = port_post,
    .flush = port_flush,
    .poll = port_poll,
    .error = port_error,
};
