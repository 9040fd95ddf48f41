/* Quantisation formats of safetensors checkpoints. Such a checkpoint stores a matrix as several
 * tensors: codes, scales, zero points, a column order. configs/quant_formats/ describes the
 * formats. This reader joins them to one tensor, named like the unquantised matrix. Its type is one
 * of GROUP_DTYPES, MXFP4 or NVFP4 (dtype.h), or F32 if the grouping fits no block. Rows are
 * converted when they are read, and have exactly the file's values. Callers do not see the original
 * format.
 *
 * Columns whose groups are not consecutive (desc_act, actorder) are sorted by group, and factors of
 * columns stay outside of blocks. `order` and `factor` apply to the activations x instead: sum_k
 * w[k] x[k] = sum_j block[j] * factor[j] * x[order[j]]. */
#ifndef LLMC_FORMATS_QUANT_FORMAT_H
#define LLMC_FORMATS_QUANT_FORMAT_H

#include "base/arena.h"
#include "base/error.h"
#include "formats/dtype.h"

/* One tensor of a quantised matrix. Fields of `bits` bits are `step` elements apart along one axis
 * (index `at`), and `other_step` elements apart along the other axis (index `other`). */
typedef struct QuantFormatPlane {
	const uint8_t *data;     /* NULL: the plane is absent */
	const char *name, *type; /* type: spelled as in safetensors */
	/* leading dimensions of 1 are dropped; others beyond two are flattened into dim[0] */
	int64_t dim[2];
	int64_t step, other_step;
	int bits, element; /* element: bits per stored element */
	int add;           /* added to each field, modulo its range */
	int8_t place[8];   /* slot of field i % 8 in its element */
	int64_t stack;     /* number of matrices stacked in the first dimension; 0: one matrix */
} QuantFormatPlane;

typedef enum QuantFormatCodes {
	QUANT_FORMAT_INT,
	QUANT_FORMAT_E4M3,
	QUANT_FORMAT_E2M1
} QuantFormatCodes;
typedef struct QuantFormatFlat QuantFormatFlat;
typedef struct QuantFormatHqq QuantFormatHqq;

typedef struct QuantFormatMatrix {
	Dtype dtype;
	int64_t rows, cols;
	int64_t stack; /* number of stacked matrices that the rows belong to; 0: one matrix */
	QuantFormatCodes codes;         /* encoding of the codes */
	int64_t block_rows, block_cols; /* rows and columns per scale */
	bool code_along_out, zero_along_out,
	    /* code_along_out, zero_along_out: axis of packed fields; scale_by_out: scales are [out,
	     * group], else [group, out] */
	    scale_by_out;
	bool eetq, quarters;
	/* difference between a stored code and the code that zero points refer to */
	int offset;
	float over;                  /* divisor of scales; 0: none */
	bool divides;                /* values are divided by scales */
	float whole;                 /* factor of the whole tensor */
	const uint8_t *column_group; /* I32: group of each column; NULL: consecutive columns */
	/* [cols] factor that x is multiplied by before the matrix; NULL: 1 */
	const float *column_scale;
	bool indexed; /* the file lists the group of each column, consecutive or not */
	/* [cols] column order[j] of the matrix is stored at column j of the blocks; NULL: column
	 * j */
	const float *order;
	/* [cols] factor of stored column j that blocks do not include; NULL: none */
	const float *factor;
	/* xor'ed with codes, and with zero points if packed: two's complement to offset binary */
	int flip;
	int middle; /* code of value 0 if there are no zero points */
	/* F32 [row, group, 2]: min and max, from which scale and zero point follow (FastLLM); NULL:
	 * planes hold them */
	const uint8_t *range;
	const QuantFormatFlat
	    *flat;                 /* flat codes independent of rows (bitsandbytes); NULL: planes */
	const QuantFormatHqq *hqq; /* groups independent of rows (HQQ, quanto) */
	const uint8_t *ggml;       /* GGUF blocks of type ggml_type: quant_format_of_ggml */
	uint32_t ggml_type;
	/* F32 [n_ggml_scale], each for rows / n_ggml_scale rows; NULL: 1 */
	const uint8_t *ggml_scale;
	int64_t n_ggml_scale;
	QuantFormatPlane code, scale, zero;
	QuantFormatPlane least; /* minimum per scale, in place of a zero point; absent: 0 */
} QuantFormatMatrix;

/* A tensor of the file, looked up by name. */
typedef struct QuantFormatTensor {
	const char *name, *type;
	int n_dims;
	const int64_t *dim;
	const void *data;
} QuantFormatTensor;
typedef bool quant_format_find_fn(const void *user, const char *name, QuantFormatTensor *out);

typedef struct QuantFormats QuantFormats;

/* Next to "x.weight" such a checkpoint has "x.column_order" and "x.column_factor", F32 [cols]. If
 * some matrices have an order, all matrices with group indices get one (possibly 0, 1, 2, ...),
 * because either all matrices of experts must have an order or none. */
#define QUANT_FORMAT_ORDER "column_order"
#define QUANT_FORMAT_FACTOR "column_factor"

/* Loads the formats into the arena. config: text of config.json, untrusted; NULL: no config.json,
 * so no `when` condition on it holds. */
llmc_status quant_formats_open(Arena *a, const char *config, size_t n, QuantFormats **out,
                               llmc_error *err);
/* Tests whether `name` is the code tensor of a quantised matrix. If so, *out is the matrix (in the
 * arena), *made its name, and parts[0 .. *n_part) the names of all tensors that it uses. Otherwise
 * *out is NULL. E_INPUT: the tensors do not match each other, or llmc does not support the form. */
enum { QUANT_FORMAT_MAX_PARTS = 24 };
llmc_status quant_format_matrix(const QuantFormats *s, const char *name, quant_format_find_fn *find,
                                const void *user, QuantFormatMatrix **out, const char **made,
                                const char *parts[QUANT_FORMAT_MAX_PARTS], int *n_part,
                                llmc_error *err);
/* GGUF types whose blocks are converted to blocks of another type: NVFP4; Q1_0 (a sign times an
 * f16); Q2_0 (code - 1, times an f16) */
enum { GGML_NVFP4 = 40, GGML_Q1_0 = 41, GGML_Q2_0 = 42 };
typedef struct QuantFormatGgml {
	uint32_t type;
	Dtype dtype;      /* type of converted rows */
	int elems, bytes; /* block of the file */
} QuantFormatGgml;
const QuantFormatGgml *quant_format_ggml(uint32_t type); /* NULL: another type */
/* cols is a multiple of the block size. NVFP4 has a factor per tensor or per expert in a separate
 * tensor: scale, F32 [n], n a divisor of rows; NULL: 1. */
QuantFormatMatrix *quant_format_of_ggml(Arena *a, uint32_t type, const void *data, int64_t rows,
                                        int64_t cols, const void *scale, int64_t n);
/* Converts row `row` to blocks of the matrix's type: dtype_row_bytes(m->dtype, m->cols) bytes.
 * Thread safe. Returns false if a scale is NaN or infinite. */
bool quant_format_row(const QuantFormatMatrix *m, int64_t row, void *dst);
/* Converts row `row` of a matrix with order or factor to fp32: original column order, factors
 * included. Returns false if a scale is NaN or infinite. */
bool quant_format_row_f32(const QuantFormatMatrix *m, int64_t row, float *dst);
/* Returns the supported formats: "gptq, awq, ..." */
const char *quant_formats_known(const QuantFormats *s);
/* Returns the method that config.json names; NULL: no quantization_config, "": it names none */
const char *quant_formats_method(const QuantFormats *s);
/* Returns the type of activations that config.json declares for quantised matrices, "i8" or "f8";
 * NULL: none, or a type with another number of bits */
const char *quant_formats_activations(const QuantFormats *s);

#endif
