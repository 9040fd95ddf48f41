/* Files of torch.save with a dict of tensors: a zip archive of uncompressed entries (since torch
 * 1.6), or the older format, pickles followed by the elements. Mapped and untrusted; pickle.h reads
 * the pickle and executes nothing. */
#ifndef LLMC_FORMATS_TORCH_H
#define LLMC_FORMATS_TORCH_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/error.h"

typedef struct TorchTensor {
	const char *name, *type; /* type: spelled as in safetensors */
	int n_dims;
	int64_t dim[8];   /* row-major, dim[n_dims - 1] contiguous */
	const void *data; /* in the file, unaligned; several tensors may share it */
	int64_t bytes;
	bool copied; /* data is a contiguous copy in the arena */
} TorchTensor;

/* Returns whether data begins like a torch.save file */
bool torch_is(const uint8_t *data, size_t size);
/* Returns the tensors of the dict, or of its entry state_dict or model, in the arena. Errors are
 * E_INPUT and name the file. */
llmc_status torch_read(Arena *a, const uint8_t *data, size_t size, const char *file,
                       TorchTensor **out, size_t *n, llmc_error *err);

#endif
