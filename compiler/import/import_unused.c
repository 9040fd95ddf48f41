/* Tensors of a checkpoint that no role names. They are ignored, have to be constant, or are an
 * error. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/import/import.h"
#include "compiler/import/import_check.h"
#include "formats/dequant.h"

/* Return the layer for which the pattern expands to this name; 0 for patterns without a layer; -1:
 * none. */
static long
import_layer_of(const char *pattern, const char *name, bool prefix)
{
	long layer = 0;

	while (*pattern) {
		if (strncmp(pattern, "{l}", 3) == 0 || strncmp(pattern, "{e}", 3) == 0) {
			char *end;
			if (*name < '0' || *name > '9')
				return -1;
			long v = strtol(name, &end, 10);
			if (pattern[1] == 'l')
				layer = v;
			name = end;
			pattern += 3;
		} else if (*pattern++ != *name++) {
			return -1;
		}
	}
	return !*name || (prefix && *name == '.') ? layer : -1;
}

/* Return whether a GGUF layer is an MTP layer. GGUF counts MTP layers in block_count, and they have
 * tensors that no other layer has. If a layer past the last one has no such tensor, block_count is
 * wrong. */
static bool
import_is_mtp_layer(ImportCheck *c, long layer)
{
	const char *stem = arena_printf(c->s->a, "blk.%ld.nextn.", layer);
	double blocks;

	if (!source_num(c->s, "block_count", &blocks) || (double)layer >= blocks)
		return false;
	for (size_t i = 0; i < c->s->n_tensor; i++)
		if (strncmp(c->s->tensor[i].name, stem, strlen(stem)) == 0)
			return true;
	return false;
}

/* Return whether the tensor is a key or value projection of a layer that reads another layer's
 * cache. Some files store such tensors although they are not used. */
static bool
is_shared_kv_tensor(ImportCheck *c, const char *name)
{
	static const char *const role[] = { "k", "v", "k_norm" };
	const Spec *s = c->spec;

	for (size_t i = 0; s->attention.kv_shared && i < sizeof role / sizeof *role; i++) {
		const TensorRule *r = rule_for(s->tensor_rule, s->n_tensor_rule, role[i]);
		long layer = r ? import_layer_of(r->name, name, true) : -1;
		if (layer >= 0 && layer < s->n_layers && spec_kv_layer(s, (int)layer) != layer)
			return true;
	}
	return false;
}

/* Return whether every element equals the rule's number, to the precision of the tensor's type. */
static bool
is_constant(const SourceTensor *t, double value)
{
	const int64_t size = dtype_info(t->dtype)->block_bytes;

	for (int64_t i = 0; i < t->bytes / size; i++) {
		float x;
		dequant_row(t->dtype, (const char *)t->data + i * size, &x, 1);
		if (!(fabs((double)x - value) <= fabs(value) / 128))
			return false;
	}
	return true;
}

/* Return the drop rule that matches a tensor name; NULL: none. */
static const TensorRule *
drop_rule(const Spec *s, const char *name)
{
	for (int k = 0; k < s->n_tensor_rule; k++) {
		const TensorRule *r = &s->tensor_rule[k];
		if (strcmp(r->role, "drop") == 0 &&
		    (import_layer_of(r->name, name, false) >= 0 || glob_match(r->name, name)))
			return r;
	}
	return NULL;
}

void
import_check_unused(ImportCheck *c)
{
	const Spec *s = c->spec;
	const TensorRule *norm = rule_for(s->tensor_rule, s->n_tensor_rule, "q"),
	                 *head = rule_for(s->tensor_rule, s->n_tensor_rule, "head");
	size_t n_beyond = 0, n_other = 0, n_zeros = 0;
	const char *other = NULL, *stem = NULL;

	if (!norm)
		norm = rule_for(s->tensor_rule, s->n_tensor_rule, "q_a");
	if (norm) { /* a name such as "model.layers.{l}" */
		const char *hole = strstr(norm->name, "{l}");
		stem = hole ? arena_strndup(c->s->a, norm->name, (size_t)(hole - norm->name) + 3)
		            : NULL;
	}
	for (size_t i = 0; i < c->s->n_tensor; i++) {
		SourceTensor *t = &c->s->tensor[i];
		const TensorRule *drop = t->used ? NULL : drop_rule(s, t->name);
		if (drop && drop->same && t->data && dtype_is_float(t->dtype) &&
		    !is_constant(t, drop->value)) {
			err_at(
			    c->s->d, (Loc){ 0 },
			    "%s: tensor %s must contain only %g, as in all models of the family %s",
			    c->s->path, t->name, drop->value, s->family);
			return;
		}
		bool dropped = t->used || drop || is_shared_kv_tensor(c, t->name);
		if (dropped || ((s->head.tied || s->head.kind != LLMC_OUTPUT_LOGITS) && head &&
		                import_layer_of(head->name, t->name, true) >= 0))
			continue;
		long layer = stem ? import_layer_of(stem, t->name, true) : -1;
		if (layer >= s->n_layers && strcmp(c->s->format, "hf") != 0 &&
		    !import_is_mtp_layer(c, layer)) {
			err_at(c->s->d, (Loc){ 0 },
			       "%s: there is a tensor %s, but block_count and nextn_predict_layers "
			       "give %d layers",
			       c->s->path, t->name, s->n_layers);
			return;
		} else if (layer >= s->n_layers) {
			n_beyond++;
		} else if (layer >= 0 && t->zeros) {
			n_zeros++;
		} else if (layer >= 0) {
			err_at(c->s->d, (Loc){ 0 },
			       "%s: tensor %s is not used by this description: it would change the "
			       "result, so the family %s does not fit",
			       c->s->path, t->name, s->family);
		} else {
			n_other++;
			other = other ? other : t->name;
		}
	}
	if (n_beyond)
		warn_at(c->s->d, (Loc){ 0 },
		        "%s: %zu tensors of layers beyond the %d of the model are ignored",
		        c->s->path, n_beyond, s->n_layers);
	if (n_zeros)
		warn_at(c->s->d, (Loc){ 0 },
		        "%s: %zu biases of zeros are ignored: GPTQ stores them for layers without "
		        "a bias",
		        c->s->path, n_zeros);
	if (n_other && (c->s->wrapper || c->s->allow_unknown_keys))
		warn_at(c->s->d, (Loc){ 0 },
		        "%s: %zu tensors outside the language model are ignored, the first is %s",
		        c->s->path, n_other, other);
	else if (n_other)
		err_at(c->s->d, (Loc){ 0 },
		       "%s: the family %s does not use the tensor %s%s, and it may change the "
		       "result; --allow-unknown-keys (allow_unknown_keys) ignores it",
		       c->s->path, s->family, other,
		       n_other > 1 ? arena_printf(c->s->a, " and %zu others", n_other - 1) : "");
}
