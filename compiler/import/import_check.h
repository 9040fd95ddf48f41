/* Interfaces between the files of import_check */
#ifndef LLMC_COMPILER_IMPORT_IMPORT_CHECK_H
#define LLMC_COMPILER_IMPORT_IMPORT_CHECK_H

#include "compiler/import/import.h"

typedef struct ImportCheck {
	ImportSource *s;
	const Spec *spec;
	int n_missing;
	/* per role: storage by layer, [n_layers + 1]; the last entry is for tensors outside of the
	 * layers */
	size_t n_role, cap_role;
	struct Stored {
		const char *role;
		struct StoredForm *how;
		bool vector;
		int64_t elems;
	} *role;
	/* order of the columns of experts, per layer: [n_layers]; [0] gate and up, [1] down */
	enum ExpertColumns {
		EXPERTS_UNSEEN,
		EXPERTS_PLAIN,
		EXPERTS_ORDERED,
		EXPERTS_MIXED
	} *
	    columns[2];
} ImportCheck;

typedef struct StoredForm {
	Dtype dtype; /* DT_NONE: there is no such tensor */
	const SourceTensor *from;
	const char *order, *factor; /* see StorageRule */
} StoredForm;

typedef struct Role {
	const char *name;
	int64_t rows, cols;
	bool bias;
} Role;

#define ROLE(nm, r, c_, b)                                                                         \
	list->role[list->n++] = (Role)                                                             \
	{                                                                                          \
		nm, r, c_, b                                                                       \
	}

/* Roles of a layer, in the order in which they are checked */
typedef struct RoleList {
	Role role[96]; /* no layer has more roles */
	int n;
} RoleList;

/* import_roles.c */
void import_layer_roles(ImportCheck *c, int l);
void import_outer_roles(ImportCheck *c);

/* import_roles_tower.c: add the roles outside of the layers; set those of a merger in
 * vision.deep */
void import_tower_roles(const Spec *s, RoleList *list);
void import_deep_roles(const Spec *s, RoleList *list);

/* import_draft.c: check the tensor of mtp.tokens */
void import_draft_roles(ImportCheck *c);

/* import_unused.c */
void import_check_unused(ImportCheck *c);

#endif
