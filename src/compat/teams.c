/* teams.c - NVSHMEM's team numbers over uf_team.
 *
 * A number is a place in a table of this PE; host and kernels read the table's entries (kernels a copy), which say which PEs of the world a team holds.
 * Three entries are there from the start: the world, and twice this host's PEs (which share memory). Those of one host among several
 * have numbers and translations, but nothing to meet on: no uf_team, and a barrier says so. */
#include "private.h"

enum { FIRST_FREE = NVSHMEMX_TEAM_NODE + 1 };

/* This host's PEs: n = 0, no team, if they are not evenly spaced. */
static uf_nvshmem_team of_this_host(uf_world *world)
{
    uf_nvshmem_team t = {-1, 0, 0, 1}, none = t;
    int last = 0;
    for (int pe = 0; pe < uf_world_n_pes(world); pe++) {
        uf_path_info path = {.size = sizeof path};
        if (pe != uf_world_pe(world) && (uf_world_path(world, pe, &path) || !path.same_host))
            continue;
        if (t.n == 0)
            t.start = pe;
        else if (t.n == 1)
            t.stride = pe - t.start;
        else if (pe - last != t.stride)
            return none;
        if (pe == uf_world_pe(world))
            t.me = t.n;
        last = pe;
        t.n++;
    }
    return t;
}

void uf_compat_teams_open(void)
{
    uf_compat *here = &uf_compat_here;
    uf_nvshmem_team none = {-1, 0, 0, 1};
    uf_nvshmem_team all = {uf_world_pe(here->world), uf_world_n_pes(here->world), 0, 1};
    uf_nvshmem_team host = of_this_host(here->world);
    uf_team *world = uf_team_world(here->world);
    for (int i = 0; i < UF_NVSHMEM_TEAMS; i++) {
        here->state.teams[i] = none;
        here->teams[i] = NULL;
    }
    here->state.teams[NVSHMEM_TEAM_WORLD] = all;
    here->state.teams[NVSHMEM_TEAM_SHARED] = here->state.teams[NVSHMEMX_TEAM_NODE] = host;
    here->teams[NVSHMEM_TEAM_WORLD] = world;
    if (host.n == all.n)
        here->teams[NVSHMEM_TEAM_SHARED] = here->teams[NVSHMEMX_TEAM_NODE] = world;
}

uf_nvshmem_team uf_nvshmem_team_of(int team)
{
    uf_nvshmem_team none = {-1, 0, 0, 1};
    return uf_compat_here.world ? uf_compat_here.state.teams[team] : none;
}

/* The team behind a number, or an error. */
static int find(nvshmem_team_t number, uf_team **team)
{
    int rc = uf_compat_started();
    if (rc)
        return rc;
    if (number < 0 || number >= UF_NVSHMEM_TEAMS || uf_compat_here.state.teams[number].n == 0)
        return uf_compat_fail(UF_EINVAL, "there is no team of this number on this PE");
    *team = uf_compat_here.teams[number];
    if (!*team)
        return uf_compat_fail(UF_EUNSUPPORTED,
                              "the PEs of one host among several have no barrier: split the world into such teams");
    return UF_OK;
}

static int free_number(nvshmem_team_t *number)
{
    for (int i = FIRST_FREE; i < UF_NVSHMEM_TEAMS; i++) {
        if (uf_compat_here.state.teams[i].n == 0) {
            *number = i;
            return UF_OK;
        }
    }
    return uf_compat_fail(UF_ENOMEM, "all 64 team numbers are in use: destroy some");
}

int nvshmem_team_split_strided(nvshmem_team_t parent, int start, int stride, int n, const nvshmem_team_config_t *config,
                               long config_mask, nvshmem_team_t *team)
{
    (void)config, (void)config_mask;
    uf_compat *here = &uf_compat_here;
    uf_team *above, *made;
    nvshmem_team_t number = NVSHMEM_TEAM_INVALID;
    int rc = find(parent, &above);
    if (rc || (rc = free_number(&number)) || (rc = uf_team_split_strided(above, start, stride, n, &made)))
        return rc;
    *team = NVSHMEM_TEAM_INVALID;
    if (!made)
        return UF_OK; /* this PE is not in it */
    const uf_nvshmem_team *p = &here->state.teams[parent];
    uf_nvshmem_team t = {uf_team_pe(made), n, p->start + start * p->stride, n > 1 ? stride * p->stride : 1};
    here->state.teams[number] = t;
    here->teams[number] = made;
    *team = number;
    return uf_compat_fill_modules();
}

void nvshmem_team_destroy(nvshmem_team_t number)
{
    uf_nvshmem_team none = {-1, 0, 0, 1};
    uf_team *team;
    if (number < FIRST_FREE || find(number, &team))
        return; /* no team, or one that is not the program's */
    uf_compat_here.state.teams[number] = none;
    uf_compat_here.teams[number] = NULL;
    int rc = uf_team_destroy(team);
    uf_compat_ok("nvshmem_team_destroy", rc ? rc : uf_compat_fill_modules());
}

int nvshmem_barrier(nvshmem_team_t number)
{
    uf_team *team;
    int rc = find(number, &team);
    return rc ? rc : uf_barrier(team);
}

int nvshmem_team_sync(nvshmem_team_t number)
{
    uf_team *team;
    int rc = find(number, &team);
    return rc ? rc : uf_sync(team);
}

int nvshmemx_barrier_on_stream(nvshmem_team_t number, cudaStream_t stream)
{
    uf_team *team;
    int rc = find(number, &team);
    return rc ? rc : uf_barrier_on_stream(team, stream);
}

int nvshmemx_team_sync_on_stream(nvshmem_team_t number, cudaStream_t stream)
{
    return nvshmemx_barrier_on_stream(number, stream);
}

void uf_nvshmem_barrier_all(void)
{
    uf_compat_ok("nvshmem_barrier_all", nvshmem_barrier(NVSHMEM_TEAM_WORLD));
}

void uf_nvshmem_sync_all(void)
{
    uf_compat_ok("nvshmem_sync_all", nvshmem_team_sync(NVSHMEM_TEAM_WORLD));
}

void nvshmemx_barrier_all_on_stream(cudaStream_t stream)
{
    uf_compat_ok("nvshmemx_barrier_all_on_stream", nvshmemx_barrier_on_stream(NVSHMEM_TEAM_WORLD, stream));
}

void nvshmemx_sync_all_on_stream(cudaStream_t stream)
{
    uf_compat_ok("nvshmemx_sync_all_on_stream", nvshmemx_barrier_on_stream(NVSHMEM_TEAM_WORLD, stream));
}
