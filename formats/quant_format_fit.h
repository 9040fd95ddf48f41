/* Types and functions that the readers of quantisation formats share: formats/quant_format_form.c
 * (descriptions and the tensors of a matrix), formats/quant_format.c (planes),
 * formats/quant_format_flat.c (flat codes), formats/quant_format_hqq.c (groups),
 * formats/quant_format_storage.c (descriptions). */
#ifndef LLMC_FORMATS_QUANT_FORMAT_FIT_H
#define LLMC_FORMATS_QUANT_FORMAT_FIT_H

#include "base/json.h"
#include "formats/quant_format.h"
#include "formats/yaml.h"

/* configs/quant_formats/<name>.yaml in the arena; NULL: there is no such file, or it has a mistake,
 * which d reports. */
const Node *quant_format_yaml(Arena *a, Diag *d, const char *name);

struct QuantFormats {
	Arena *a;
	const json_t *quant;     /* quantization_config; NULL: none */
	int64_t hidden;          /* hidden size from config.json; 0: not given */
	const char *known;       /* names of the formats, for errors */
	const char *activations; /* "i8" or "f8" if quantization_config declares it; NULL: none */
	size_t n_form, cap;
	const Node **form;
};

typedef struct Fit {
	const QuantFormats *s;
	const Node *form;
	const char *module; /* "model.layers.0.mlp.up_proj." */
	quant_format_find_fn *find;
	const void *user;
	const char **parts;
	int *n_part;
	llmc_error *err;
} Fit;

/* Value of quantization_config at a dotted path; NULL: none */
const json_t *quant_format_config_value(const QuantFormats *s, const char *path);
/* Returns the module's name if `name` is the form's code tensor and its scales exist, else NULL. */
const char *quant_format_module(const QuantFormats *s, const Node *form, const char *name,
                                quant_format_find_fn *find, const void *user);
/* Is a stored type (have) acceptable for the wanted one? Bytes that are powers of two have their
 * own type (F8_E8M0), but older writers use U8. */
bool quant_format_type_fits(const char *want, const char *have);
llmc_status quant_format_shape_bad(const Fit *f, const QuantFormatPlane *p, const char *want);
bool quant_format_flag(const Node *map, const char *key); /* true if the key is true */
/* NULL: no such key, or not a scalar */
const char *quant_format_text(const Node *map, const char *key);
/* finds a tensor and adds it to the parts; false: no such tensor */
bool quant_format_part(const Fit *f, const char *suffix, QuantFormatTensor *out);
int quant_format_element_bits(const char *type);
bool quant_format_exponents(const char *type);
int64_t quant_format_elements(const QuantFormatTensor *t);
/* Returns the type like `want` with the largest group that divides both `together` and `cols`; F32
 * if there is none */
Dtype quant_format_dtype(DtypeGroup want, int64_t together, int64_t cols);
/* Selects the weight type. F32, which takes eight times the memory of 4 bits, is used only if
 * columns do not fill groups. g: number of columns that share a group */
Dtype quant_format_dtype_of(const QuantFormatMatrix *m, int bits, int64_t g);
/* Reads codes that are stored consecutively, independent of rows, with a table of values
 * (bitsandbytes) */
llmc_status quant_format_flat(const Fit *f, QuantFormatMatrix *m);
/* Reads groups that are stored one below the other, independent of rows (HQQ, quanto) */
llmc_status quant_format_hqq(const Fit *f, QuantFormatMatrix *m);
bool quant_format_hqq_row(const QuantFormatMatrix *m, int64_t row, void *dst);
/* type: F16, BF16 or F32 */
float quant_format_number(const char *type, const uint8_t *data, int64_t i);
/* quant_format_row for m->ggml */
bool quant_format_ggml_row(const QuantFormatMatrix *m, int64_t row, uint8_t *to);
/* quant_format_row for m->flat */
bool quant_format_flat_row(const QuantFormatMatrix *m, int64_t row, void *dst);

#endif
