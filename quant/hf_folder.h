/* A folder of safetensors in the layout of compressed-tensors, which transformers and vLLM read:
 * what one matrix becomes, the head of the file, and what stands beside it. Codes are symmetric:
 * value = scale * code.
 *
 *   int4   groups of columns with a scale each, eight codes an I32 (pack-quantized)
 *   int8   a scale a row, four codes an I32 (pack-quantized)
 *   fp8    a scale a row, e4m3 (float-quantized)
 *   mxfp4  e2m1, groups of 32 with a power of two each, two codes a byte (mxfp4-pack-quantized) */
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
	const char *name, *type; /* type: as safetensors has it */
	int n_dims;
	int64_t dim[8], bytes; /* row-major */
} FolderPart;

enum { FOLDER_PARTS = 3 };

#define FOLDER_WORDS "int4 int8 fp8 mxfp4"

/* FOLDER_NONE: no such word */
FolderForm folder_form(const char *word);
const char *folder_word(FolderForm f);
/* Can a matrix of so many columns take the form? */
bool folder_fits(FolderForm f, int64_t cols, int group);
/* Tensors of a matrix NAME.weight, in the order in which their bytes follow each other; how many.
 * scale: DT_F16, DT_BF16 */
int folder_parts(FolderForm f, const char *name, int64_t rows, int64_t cols, int group, Dtype scale,
                 Arena *a, FolderPart part[FOLDER_PARTS]);
/* The blocks that rows are rounded as; DT_NONE: none, but folder_row makes their bytes */
Dtype folder_blocks(FolderForm f, int group, Dtype scale);
/* rows x cols of these blocks -> the bytes of the parts */
void folder_from_blocks(Dtype blocks, const void *src, int64_t rows, int64_t cols, uint8_t *dst);
/* Row r of int8 and fp8 -> its bytes among those of the parts. importance [cols]; NULL: all the
 * same */
void folder_row(FolderForm f, Dtype scale, const float *x, const float *importance, int64_t r,
                int64_t rows, int64_t cols, uint8_t *dst);

/* The head: each tensor in turn, then all of it, a multiple of 8 bytes; *at: bytes of data so far
 */
void folder_head_add(Strbuf *head, const FolderPart *p, int64_t *at);
void folder_head_text(const Strbuf *head, Strbuf *out);
/* config.json with its quantization_config, and copies of what else the folder has but weights.
 * ignored: modules that stay as they are */
llmc_status folder_beside(const char *in, const char *out, FolderForm f, int group,
                          const char *const *ignored, int n_ignored, llmc_error *err);

#endif
