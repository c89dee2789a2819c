/* error.c - one sentence per thread, and the names of the error codes.
 *
 * The message lives in thread-local storage: no allocation, no lock, no life cycle, so that it can be written
 * when memory ran out and read after any failing call. Sentences are formatted into a buffer on the stack
 * first, since the arguments may point into the message that is about to be replaced. Nothing here logs: who
 * returns an error to the user has told him already. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[UF_ERROR_BYTES];

/* A multibyte character must not be cut in half: step back over continuation bytes (10xxxxxx) and their head.
 */
static size_t character_start(const char *text, size_t at)
{
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
        at--;
    return at;
}

/* Ends a text of `length` characters wished for, of which a buffer of `bytes` holds the beginning. */
static void mark_cut(char *text, size_t bytes, size_t length)
{
    static const char dots[] = "...";

    if (length < bytes)
        return;
    memcpy(text + character_start(text, bytes - sizeof(dots)), dots, sizeof(dots));
}

static int keep(int code, const char *text)
{
    size_t length = strlen(text);

    memmove(message, text, length < UF_ERROR_BYTES ? length + 1 : UF_ERROR_BYTES);
    mark_cut(message, UF_ERROR_BYTES, length);
    return code;
}

int uf_fail(int code, const char *format, ...)
{
    char text[UF_ERROR_BYTES];
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (length < 0) /* a conversion that the locale cannot do; the format alone is better than nothing */
        return keep(code, format);
    mark_cut(text, sizeof(text), (size_t)length);
    return keep(code, text);
}

int uf_fail_errno(int code, int error, const char *format, ...)
{
    char text[UF_ERROR_BYTES], buffer[128];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return uf_fail(code, "%s: %s", text, strerror_r(error, buffer, sizeof(buffer)));
}

int uf_error_set(int code, const char *text)
{
    return keep(code, text);
}

const char *uf_error_message(void)
{
    return message;
}

const char *uf_error_name(int code)
{
    switch (code) {
    case UF_OK:
        return "UF_OK";
    case UF_EINVAL:
        return "UF_EINVAL";
    case UF_ENOMEM:
        return "UF_ENOMEM";
    case UF_EAGAIN:
        return "UF_EAGAIN";
    case UF_ETIMEDOUT:
        return "UF_ETIMEDOUT";
    case UF_EPEER:
        return "UF_EPEER";
    case UF_EABORTED:
        return "UF_EABORTED";
    case UF_EUNSUPPORTED:
        return "UF_EUNSUPPORTED";
    case UF_EFABRIC:
        return "UF_EFABRIC";
    case UF_EINTERNAL:
        return "UF_EINTERNAL";
    case UF_ERANGE:
        return "UF_ERANGE";
    case UF_ESYSTEM:
        return "UF_ESYSTEM";
    case UF_EMISMATCH:
        return "UF_EMISMATCH";
    default:
        return "UF_E?";
    }
}

#define TEXT_OF(number)                   #number
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *uf_version(void)
{
    return VERSION_TEXT(UF_VERSION_MAJOR, UF_VERSION_MINOR, UF_VERSION_PATCH);
}
