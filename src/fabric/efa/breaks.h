/* breaks.h - NICs and queues of the device model that are to fail, and when. */
#ifndef UF_FABRIC_EFA_BREAKS_H
#define UF_FABRIC_EFA_BREAKS_H

#include "efa_model/model.h"

enum { UF_EFA_MODEL_BREAKS = 2 };

/* A NIC that is killed, or its queue pair that fails, at the first moment after `at` when so much is under way. */
typedef struct uf_efa_model_break {
    uint64_t at;     /* nanoseconds of the model's time; 0: none, or it is done */
    uint64_t flying; /* WRs */
    uint32_t pe, rail;
    bool queue_only;
} uf_efa_model_break;

/* One, two or four rails, which it returns. In half of the plans with several one or two break, in the first 16 ms times `stretch`. Pure. */
uint32_t uf_efa_model_breaks_plan(uint64_t seed, uint32_t n_pes, uint64_t stretch,
                                  uf_efa_model_break breaks[UF_EFA_MODEL_BREAKS]);
/* Those that are due, in a model whose NICs are n_rails of each PE: 0 if none was, else the number of breaks and of WRs then under way. Under
 * the model's lock. */
uint64_t uf_efa_model_breaks_do(uf_model *model, uf_model_nic *const *nics, uint32_t n_rails,
                                uf_efa_model_break breaks[UF_EFA_MODEL_BREAKS]);

#endif
