/* fake_cuda.h - what tests may ask of fake_cuda.c; found by dlsym in the library that UNFENCE_CUDA_LIBRARY names. */
#ifndef TESTS_SUPPORT_FAKE_CUDA_H
#define TESTS_SUPPORT_FAKE_CUDA_H

/* The n-th call of a driver function from now on (1: the next) returns `code`, a CUresult. */
void fake_cuda_fail(const char *function, int nth, int code);
/* Calls still to come before that: 0 when it has happened, or nothing was asked for. */
int fake_cuda_pending(void);
/* Driver objects alive in this process: allocations, mappings, reservations, registrations, streams, references to contexts. */
int fake_cuda_live(void);
/* How often the calling thread has called a driver function (NULL: any) since it asked last. */
int fake_cuda_calls(const char *function);
/* Where the bytes of GPU memory at `address` are, as GDRCopy would map them; NULL if there are not `bytes` of them in one mapping. */
void *fake_cuda_bytes(unsigned long address, unsigned long bytes);

#endif
