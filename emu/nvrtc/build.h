/* Compiles CUDA C to an object for the CPU, cached by content (base/build_cache.h). The emulated
 * NVRTC uses it. The emulated driver uses it too, if it loads an image that was compiled in the
 * other mode: an image contains the source, not the object. */
#ifndef EMU_NVRTC_BUILD_H
#define EMU_NVRTC_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/build_cache.h"

typedef struct {
	const char *name, *source;
	const char *const *opt; /* options such as -D..., -U..., -I..., -std=... */
	int n_opt;
	const char *const *header_name, *const *header;
	int n_header;
	int arch;        /* major version times 10 plus minor, for example 90 */
	bool exact, ptx; /* exact: an `a` variant such as sm_90a; ptx: PTX, which any later device
	                    accepts */
} NvrtcSource;

/* Path of an object, valid until build_release. */
typedef struct {
	CacheEntry entry;
	Strbuf temporary; /* folder that contains the object if the cache does not; "": the object
	                     is in the cache */
	/* reason why the object is not cached; code LLMC_OK: it is cached, or the cache is off */
	llmc_error unkept;
} Built;

/* Returns false if the source does not compile. *log (allocated): output of the compiler. Release
 * `out` in either case. */
bool build_object(const NvrtcSource *s, bool check, Built *out, char **log);
void build_release(Built *b);
/* Prints one line on stderr, once: the reason, then the consequence. */
void build_warn_once(bool *warned, const char *why, const char *what);

/* Returns an image in memory: all of NvrtcSource, with a checksum. */
char *image_write(const NvrtcSource *s, size_t *bytes);
/* Returns 0, or -1 if the data is not an image or is damaged. Free the pointers in `s` with
 * image_close. */
int image_read(const void *image, NvrtcSource *s);
void image_close(NvrtcSource *s);

#endif
