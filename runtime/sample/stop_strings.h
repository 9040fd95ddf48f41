/* Stop strings: output is held back while it may still become one, and cut where one begins. */
#ifndef LLMC_RUNTIME_SAMPLE_STOP_STRINGS_H
#define LLMC_RUNTIME_SAMPLE_STOP_STRINGS_H

#include "base/error.h"

typedef struct Stop Stop;

/* stops: NULL-terminated list (NULL: none), copied. An empty string is an error. ignore: two
 * strings between which no stop string applies. If the first one is empty, the output begins
 * between them. */
llmc_status stop_open(const char *const *stops, const char *const *ignore, Stop **out,
                      llmc_error *err);
void stop_close(Stop *s);
/* Add output. *safe, *n_safe: the part that can be returned now, valid until the next call. *found:
 * a stop string was found, and the part before it is the last output. `last` releases what is held
 * back. */
llmc_status stop_feed(Stop *s, const char *text, size_t n, bool last, const char **safe,
                      size_t *n_safe, bool *found, llmc_error *err);
/* Index of the stop string that was found; -1: none yet. */
int stop_which(const Stop *s);

#endif
