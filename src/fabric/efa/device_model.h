/* device_model.h - a place where PEs meet over the EFA device model: one model, one NIC for each PE and rail.
 *
 * Whoever starts the PEs makes the place and gives it to all of them as fabric_arg. Two modes:
 * - deterministic: the PEs are fibers, or a test that polls by hand. Nothing moves but in run; same seed, same calls, same run. The driver of
 *   the fibers gives the time: uf_fibers_attach(fibers, uf_efa_model_place_next, uf_efa_model_place_run, place).
 * - real_time: the PEs are threads. Each poll of any of them moves the whole model up to the clock, if nobody else is at it. There is no
 *   thread of the model's own: it would need a core of its own to be punctual, and who waits for the network has nothing better to do.
 * Without a place, efa:model gives a world of one PE a model of its own, and PEs that are processes of one job on one host a common one in
 * real time, in shared memory (arena.h): whichever of them polls moves it, and copies payload between the others. */
#ifndef UF_FABRIC_EFA_DEVICE_MODEL_H
#define UF_FABRIC_EFA_DEVICE_MODEL_H

#include "efa_model/model.h"

extern const struct uf_fabric_ops uf_fabric_efa; /* the fabric that takes a place for its argument */

typedef struct uf_efa_model_place uf_efa_model_place;

typedef struct uf_efa_model_place_options {
    const char *profile;           /* NULL or "": p5en */
    const uf_model_params *params; /* instead of a profile's; NULL: none */
    uint64_t seed;
    uint32_t n_pes;
    uint32_t n_rails; /* 0: 1 */
    bool real_time;
    /* n_pes * n_rails words, PE by PE, in which the NICs count the writes of peers (completion counters); NULL: none. Not between processes. */
    uint64_t *remote_writes;
} uf_efa_model_place_options;

/* UF_EINVAL, UF_ENOMEM. */
int uf_efa_model_place_create(const uf_efa_model_place_options *options, uf_efa_model_place **place);
/* After every fabric on it is closed. */
void uf_efa_model_place_destroy(uf_efa_model_place *place);
/* For statistics, traps and what a test does to it: in real time only while no PE runs. */
uf_model *uf_efa_model_place_model(uf_efa_model_place *place);
uf_model_nic *uf_efa_model_place_nic(uf_efa_model_place *place, uint32_t pe, uint32_t rail);
/* The NIC is dead from now on; any thread. */
void uf_efa_model_place_kill(uf_efa_model_place *place, uint32_t pe, uint32_t rail);

/* As uf_fibers_attach wants them: what a PE can see is a completion or a change of memory. */
uint64_t uf_efa_model_place_next(void *place);
bool uf_efa_model_place_run(void *place, uint64_t until);

#endif
