/* Compare a value of the checkpoint with the `expect` of a family. */
#include <string.h>

#include "compiler/import/import.h"

static bool
is_expected(const Node *want, SpecExprVal v)
{
	double num;
	bool b;

	if (want->kind != NODE_SCALAR)
		return false;
	if (node_is_null(want))
		return v.kind == EXPR_NULL;
	if (strcmp(want->text, "any") == 0 && !want->quoted)
		return true;
	if (strcmp(want->text, "given") == 0 && !want->quoted)
		return v.kind != EXPR_NULL;
	if (node_bool(want, &b))
		return (v.kind == EXPR_BOOL || v.kind == EXPR_NUM) && (v.num != 0) == b;
	if (node_num(want, &num))
		return (v.kind == EXPR_BOOL || v.kind == EXPR_NUM) && v.num == num;
	return v.kind == EXPR_STR && strcmp(v.str, want->text) == 0;
}

bool
import_expected(const Node *want, SpecExprVal v)
{
	bool ok = false;

	for (size_t i = 0; i < (want->kind == NODE_LIST ? want->n : 1); i++)
		ok |= is_expected(want->kind == NODE_LIST ? want->item[i] : want, v);
	return ok;
}
