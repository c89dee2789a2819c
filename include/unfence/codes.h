/* codes.h - the numbers that host, streams and kernels share: error codes, signal operations and flags, comparisons, atomics.
 *
 * Part of unfence.h and of device_types.h; programs include those. Plain enumerations that C11, C++17, nvcc and NVRTC accept, and
 * nothing else, since a kernel compiled at run time has no header of the system. Values never change: they travel. */
#ifndef UNFENCE_CODES_H
#define UNFENCE_CODES_H

enum {
    UF_OK = 0,
    UF_EINVAL = -1,       /* an argument is wrong; the message names it */
    UF_ENOMEM = -2,       /* memory, address space or a table is exhausted; the message has needed and available */
    UF_EAGAIN = -3,       /* would have to wait, and the caller asked not to (UF_NOWAIT, the _test functions) */
    UF_ETIMEDOUT = -4,    /* the time given ran out; the message says what was awaited and how far it had come */
    UF_EPEER = -5,        /* a peer died or left; the message names it */
    UF_EABORTED = -6,     /* uf_world_abort was called on some PE; the message carries its reason */
    UF_EUNSUPPORTED = -7, /* this build, machine or fabric cannot do it; the message says what would */
    UF_EFABRIC = -8,      /* the network reported an error */
    UF_EINTERNAL = -9,    /* an invariant of the library broke; the message tells its story: please report it */
    UF_ERANGE = -10,      /* a PE number or an address outside of what exists */
    UF_ESYSTEM = -11,     /* an operating system call failed */
    UF_EMISMATCH = -12,   /* PEs disagree on something that must be the same (versions, sizes, arguments) */
};

/* A timeout: none. The wait still ends when the world does. */
#define UF_FOREVER 0xffffffffffffffffull

enum {
    UF_WEAK = 0,    /* the signal becomes visible after its own put's bytes: all that OpenSHMEM asks, and the cheapest */
    UF_STRONG = 1,  /* ... after all earlier puts and signals of this context to that PE */
    UF_SETTLED = 2, /* ... after the network can no longer write those bytes again (a late duplicate): for receivers that
                        change received data in place */
    UF_NOWAIT = 4,  /* return UF_EAGAIN instead of waiting when the queues are full; nothing is lost or half done */
};

enum {
    UF_SIGNAL_SET = 0, /* store the value */
    UF_SIGNAL_ADD = 1, /* add it, modulo 2^64 */
};

enum { UF_EQ = 0, UF_NE = 1, UF_GT = 2, UF_GE = 3, UF_LT = 4, UF_LE = 5 };

typedef enum uf_atomic_op {
    UF_ATOMIC_SET = 0,
    UF_ATOMIC_ADD = 1,
    UF_ATOMIC_AND = 2,
    UF_ATOMIC_OR = 3,
    UF_ATOMIC_XOR = 4,
    UF_ATOMIC_FETCH = 5, /* fetching forms from here on */
    UF_ATOMIC_FETCH_ADD = 6,
    UF_ATOMIC_FETCH_AND = 7,
    UF_ATOMIC_FETCH_OR = 8,
    UF_ATOMIC_FETCH_XOR = 9,
    UF_ATOMIC_SWAP = 10,
    UF_ATOMIC_COMPARE_SWAP = 11, /* stores `operand` if the word equals `compare` */
} uf_atomic_op;

#endif
