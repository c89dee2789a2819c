/* world_device_checked.cu - the checked build of the device API in a world of the library: part of world_device. */
#define UFD_CHECK
#include "world_device.h"
#include <cstring>

/* One thread of one block puts beyond the heap's end. */
__global__ void stray(seat s)
{
    ufd_ctx c = ufd_ctx_block(s.world);
    uint8_t *end = (uint8_t *)(s.world->heap + s.world->heap_bytes);
    if (blockIdx.x == 1 && threadIdx.x == 5)
        device_leave_code(s, ufd_put(c, end - 4, s.mine, 8, s.right));
}

bool load_checked(pe *p)
{
    cudaFuncAttributes a;
    RUNTIME(cudaFuncGetAttributes(&a, stray));
    return true;
}

bool a_checked_kernel_s_error_becomes_a_sentence(pe *p)
{
    seat s;
    int code;
    char right[32];
    if (!device_seat(p, &s))
        return false;
    stray<<<2, 32, 0, p->stream>>>(s);
    if (!device_code(p, &code))
        return false;
    HOLD(code == UF_ERANGE);
    HOLD(uf_device_error(p->world) == UF_ERANGE);
    snprintf(right, sizeof right, "with PE %d", p->right);
    const char *parts[] = {"a put", right, "block (1, 0, 0)", "thread (5, 0, 0)", "8 bytes"};
    for (const char *part : parts)
        HOLD(strstr(uf_error_message(), part));
    FINE(uf_device_error(p->world));
    return sync_all(p);
}
