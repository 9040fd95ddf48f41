/* Shared by the readers of quantisation formats: formats/scheme_form.c (descriptions and the
 * tensors of a matrix), formats/scheme.c (planes), formats/scheme_flat.c (flat codes),
 * formats/scheme_hqq.c (groups), formats/scheme_storage.c (descriptions). */
#ifndef LLMC_FORMATS_SCHEME_FIT_H
#define LLMC_FORMATS_SCHEME_FIT_H

#include "base/json.h"
#include "formats/scheme.h"
#include "formats/yaml.h"

/* configs/schemes/<name>.yaml in the arena; NULL: there is none, or it has a mistake, which is in
 * d. */
const Node *scheme_yaml(Arena *a, Diag *d, const char *name);

struct Schemes {
	Arena *a;
	const json_t *quant; /* quantization_config; NULL: none */
	int64_t hidden;      /* hidden size from config.json; 0: not given */
	const char *known;   /* names of the formats, for errors */
	size_t n_form, cap;
	const Node **form;
};

typedef struct Fit {
	const Schemes *s;
	const Node *form;
	const char *module; /* "model.layers.0.mlp.up_proj." */
	scheme_find_fn *find;
	const void *user;
	const char **parts;
	int *n_part;
	llmc_error *err;
} Fit;

/* Value of quantization_config at a dotted path; NULL: none */
const json_t *scheme_config_value(const Schemes *s, const char *path);
/* Returns the module's name if `name` is the form's code tensor and its scales exist, else NULL. */
const char *scheme_module(const Schemes *s, const Node *form, const char *name,
                          scheme_find_fn *find, const void *user);
/* Power-of-two bytes have a type of their own (F8_E8M0), but many writers predate it and use U8. */
bool scheme_type_fits(const char *want, const char *have);
llmc_status scheme_shape_bad(const Fit *f, const SchemePlane *p, const char *want);
bool scheme_flag(const Node *map, const char *key);        /* true if the key is true */
const char *scheme_text(const Node *map, const char *key); /* NULL: no such key, or not a scalar */
/* finds a tensor and adds it to the parts; false: no such tensor */
bool scheme_part(const Fit *f, const char *suffix, SchemeTensor *out);
int scheme_element_bits(const char *type);
bool scheme_exponents(const char *type);
int64_t scheme_elements(const SchemeTensor *t);
/* Type like `want` with the most columns per group that divide both `together` and `cols`; F32:
 * none */
Dtype scheme_dtype(DtypeGroup want, int64_t together, int64_t cols);
/* Selects the weight type. F32 can hold any values, but takes eight times the memory of 4 bits; it
 * is used for columns that do not fill groups. g: columns that share a group */
Dtype scheme_dtype_of(const SchemeMatrix *m, int bits, int64_t g);
/* Codes stored consecutively, independent of rows, with a table of values (bitsandbytes) */
llmc_status scheme_flat(const Fit *f, SchemeMatrix *m);
/* Groups stored one below the other, independent of rows (HQQ, quanto) */
llmc_status scheme_hqq(const Fit *f, SchemeMatrix *m);
bool scheme_hqq_row(const SchemeMatrix *m, int64_t row, void *dst);
float scheme_number(const char *type, const uint8_t *data, int64_t i); /* type: F16, BF16 or F32 */
bool scheme_ggml_row(const SchemeMatrix *m, int64_t row, uint8_t *to); /* scheme_row for m->ggml */
bool scheme_flat_row(const SchemeMatrix *m, int64_t row, void *dst);   /* scheme_row for m->flat */

#endif
