/* doctor_checks.h - the judgements that rows of `unfence doctor` use (doctor_checks.c), of the type of doctor_row.check. */
#ifndef UNFENCE_TOOL_DOCTOR_CHECKS_H
#define UNFENCE_TOOL_DOCTOR_CHECKS_H

#include "doctor.h"

typedef doctor_state doctor_check(const doctor_facts *facts, const doctor_row *row, char *found, size_t bytes);

/* Software. `argument`: the least version; a provider's name; "library symbol symbol". */
doctor_check doctor_check_libfabric, doctor_check_provider, doctor_check_library;
/* EFA and other verbs devices. Of doctor_check_efa_ability the argument is the counter that tells it, and the generation that has it. */
doctor_check doctor_check_efa_device, doctor_check_efa_driver, doctor_check_efa_ability, doctor_check_rdma_device,
    doctor_check_uverbs, doctor_check_nic_rate, doctor_check_nic_cores, doctor_check_nic_number, doctor_check_nic_errors,
    doctor_check_gpu_rails;
/* GPUs. */
doctor_check doctor_check_gpu, doctor_check_cuda, doctor_check_gpu_registration, doctor_check_gdrcopy, doctor_check_peer_mapping;
/* The host. */
doctor_check doctor_check_memlock, doctor_check_open_files, doctor_check_shm, doctor_check_memory, doctor_check_throttling,
    doctor_check_attach, doctor_check_userfault, doctor_check_huge_pages;

#endif
