/* Schemes: how safetensors checkpoints store a quantised matrix, as several tensors: codes, scales,
 * zero points, an order of columns. configs/schemes/ describes them; here such tensors become one,
 * named as the unquantised matrix is, of a type of weights (one of GROUP_DTYPES, MXFP4, NVFP4 of
 * dtype.h; F32 where no block has the columns as they are grouped), whose rows are made when they
 * are asked for. Nobody above knows that there was a scheme. A row's values are the file's,
 * exactly.
 *
 * Columns whose groups are no neighbours (desc_act, actorder) are brought into an order in which
 * they are, and what columns are multiplied by stays out of blocks: `order` and `factor`, for
 * whoever makes x: sum_k w[k] x[k] = sum_j block[j] * factor[j] * x[order[j]]. */
#ifndef LLMC_FORMATS_SCHEME_H
#define LLMC_FORMATS_SCHEME_H

#include "base/arena.h"
#include "base/error.h"
#include "formats/dtype.h"

/* A tensor of the file that has a part of a matrix. Fields of `bits` lie along one axis (position
 * `at`), `step` elements apart; along the other (position `other`), `other_step` apart. */
typedef struct SchemePlane {
	const uint8_t *data;     /* NULL: the plane is absent */
	const char *name, *type; /* type: as safetensors has it */
	int64_t dim[2]; /* leading dimensions of 1 and more than two are flattened into the first */
	int64_t step, other_step;
	int bits, element; /* element: bits of one */
	int add;           /* to each field, modulo its range */
	int8_t place[8];   /* of field i % 8 in its element */
	int64_t stack;     /* matrices one below the other in the first dimension; 0: one */
} SchemePlane;

typedef enum SchemeCodes { SCHEME_INT, SCHEME_E4M3, SCHEME_E2M1 } SchemeCodes;
typedef struct SchemeFlat SchemeFlat;
typedef struct SchemeHqq SchemeHqq;

typedef struct SchemeMatrix {
	Dtype dtype;
	int64_t rows, cols;
	int64_t stack;                  /* rows are those of so many matrices; 0: of one */
	SchemeCodes codes;              /* what they stand for */
	int64_t block_rows, block_cols; /* rows and columns of one scale */
	bool code_along_out, zero_along_out,
	    scale_by_out; /* axis of fields; scales: [out, group], else [group, out] */
	bool eetq, quarters;
	int offset;   /* what codes as stored are above the ones that zero points are for */
	float over;   /* scales are divided by it; 0: they are not */
	bool divides; /* values are divided by scales */
	float whole;  /* and multiplied by it, which holds for all of the tensor */
	const uint8_t *column_group; /* I32: the group of each column; NULL: neighbours */
	const float
	    *column_scale; /* [cols] what x is multiplied by before it meets the columns; NULL: 1 */
	bool indexed;      /* the file says the group of each column, be they neighbours or not */
	const float *order; /* [cols] rows of blocks hold column order[j] of the matrix in place j;
	                       NULL: column j */
	const float
	    *factor; /* [cols] and lack a factor of column j of the blocks; NULL: they do not */
	int flip; /* codes, and zero points of packed ones, are xor'ed with it: two's complement to
	             offset binary */
	int middle;             /* the code that stands for 0 where there are no zero points */
	const uint8_t *range;   /* F32 [row, group, 2]: the least and the largest value, which give
	                           scale and zero point; NULL: planes do (FastLLM) */
	const SchemeFlat *flat; /* codes without rows; NULL: planes */
	const SchemeHqq *hqq;   /* groups without rows */
	const uint8_t *ggml;    /* blocks of a GGUF, of the type ggml_type: scheme_of_ggml */
	uint32_t ggml_type;
	const uint8_t *ggml_scale; /* F32 [n_ggml_scale], each of so many rows; NULL: 1 */
	int64_t n_ggml_scale;
	SchemePlane code, scale, zero;
	SchemePlane least; /* of each scale what is added, instead of a zero point; absent: 0 */
} SchemeMatrix;

/* A file's tensors by name; false: no such tensor. */
typedef struct SchemeTensor {
	const char *name, *type;
	int n_dims;
	const int64_t *dim;
	const void *data;
} SchemeTensor;
typedef bool scheme_find_fn(const void *user, const char *name, SchemeTensor *out);

typedef struct Schemes Schemes;

/* Beside "x.weight" a checkpoint then has "x.column_order" and "x.column_factor", F32 [cols]; where
 * some matrices have an order, those that are indexed have one too (0, 1, 2, ...), since matrices
 * of experts have orders or none together. */
#define SCHEME_ORDER "column_order"
#define SCHEME_FACTOR "column_factor"

/* The schemes, in the arena. config: the text of config.json, untrusted; NULL: there is none, and
 * nothing is equal to what `when` says. */
llmc_status schemes_open(Arena *a, const char *config, size_t n, Schemes **out, llmc_error *err);
/* Is `name` the codes of a matrix? Then *out is it, in the arena, *made the name of it, and parts[0
 * .. *n_part) the names of all tensors that it takes. *out NULL: it is not. E_INPUT: tensors that
 * do not fit each other, or a form that is refused. */
enum { SCHEME_MAX_PARTS = 24 };
llmc_status scheme_matrix(const Schemes *s, const char *name, scheme_find_fn *find,
                          const void *user, SchemeMatrix **out, const char **made,
                          const char *parts[SCHEME_MAX_PARTS], int *n_part, llmc_error *err);
/* Types of GGUF whose blocks become those of another type: NVFP4; Q1_0, signs of one f16; Q2_0,
 * (code - 1) times one */
enum { GGML_NVFP4 = 40, GGML_Q1_0 = 41, GGML_Q2_0 = 42 };
typedef struct SchemeGgml {
	uint32_t type;
	Dtype dtype;      /* what rows are made of */
	int elems, bytes; /* of a block of the file */
} SchemeGgml;
const SchemeGgml *scheme_ggml(uint32_t type); /* NULL: another type */
/* cols is a multiple of a block, data has rows of such. NVFP4: the factor of the tensor, or of each
 * expert, is a tensor of its own: scale, F32 [n], n a divisor of rows; NULL: it is 1. */
SchemeMatrix *scheme_of_ggml(Arena *a, uint32_t type, const void *data, int64_t rows, int64_t cols,
                             const void *scale, int64_t n);
/* Row `row` as blocks of the matrix's type: dtype_row_bytes(m->dtype, m->cols) bytes. Any thread.
 * false: a scale is NaN or infinite. */
bool scheme_row(const SchemeMatrix *m, int64_t row, void *dst);
/* The matrix that has order or factor, as it is multiplied by: row `row` in fp32, columns in their
 * places. false: as above */
bool scheme_row_f32(const SchemeMatrix *m, int64_t row, float *dst);
/* "gptq, awq, ...": what is read */
const char *schemes_known(const Schemes *s);
/* What config.json calls the method; NULL: it has no quantization_config, "": no name */
const char *schemes_method(const Schemes *s);

#endif
