/* doctor_rows.c - the prerequisites of every path, as a table: who needs each, how it is judged, what to do, and what is lost without it. A new
 * prerequisite is a row here, and a function only if none of those there fits. */
#include "doctor_checks.h"

#define OFI      (DOCTOR_TCP | DOCTOR_SHM | DOCTOR_OFI_EFA | DOCTOR_EFA_DIRECT | DOCTOR_VERBS)
#define ANY_EFA  (DOCTOR_OFI_EFA | DOCTOR_EFA_DIRECT | DOCTOR_EFA)
#define NIC      (ANY_EFA | DOCTOR_VERBS) /* networks that bypass the kernel and lock memory */
#define NETWORKS (OFI | DOCTOR_EFA)
#define ALL      (NETWORKS | DOCTOR_LOCAL)

const char *doctor_state_name(doctor_state state)
{
    static const char *const names[] = {"ok", "missing", "unknown"};
    return names[state];
}

const doctor_path doctor_paths[] = {
    {"local", DOCTOR_LOCAL},
    {"ofi:tcp", DOCTOR_TCP},
    {"ofi:shm", DOCTOR_SHM},
    {"ofi:efa", DOCTOR_OFI_EFA},
    {"ofi:efa-direct", DOCTOR_EFA_DIRECT},
    {"ofi:verbs", DOCTOR_VERBS},
    {"efa", DOCTOR_EFA},
    {"gpu", DOCTOR_GPU},
    {"gpu-posts", DOCTOR_GPU_POSTS},
    {0},
};

const doctor_row doctor_rows[] = {
    /* the host */
    {"memory", DOCTOR_LOCAL | NETWORKS, 0, doctor_check_memory, "", "memory for the symmetric heaps",
     "lower UNFENCE_HEAP_SIZE, or start fewer PEs here", "creating the world is refused"},
    {"cpu-throttling", 0, ALL, doctor_check_throttling, "", "CPU time without standing still",
     "raise the container's CPU limit, or set UNFENCE_PROGRESS=inline", "latencies with gaps of tens of milliseconds"},
    {"attach", 0, DOCTOR_LOCAL, doctor_check_attach, "", "cross-memory attach",
     "sysctl kernel.yama.ptrace_scope=0, and a container with the capability SYS_PTRACE",
     "puts into windows of other processes go through their owner, with one copy more"},
    {"userfaultfd", 0, NETWORKS, doctor_check_userfault, "", "userfaultfd",
     "Linux 5.11 or later, and a seccomp profile that allows userfaultfd",
     "sources outside of symmetric memory are registered for each operation instead of once"},
    {"huge-pages", 0, DOCTOR_LOCAL, doctor_check_huge_pages, "", "huge pages for shared memory",
     "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled", "large puts to PEs of this host are slower"},
    {"memlock", NIC, 0, doctor_check_memlock, "", "locked memory", "ulimit -l unlimited (limits.conf, or the container's limits)",
     "the NIC cannot register the heap"},
    {"open-files", NETWORKS, 0, doctor_check_open_files, "", "open files", "ulimit -n 65536",
     "connections to some PEs are refused"},
    {"dev-shm", DOCTOR_SHM, 0, doctor_check_shm, "", "space in /dev/shm", "a larger /dev/shm (docker run --shm-size)",
     "the provider shm cannot start"},
    /* libfabric */
    {"libfabric", OFI, 0, doctor_check_libfabric, "1.17", "libfabric 1.17", "install libfabric, and build with it",
     "no network but the EFA's own queues"},
    {"libfabric-2.1", DOCTOR_EFA_DIRECT, DOCTOR_OFI_EFA, doctor_check_libfabric, "2.1", "libfabric 2.1",
     "the EFA installer brings a newer one", "no efa-direct: libfabric's own protocol sits between each put and the NIC"},
    {"provider-tcp", DOCTOR_TCP, 0, doctor_check_provider, "tcp", "the provider tcp", "install libfabric with it",
     "no network on hosts without an RDMA NIC"},
    {"provider-shm", DOCTOR_SHM, 0, doctor_check_provider, "shm", "the provider shm", "install libfabric with it",
     "libfabric cannot be tested inside of one host"},
    {"provider-efa", DOCTOR_OFI_EFA, 0, doctor_check_provider, "efa", "the provider efa", "the EFA installer brings it",
     "EFA through libfabric"},
    {"provider-efa-direct", DOCTOR_EFA_DIRECT, DOCTOR_OFI_EFA, doctor_check_provider, "efa-direct", "the provider efa-direct",
     "libfabric 2.1 or later from the EFA installer", "EFA through libfabric without a protocol in between"},
    {"provider-verbs", DOCTOR_VERBS, 0, doctor_check_provider, "verbs", "the provider verbs", "install libfabric with it",
     "InfiniBand and RoCE through libfabric"},
    /* verbs and EFA */
    {"libibverbs", NIC, 0, doctor_check_library, "libibverbs.so.1 ibv_get_device_list ibv_open_device", "libibverbs",
     "apt install libibverbs1, or the EFA installer", "no RDMA NIC can be used"},
    {"libefa", DOCTOR_EFA, 0, doctor_check_library, "libefa.so.1 efadv_create_qp_ex efadv_query_qp_wqs efadv_query_cq",
     "libefa with the queues' addresses", "a newer rdma-core: the EFA installer's",
     "Unfence cannot write the EFA's queues itself"},
    {"verbs-devices", NIC, 0, doctor_check_uverbs, "", "access to /dev/infiniband",
     "modprobe ib_uverbs; in a container --device=/dev/infiniband", "no RDMA NIC can be opened"},
    {"rdma-device", DOCTOR_VERBS, 0, doctor_check_rdma_device, "", "an InfiniBand or RoCE NIC",
     "a host with one, and its driver loaded", "the provider verbs has nothing to use"},
    {"efa-device", ANY_EFA, 0, doctor_check_efa_device, "", "EFA NICs",
     "an instance type that has EFA, started with EFA interfaces", "no EFA: tcp is used between hosts"},
    {"efa-driver", ANY_EFA, 0, doctor_check_efa_driver, "2.4.0", "the efa driver, 2.4.0",
     "the EFA installer brings it; modprobe efa", "EFA NICs without verbs devices, or RDMA writes unknown to them"},
    {"efa-rdma-read", 0, ANY_EFA, doctor_check_efa_ability, "1 rdma_read_wrs", "EFA: RDMA read", "a newer efa driver",
     "gets are answered by the target's CPU"},
    {"efa-rdma-write", DOCTOR_EFA | DOCTOR_EFA_DIRECT, DOCTOR_OFI_EFA, doctor_check_efa_ability, "2 rdma_write_wrs",
     "EFA: RDMA write", "generation 2 or later (p5 and newer) and efa driver 2.4.0",
     "puts are emulated by libfabric with messages, or impossible"},
    {"efa-unsolicited", 0, DOCTOR_EFA | DOCTOR_EFA_DIRECT, doctor_check_efa_ability, "3 -", "EFA: writes that need no receive",
     "generation 3 or later (p5en and newer)", "each immediate takes a receive that must be posted before it comes"},
    {"nic-rate", 0, NETWORKS, doctor_check_nic_rate, "", "the NICs' rates", "UNFENCE_NIC_RATE=<Gb/s of one NIC>",
     "what is derived from bandwidth takes a default"},
    {"nic-cores", 0, NETWORKS, doctor_check_nic_cores, "", "the cores near the NICs",
     "none needed on hosts with one NUMA node; in a guest, expose the NUMA topology",
     "the progress thread is not kept near its NIC"},
    {"nic-number", 0, ANY_EFA, doctor_check_nic_number, "", "as many EFA NICs as the instance type has",
     "start the instance with all its EFA interfaces, and give the container all of /dev/infiniband",
     "all hosts of a job use as many rails as the one with the fewest"},
    {"nic-errors", 0, ANY_EFA, doctor_check_nic_errors, "", "EFA: requests that do not fail",
     "dmesg of both ends; a security group that lets all traffic of itself in; another instance if one NIC fails alone",
     "a NIC that fails in a job is left out of it, and the others carry its share"},
    {"gpu-rails", 0, NIC, doctor_check_gpu_rails, "", "NICs near each GPU, as many for each",
     "all EFA interfaces of the instance, and a container that is given them; else name them: UNFENCE_FABRIC=efa:NAME,NAME",
     "data of the GPUs that are short of NICs crosses sockets, and every PE uses as few rails as they have"},
    /* GPUs */
    {"gpu", DOCTOR_GPU | DOCTOR_GPU_POSTS, 0, doctor_check_gpu, "", "GPUs", "a host with GPUs; in a container --gpus all",
     "no GPU memory to move"},
    {"cuda", DOCTOR_GPU | DOCTOR_GPU_POSTS, 0, doctor_check_cuda, "", "the CUDA driver",
     "install the NVIDIA driver; in a container the NVIDIA container toolkit", "no GPU memory, streams or kernels"},
    {"gpu-registration", DOCTOR_GPU | DOCTOR_GPU_POSTS, 0, doctor_check_gpu_registration, "", "dma-buf or nvidia-peermem",
     "NVIDIA's open kernel modules, or modprobe nvidia-peermem", "NICs cannot reach GPU memory: data goes through host memory"},
    {"gdrcopy", 0, DOCTOR_GPU | DOCTOR_GPU_POSTS, doctor_check_gdrcopy, "", "GDRCopy", "install gdrcopy 2.5 and load gdrdrv",
     "signals in GPU memory are written through the driver, some microseconds later"},
    {"peer-mapping", DOCTOR_GPU_POSTS, 0, doctor_check_peer_mapping, "", "PeerMappingOverride",
     "options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1\" in /etc/modprobe.d, then reload the driver",
     "kernels cannot write the NIC's queues: a CPU thread posts for them"},
};
const size_t doctor_n_rows = sizeof doctor_rows / sizeof *doctor_rows;
