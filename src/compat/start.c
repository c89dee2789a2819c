/* start.c - begin and end of the one world that an NVSHMEM program has, and what becomes of its failures.
 *
 * A unique id is the address at which PE 0's bootstrap will listen. The process that makes the id keeps the port bound, not listening, until it starts
 * as PE 0, so that nobody else is given it meanwhile; the others try again until PE 0 listens. UNFENCE_ROOT names another address.
 * Nothing here touches CUDA: the GPU is chosen at the first allocation, after the program has called cudaSetDevice. */
#include "private.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

uf_compat uf_compat_here;
static int kept_port = -1; /* a socket */
static uf_nvshmem_failure failure;
static _Thread_local const char *said;
static _Thread_local int said_code;

/* ---------------------------------------------------------------- failures */

int uf_compat_fail(int code, const char *sentence)
{
    said = sentence;
    said_code = code;
    return code;
}

/* At the start of a call: what an earlier one said is not why this one fails. */
static void forget(void)
{
    said = NULL;
    said_code = UF_OK;
}

const char *uf_nvshmem_message(void)
{
    return said ? said : uf_error_message();
}

static void end_process(const char *function, int code, const char *message)
{
    fprintf(stderr, "unfence: %s: %s (%s)\n", function, message, uf_error_name(code));
    if (uf_compat_here.world)
        uf_world_abort(uf_compat_here.world, message);
    exit(1); /* the caller has no result to look at, and would go on with data that never came */
}

bool uf_compat_ok(const char *function, int rc)
{
    if (rc == UF_OK)
        return true;
    if (rc != said_code)
        said = NULL;
    (failure ? failure : end_process)(function, rc, uf_nvshmem_message());
    said = NULL;
    said_code = UF_OK;
    return false;
}

void uf_nvshmem_set_failure(uf_nvshmem_failure handler)
{
    failure = handler;
}

int uf_compat_started(void)
{
    forget();
    if (uf_compat_here.world)
        return UF_OK;
    return uf_compat_fail(UF_EINVAL, "there is no world: call nvshmem_init or nvshmemx_init_attr first");
}

uf_world *uf_nvshmem_world(void)
{
    return uf_compat_here.world;
}

/* ---------------------------------------------------------------- unique ids */

/* An address of this host that others can reach: the first interface that is up and no loopback, else the loopback. */
static struct in_addr own_address(void)
{
    struct in_addr found = {htonl(INADDR_LOOPBACK)};
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all))
        return found;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        bool usable = (i->ifa_flags & IFF_UP) && (i->ifa_flags & IFF_RUNNING) && !(i->ifa_flags & IFF_LOOPBACK);
        if (!usable || !i->ifa_addr || i->ifa_addr->sa_family != AF_INET)
            continue;
        struct sockaddr_in in;
        memcpy(&in, i->ifa_addr, sizeof in);
        found = in.sin_addr;
        break;
    }
    freeifaddrs(all);
    return found;
}

static void drop_port(void)
{
    if (kept_port >= 0)
        close(kept_port);
    kept_port = -1;
}

static int keep_port(uint16_t *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t bytes = sizeof at;
    int yes = 1;
    drop_port();
    kept_port = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (kept_port < 0 || setsockopt(kept_port, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) ||
        bind(kept_port, (struct sockaddr *)&at, sizeof at) || getsockname(kept_port, (struct sockaddr *)&at, &bytes)) {
        drop_port();
        return uf_compat_fail(UF_ESYSTEM, "no TCP port could be had for a unique id: set UNFENCE_ROOT to host:port of PE 0");
    }
    *port = ntohs(at.sin_port);
    return UF_OK;
}

int nvshmemx_get_uniqueid(nvshmemx_uniqueid_t *id)
{
    const char *root = getenv("UNFENCE_ROOT");
    nvshmemx_uniqueid_t made = NVSHMEMX_UNIQUEID_INITIALIZER;
    char host[INET_ADDRSTRLEN] = "";
    uint16_t port = 0;
    if (root && strlen(root) >= sizeof made.internal)
        return uf_compat_fail(UF_EINVAL, "UNFENCE_ROOT is longer than a unique id has room for");
    if (root && root[0]) {
        snprintf(made.internal, sizeof made.internal, "%s", root);
    } else {
        struct in_addr own = own_address();
        int rc = keep_port(&port);
        if (rc)
            return rc;
        inet_ntop(AF_INET, &own, host, sizeof host);
        snprintf(made.internal, sizeof made.internal, "%s:%u", host, port);
    }
    *id = made;
    return UF_OK;
}

int nvshmemx_set_attr_uniqueid_args(int pe, int n_pes, const nvshmemx_uniqueid_t *id, nvshmemx_init_attr_t *attr)
{
    if (!id || !attr || n_pes < 1 || pe < 0 || pe >= n_pes)
        return uf_compat_fail(UF_EINVAL,
                              "nvshmemx_set_attr_uniqueid_args takes a PE from 0 to their number, an id and attributes");
    attr->pe = pe;
    attr->n_pes = n_pes;
    attr->id = *id;
    return UF_OK;
}

/* ---------------------------------------------------------------- begin and end */

static int begin(const uf_world_options *options)
{
    uf_compat *here = &uf_compat_here;
    int rc;
    forget();
    if (here->starts++)
        return UF_OK; /* the world is there: as many ends as starts */
    drop_port();
    memset(&here->state, 0, sizeof here->state);
    here->state.abi = UFD_ABI;
    here->state.size = sizeof here->state;
    rc = uf_world_create(options, &here->world);
    if (rc) {
        here->world = NULL;
        here->starts = 0;
        return rc;
    }
    here->ctx = uf_ctx_default(here->world);
    uf_compat_teams_open();
    return UF_OK;
}

void nvshmem_init(void)
{
    uf_compat_ok("nvshmem_init", begin(NULL));
}

int nvshmem_init_thread(int requested, int *provided)
{
    (void)requested;
    int rc = begin(NULL);
    if (rc == UF_OK && provided)
        *provided = NVSHMEM_THREAD_SERIALIZED;
    return rc;
}

void nvshmem_query_thread(int *provided)
{
    *provided = NVSHMEM_THREAD_SERIALIZED;
}

int nvshmemx_init_attr(unsigned flags, nvshmemx_init_attr_t *attr)
{
    uf_world_options options = UF_WORLD_OPTIONS;
    if (flags == 0)
        return begin(NULL);
    if (flags != NVSHMEMX_INIT_WITH_UNIQUEID || !attr || attr->n_pes < 1 ||
        !memchr(attr->id.internal, 0, sizeof attr->id.internal))
        return uf_compat_fail(UF_EINVAL, "nvshmemx_init_attr takes 0, or NVSHMEMX_INIT_WITH_UNIQUEID and attributes that "
                                         "nvshmemx_set_attr_uniqueid_args has filled");
    options.pe = attr->pe;
    options.n_pes = attr->n_pes;
    options.root = attr->id.internal;
    return begin(&options);
}

int nvshmemx_hostlib_init_attr(unsigned flags, nvshmemx_init_attr_t *attr)
{
    return nvshmemx_init_attr(flags, attr);
}

int nvshmemx_init_status(void)
{
    return uf_compat_here.world ? NVSHMEM_STATUS_IS_INITIALIZED : NVSHMEM_STATUS_NOT_INITIALIZED;
}

void nvshmem_finalize(void)
{
    uf_compat *here = &uf_compat_here;
    if (here->starts == 0 || --here->starts)
        return;
    uf_world *world = here->world;
    here->world = NULL;
    here->ctx = NULL;
    here->state.world = NULL;
    memset(here->teams, 0, sizeof here->teams);
    uf_compat_ok("nvshmem_finalize", uf_world_destroy(world));
}

void nvshmemx_hostlib_finalize(void)
{
    nvshmem_finalize();
}

void nvshmem_global_exit(int status)
{
    if (uf_compat_here.world)
        uf_world_abort(uf_compat_here.world, "nvshmem_global_exit was called");
    exit(status);
}

int uf_nvshmem_my_pe(void)
{
    return uf_world_pe(uf_compat_here.world);
}

int uf_nvshmem_n_pes(void)
{
    return uf_world_n_pes(uf_compat_here.world);
}
