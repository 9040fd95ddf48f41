/* Keys of a description as a table. For each row of spec.def it has the value, the layer that set
 * the value, and the location. */
#ifndef LLMC_COMPILER_SPEC_SPEC_TABLE_H
#define LLMC_COMPILER_SPEC_SPEC_TABLE_H

#include "compiler/spec/expr.h"
#include "compiler/spec/spec.h"
#include "formats/yaml.h"

typedef enum SpecKey {
#define KEY(id, path, type, def, lo, hi, unit, text) K_##id,
#include "compiler/spec/spec.def"
#undef KEY
	K_COUNT
} SpecKey;

typedef enum SpecType {
	TYPE_INT,
	TYPE_NUM,
	TYPE_BYTES,
	TYPE_BOOL,
	TYPE_WORD,
	TYPE_STR,
	TYPE_LAYERS,
	TYPE_INTS,
	TYPE_NUMS,
	TYPE_RULES,
	TYPE_TENSORS,
} SpecType;

typedef struct SpecKeyInfo {
	const char *path;
	SpecType type;
	const char *def; /* default; NULL: the key is required */
	double lo, hi;
	const char *unit, *text;
} SpecKeyInfo;
extern const SpecKeyInfo spec_key[K_COUNT];
int spec_key_find(const char *path); /* -1: no such key */

/* Layers of values. A later layer overrides earlier ones. */
typedef enum SpecFrom { FROM_DEFAULT, FROM_FAMILY, FROM_TEXT, FROM_SET } SpecFrom;

typedef struct SpecVal {
	SpecFrom from;
	bool given;      /* set by a layer other than the defaults */
	bool known;      /* has a value: it was set, or its default could be evaluated */
	double num;      /* INT, NUM, BYTES, BOOL */
	const char *str; /* WORD, STR; NULL: none */
	int n;           /* INTS, NUMS */
	const double *list;
	const Node *node;      /* LAYERS, RULES, TENSORS: the value as written */
	const uint8_t *layers; /* LAYERS: [n_layers], valid when n_layers is known */
	Loc loc;
} SpecVal;

typedef struct SpecTable {
	Diag *d;
	Arena *a;
	Loc file; /* location at which missing keys are reported */
	SpecVal val[K_COUNT];
	const Node *names[3]; /* `tensors` of the layers FAMILY, TEXT, SET */
	int n_storage;
	const StorageRule *storage;
} SpecTable;

/* Apply one layer of values: a map of maps, with keys as in spec.def. Errors go to t->d */
void spec_table_apply(SpecTable *t, const Node *map, SpecFrom from);
/* Evaluate defaults, resolve layer selectors and read storage rules. */
void spec_table_finish(SpecTable *t);
int64_t spec_int(const SpecTable *t, SpecKey k);
bool spec_word_is(const SpecTable *t, SpecKey k, const char *word);
/* Write the value as YAML text that parses to an equal value. */
const char *spec_val_text(const SpecTable *t, SpecKey k, Arena *a);
/* Write a string as a YAML scalar. It is quoted if plain text would parse as another value. */
const char *spec_quote(Arena *a, const char *text);

/* spec_check.c: rules between keys */
void spec_check(SpecTable *t);
/* spec_fill.c: fill the fields from a complete table, except tensor rules and adapters */
void spec_fill(const SpecTable *t, Spec *s);
/* spec_text.c: write the resolved description, and set the location of each key to its line in that
 * text */
char *spec_resolved_text(SpecTable *t, const TensorRule *rule, int n_rule);

#endif
