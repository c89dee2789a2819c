/* log.c - writes log lines, whole and one at a time, to standard error or to the caller's sink.
 *
 * The level is one atomic word, so that a line that is not wanted costs a load. It comes from UNFENCE_LOG at
 * the first look (a word that is no level counts as the default here: uf_settings_load refuses it with a
 * sentence). A line to standard error is one write(2): lines of threads and of processes that share a
 * terminal do not mix. The lock protects sink and argument, and is held during the sink's call, so that a
 * sink is never called after uf_set_logger has replaced it. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define LEVEL_UNKNOWN (-1)

static const char *const level_names[] = {"none", "error", "warn", "info", "debug"};
#define N_LEVELS ((int)(sizeof(level_names) / sizeof(level_names[0])))

static atomic_int current_level = LEVEL_UNKNOWN;

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static uf_log_sink sink_function;
static void *sink_argument;

static int level_from_environment(void)
{
    const char *wanted = getenv("UNFENCE_LOG");

    for (int level = 0; wanted && level < N_LEVELS; level++)
        if (strcasecmp(wanted, level_names[level]) == 0)
            return level;
    return UF_LOG_WARN;
}

static int level_now(void)
{
    int level = atomic_load_explicit(&current_level, memory_order_relaxed);

    if (level != LEVEL_UNKNOWN)
        return level;
    /* uf_set_log_level may come in between: its word stays. */
    int wanted = level_from_environment();
    if (atomic_compare_exchange_strong(&current_level, &level, wanted))
        return wanted;
    return level;
}

void uf_set_log_level(int level)
{
    if (level < UF_LOG_NONE)
        level = UF_LOG_NONE;
    if (level > UF_LOG_DEBUG)
        level = UF_LOG_DEBUG;
    atomic_store(&current_level, level);
}

void uf_set_logger(uf_log_sink sink, void *arg)
{
    pthread_mutex_lock(&sink_lock);
    sink_function = sink;
    sink_argument = arg;
    pthread_mutex_unlock(&sink_lock);
}

bool uf_log_enabled(int level)
{
    return level > UF_LOG_NONE && level <= level_now();
}

/* Text may come from peers and from the environment: a line stays one line, and a terminal obeys nobody. */
static void flatten(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = ' ';
}

static void emit(int level, char *line)
{
    pthread_mutex_lock(&sink_lock);
    if (sink_function) {
        sink_function(sink_argument, level, line);
        pthread_mutex_unlock(&sink_lock);
        return;
    }
    pthread_mutex_unlock(&sink_lock);

    size_t length = strlen(line);
    line[length] = '\n';
    /* Nobody is left to tell if standard error is closed. */
    ssize_t written = write(STDERR_FILENO, line, length + 1);
    (void)written;
}

/* Sentences of errors begin with the PE that found them; the line has said so already if that is this one. */
static void drop_pe(char *text, int pe)
{
    char own[24];
    int length = snprintf(own, sizeof own, "PE %d: ", pe);

    if (strncmp(text, own, (size_t)length) == 0)
        memmove(text, text + length, strlen(text + length) + 1);
}

void uf_log(int level, int pe, const char *format, ...)
{
    char line[UF_LOG_BYTES + 1]; /* and the newline */
    va_list arguments;
    int used;

    if (!uf_log_enabled(level))
        return;
    if (level >= N_LEVELS)
        level = N_LEVELS - 1;
    if (pe < 0)
        used = snprintf(line, UF_LOG_BYTES, "unfence: %s: ", level_names[level]);
    else
        used = snprintf(line, UF_LOG_BYTES, "unfence: PE %d: %s: ", pe, level_names[level]);
    va_start(arguments, format);
    vsnprintf(line + used, UF_LOG_BYTES - (size_t)used, format, arguments);
    va_end(arguments);
    if (pe >= 0)
        drop_pe(line + used, pe);
    flatten(line);
    emit(level, line);
}
