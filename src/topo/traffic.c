/* traffic.c - what the driver of a NIC has counted since it was loaded: requests, bytes and failures of all processes together.
 *
 * EFA's counters, one file each (ports/1/hw_counters). Which there are depends on driver and generation, so each that is missing is left out
 * of its sum, and a sum of none is unknown. Reading never fails and changes nothing; src/world counts what one world does. */
#include "topo/sysfs.h"
#include "topo/topo.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* A whole number without sign; false for what is none, or missing. */
static bool counter(const char *root, const char *directory, const char *name, uint64_t *value)
{
    char text[32], *end;
    if (!uf_topo_text_in(root, directory, name, text, sizeof text) || text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static uint64_t sum(const char *root, const char *directory, const char *const names[3])
{
    uint64_t total = UF_TOPO_UNCOUNTED, value;
    for (int i = 0; i < 3 && names[i]; i++)
        if (counter(root, directory, names[i], &value))
            total = total == UF_TOPO_UNCOUNTED ? value : total + value;
    return total;
}

void uf_topo_traffic_read(const char *root, const char *name, uf_topo_traffic *traffic)
{
    static const char *const requests[3] = {"rdma_write_wrs", "rdma_read_wrs", "send_wrs"};
    static const char *const bytes[3] = {"rdma_write_bytes", "rdma_read_bytes", "send_bytes"};
    static const char *const failed[3] = {"rdma_write_wr_err", "rdma_read_wr_err", NULL};
    static const char *const lost[3] = {"unresponsive_remote_events", "impaired_remote_conn_events", NULL};
    char directory[UF_TOPO_PATH];
    snprintf(directory, sizeof directory, "/sys/class/infiniband/%s/ports/1/hw_counters", name);
    traffic->requests = sum(root, directory, requests);
    traffic->bytes = sum(root, directory, bytes);
    traffic->failed = sum(root, directory, failed);
    traffic->lost_peers = sum(root, directory, lost);
}
