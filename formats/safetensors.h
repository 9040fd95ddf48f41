/* Opens a checkpoint: safetensors (one file, or the shards of a model.safetensors.index.json); the
 * older torch.save files (torch.h; one file, or the shards of a pytorch_model.bin.index.json);
 * FastLLM's .flm (flm.h). Files are mapped and untrusted: header length, dtype, shape, offsets,
 * overlap and coverage are checked. A quantised matrix stored in several tensors appears as one
 * tensor (quant_format.h). */
#ifndef LLMC_FORMATS_SAFETENSORS_H
#define LLMC_FORMATS_SAFETENSORS_H

#include "base/error.h"
#include "formats/quant_format.h"

typedef struct Safetensors Safetensors;

typedef struct StTensor {
	const char *name;
	Dtype dtype; /* DT_NONE: a type llmc does not read; see dtype_name. data holds its bytes */
	const char *dtype_name;
	int n_dims;
	int64_t dim[8];   /* row-major, dim[n_dims - 1] contiguous */
	const void *data; /* NULL: rows are converted by `made` */
	int64_t bytes;
	const char *file;
	bool copied; /* data is in separate memory, not in the mapped file */
	/* matrix that converts the rows; NULL: rows are used as stored */
	const QuantFormatMatrix *made;
} StTensor;

/* path: a .safetensors file, a torch.save file, an index.json, or a folder. In a folder, the first
 * of these is opened: consolidated.00.pth (shards.h), if there is a params.json but no config.json;
 * model.safetensors; its index; a single .safetensors file; then pytorch_model.bin, its index, a
 * single pickled file. */
llmc_status safetensors_open(const char *path, Safetensors **out, llmc_error *err);
llmc_status safetensors_open_memory(const void *data, size_t size, const char *name,
                                    Safetensors **out, llmc_error *err);
void safetensors_close(Safetensors *s);
void safetensors_hold(Arena *a, Safetensors *s); /* the arena closes s, which may be NULL */
/* quant_method of config.json; NULL: no quantization_config, "": no name */
const char *safetensors_quant_format(const Safetensors *s);
const char *safetensors_quant_activations(const Safetensors *s); /* quant_formats_activations */
/* supported formats, "gptq, awq, ..."; NULL: no format was looked up */
const char *safetensors_quant_formats_known(const Safetensors *s);
size_t safetensors_n(const Safetensors *s);
const StTensor *safetensors_at(const Safetensors *s, size_t i);
const StTensor *safetensors_find(const Safetensors *s, const char *name);

#endif
