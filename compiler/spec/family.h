/* Family files: configs/families/<name>.yaml, or families/<name>.yaml beside a description. A
 * family is data: nothing here knows any of them. */
#ifndef LLMC_COMPILER_SPEC_FAMILY_H
#define LLMC_COMPILER_SPEC_FAMILY_H

#include "compiler/spec/spec_table.h"

typedef struct Family {
	const char *name;
	const Node *root;
	const Node *block;  /* the primitives; NULL: none written */
	const Node *base;   /* root of _hf.yaml or _gguf.yaml */
	const Node *format; /* `hf` or `gguf` of the family; NULL: it says nothing of that format */
} Family;

/* dir: folder of the description, NULL: only families that llmc carries. at: where the name was
 * written. */
bool family_load(Family *f, const char *name, const char *dir, const char *format, Loc at, Diag *d,
                 Arena *a);
/* configs/<path> parsed; NULL: no such file, nothing reported */
Node *family_file(const char *path, const char *dir, Diag *d, Arena *a);
/* Tensor rules of t with full names: the format's, the family's and the description's; f NULL: the
 * description's alone. */
const TensorRule *family_rules(SpecTable *t, const Family *f, int *n);
/* The rule that holds this role, alone or stacked; NULL: none. */
const TensorRule *rule_for(const TensorRule *rule, int n, const char *role);
/* The tensor that a rule names: "model.layers.{l}.x.{e}" with the numbers in place, and suffix,
 * unless the name is complete. In the arena. */
const char *rule_name(Arena *a, const TensorRule *r, int layer, int expert, const char *suffix);
/* The same in a model: "{+text}" is text in layers that share a block, nothing in others; roles of
 * such blocks (shared_) go by the number of the block's first layer, and {e} by that of the layer
 * among those that have one. */
const char *rule_name_in(Arena *a, const Spec *s, const TensorRule *r, int layer, int expert,
                         const char *suffix);
bool rule_has_role(const char *roles, const char *role); /* "q+k+v" has "k" */

/* Is x of a role's matrix the step's, so that it may be brought into another order first? Not where
 * rows are looked up, or experts and heads share it. */
bool role_arranges(const char *role);

#endif
