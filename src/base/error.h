/* error.h - how every room reports a failure.
 *
 * A function that fails returns a negative UF_E* code and leaves ONE sentence in the calling thread's message
 * buffer, made where the cause is known: what failed, on which PE and peer, why, and what to do about it.
 * Callers pass the code up unchanged; they add nothing, so the first cause is the one the user reads.
 * Nothing here allocates, so it is safe when memory is what ran out. */
#ifndef UF_BASE_ERROR_H
#define UF_BASE_ERROR_H

#include "unfence/unfence.h"

/* Longest message kept, including the terminating zero. Longer ones are cut with "...". */
#define UF_ERROR_BYTES 1024

/* uf_fail stores the formatted sentence as this thread's message and returns `code`, so that
 * `return uf_fail(UF_EINVAL, ...)` is the only idiom. */
int uf_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* uf_fail_errno is uf_fail with ": <strerror(error)>" appended. `error` is a positive errno value. */
int uf_fail_errno(int code, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* uf_error_set replaces this thread's message with a copy of `message` (an error that happened on another
 * thread and is now returned on this one) and returns `code`. */
int uf_error_set(int code, const char *message);

#endif
