/* safetensors: one file, or the shards that a model.safetensors.index.json names; and what came
 * before it, files of torch.save (torch.h), one or the shards of a pytorch_model.bin.index.json;
 * and FastLLM's .flm (flm.h). Mapped and untrusted: header length, dtype, shape, offsets, overlap
 * and coverage are checked. Matrices that a scheme stores in several tensors are one here
 * (scheme.h). */
#ifndef LLMC_FORMATS_SAFETENSORS_H
#define LLMC_FORMATS_SAFETENSORS_H

#include "base/error.h"
#include "formats/scheme.h"

typedef struct Safetensors Safetensors;

typedef struct StTensor {
	const char *name;
	Dtype dtype; /* DT_NONE: a type we do not read; dtype_name says which, data is its bytes */
	const char *dtype_name;
	int n_dims;
	int64_t dim[8];   /* row-major, dim[n_dims - 1] contiguous */
	const void *data; /* NULL: rows are made */
	int64_t bytes;
	const char *file;
	bool copied;              /* data is not the file's but in memory of its own */
	const SchemeMatrix *made; /* how; NULL: they are the file's */
} StTensor;

/* path: a .safetensors file, one of torch.save, an index.json, or a folder that holds
 * model.safetensors, an index, or a single .safetensors, else the same of pytorch_model.bin; or
 * params.json and consolidated.00.pth (shards.h). */
llmc_status safetensors_open(const char *path, Safetensors **out, llmc_error *err);
llmc_status safetensors_open_memory(const void *data, size_t size, const char *name,
                                    Safetensors **out, llmc_error *err);
void safetensors_close(Safetensors *s);
const char *safetensors_scheme(const Safetensors *s); /* quant_method of config.json; NULL: no
                                                         quantization_config, "": no name */
const char *safetensors_schemes_known(
    const Safetensors *s); /* "gptq, awq, ...": what is read; NULL: nothing asked for a scheme */
size_t safetensors_n(const Safetensors *s);
const StTensor *safetensors_at(const Safetensors *s, size_t i);
const StTensor *safetensors_find(const Safetensors *s, const char *name);

#endif
