/* world_device_rig.cu - what world_device and world_far do around each launch. */
#include "world_device.h"

bool device_seat(pe *p, seat *s)
{
    const struct ufd_world *device;
    FINE(uf_device_world(p->world, &device));
    *s = {device, p->left, p->right, p->mine, p->in, p->words, p->host_words};
    return true;
}

bool device_no_faults(pe *p)
{
    uint64_t faults = 0;
    RUNTIME(cudaGetLastError());
    RUNTIME(cudaStreamSynchronize(p->stream));
    if (!copy(p, &faults, p->words + FAULTS_AT, sizeof faults))
        return false;
    HOLD(faults == 0);
    return true;
}

bool device_code(pe *p, int *code)
{
    uint64_t word = 0;
    RUNTIME(cudaGetLastError());
    RUNTIME(cudaStreamSynchronize(p->stream));
    if (!copy(p, &word, p->words + CODE_AT, sizeof word))
        return false;
    *code = (int)(int64_t)word;
    return true;
}
