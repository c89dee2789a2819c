/* combine.c - one small loop for each type and operation, found through a table; the compiler makes vectors of them. */
#include "world/combine.h"

/* x and y are the elements; the result goes where x was. */
#define COMBINE(name, type, result)                                                                                              \
    static void name(void *into, const void *with, size_t n)                                                                     \
    {                                                                                                                            \
        type *to = into;                                                                                                         \
        const type *from = with;                                                                                                 \
        for (size_t i = 0; i < n; i++) {                                                                                         \
            type x = to[i], y = from[i];                                                                                         \
            to[i] = (type)(result);                                                                                              \
        }                                                                                                                        \
    }

/* Sums and products of signed integers are made as unsigned ones: they wrap, and the bits are the same. */
COMBINE(sum_32, uint32_t, x + y)
COMBINE(sum_64, uint64_t, x + y)
COMBINE(sum_float, float, x + y)
COMBINE(sum_double, double, x + y)
COMBINE(prod_32, uint32_t, x *y)
COMBINE(prod_64, uint64_t, x *y)
COMBINE(prod_float, float, x *y)
COMBINE(prod_double, double, x *y)

COMBINE(min_int32, int32_t, y < x ? y : x)
COMBINE(min_int64, int64_t, y < x ? y : x)
COMBINE(min_uint32, uint32_t, y < x ? y : x)
COMBINE(min_uint64, uint64_t, y < x ? y : x)
COMBINE(min_float, float, y < x ? y : x)
COMBINE(min_double, double, y < x ? y : x)
COMBINE(max_int32, int32_t, y > x ? y : x)
COMBINE(max_int64, int64_t, y > x ? y : x)
COMBINE(max_uint32, uint32_t, y > x ? y : x)
COMBINE(max_uint64, uint64_t, y > x ? y : x)
COMBINE(max_float, float, y > x ? y : x)
COMBINE(max_double, double, y > x ? y : x)

COMBINE(and_32, uint32_t, x &y)
COMBINE(and_64, uint64_t, x &y)
COMBINE(or_32, uint32_t, x | y)
COMBINE(or_64, uint64_t, x | y)
COMBINE(xor_32, uint32_t, x ^ y)
COMBINE(xor_64, uint64_t, x ^ y)

enum { N_TYPES = UF_DOUBLE + 1, N_OPS = UF_XOR + 1 };

uf_combine uf_combine_find(uf_dtype type, uf_reduce_op op)
{
    /* By type, in the order SUM, PROD, MIN, MAX, AND, OR, XOR. */
    static const uf_combine table[N_TYPES][N_OPS] = {
        [UF_INT32] = {sum_32, prod_32, min_int32, max_int32, and_32, or_32, xor_32},
        [UF_INT64] = {sum_64, prod_64, min_int64, max_int64, and_64, or_64, xor_64},
        [UF_UINT32] = {sum_32, prod_32, min_uint32, max_uint32, and_32, or_32, xor_32},
        [UF_UINT64] = {sum_64, prod_64, min_uint64, max_uint64, and_64, or_64, xor_64},
        [UF_FLOAT] = {sum_float, prod_float, min_float, max_float, NULL, NULL, NULL},
        [UF_DOUBLE] = {sum_double, prod_double, min_double, max_double, NULL, NULL, NULL},
    };
    return (unsigned)type < N_TYPES && (unsigned)op < N_OPS ? table[type][op] : NULL;
}

size_t uf_combine_element(uf_dtype type)
{
    static const size_t bytes[N_TYPES] = {4, 8, 4, 8, 4, 8};
    return (unsigned)type < N_TYPES ? bytes[type] : 0;
}
