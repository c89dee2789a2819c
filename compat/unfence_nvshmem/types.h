/* types.h - the names and C types that NVSHMEM's typed functions come in, as lists to repeat a macro X(name, type) over.
 *
 * Part of nvshmem.h. Data lists are for puts and gets, WORD lists for waits and atomics of 4 and 8 bytes. NVRTC knows all of these
 * types without a header but those that are given here. */
#ifndef UNFENCE_NVSHMEM_TYPES_H
#define UNFENCE_NVSHMEM_TYPES_H

#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef short int16_t;
typedef long ptrdiff_t;
#else
#include <stddef.h>
#include <stdint.h>
#endif

#define UF_NVSHMEM_WORD_TYPES(X)                                                                                                 \
    X(int, int)                                                                                                                  \
    X(long, long)                                                                                                                \
    X(longlong, long long)                                                                                                       \
    X(uint, unsigned int)                                                                                                        \
    X(ulong, unsigned long)                                                                                                      \
    X(ulonglong, unsigned long long)                                                                                             \
    X(int32, int32_t)                                                                                                            \
    X(int64, int64_t)                                                                                                            \
    X(uint32, uint32_t)                                                                                                          \
    X(uint64, uint64_t)                                                                                                          \
    X(size, size_t)                                                                                                              \
    X(ptrdiff, ptrdiff_t)

#define UF_NVSHMEM_FLOAT_TYPES(X)                                                                                                \
    X(float, float)                                                                                                              \
    X(double, double)

#define UF_NVSHMEM_DATA_TYPES(X)                                                                                                 \
    UF_NVSHMEM_WORD_TYPES(X)                                                                                                     \
    UF_NVSHMEM_FLOAT_TYPES(X)                                                                                                    \
    X(char, char)                                                                                                                \
    X(schar, signed char)                                                                                                        \
    X(uchar, unsigned char)                                                                                                      \
    X(short, short)                                                                                                              \
    X(ushort, unsigned short)                                                                                                    \
    X(int8, int8_t)                                                                                                              \
    X(int16, int16_t)                                                                                                            \
    X(uint8, uint8_t)                                                                                                            \
    X(uint16, uint16_t)

#endif
