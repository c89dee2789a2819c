/* log.h - the one place that may write to the user's terminal, and only as UNFENCE_LOG allows.
 *
 * Levels: none, error, warn (default), info, debug. A line is "unfence: PE 2: <level>: text". The sink is standard
 * error unless uf_set_logger() gave another one. Lines are never longer than UF_LOG_BYTES. Any thread. */
#ifndef UF_BASE_LOG_H
#define UF_BASE_LOG_H

#include "unfence/unfence.h"
#include <stdbool.h>

#define UF_LOG_BYTES 1024

/* True if a line of this level would be written: guards the making of costly arguments. */
bool uf_log_enabled(int level);
/* pe < 0: the line names no PE. */
void uf_log(int level, int pe, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
