/* From CUDA C to an object for this machine, cached by content. Used by the compiler stand-in, and by the driver stand-in when it
 * loads an image that was compiled in the other mode: an image holds the source, not the object. */
#ifndef EMU_NVRTC_BUILD_H
#define EMU_NVRTC_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
	const char *name, *source;
	const char *const *opt;     /* -D..., -U..., -I..., -std=... */
	int n_opt;
	const char *const *header_name, *const *header;
	int n_header;
	int arch;                   /* 90 */
	bool exact, ptx;            /* sm_90a; PTX, which any later device takes */
} NvrtcSource;

/* The object's path, to be freed, or NULL; *log (to be freed) is what the compiler said either way. */
char *build_object(const NvrtcSource *s, bool check, char **log);

/* An image in memory: everything in Source, with a checksum. */
char *image_write(const NvrtcSource *s, size_t *bytes);
/* 0, or -1 for something that is none or is damaged. The Source's pointers are to be freed with image_close. */
int image_read(const void *image, NvrtcSource *s);
void image_close(NvrtcSource *s);

#endif
