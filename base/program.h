/* Find and run other programs without a shell, and cache their output about themselves (versions,
 * flags). */
#ifndef LLMC_BASE_PROGRAM_H
#define LLMC_BASE_PROGRAM_H

#include "base/build_cache.h"

/* Find an executable: `name` itself if it contains a slash, else along $PATH. */
bool program_find(const char *name, char *path, size_t cap);
/* Run argv[0] (a path). *out receives at most cap bytes of its output; *code its exit status, or
 * 128 + signal. */
llmc_status program_run(char *const argv[], size_t cap, Strbuf *out, int *code, llmc_error *err);
/* Run argv[0], or return its cached output if the file has not changed. False: the program does not
 * run, or fails. *out holds its output in both cases. */
bool program_answer(const Cache *cache, char *const argv[], Strbuf *out);
/* Compute the cache key of a program's output from the identity of its file. False for a script or
 * a compiler wrapper, whose output may change while the file does not. */
bool program_key(const char *path, const char *question, char key[65]);

#endif
