/* Export of a model in a Hugging Face folder as GGUF: keys, tensors, and the rows of the folder
 * that each tensor consists of. The family's `gguf` part is applied in reverse. Import then reads
 * the result back. If the result does not describe the same model, op for op, the export is
 * rejected. */
#ifndef LLMC_COMPILER_IMPORT_EXPORT_H
#define LLMC_COMPILER_IMPORT_EXPORT_H

#include "compiler/spec/expr.h"
#include "compiler/graph.h"

typedef struct ExportKey {
	const char *name; /* name, including the architecture as prefix */
	SpecExprVal val;  /* NUM, BOOL, STR, or LIST of numbers */
	bool real;        /* write numbers as f32, even if they are integers; otherwise as u32 */
} ExportKey;

typedef struct ExportTensor {
	const char *name;
	int n_dims;
	int64_t dim[4];     /* row-major: the last dimension is contiguous */
	int64_t rows, cols; /* the dimensions of the tensor as a matrix; cols 0: a vector */
	bool f32;           /* stored as f32 whatever the file type is, as llama.cpp does */
	/* [rows] values, if the folder has no such tensor; NULL: the values are rows of `part` */
	const float *value;
} ExportTensor;

/* Rows of a tensor of the file. Source `source` of tensor `as`, which describes the file, refers to
 * these rows; they are rows first, first + 1, ... of `from`, which describes the folder. */
typedef struct ExportPart {
	int tensor;
	const PlanTensor *from,
	    *as; /* the same tensor of the model, read from the folder and from the file */
	int source;
	int64_t first;
	float add; /* added to each element, for norms whose weights the folder stores minus 1 */
} ExportPart;

typedef struct Export {
	const char *arch;
	size_t n_key, cap_key, n_tensor, cap_tensor, n_part, cap_part;
	ExportKey *key;
	ExportTensor *tensor;
	ExportPart *part;
} Export;

/* Prepare the export of a folder. path: future name of the file. The result is in the arena. NULL
 * on failure, with the reason in d or *err */
const Export *export_gguf(const char *folder, const char *path, Diag *d, Arena *a, llmc_error *err);

#endif
