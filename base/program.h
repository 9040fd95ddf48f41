/* Other programs: finding and running them without a shell, and remembering what they report about
 * themselves. */
#ifndef LLMC_BASE_PROGRAM_H
#define LLMC_BASE_PROGRAM_H

#include "base/build_cache.h"

/* Path of an executable: as it is when it holds a slash, else along $PATH. */
bool program_find(const char *name, char *path, size_t cap);
/* Run argv[0] (a path). Its output, at most cap bytes, goes to out. *code: exit status, 128 +
 * signal */
llmc_status program_run(char *const argv[], size_t cap, Strbuf *out, int *code, llmc_error *err);
/* Run argv[0], or take its answer from the cache while the file stays the same. false: it does not
 * run, or fails. *out holds its output either way. */
bool program_answer(const Cache *cache, char *const argv[], Strbuf *out);
/* Key of such an answer, from the identity of the program's file. False: a script or a wrapper of
 * compilers, whose answer may change while the file stays. */
bool program_key(const char *path, const char *question, char key[65]);

#endif
