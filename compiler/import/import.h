/* Import: convert a checkpoint's own description (config.json, or the header of a GGUF file) to
 * YAML, driven by the family files.
 *
 * import_hf.c, import_gguf.c and import_flm.c read a checkpoint into an ImportSource. It has flat
 * keys and a list of tensors, all in the arena. import_map.c finds the family and converts keys to
 * values. import_check.c compares the result with the tensors. import_nearest.c names the most
 * similar family of an unknown model. No code here names a family. */
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
	Dtype dtype; /* DT_NONE: unknown; see dtype_name */
	const char *dtype_name;
	int n_dims;
	int64_t dim[8]; /* row-major, for both formats */
	bool used;
	bool zeros; /* the bias of a quantised matrix, all of whose values are 0 */
	/* order and factors of the matrix's columns (formats/quant_format.h); NULL: none */
	const float *order, *factor;
	/* data of a folder: valid until the weights are closed; NULL: not mapped */
	const void *data;
	int64_t bytes;
} SourceTensor;

typedef struct ImportSource {
	Diag *d;
	Arena *a;
	const char *path;
	const char *file;   /* path of config.json or of the checkpoint file, for messages */
	const char *format; /* "hf", "gguf" or "mmproj" */
	const char *arch;   /* GGUF: general.architecture, the prefix of keys */
	size_t n_key, cap_key;
	SourceKey *key;
	bool have_tensors;
	bool allow_unknown_keys;
	bool tower; /* import the vision tower of the checkpoint instead of its language model */
	const char *mmproj;    /* file that contains the tower of this language model; NULL: none */
	const ImportModel *of; /* model that a draft checkpoint belongs to; NULL: not known */
	bool wrapper; /* the language model of a multimodal wrapper; tensors of the wrapper's other
	                 parts are ignored */
	bool has_vision, has_audio; /* parts that the wrapper has */
	size_t n_tensor;
	SourceTensor *tensor; /* sorted by name */
	/* owner of the tensors' data; closed with the arena or by source_close_weights */
	void *weights;
	Family family;
	const char *value[K_COUNT]; /* YAML text of each key that import sets; NULL: not set */
} ImportSource;

/* Read keys and tensors. Returns false if an error is in s->d or *err. */
bool source_read_hf(ImportSource *s, llmc_error *err);
bool source_read_gguf(ImportSource *s, llmc_error *err);
bool source_read_flm(ImportSource *s, llmc_error *err);
/* Helpers of the readers: take the keys of a config.json, and the tensors of the checkpoint
 * s->path. */
void source_take_config(ImportSource *s, const json_t *root);
bool source_take_weights(ImportSource *s, llmc_error *err);
void source_close_weights(ImportSource *s);
/* Convert keys that all families share: rope, dtype, eos. Runs before import_map, so that family
 * files can use `$key` and keys that only import makes. */
void source_convert_hf(ImportSource *s);
void source_convert_gguf(ImportSource *s);

/* marks the key as used; NULL: there is no such key */
SourceKey *source_key(ImportSource *s, const char *name);
/* marks the key as used; null: there is no such key */
SpecExprVal source_val(ImportSource *s, const char *name);
bool source_num(ImportSource *s, const char *name, double *out);
/* NULL: there is no such key, or its value is not a string */
const char *source_str(ImportSource *s, const char *name);
void source_add(ImportSource *s, const char *name, SpecExprVal v); /* keeps an existing key */
void source_use(ImportSource *s, const char *pattern);             /* marks keys as used */
SourceTensor *source_tensor(const ImportSource *s, const char *name);
/* sorts the tensors; must be called after the last one is added */
void source_sort(ImportSource *s);
void source_set(ImportSource *s, SpecKey k, const char *text);
void source_set_num(ImportSource *s, SpecKey k, double v);
bool source_set_layers(ImportSource *s, SpecKey k, SpecExprVal layer_types);
/* Name of the tensor for a role in the family; NULL: none */
const char *family_tensor(const ImportSource *s, const char *role);
/* value in the family's part of the description; NULL: none */
const char *family_word(const ImportSource *s, SpecKey k);

/* Convert keys and tensors to YAML, in the arena. NULL: errors are in s->d */
char *import_source(ImportSource *s, llmc_error *err);
const char *import_text(const ImportSource *s); /* s->value as YAML */
bool import_family(ImportSource *s);            /* finds the family whose `match` holds */
/* evaluates an expression over the source's keys */
bool import_eval(ImportSource *s, const Node *n, SpecExprVal *out);
/* adds a note that names the most similar family and the differences */
void import_nearest(ImportSource *s, const Family *family, size_t n);
/* applies keys, values, when and expect, and reports unknown keys */
void import_map(ImportSource *s);
/* Return whether v is one of the values that the family's `expect` allows for the key. */
bool import_expected(const Node *want, SpecExprVal v);
/* true: values have changed, so the Spec must be built again */
bool import_names(ImportSource *s, const Spec *spec);
/* import_draft.c: add to a draft checkpoint the tensors that it takes from its model */
bool import_add_model(ImportSource *s, llmc_error *err);
/* checks that every named tensor exists with the right shape, and reports all errors and all
 * other tensors */
void import_check(ImportSource *s, const Spec *spec);

#endif
