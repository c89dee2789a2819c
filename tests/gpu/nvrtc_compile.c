/* nvrtc_compile.c - a kernel that uses the whole device API compiles at run time, with no header but ours, for each architecture, plain
 * and checked. libnvrtc needs no GPU. The kernel names one function of each family in each scope. */
#include <nvrtc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const char *const kernel =
    "#include \"unfence/device.cuh\"\n"
    "extern \"C\" __global__ void user(const ufd_world *w, void *dst, const void *src, unsigned long bytes, uint64_t *sig,\n"
    "                                const ufd_row *rows, ufd_wait_list list, int *result)\n"
    "{\n"
    "    extern __shared__ __align__(128) unsigned char stages[];\n"
    "    typedef ufd_mover_shape<4, 4, 4096, 3> shape;\n"
    "    ufd_ctx c = ufd_ctx_block(w);\n"
    "    uint64_t old;\n"
    "    uint32_t index;\n"
    "    int pe = (ufd_pe(w) + 1) % ufd_n_pes(w), rc = ufd_check(w);\n"
    "    rc |= ufd_put(c, dst, src, bytes, pe) | ufd_put_nbi_warp(c, dst, src, bytes, pe) | ufd_get_block(c, dst, src, bytes, "
    "pe);\n"
    "    rc |= ufd_put_signal_block(c, dst, src, bytes, sig, UF_SIGNAL_ADD, 1, pe, UF_WEAK) | ufd_signal(c, sig, UF_SIGNAL_SET, "
    "1, pe, UF_STRONG);\n"
    "    rc |= ufd_put_signal_nbi_warp(c, dst, src, bytes, sig, UF_SIGNAL_SET, 1, pe, UF_STRONG);\n"
    "    rc |= ufd_fence(c) | ufd_quiet_warp(c) | ufd_flush_block(c);\n"
    "    rc |= ufd_atomic_fetch_add64(c, sig, 1, &old, pe) | ufd_atomic_warp(c, UF_ATOMIC_SWAP, 4, dst, 1, 0, &old, pe);\n"
    "    rc |= ufd_wait(w, sig, UF_GE, 1, UFD_WORLD_TIMEOUT) | ufd_test_block(w, sig, UF_EQ, 1) | ufd_wait_all_warp(w, list, "
    "UF_FOREVER);\n"
    "    rc |= ufd_wait_any(w, list, &index, 0);\n"
    "    rc |= ufd_put_flagged_warp(c, dst, src, bytes, 1, pe) | ufd_wait_flagged_block(w, dst, src, bytes, 1, 1000);\n"
    "    rc |= ufd_barrier_block(w) | ufd_sync(w);\n"
    "    ufd_mover_knob knob = {4, 1000};\n"
    "    rc |= ufd_put_batch_block<shape, UFD_FENCED>(c, stages, knob, rows, bytes);\n"
    "    rc |= ufd_put_batch_block<shape, UFD_COMPLETED>(c, stages, knob, rows, bytes);\n"
    "    *result = rc + (ufd_ptr(w, dst, pe) != 0);\n"
    "}\n";

/* Both headers at once, as a kernel that reaches near and far peers includes them. */
static const char *const queue_kernel =
    "#include \"unfence/device.cuh\"\n"
    "#include \"unfence/device_queue.cuh\"\n"
    "extern \"C\" __global__ void user(ufd_queue q, void *dst, const void *src, unsigned long bytes, uint64_t *sig, int "
    "*result)\n"
    "{\n"
    "    uint64_t old = 0, position;\n"
    "    int rc = ufd_queue_check(&q) ? 0 : -1, pe = 1;\n"
    "    rc |= ufd_queue_put(&q, dst, src, bytes, pe) | ufd_queue_put_ready_warp(&q, dst, src, bytes, pe) | "
    "ufd_queue_put_flush_block(&q, dst, src, "
    "bytes, pe);\n"
    "    rc |= ufd_queue_get_block(&q, dst, src, bytes, pe) | ufd_queue_get_quiet(&q, dst, src, bytes, pe);\n"
    "    rc |= ufd_queue_put_signal_warp(&q, dst, src, bytes, sig, UF_SIGNAL_ADD, 1, pe, UF_STRONG);\n"
    "    rc |= ufd_queue_put_signal_ready(&q, dst, src, bytes, sig, UF_SIGNAL_SET, 1, pe, UF_WEAK);\n"
    "    rc |= ufd_queue_put_signal_flush_warp(&q, dst, src, bytes, sig, UF_SIGNAL_SET, 1, pe, UF_WEAK);\n"
    "    rc |= ufd_queue_put_signal_quiet(&q, dst, src, bytes, sig, UF_SIGNAL_SET, 1, pe, UF_SETTLED);\n"
    "    rc |= ufd_queue_signal_block(&q, sig, UF_SIGNAL_SET, 1, pe, UF_WEAK) | ufd_queue_fence(&q) | ufd_queue_flush_warp(&q);\n"
    "    rc |= ufd_queue_atomic(&q, UF_ATOMIC_ADD, 8, sig, 1, pe) | ufd_queue_fetch_block(&q, UF_ATOMIC_SWAP, 4, sig, 1, 0, "
    "&old, pe);\n"
    "    uf_command c = ufd_command_fence();\n"
    "    rc |= ufd_queue_each_warp(&q, &c, threadIdx.x & 1, 0) | ufd_queue_each_warp_ready(&q, &c, true, 0);\n"
    "    rc |= ufd_queue_issue(&q, &c, 0, &position) | ufd_queue_issue_ready(&q, &c, 0, &position) | ufd_queue_quiet_block(&q);\n"
    "    *result = rc + (int)old;\n"
    "}\n";

/* NVSHMEM's names, as a kernel of a ring or of an expert layer has them. uf_module_init looks the module's state up by its name. */
static const char *const nvshmem_kernel =
    "#include \"nvshmem.h\"\n"
    "#include \"nvshmemx.h\"\n"
    "extern \"C\" __global__ void user(int *dst, int *src, unsigned long n, uint64_t *sig, int *result)\n"
    "{\n"
    "    int pe = (nvshmem_my_pe() + 1) % nvshmem_n_pes();\n"
    "    nvshmemx_int_put_signal_nbi_block(dst, src, n, sig, 1, NVSHMEM_SIGNAL_ADD, pe);\n"
    "    if (threadIdx.x == 0) {\n"
    "        nvshmem_signal_wait_until(sig, NVSHMEM_CMP_GE, 1);\n"
    "        nvshmem_int_p(dst + n, pe, pe);\n"
    "        nvshmem_quiet();\n"
    "        *result = nvshmem_int_atomic_fetch_add(dst, 1, pe) + nvshmem_team_n_pes(NVSHMEM_TEAM_WORLD);\n"
    "    }\n"
    "    nvshmemx_barrier_all_block();\n"
    "}\n";

static void compile(const char *source, const char *arch, const char *define)
{
    const char *options[] = {arch, "-I" INCLUDE_FOLDER, "-I" SOURCE_FOLDER, "-I" COMPAT_FOLDER, define};
    nvrtcProgram program;
    size_t size = 0;
    assert_int_equal(nvrtcCreateProgram(&program, source, "user.cu", 0, NULL, NULL), NVRTC_SUCCESS);
    nvrtcResult result = nvrtcCompileProgram(program, define ? 5 : 4, options);
    assert_int_equal(nvrtcGetProgramLogSize(program, &size), NVRTC_SUCCESS);
    char *log = malloc(size + 1);
    assert_non_null(log);
    assert_int_equal(nvrtcGetProgramLog(program, log), NVRTC_SUCCESS);
    if (result != NVRTC_SUCCESS || size > 1)
        print_error("%s %s:\n%s\n", arch, define ? define : "", log);
    free(log);
    assert_int_equal(result, NVRTC_SUCCESS);
    assert_int_equal(nvrtcGetCUBINSize(program, &size), NVRTC_SUCCESS);
    assert_true(size > 0);
    nvrtcDestroyProgram(&program);
}

static void plain_kernel_compiles_for_each_architecture(void **state)
{
    (void)state;
    compile(kernel, "--gpu-architecture=sm_80", NULL);
    compile(kernel, "--gpu-architecture=sm_90", NULL);
    compile(kernel, "--gpu-architecture=sm_100", NULL);
}

static void kernel_of_command_queues_compiles_for_each_architecture(void **state)
{
    (void)state;
    compile(queue_kernel, "--gpu-architecture=sm_80", NULL);
    compile(queue_kernel, "--gpu-architecture=sm_90", NULL);
    compile(queue_kernel, "--gpu-architecture=sm_100", "-DUFD_CHECK");
}

static void kernel_of_nvshmem_names_compiles_for_each_architecture(void **state)
{
    (void)state;
    compile(nvshmem_kernel, "--gpu-architecture=sm_80", NULL);
    compile(nvshmem_kernel, "--gpu-architecture=sm_90", NULL);
    compile(nvshmem_kernel, "--gpu-architecture=sm_100", NULL);
}

static void checked_kernel_compiles(void **state)
{
    (void)state;
    compile(kernel, "--gpu-architecture=sm_90", "-DUFD_CHECK");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_kernel_compiles_for_each_architecture),
        cmocka_unit_test(kernel_of_command_queues_compiles_for_each_architecture),
        cmocka_unit_test(kernel_of_nvshmem_names_compiles_for_each_architecture),
        cmocka_unit_test(checked_kernel_compiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
