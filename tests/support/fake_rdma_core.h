/* fake_rdma_core.h - what a test may say to the fake libibverbs and libefa: the symbol `fake_rdma_core` of the shared object.
 *
 * The fake is a shared object with the names of both libraries, whose EFA devices are NICs of the device model in real time, moved by a
 * thread of its own. It checks what the drivers check (order of states, reserved bits, objects destroyed while in use), so that
 * device_verbs.c runs here call by call as it will run on hardware. */
#ifndef UF_TESTS_SUPPORT_FAKE_RDMA_CORE_H
#define UF_TESTS_SUPPORT_FAKE_RDMA_CORE_H

#include <stdint.h>

enum { FAKE_NICS = 3 }; /* rdmap0s6, rdmap1s6, rdmap2s6; there is an mlx5_0 before them, too */

typedef struct fake_rdma_core_control {
    char fail[32];         /* the call of this name fails... */
    int error;             /* ...with this errno */
    int port_state;        /* of all ports; 0: active */
    uint32_t caps_without; /* capabilities that the devices lack */
    uint32_t objects;      /* that exist: contexts, domains, queues, registrations, handles. Read only */
    uint32_t refusals;     /* calls that a driver would have refused for their arguments. Read only */
    char refusal[128];     /* the last of them */
    uint32_t event_nic;    /* raise() below: the device whose context gets the event */
    int (*raise)(uint32_t nic, int event);
} fake_rdma_core_control;

#endif
