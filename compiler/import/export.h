/* What a GGUF says of a model that lies in a Hugging Face folder: keys, tensors, and which rows of
 * the folder each of them has. A family's `gguf` part is read backwards for it, and what comes of
 * that is read forwards again by import: it must describe the same model, op for op, or it is
 * refused. */
#ifndef LLMC_COMPILER_IMPORT_EXPORT_H
#define LLMC_COMPILER_IMPORT_EXPORT_H

#include "compiler/spec/expr.h"
#include "compiler/graph.h"

typedef struct ExportKey {
	const char *name; /* with the architecture in front */
	SpecExprVal val;  /* NUM, BOOL, STR, or a LIST of numbers */
	bool real;        /* numbers are f32, whatever they are; else u32 */
} ExportKey;

typedef struct ExportTensor {
	const char *name;
	int n_dims;
	int64_t dim[4];     /* row-major: the last is contiguous */
	int64_t rows, cols; /* the same as rows; cols 0: a vector of rows elements */
	bool f32;           /* in every file, as llama.cpp has it */
	const float *value; /* [rows] what the folder has no tensor for; NULL: rows of parts */
} ExportTensor;

/* Rows of a tensor of the file: those that source `source` of `as` takes of it when it is read are
 * rows first .. of `from`, in order. */
typedef struct ExportPart {
	int tensor;
	const PlanTensor *from,
	    *as; /* one tensor of the model, as the folder and as the file store it */
	int source;
	int64_t first;
	float add; /* to each element: norms that the folder stores less 1 */
} ExportPart;

typedef struct Export {
	const char *arch;
	size_t n_key, cap_key, n_tensor, cap_tensor, n_part, cap_part;
	ExportKey *key;
	ExportTensor *tensor;
	ExportPart *part;
} Export;

/* path: that the file will have. NULL: why is in d, or *err. In the arena. */
const Export *export_gguf(const char *folder, const char *path, Diag *d, Arena *a, llmc_error *err);

#endif
