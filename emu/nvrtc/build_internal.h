/* Interfaces between the files of the compiler of emulated kernels */
#ifndef LLMC_EMU_NVRTC_BUILD_INTERNAL_H
#define LLMC_EMU_NVRTC_BUILD_INTERNAL_H

#include "build.h"

typedef struct {
	char *p;
	size_t n, cap;
} TextBuf;
typedef struct {
	uint64_t a, b;
} SourceHash;

/* build.c */
void text_put(TextBuf *t, const char *s, size_t n);
void text_puts(TextBuf *t, const char *s);

/* exports.c */
/* Writes one line per `__global__ ... name(`. The line repeats the launch bounds, which are
 * evaluated at the end of the file. */
void build_exports(TextBuf *t, const char *source);

#endif
