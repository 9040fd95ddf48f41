/* Stop strings: text is held back while it may still become one, and cut where one begins. */
#ifndef LLMC_RUNTIME_SAMPLE_STOP_STRINGS_H
#define LLMC_RUNTIME_SAMPLE_STOP_STRINGS_H

#include "base/error.h"

typedef struct Stop Stop;

/* stops: NULL-terminated list (NULL: none), copied. Empty strings are refused. */
llmc_status stop_open(const char *const *stops, Stop **out, llmc_error *err);
void stop_close(Stop *s);
/* Add text; *safe, *n_safe: what can be shown now, valid until the next call. *found: a stop string
 * has been seen, the text before it is the last that is ever safe. `last` releases what was held
 * back. */
llmc_status stop_feed(Stop *s, const char *text, size_t n, bool last, const char **safe,
                      size_t *n_safe, bool *found, llmc_error *err);
/* Which of the list has been seen; -1: none yet. */
int stop_which(const Stop *s);

#endif
