/* Export of a folder's model as GGUF (compiler/import/export.h).
 *
 * Keys: the file gets the keys of every architecture, the keys that the family's map names by a
 * plain key, and the keys of its `write` part, which are expressions over the folder's keys. Import
 * then reads the file back. If it gets another value for a key of the description, that key is
 * written too, provided that the map has a name for it.
 *
 * Tensors: those of the graph of the description with GGUF names; their sources are positions in
 * the file. At the end, the graph that import reads back from the file is compared with the
 * folder's graph. */
#include "compiler/import/export.h"

#include <math.h>
#include <string.h>

#include "base/text.h"
#include "compiler/import/export_compare.h"
#include "compiler/import/import.h"
#include "formats/gguf.h"

typedef struct ExportJob {
	ImportSource *from; /* keys and tensors of the folder */
	Family family;      /* the family, with its gguf part */
	Diag *d;
	Arena *a;
	const char *path;
	const Spec *spec;
	Export *x;
	bool written[K_COUNT];
} ExportJob;

/* ---- keys ---- */

/* Return whether the key is f32 in every GGUF file. */
static bool
is_real(const char *name)
{
	static const char *const ends[] = { "epsilon",    "freq_base",  "freq_base_swa",
		                            "scale",      "factor",     "softcapping",
		                            "alibi_bias", "clamp_kqv",  "beta_fast",
		                            "beta_slow",  "multiplier", "weights_scale" };

	return ends_with_any(name, ends, sizeof ends / sizeof *ends);
}

static void
key_add(ExportJob *j, const char *name, SpecExprVal v)
{
	Export *x = j->x;
	const char *full = strncmp(name, "tokenizer.", 10) == 0
	                       ? name
	                       : arena_printf(j->a, "%s.%s", x->arch, name);

	for (size_t i = 0; i < x->n_key; i++)
		if (strcmp(x->key[i].name, full) == 0)
			return;
	x->key = arena_grow(j->a, x->key, &x->cap_key, x->n_key + 1, sizeof *x->key);
	x->key[x->n_key++] = (ExportKey){ full, v, is_real(name) };
}

static void
num_add(ExportJob *j, const char *name, double v)
{
	key_add(j, name, (SpecExprVal){ .kind = EXPR_NUM, .num = v });
}

static void
str_add(ExportJob *j, const char *name, const char *v)
{
	key_add(j, name, (SpecExprVal){ .kind = EXPR_STR, .str = v });
}

/* Return whether an expression is a single key of the file. */
static bool
is_plain(const char *s)
{
	return *s >= 'a' && *s <= 'z' && !s[strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_.")] &&
	       strcmp(s, "null") && strcmp(s, "true") && strcmp(s, "false");
}

/* Return the file's key for one of llmc's keys; NULL: there is none, or the map uses it only inside
 * an expression. */
static const char *
plain_key(const ExportJob *j, SpecKey k)
{
	const Node *own = node_get(j->family.format, "keys"),
	           *n = own ? node_get(own, spec_key[k].path) : NULL,
	           *base = node_get(j->family.base, "keys");
	const char *found = NULL;

	if (!n)
		n = base ? node_get(base, spec_key[k].path) : NULL;
	for (size_t i = 0; n && i < (n->kind == NODE_LIST ? n->n : 1); i++) {
		const Node *v = n->kind == NODE_LIST ? n->item[i] : n;
		if (v->kind != NODE_SCALAR || node_is_null(v) || !is_plain(v->text))
			continue;
		/* an epsilon has two names; the kind of norm decides which is used */
		if (k == K_norm_eps &&
		    (strstr(v->text, "rms") != NULL) != (j->spec->norm.kind == NORM_RMS))
			continue;
		if (!found)
			found = v->text;
	}
	return found;
}

static bool
write_key(ExportJob *j, SpecKey k)
{
	const char *name = plain_key(j, k), *text = spec_get(j->spec, j->a, spec_key[k].path);
	double v;

	if (j->written[k] || !name || !text)
		return false;
	if (spec_key[k].type == TYPE_BOOL)
		key_add(j, name,
		        (SpecExprVal){ .kind = EXPR_BOOL, .num = strcmp(text, "true") == 0 });
	else if ((spec_key[k].type == TYPE_INT || spec_key[k].type == TYPE_NUM) &&
	         number_parse(text, &v))
		num_add(j, name, v);
	else
		return false;
	return j->written[k] = true;
}

/* Add the keys of the gguf part's `write`. */
static bool
family_keys(ExportJob *j)
{
	const Node *map = node_get(j->family.format, "write");

	for (size_t i = 0; map && map->kind == NODE_MAP && i < map->n; i++) {
		const Node *item = map->item[i];
		/* alternatives: the first one that is not null */
		const bool several = item->kind == NODE_LIST;
		SpecExprVal v = { .kind = EXPR_NULL };
		for (size_t k = 0; k < (several ? item->n : 1) && v.kind == EXPR_NULL; k++) {
			const Node *n = several ? item->item[k] : item;
			if (n->kind != NODE_SCALAR || !import_eval(j->from, n, &v))
				return false;
		}
		if (v.kind != EXPR_NULL)
			key_add(j, map->key[i]->text, v);
	}
	return true;
}

static void
rope_keys(ExportJob *j)
{
	const RopeTable *r = &j->spec->rope[0];

	switch (r->scaling) {
	case SCALE_NONE:
	case SCALE_DYNAMIC:
	case SCALE_PROPORTIONAL:
	case SCALE_LLAMA3: /* stored as a tensor of factors */
		break;
	case SCALE_LINEAR:
		str_add(j, "rope.scaling.type", "linear");
		num_add(j, "rope.scaling.factor", r->factor);
		break;
	case SCALE_YARN:
		str_add(j, "rope.scaling.type", "yarn");
		num_add(j, "rope.scaling.factor", r->factor);
		num_add(j, "rope.scaling.original_context_length", r->original_positions);
		if (r->attention_factor > 0) /* the file's factor is multiplied by yarn's own */
			num_add(j, "rope.scaling.attn_factor",
			        r->attention_factor /
			            (1 + 0.1 * log(r->factor > 1 ? r->factor : 1)));
		if (r->beta_fast != 32)
			num_add(j, "rope.scaling.yarn_beta_fast", r->beta_fast);
		if (r->beta_slow != 1)
			num_add(j, "rope.scaling.yarn_beta_slow", r->beta_slow);
		break;
	case SCALE_LONGROPE: {
		double by_rule =
		    r->factor > 1 ? sqrt(1 + log(r->factor) / log(r->original_positions)) : 1;
		num_add(j, "rope.scaling.original_context_length", r->original_positions);
		num_add(j, "rope.scaling.attn_factor",
		        r->attention_factor > 0 ? r->attention_factor : by_rule);
		break;
	}
	}
}

/* ---- tensors ---- */

/* Return the role in a tensor's name: "L3.q.bias" becomes "q.bias". */
static const char *
role_of(const char *id)
{
	const char *dot = *id == 'L' ? strchr(id, '.') : NULL;

	return dot ? dot + 1 : id;
}

static bool
tensor_add(ExportJob *j, const PlanTensor *t, const PlanSource *s)
{
	static const char *const always[] = { "router",   "s_mix",  "pos_embed", "lin_conv",
		                              "ssm_conv", "conv_w", "type_embed" };
	const char *role = role_of(t->id);
	Export *x = j->x;
	int64_t stack = strncmp(role, "e_", 2) == 0 && t->n_src == 1 && j->spec->moe.n_experts > 0
	                    ? j->spec->moe.n_experts
	                    : 1;
	ExportTensor n = { .name = s->name, .rows = s->rows, .cols = s->cols };

	for (size_t i = 0; i < x->n_tensor; i++)
		if (strcmp(x->tensor[i].name, s->name) == 0)
			return x->tensor[i].rows == s->rows && x->tensor[i].cols == s->cols;
	if (s->transpose || s->rows % stack)
		return false;
	if (stack > 1 || strncmp(role, "e_", 2) == 0)
		n.dim[n.n_dims++] = stack;
	/* GGUF stores a matrix of one row as a vector */
	if (n.n_dims || s->cols == 0 || s->rows > 1)
		n.dim[n.n_dims++] = s->rows / stack;
	if (s->cols)
		n.dim[n.n_dims++] = s->cols;
	n.f32 = n.n_dims == 1 || s->cols == 0 || strstr(role, "norm");
	for (size_t i = 0; i < sizeof always / sizeof *always; i++)
		n.f32 |= strncmp(role, always[i], strlen(always[i])) == 0;
	x->tensor = arena_grow(j->a, x->tensor, &x->cap_tensor, x->n_tensor + 1, sizeof *x->tensor);
	x->tensor[x->n_tensor++] = n;
	return true;
}

static void
made_add(ExportJob *j, const char *name, int n, const double *value)
{
	Export *x = j->x;
	float *f = NEW(j->a, float, n + 1);

	for (int i = 0; i < n; i++)
		f[i] = (float)value[i];
	x->tensor = arena_grow(j->a, x->tensor, &x->cap_tensor, x->n_tensor + 1, sizeof *x->tensor);
	x->tensor[x->n_tensor++] = (ExportTensor){
		.name = name, .n_dims = 1, .dim = { n }, .rows = n, .f32 = true, .value = f
	};
}

/* Compute the divisor of each frequency, for scalings that depend on the wavelength. */
static void
rope_tensors(ExportJob *j)
{
	const RopeTable *r = &j->spec->rope[0];
	const int n = r->dims / 2;

	if (j->spec->position != POS_ROPE)
		return;
	if (r->scaling == SCALE_LONGROPE) {
		made_add(j, "rope_factors_long.weight", r->n_long, r->long_factor);
		made_add(j, "rope_factors_short.weight", r->n_short, r->short_factor);
	}
	if (r->scaling != SCALE_LLAMA3)
		return;
	double *factor = NEW(j->a, double, n + 1);
	for (int i = 0; i < n; i++) {
		double turns =
		    r->original_positions * pow(r->theta, -2.0 * i / r->dims) / (2 * M_PI);
		double stay =
		    (turns - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
		factor[i] = turns > r->high_freq_factor  ? 1
		            : turns < r->low_freq_factor ? r->factor
		                                         : 1 / ((1 - stay) / r->factor + stay);
	}
	made_add(j, "rope_freqs.weight", n, factor);
}

/* ---- read back ---- */

static const Spec *
read_back(const ExportJob *j)
{
	ImportSource *s = NEW(j->a, ImportSource, 1);

	*s = (ImportSource){ .d = j->d,
		             .a = j->a,
		             .path = j->path,
		             .file = j->path,
		             .format = "gguf",
		             .arch = j->x->arch,
		             .have_tensors = true };
	source_add(s, "general.architecture", (SpecExprVal){ .kind = EXPR_STR, .str = s->arch });
	for (size_t i = 0; i < j->x->n_key; i++)
		source_add(s, j->x->key[i].name, j->x->key[i].val);
	s->tensor = NEW(j->a, SourceTensor, j->x->n_tensor + 1);
	for (size_t i = 0; i < j->x->n_tensor; i++) {
		const ExportTensor *t = &j->x->tensor[i];
		SourceTensor *to = &s->tensor[s->n_tensor++];
		*to = (SourceTensor){ .name = t->name,
			              .dtype = t->f32 ? DT_F32 : DT_F16,
			              .dtype_name = t->f32 ? "F32" : "F16",
			              .n_dims = t->n_dims };
		memcpy(to->dim, t->dim, sizeof t->dim);
	}
	source_sort(s);
	const char *yaml = import_source(s, NULL);
	return yaml ? spec_from_text(arena_printf(j->a, "%s (read back)", j->path), yaml,
	                             strlen(yaml), NULL, j->d, j->a)
	            : NULL;
}

/* Return whether a key describes location, storage or execution instead of the computation. */
static bool
is_not_computation(SpecKey k)
{
	static const char *const paths[] = { "llmc",       "name",   "family",   "resolved",
		                             "dtype",      "text.",  "storage.", "weights",
		                             "checkpoint", "names.", "tensors",  "kv.",
		                             "limits." };

	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
		if (strncmp(spec_key[k].path, paths[i], strlen(paths[i])) == 0)
			return true;
	return false;
}

static bool
key_differs(const ExportJob *j, const Spec *back, SpecKey k)
{
	const char *a = spec_get(j->spec, j->a, spec_key[k].path),
	           *b = spec_get(back, j->a, spec_key[k].path);
	double x, y;

	if (is_not_computation(k) || !a || !b || strcmp(a, b) == 0)
		return false;
	return !number_parse(a, &x) || !number_parse(b, &y) || !export_nearly_equal(x, y, 1e-6);
}

/* ---- export ---- */

static const char *
known_families(const ExportJob *j)
{
	const Node *index = family_file("families/_index.yaml", NULL, j->d, j->a),
	           *list = index ? node_get(index, "families") : NULL;
	const char *out = "";

	for (size_t i = 0; list && list->kind == NODE_LIST && i < list->n; i++) {
		const Node *root = family_file(
		    arena_printf(j->a, "families/%s.yaml", list->item[i]->text), NULL, j->d, j->a);
		const Node *match = root ? node_get(root, "match") : NULL,
		           *gguf = root ? node_get(root, "gguf") : NULL;
		if ((match && node_get(match, "gguf")) || (gguf && node_get(gguf, "arch")))
			out = arena_printf(j->a, "%s%s%s", out, *out ? ", " : "",
			                   list->item[i]->text);
	}
	return out;
}

/* Return general.architecture: the `arch` of the gguf part, or the value that its condition
 * requires. `arch` may be a list of {if, is}, of which the first whose condition holds applies. */
static const char *
arch_of(const ExportJob *j)
{
	const Node *own = j->family.format ? node_get(j->family.format, "arch") : NULL,
	           *match = node_get(j->family.root, "match"),
	           *m = match ? node_get(match, "gguf") : NULL;
	const char *at = m && m->kind == NODE_SCALAR ? strstr(m->text, "arch == ") : NULL;

	if (own && own->kind == NODE_SCALAR)
		return own->text;
	for (size_t i = 0; own && own->kind == NODE_LIST && i < own->n; i++) {
		const Node *cond = node_get(own->item[i], "if"), *is = node_get(own->item[i], "is");
		SpecExprVal v;
		if (cond && is && import_eval(j->from, cond, &v) && expr_true(v))
			return is->text;
	}
	return at ? arena_strndup(j->a, at + 8, strcspn(at + 8, " )")) : NULL;
}

static const Spec *
spec_of(const ExportJob *j, const char *what)
{
	const char *yaml = import_text(j->from);

	return spec_from_text(arena_printf(j->a, "%s (%s)", j->from->path, what), yaml,
	                      strlen(yaml), NULL, j->d, j->a);
}

/* Make the folder's description with GGUF names. */
static const Spec *
renamed(const ExportJob *j)
{
	static const SpecKey folder[] = { K_tensors,       K_names_prefix,    K_names_replace,
		                          K_storage_rules, K_storage_default, K_pos_offset };

	for (size_t i = 0; i < sizeof folder / sizeof *folder; i++)
		source_set(j->from, folder[i], NULL);
	source_set(j->from, K_checkpoint, "gguf");
	return spec_of(j, "as a GGUF");
}

static bool
has_form(const ExportJob *j)
{
	const Spec *s = j->spec;
	const HeadShape far = spec_heads(s, -1),
	                near = s->attention.window > 0 ? s->attention.local : far;
	const bool two = far.n_heads != near.n_heads || far.n_kv_heads != near.n_kv_heads ||
	                 far.head_dim != near.head_dim || far.v_dim != near.v_dim;
	const char *what = two                            ? "heads of two shapes"
	                   : s->attention.kind == ATT_MLA ? "latent attention"
	                   : s->linear.n                  ? "a delta rule"
	                   : s->ssm.n                     ? "a selective scan"
	                   : s->conv.n                    ? "short convolutions"
	                   : s->ple_width                 ? "per-layer embeddings"
	                   : s->lora.path                 ? "an adapter"
	                                                  : NULL;

	if (what)
		err_at(j->d, (Loc){ 0 }, "%s: llmc cannot export a model with %s as GGUF",
		       j->from->path, what);
	return !what;
}

/* Add the keys by which import recognises the same model. Return the Spec that import then makes.
 * NULL: errors are in d.
 *
 *   requires  tensors and the first keys */
static const Spec *
complete(ExportJob *j, SpecKey *differs)
{
	const Spec *back = NULL;
	bool more = true;

	while (more) {
		if (!(back = read_back(j)))
			return NULL;
		more = false;
		*differs = K_COUNT;
		for (int k = 0; k < K_COUNT; k++)
			if (key_differs(j, back, (SpecKey)k)) {
				if (write_key(j, (SpecKey)k))
					more = true;
				else if (*differs == K_COUNT && k != K_plus_one &&
				         k != K_round_scale)
					*differs = (SpecKey)k;
			}
	}
	return back;
}

static void
pooling_keys(ExportJob *j)
{
	const Spec *s = j->spec;
	const int kind = s->pool.kind == LLMC_POOL_MEAN   ? GGUF_POOL_MEAN
	                 : s->pool.kind == LLMC_POOL_CLS  ? GGUF_POOL_CLS
	                 : s->pool.kind == LLMC_POOL_LAST ? GGUF_POOL_LAST
	                                                  : 0;
	const bool labels = s->head.kind == LLMC_OUTPUT_LABELS;

	if (s->head.kind == LLMC_OUTPUT_LOGITS || !kind)
		return;
	num_add(j, "pooling_type", labels ? GGUF_POOL_RANK : kind);
	if (labels)
		num_add(j, "classifier.pooling_type", kind);
}

static void
first_keys(ExportJob *j)
{
	static const SpecKey always[] = { K_vocab_size, K_max_positions, K_hidden,
		                          K_n_layers,   K_ffn_width,     K_n_heads,
		                          K_n_kv_heads, K_head_dim,      K_norm_eps };
	static const SpecKey moe[] = { K_n_experts, K_top_k, K_moe_width };
	const Spec *s = j->spec;

	for (size_t i = 0; i < sizeof always / sizeof *always; i++)
		write_key(j, always[i]);
	num_add(j, "attention.value_length", spec_heads(s, -1).v_dim);
	if (s->attention.mask == MASK_NONE)
		key_add(j, "attention.causal", (SpecExprVal){ .kind = EXPR_BOOL });
	if (s->embed.types)
		write_key(j, K_embed_types);
	pooling_keys(j);
	if (s->position == POS_ROPE) {
		write_key(j, K_rope_theta);
		write_key(j, K_rope_dims);
		rope_keys(j);
	}
	if (s->attention.window > 0)
		write_key(j, K_window);
	for (size_t i = 0; s->moe.n_experts && i < sizeof moe / sizeof *moe; i++)
		write_key(j, moe[i]);
}

static bool
parts(ExportJob *j, const Graph *mine, const Graph *file)
{
	Export *x = j->x;
	float *add = export_norms(mine, file, j->a);

	for (size_t i = 0; i < file->n_tensor; i++) {
		const PlanTensor *t = &file->tensor[i];
		int64_t first = export_rows_before(mine, i) - export_rows_before(file, i);
		for (int k = 0; k < t->n_src; k++) {
			ExportPart p = { .tensor = -1,
				         .from = &mine->tensor[i],
				         .as = t,
				         .source = k,
				         .first = first,
				         .add = add[i] };
			first += t->src[k].n_block * t->src[k].block;
			for (size_t n = 0; n < x->n_tensor; n++)
				if (strcmp(x->tensor[n].name, t->src[k].name) == 0)
					p.tensor = (int)n;
			if (p.tensor < 0)
				return false;
			x->part =
			    arena_grow(j->a, x->part, &x->cap_part, x->n_part + 1, sizeof *x->part);
			x->part[x->n_part++] = p;
		}
	}
	return true;
}

static bool export(ExportJob *j)
{
	Diag *d = j->d;
	const char *folder = j->from->path;
	SpecKey differs;

	if (!family_load(&j->family, j->from->family.name, NULL, "gguf", (Loc){ 0 }, d, j->a))
		return false;
	j->x->arch = arch_of(j);
	if (!j->x->arch || !j->family.format) {
		err_at(d, (Loc){ 0 },
		       "%s: llmc has no GGUF architecture for the family %s; it exports %s", folder,
		       j->family.name, known_families(j));
		return false;
	}
	if (!(j->spec = spec_of(j, "imported")) || !has_form(j))
		return false;
	const Graph *mine = graph_build(j->spec, d, j->a), *names = NULL, *file = NULL;
	if (!mine || !family_keys(j))
		return false;
	first_keys(j);
	const Spec *as = renamed(j), *back;
	if (!as || !(names = graph_build(as, d, j->a)))
		return false;
	for (size_t i = 0; i < names->n_tensor; i++)
		for (int k = 0; k < names->tensor[i].n_src; k++)
			if (!tensor_add(j, &names->tensor[i], &names->tensor[i].src[k])) {
				err_at(d, (Loc){ 0 },
				       "%s: llmc cannot export the tensor %s as GGUF", folder,
				       names->tensor[i].src[k].name);
				return false;
			}
	rope_tensors(j);
	if (!(back = complete(j, &differs)) || !(file = graph_build(back, d, j->a))) {
		note_at(d, (Loc){ 0 },
		        "%s: that is how a GGUF of the architecture %s would be imported; no file "
		        "is written",
		        folder, j->x->arch);
		return false;
	}
	if (!export_graphs_agree(mine, file) || !parts(j, mine, file)) {
		const char *path = differs < K_COUNT ? spec_key[differs].path : NULL;
		err_at(d, (Loc){ 0 },
		       "%s: a GGUF of the architecture %s would be imported as another "
		       "model%s%s%s%s%s%s; no file is written",
		       folder, j->x->arch, path ? " (" : "", path ? path : "", path ? " = " : "",
		       path ? spec_get(back, j->a, path) : "", path ? " instead of " : "",
		       path ? arena_printf(j->a, "%s)", spec_get(j->spec, j->a, path)) : "");
		return false;
	}
	return true;
}

const Export *
export_gguf(const char *folder, const char *path, Diag *d, Arena *a, llmc_error *err)
{
	ExportJob j = { .from = NEW(a, ImportSource, 1),
		        .d = d,
		        .a = a,
		        .path = path,
		        .x = NEW(a, Export, 1) };

	*j.from = (ImportSource){ .d = d, .a = a, .path = folder };
	if (!source_read_hf(j.from, err) || !import_source(j.from, err))
		return NULL;
	return export(&j) ? j.x : NULL;
}
