/* Writes lines to the caller's log function, if there is one. */
#ifndef LLMC_BASE_LOG_H
#define LLMC_BASE_LOG_H

#include "llmc.h"

void log_line(llmc_log_fn log, void *user, int level, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Log each line of `text` on its own. */
void log_text(llmc_log_fn log, void *user, int level, const char *text);

#endif
