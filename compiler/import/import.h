/* Import: a checkpoint's own description (config.json, or the header of a GGUF file) -> YAML,
 * driven by the family files.
 *
 * import_hf.c, import_gguf.c and import_flm.c read a checkpoint into a Source: flat keys and a list
 * of tensors, all in the arena. import_map.c finds the family and turns keys into values.
 * import_check.c holds the result against the tensors; import_nearest.c says what an unknown model
 * is most like. Nothing here names a family. */
#ifndef LLMC_COMPILER_IMPORT_H
#define LLMC_COMPILER_IMPORT_H

#include "base/json.h"
#include "compiler/spec/family.h"

typedef struct SourceKey {
	const char *name; /* "rope_scaling.factor" */
	SpecExprVal val;
	bool used;
} SourceKey;

typedef struct SourceTensor {
	const char *name;
	Dtype dtype; /* DT_NONE: dtype_name says what */
	const char *dtype_name;
	int n_dims;
	int64_t dim[8]; /* row-major in both formats */
	bool used;
	bool zeros;                  /* a bias beside quantised matrices, all of it 0 */
	const float *order, *factor; /* of a matrix's columns (formats/scheme.h); NULL: none */
	const void *data;            /* of folders, until weights are closed; NULL: not at hand */
	int64_t bytes;
} SourceTensor;

typedef struct ImportSource {
	Diag *d;
	Arena *a;
	const char *path;
	const char *file;   /* for messages: config.json's path, or the file's */
	const char *format; /* hf | gguf */
	const char *arch;   /* gguf: general.architecture, which stands in front of keys */
	size_t n_key, cap_key;
	SourceKey *key;
	bool have_tensors;
	bool allow_unknown_keys;
	bool wrapper; /* the language model of something that has other parts, whose tensors are not
	                 ours */
	size_t n_tensor;
	SourceTensor *tensor; /* sorted by name */
	void *weights; /* what holds their data, closed with the arena or by source_close_weights */
	Family family;
	const char *value[K_COUNT]; /* YAML text of each key that import gives; NULL: none */
} ImportSource;

/* Fill keys and tensors. false: an error is in s->d or *err. */
bool source_read_hf(ImportSource *s, llmc_error *err);
bool source_read_gguf(ImportSource *s, llmc_error *err);
bool source_read_flm(ImportSource *s, llmc_error *err);
/* For those above: a config.json's keys; the tensors of s->path, which is a checkpoint. */
void source_take_config(ImportSource *s, const json_t *root);
bool source_take_weights(ImportSource *s, llmc_error *err);
void source_close_weights(ImportSource *s);
/* What crosses families: rope, dtype, eos. Before import_map, so that `$key` and virtual keys are
 * there. */
void source_convert_hf(ImportSource *s);
void source_convert_gguf(ImportSource *s);

SourceKey *source_key(ImportSource *s, const char *name);  /* marks it as used; NULL: absent */
SpecExprVal source_val(ImportSource *s, const char *name); /* marks it as used; null: absent */
bool source_num(ImportSource *s, const char *name, double *out);
const char *source_str(ImportSource *s, const char *name);         /* NULL: absent, or no text */
void source_add(ImportSource *s, const char *name, SpecExprVal v); /* hides nothing that is there */
void source_use(ImportSource *s, const char *pattern);             /* mark keys as used */
SourceTensor *source_tensor(const ImportSource *s, const char *name);
void source_sort(ImportSource *s); /* tensors, once they are all there */
void source_set(ImportSource *s, SpecKey k, const char *text);
void source_set_num(ImportSource *s, SpecKey k, double v);
bool source_set_layers(ImportSource *s, SpecKey k, SpecExprVal layer_types);
const char *family_word(const ImportSource *s,
                        SpecKey k); /* what the family's blocks say; NULL: nothing */

/* From keys and tensors to YAML (arena); NULL: errors are in s->d */
char *import_source(ImportSource *s);
const char *import_text(const ImportSource *s); /* what s->value says, as YAML */
bool import_family(ImportSource *s);            /* match */
bool import_eval(ImportSource *s, const Node *n,
                 SpecExprVal *out); /* an expression over the source's keys */
void import_nearest(ImportSource *s, const Family *family,
                    size_t n);    /* a note: which of these is nearest, and how it differs */
void import_map(ImportSource *s); /* keys, values, when, expect, unknown keys */
bool
import_expected(const Node *want,
                SpecExprVal v); /* is v one of the values that a family's `expect` has for a key? */
bool import_names(ImportSource *s,
                  const Spec *spec); /* true: values changed, make the Spec again */
void import_check(
    ImportSource *s,
    const Spec *spec); /* every tensor named is there and right, every other one is reported */

#endif
