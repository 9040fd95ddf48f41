/* Compile CUDA C to an object for this machine, kept by content (base/build_cache.h). Used by the
 * compiler stand-in, and by the driver stand-in when it loads an image that was compiled in the
 * other mode: an image holds the source, not the object. */
#ifndef EMU_NVRTC_BUILD_H
#define EMU_NVRTC_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/build_cache.h"

typedef struct {
	const char *name, *source;
	const char *const *opt; /* -D..., -U..., -I..., -std=... */
	int n_opt;
	const char *const *header_name, *const *header;
	int n_header;
	int arch;        /* 90 */
	bool exact, ptx; /* sm_90a; PTX, which any later device takes */
} NvrtcSource;

/* Path of an object, which stays until build_release. */
typedef struct {
	CacheEntry entry;
	Strbuf
	    temporary; /* folder that holds it where the cache does not; "": it is in the cache */
	llmc_error
	    unkept; /* why the cache does not hold it; code LLMC_OK: it does, or is switched off */
} Built;

/* false: it does not compile. *log (to be freed): the compiler's output. Release `out` either way.
 */
bool build_object(const NvrtcSource *s, bool check, Built *out, char **log);
void build_release(Built *b);
/* A line on stderr: why, then what follows from it */
void build_warn_once(bool *warned, const char *why, const char *what);

/* An image in memory: everything in Source, with a checksum. */
char *image_write(const NvrtcSource *s, size_t *bytes);
/* 0, or -1 for something that is none or is damaged. The Source's pointers are to be freed with
 * image_close. */
int image_read(const void *image, NvrtcSource *s);
void image_close(NvrtcSource *s);

#endif
