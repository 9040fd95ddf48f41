/* A folder of safetensors in the compressed-tensors format, which transformers and vLLM read:
 * the tensors of one matrix, the file header, and the other files of the folder. Codes are
 * symmetric: value = scale * code.
 *
 *   int4   groups of columns with one scale each, eight codes per I32 (pack-quantized)
 *   int8   one scale per row, four codes per I32 (pack-quantized)
 *   fp8    one scale per row, e4m3 (float-quantized)
 *   mxfp4  e2m1, groups of 32 with a power of two each, two codes per byte (mxfp4-pack-quantized)
 */
#ifndef LLMC_QUANT_HF_FOLDER_H
#define LLMC_QUANT_HF_FOLDER_H

#include "base/arena.h"
#include "base/error.h"
#include "formats/dtype.h"

typedef enum FolderForm {
	FOLDER_NONE,
	FOLDER_INT4,
	FOLDER_INT8,
	FOLDER_FP8,
	FOLDER_MXFP4,
	FOLDER_FORMS
} FolderForm;

typedef struct FolderPart {
	const char *name, *type; /* type: spelled as in safetensors */
	int n_dims;
	int64_t dim[8], bytes; /* row-major */
} FolderPart;

enum { FOLDER_PARTS = 3 };

#define FOLDER_WORDS "int4 int8 fp8 mxfp4"

/* FOLDER_NONE: no such word */
FolderForm folder_form(const char *word);
const char *folder_word(FolderForm f);
/* Returns whether a matrix with this many columns fits the format */
bool folder_fits(FolderForm f, int64_t cols, int group);
/* Lists the tensors of a matrix NAME.weight in file order; returns their number. scale: DT_F16,
 * DT_BF16 */
int folder_parts(FolderForm f, const char *name, int64_t rows, int64_t cols, int group, Dtype scale,
                 Arena *a, FolderPart part[FOLDER_PARTS]);
/* Block type to which rows are rounded; DT_NONE: none, use folder_row */
Dtype folder_blocks(FolderForm f, int group, Dtype scale);
/* Converts rows x cols of these blocks to the bytes of the parts */
void folder_from_blocks(Dtype blocks, const void *src, int64_t rows, int64_t cols, uint8_t *dst);
/* Quantises row r to int8 or fp8 and stores it within the bytes of the parts. importance [cols];
 * NULL: uniform */
void folder_row(FolderForm f, Dtype scale, const float *x, const float *importance, int64_t r,
                int64_t rows, int64_t cols, uint8_t *dst);

/* Header of the file: add each tensor, then finish it to a multiple of 8 bytes. *at: bytes of data
 * so far */
void folder_head_add(Strbuf *head, const FolderPart *p, int64_t *at);
void folder_head_text(const Strbuf *head, Strbuf *out);
/* Writes config.json with quantization_config, and copies the folder's other files except weights.
 * ignored: modules that stay unquantised */
llmc_status folder_write_others(const char *in, const char *out, FolderForm f, int group,
                                const char *const *ignored, int n_ignored, llmc_error *err);

#endif
