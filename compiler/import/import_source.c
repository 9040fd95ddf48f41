/* Keys and tensors of a checkpoint of any format */
#include "compiler/import/import.h"

#include <stdlib.h>
#include <string.h>

static SourceKey *
find(ImportSource *s, const char *name)
{
	for (size_t i = 0; i < s->n_key; i++)
		if (strcmp(s->key[i].name, name) == 0)
			return &s->key[i];
	return NULL;
}

SourceKey *
source_key(ImportSource *s, const char *name)
{
	SourceKey *k = NULL;

	if (s->arch)
		k = find(s, arena_printf(s->a, "%s.%s", s->arch, name));
	if (!k)
		k = find(s, name);
	if (k)
		k->used = true;
	return k;
}

SpecExprVal
source_val(ImportSource *s, const char *name)
{
	SourceKey *k = source_key(s, name);

	return k ? k->val : (SpecExprVal){ .kind = EXPR_NULL };
}

bool
source_num(ImportSource *s, const char *name, double *out)
{
	SpecExprVal v = source_val(s, name);

	if (v.kind != EXPR_NUM)
		return false;
	*out = v.num;
	return true;
}

const char *
source_str(ImportSource *s, const char *name)
{
	SpecExprVal v = source_val(s, name);

	return v.kind == EXPR_STR ? v.str : NULL;
}

void
source_add(ImportSource *s, const char *name, SpecExprVal v)
{
	if (find(s, name))
		return;
	s->key = arena_grow(s->a, s->key, &s->cap_key, s->n_key + 1, sizeof *s->key);
	s->key[s->n_key++] = (SourceKey){ .name = arena_strdup(s->a, name), .val = v };
}

void
source_use(ImportSource *s, const char *pattern)
{
	const char *own = s->arch ? arena_printf(s->a, "%s.%s", s->arch, pattern) : pattern;

	for (size_t i = 0; i < s->n_key; i++)
		if (glob_match(pattern, s->key[i].name) || glob_match(own, s->key[i].name))
			s->key[i].used = true;
}

static int
by_name(const void *a, const void *b)
{
	return strcmp(((const SourceTensor *)a)->name, ((const SourceTensor *)b)->name);
}

void
source_sort(ImportSource *s)
{
	if (s->n_tensor)
		qsort(s->tensor, s->n_tensor, sizeof *s->tensor, by_name);
}

SourceTensor *
source_tensor(const ImportSource *s, const char *name)
{
	SourceTensor want = { .name = name };

	return s->n_tensor ? bsearch(&want, s->tensor, s->n_tensor, sizeof *s->tensor, by_name)
	                   : NULL;
}

void
source_set(ImportSource *s, SpecKey k, const char *text)
{
	s->value[k] = text;
}

void
source_set_num(ImportSource *s, SpecKey k, double v)
{
	char text[NUMBER_SIZE];

	yaml_number(text, v);
	s->value[k] =
	    spec_key[k].type == TYPE_BOOL ? (v != 0 ? "true" : "false") : arena_strdup(s->a, text);
}

/* Convert a list of layer types to the list of layers of one type. The key determines the type:
 * ["full_attention", "sliding_attention", ...] to the windowed layers (also called global and
 * local), or to those of linear_attention or conv; ["dense", "sparse", ...] to the MoE layers;
 * ["full", "shared", ...] to those with an indexer; [true, false, ...] to those that are true; [1,
 * 0, ...] to those with 1, for layers that rotate. */
bool
source_set_layers(ImportSource *s, SpecKey k, SpecExprVal types)
{
	const bool experts = k == K_moe_layers;
	double n;
	const char *out = "",
	           *in = experts                ? "sparse"
	                 : k == K_linear_layers ? "linear_attention"
	                 : k == K_conv_layers   ? "conv"
	                                        : "sliding_attention",
	           *no = experts ? "dense" : "full_attention";

	if (k == K_index_layers) {
		in = "full";
		no = "shared";
	}
	if (k == K_k_is_v) { /* applies to layers without a window */
		in = "full_attention";
		no = "sliding_attention";
	}

	const double n_layers =
	    s->value[K_n_layers] && number_parse(s->value[K_n_layers], &n) ? n : (double)types.n;

	/* a list may go on with MTP layers after the model's layers */
	for (size_t i = 0; i < types.n && (double)i < n_layers; i++) {
		if (types.item[i].kind == EXPR_BOOL ||
		    (k == K_rope_layers && types.item[i].kind == EXPR_NUM)) {
			if (types.item[i].num != 0)
				out = arena_printf(s->a, "%s%s%zu", out, *out ? ", " : "", i);
			continue;
		}
		const char *t = types.item[i].kind == EXPR_STR ? types.item[i].str : "(not text)";
		bool older = !experts && k != K_k_is_v &&
		             (strcmp(t, "local") == 0 || strcmp(t, "global") == 0);
		if (strcmp(t, older ? "local" : in) == 0)
			out = arena_printf(s->a, "%s%s%zu", out, *out ? ", " : "", i);
		else if (strcmp(t, older ? "global" : no) != 0) {
			err_at(s->d, (Loc){ 0 },
			       "%s: layer %zu is of the type %.60s; llmc supports %s and %s",
			       s->file, i, t, no, in);
			return false;
		}
	}
	source_set(s, k, arena_printf(s->a, "[%s]", out));
	return true;
}

static const Node *
block_value(const Node *block, const char *path)
{
	const char *dot = strchr(path, '.');

	for (size_t i = 0; block && block->kind == NODE_MAP && i < block->n; i++) {
		const char *k = block->key[i]->text;
		if (strcmp(k, path) == 0)
			return block->item[i];
		if (dot && strlen(k) == (size_t)(dot - path) &&
		    memcmp(k, path, (size_t)(dot - path)) == 0) {
			const Node *v = block_value(block->item[i], dot + 1);
			if (v)
				return v;
		}
	}
	return NULL;
}

const char *
family_word(const ImportSource *s, SpecKey k)
{
	const Node *v = s->family.format
	                    ? block_value(node_get(s->family.format, "block"), spec_key[k].path)
	                    : NULL;

	if (!v)
		v = block_value(s->family.block, spec_key[k].path);
	/* "": the value is not a word */
	return !v ? NULL : v->kind == NODE_SCALAR ? v->text : "";
}
