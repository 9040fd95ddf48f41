/* Files of torch.save with a dict of tensors: a zip archive of stored entries (since torch 1.6), or
 * the form before it, pickles with the elements behind them. Mapped and untrusted; a pickle is read
 * by pickle.h's machine, which runs nothing. */
#ifndef LLMC_FORMATS_TORCH_H
#define LLMC_FORMATS_TORCH_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/error.h"

typedef struct TorchTensor {
	const char *name, *type; /* type: as safetensors has it */
	int n_dims;
	int64_t dim[8];   /* row-major, dim[n_dims - 1] contiguous */
	const void *data; /* in the file, aligned to nothing; several tensors may share it */
	int64_t bytes;
	bool copied; /* a view that does not lie in order: data is in the arena */
} TorchTensor;

/* Does a file that begins so come from torch.save? */
bool torch_is(const uint8_t *data, size_t size);
/* The tensors of the dict, or of the one named state_dict or model within it, in the arena. Errors
 * are E_INPUT and name the file. */
llmc_status torch_read(Arena *a, const uint8_t *data, size_t size, const char *file,
                       TorchTensor **out, size_t *n, llmc_error *err);

#endif
