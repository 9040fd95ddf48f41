/* What the files of schemes share: formats/scheme.c (planes), formats/scheme_flat.c (codes without
 * rows), formats/scheme_storage.c (descriptions). */
#ifndef LLMC_FORMATS_SCHEME_FIT_H
#define LLMC_FORMATS_SCHEME_FIT_H

#include "base/json.h"
#include "formats/scheme.h"
#include "formats/yaml.h"

/* configs/schemes/<name>.yaml in the arena; NULL: there is none, or a mistake in it, which is in d.
 */
const Node *scheme_yaml(Arena *a, Diag *d, const char *name);

struct Schemes {
	Arena *a;
	const json_t *quant; /* quantization_config; NULL: none */
	int64_t hidden;      /* the model's width as config.json has it; 0: it does not say */
	const char *known;   /* names, for errors */
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

const char *scheme_text(const Node *map, const char *key); /* NULL: no such key, or no scalar */
bool scheme_part(const Fit *f, const char *suffix,
                 SchemeTensor *out); /* counted among the parts; false: no such tensor */
int scheme_element_bits(const char *type);
bool scheme_exponents(const char *type);
int64_t scheme_elements(const SchemeTensor *t);
/* The type of groups like `want`, of as many columns as divide both; F32: there is none */
Dtype scheme_dtype(DtypeGroup want, int64_t together, int64_t cols);
/* Codes that lie one after the other, whatever the rows, with a table of what they stand for
 * (bitsandbytes) */
llmc_status scheme_flat(const Fit *f, SchemeMatrix *m);
/* Groups that lie one below the other, whatever the rows (HQQ, quanto) */
llmc_status scheme_hqq(const Fit *f, SchemeMatrix *m);
bool scheme_hqq_row(const SchemeMatrix *m, int64_t row, void *dst);
float scheme_number(const char *type, const uint8_t *data, int64_t i); /* of F16, BF16, F32 */
bool scheme_ggml_row(const SchemeMatrix *m, int64_t row, uint8_t *to); /* and of a GGUF */
bool scheme_flat_row(const SchemeMatrix *m, int64_t row, void *dst);   /* scheme_row of such */

#endif
