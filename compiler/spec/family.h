/* Family files: configs/families/<name>.yaml, or families/<name>.yaml next to a description. A
 * family is data: no code depends on a particular family. */
#ifndef LLMC_COMPILER_SPEC_FAMILY_H
#define LLMC_COMPILER_SPEC_FAMILY_H

#include "compiler/spec/spec_table.h"

typedef struct Family {
	const char *name;
	const Node *root;
	const Node *block;  /* the part with values of description keys; NULL: absent */
	const Node *base;   /* root of _hf.yaml or _gguf.yaml */
	const Node *format; /* `hf` or `gguf` of the family; NULL: absent */
} Family;

/* Load a family. dir: folder of the description, NULL: only embedded families are used; at:
 * location of the name */
bool family_load(Family *f, const char *name, const char *dir, const char *format, Loc at, Diag *d,
                 Arena *a);
/* Parse configs/<path>. Returns NULL without an error if there is no such file. */
Node *family_file(const char *path, const char *dir, Diag *d, Arena *a);
/* Merge the tensor rules of the format, the family and the description into t, with full names. f
 * NULL: only those of the description */
const TensorRule *family_rules(SpecTable *t, const Family *f, int *n);
/* Return the rule of a role, alone or stacked; NULL: none. */
const TensorRule *rule_for(const TensorRule *rule, int n, const char *role);
/* Expand {l} and {e} in the rule's tensor name, and append suffix unless the name is complete. The
 * result is in the arena. */
const char *rule_name(Arena *a, const TensorRule *r, int layer, int expert, const char *suffix);
/* Like rule_name, for a layer of a model. "{+text}" becomes "text" in layers that share a block,
 * otherwise "". For roles of shared blocks (shared_), {l} is the first layer of the block, and {e}
 * the index of the layer among those with a block. For mergers of a tower (deep_), {l} is the
 * number of the merger, and {deep} that of its layer. */
const char *rule_name_in(Arena *a, const Spec *s, const TensorRule *r, int layer, int expert,
                         const char *suffix);
bool rule_has_role(const char *roles, const char *role); /* "q+k+v" has "k" */

/* Return whether the columns of the role's matrix can be permuted by permuting x. This is not
 * possible for lookup tables, or if experts or heads share x. */
bool role_permutes(const char *role);

#endif
