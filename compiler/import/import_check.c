/* Compare the description with the checkpoint's tensors: find the prefix of their names, check the
 * presence and shape of each needed tensor, report unused tensors, and derive the storage types per
 * role and layer. */
#include <stdio.h>
#include <string.h>

#include "compiler/import/import.h"
#include "compiler/import/import_check.h"
#include "compiler/spec/layer_list.h"

static const SourceTensor *
import_tensor_of(const ImportSource *s, const TensorRule *r)
{
	return r ? source_tensor(s, r->whole ? r->name : arena_printf(s->a, "%s.weight", r->name))
	         : NULL;
}

static bool
import_present(const ImportSource *s, const TensorRule *r)
{
	return import_tensor_of(s, r) != NULL;
}

/* Return whether a tensor's name ends with this name, after another prefix or none. */
static bool
has_other_prefix(const ImportSource *s, const char *name)
{
	const char *dot = strrchr(name, '.'),
	           *end = arena_printf(s->a, ".%s.weight", dot ? dot + 1 : name);
	const size_t n = strlen(end);

	for (size_t i = 0; i < s->n_tensor; i++) {
		const char *own = s->tensor[i].name;
		const size_t k = strlen(own);
		if (strcmp(own, end + 1) == 0 || (k > n && strcmp(own + k - n, end) == 0))
			return true;
	}
	return false;
}

/* Return whether a checkpoint that is marked as tied stores a head that differs from the embedding,
 * because it was trained separately. transformers uses such a head. */
static bool
head_is_untied(const ImportSource *s, const TensorRule *embed, const TensorRule *head)
{
	const SourceTensor *e = import_tensor_of(s, embed), *h = import_tensor_of(s, head);

	if (!e || !h || !e->data || !h->data || h->n_dims != e->n_dims ||
	    memcmp(h->dim, e->dim, sizeof h->dim[0] * (size_t)h->n_dims) != 0)
		return false;
	return h->dtype != e->dtype || h->bytes != e->bytes ||
	       memcmp(h->data, e->data, (size_t)h->bytes) != 0;
}

/* Find the prefix of tensor names. It depends on whether a model was saved alone, inside a wrapper,
 * or without its head. */
bool
import_names(ImportSource *s, const Spec *spec)
{
	const char *const first = s->tower ? "patch" : "embed";
	const TensorRule *embed = rule_for(spec->tensor_rule, spec->n_tensor_rule, first);
	const TensorRule *head = rule_for(spec->tensor_rule, spec->n_tensor_rule, "head");
	static const struct {
		const char *from, *to;
	} ways[] = {
		{ "", "language_model." },             /* older wrappers */
		{ "", "thinker." },                    /* Omni models with a speech part */
		{ "model.", "model.language_model." }, /* current wrappers */
		{ "model.", "language_model." },
		{ "model.", "model.text_model." }, /* Idefics and SmolVLM */
		{ "model.", "" },                  /* base model without a head */
		{ "", "model." },
		{ "vision_tower.vision_model.", "vision_tower." }, /* transformers 5 */
	};
	const char *prefix = s->family.format && node_get(s->family.format, "prefix")
	                         ? node_get(s->family.format, "prefix")->text
	                         : "";
	bool changed = false, is_hf = strcmp(s->format, "hf") == 0;

	if (!embed || !s->n_tensor)
		return false;
	const char *name = embed->name;
	if (!import_present(s, embed) && is_hf) {
		const char *bare = arena_printf(s->a, "%s.weight", name + strlen(prefix));
		if (*prefix && source_tensor(s, bare)) {
			source_set(s, K_names_prefix, "\"\"");
			name += strlen(prefix);
			changed = true;
		}
		for (size_t i = 0; !changed && i < sizeof ways / sizeof *ways; i++) {
			size_t n = strlen(ways[i].from);
			if (strncmp(name, ways[i].from, n) != 0)
				continue;
			const char *try = arena_printf(s->a, "%s%s", ways[i].to, name + n);
			if (!source_tensor(s, arena_printf(s->a, "%s.weight", try)))
				continue;
			/* the head may lack the prefix that other names have, so the head's name
			 * may change too */
			if (n || (*prefix && head &&
			          source_tensor(s, arena_printf(s->a, "%s%s.weight", ways[i].to,
			                                        head->name))))
				source_set(
				    s, K_names_replace,
				    spec_quote(s->a, arena_printf(s->a, "%s>%s", ways[i].from,
				                                  ways[i].to)));
			else
				source_set(s, K_names_prefix,
				           spec_quote(s->a, arena_printf(s->a, "%s%s", ways[i].to,
				                                         prefix)));
			name = try;
			changed = true;
		}
		if (changed)
			/* checked in the next round, because the head's name may have changed
			 * too */
			return true;
	}
	if (!spec->head.tied && spec->head.kind == LLMC_OUTPUT_LOGITS && head &&
	    !import_present(s, head) && !has_other_prefix(s, head->name) &&
	    import_present(s, embed)) {
		/* no head is stored, so it is tied to the embedding */
		source_set(s, K_tied, "true");
		return true;
	}
	if (spec->head.tied && spec->head.kind == LLMC_OUTPUT_LOGITS &&
	    head_is_untied(s, embed, head)) {
		warn_at(s->d, (Loc){ 0 },
		        "%s: tie_word_embeddings is true, but the head %s is stored and differs "
		        "from the embedding; it is used",
		        s->file, import_tensor_of(s, head)->name);
		source_set(s, K_tied, "false");
		return true;
	}
	return false;
}

static bool
same_how(const StoredForm *a, const StoredForm *b)
{
	return a->dtype == b->dtype && same_word(a->order, b->order) &&
	       same_word(a->factor, b->factor);
}

static const char *
rules_of(ImportCheck *c, const struct Stored *r, Dtype usual, const char *out)
{
	Arena *a = c->s->a;
	int n = c->spec->n_layers;
	bool bias = strchr(r->role, '.') != NULL;

	for (int d = 0; d < DT_COUNT; d++)
		for (int first = 0; first <= n;
		     /* first layer with the same storage type; if this is an earlier layer, the
		      * type is already handled */
		     first++) {
			const StoredForm *h = &r->how[first];
			uint8_t *in = NEW(a, uint8_t, n + 1);
			int count = 0, all = 0, before = 0;
			if (h->dtype != (Dtype)d)
				continue;
			for (int l = 0; l <= n; l++) {
				const bool same = same_how(h, &r->how[l]);
				before += same && l < first;
				in[l] = same && l < n;
				count += in[l];
				all += l < n && r->how[l].dtype != DT_NONE;
			}
			/* Without a rule of its own, a bias would follow the rule of its role, so a
			 * rule is written if the types differ. */
			if (before || (d == (int)usual && !h->order && !h->factor && !bias))
				continue;
			bool outside = same_how(h, &r->how[n]);
			const char *layers =
			    outside || count == all
			        ? ""
			        : arena_printf(a, ", layers: %s", selector_text(in, n, a));
			const char *order =
			               h->order ? arena_printf(a, ", order: %s", h->order) : "",
			           *factor =
			               h->factor ? arena_printf(a, ", factor: %s", h->factor) : "";
			out = arena_printf(a, "%s%s{tensor: %s%s, type: %s%s%s}", out,
			                   *out ? ", " : "", r->role, layers, dtype_text((Dtype)d),
			                   order, factor);
		}
	return out;
}

static void
storage(ImportCheck *c)
{
	int64_t elems[DT_COUNT] = { 0 };
	Dtype usual = DT_NONE;
	bool mixed = false;
	const char *out = "";

	/* The default is the type of most matrices in the layers. The embedding counts as one
	 * tensor. */
	for (size_t i = 0; i < c->n_role; i++)
		for (int l = 0; l <= c->spec->n_layers; l++)
			if (c->role[i].how[l].dtype != DT_NONE) {
				bool matrix = !c->role[i].vector && l < c->spec->n_layers;
				elems[c->role[i].how[l].dtype] +=
				    matrix ? c->role[i].elems / c->spec->n_layers + 1 : 0;
			}
	for (int d = 0; d < DT_COUNT; d++)
		if (elems[d] > 0 && (usual == DT_NONE || elems[d] > elems[usual]))
			usual = (Dtype)d;
	if (usual == DT_NONE)
		return;
	for (size_t i = 0; i < c->n_role; i++)
		for (int l = 0; l <= c->spec->n_layers; l++)
			mixed |= c->role[i].how[l].dtype != DT_NONE &&
			         (c->role[i].how[l].dtype != usual || c->role[i].how[l].order ||
			          c->role[i].how[l].factor);
	source_set(c->s, K_storage_default, dtype_text(usual));
	for (int pass = 0; mixed && pass < 2;
	     pass++) /* rules of biases come first, because the first matching rule decides */
		for (size_t i = 0; i < c->n_role; i++)
			if ((strchr(c->role[i].role, '.') != NULL) == (pass == 0))
				out = rules_of(c, &c->role[i], usual, out);
	if (*out)
		source_set(c->s, K_storage_rules, arena_printf(c->s->a, "[%s]", out));
}

void
import_check(ImportSource *s, const Spec *spec)
{
	ImportCheck c = { .s = s, .spec = spec };
	int before = s->d->n_error;

	import_outer_roles(&c);
	for (int l = 0; l < spec->n_layers; l++)
		import_layer_roles(&c, l);
	if (c.n_missing > 8)
		note_at(s->d, (Loc){ 0 }, "%d tensors are missing in total", c.n_missing);
	if (s->d->n_error == before)
		import_check_unused(&c);
	if (s->d->n_error == before)
		storage(&c);
}
