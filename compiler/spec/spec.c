/* Builds the Spec of a description. Layers of values (defaults, family, description, --set) are
 * merged into one table, from which the fields are filled. All errors are reported, up to the
 * twenty that diag prints. */
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/sha256.h"
#include "compiler/spec/family.h"
#include "compiler/spec/spec.h"
#include "compiler/spec/spec_table.h"

static void
relocate(Node *n, const SourceText *src, int cols)
{
	if (n->loc.line == 1)
		n->loc.col += cols;
	n->loc.src = src;
	for (size_t i = 0; i < n->n; i++) {
		relocate(n->item[i], src, cols);
		if (n->kind == NODE_MAP)
			relocate(n->key[i], src, cols);
	}
}

/* Parse "key=value" into {key: value}. The value is YAML. */
static const Node *
read_override(const char *text, Diag *d, Arena *a)
{
	const SourceText *src = yaml_source(a, "--set", text, strlen(text));
	const char *eq = strchr(text, '=');

	if (!eq || eq == text) {
		err_at(d, (Loc){ .src = src, .line = 1, .col = 1 },
		       "--set needs key=value, such as attention.window=4096");
		return NULL;
	}
	Node *v = yaml_parse(yaml_source(a, "--set", eq + 1, strlen(eq + 1)), d, a);
	if (!v)
		return NULL;
	if (v->kind == NODE_MAP && v->n == 0 && !strchr(eq, '{')) { /* there is no value after = */
		v->kind = NODE_SCALAR;
		v->text = "";
		v->loc.line = v->loc.col = 1;
	}
	int chars = 0;
	for (const char *p = text; p <= eq; p++)
		chars += ((unsigned char)*p & 0xc0) != 0x80;
	relocate(v, src, chars);
	Node *map = NEW(a, Node, 1), *key = NEW(a, Node, 1);
	*key = (Node){ .kind = NODE_SCALAR,
		       .loc = { .src = src, .line = 1, .col = 1 },
		       .text = arena_strndup(a, text, (size_t)(eq - text)) };
	*map = (Node){ .kind = NODE_MAP,
		       .loc = key->loc,
		       .n = 1,
		       .cap = 1,
		       .key = NEW(a, Node *, 1),
		       .item = NEW(a, Node *, 1) };
	map->key[0] = key;
	map->item[0] = v;
	return map;
}

/* Return the value of a top-level key: from the last --set that has it, else from the
 * description. */
static const Node *
top_level_value(const Node *root, const Node *const *set, size_t n_set, const char *key)
{
	for (size_t i = n_set; i-- > 0;) {
		const Node *v = set[i] ? node_get(set[i], key) : NULL;
		if (v)
			return v;
	}
	return node_get(root, key);
}

static const char *
top_level_text(const Node *v, const char *otherwise)
{
	return v && v->kind == NODE_SCALAR && !node_is_null(v) ? v->text : otherwise;
}

/* Set a key that the kind of attention implies, unless the description sets it. */
static void
set_implied(SpecTable *t, SpecKey key, double value)
{
	SpecVal *v = &t->val[key];

	if (!v->given)
		*v = (SpecVal){
			.given = true, .known = true, .num = value, .loc = { .src = t->file.src }
		};
}

static void
imply_shapes(SpecTable *t)
{
	bool mla = spec_word_is(t, K_att_kind, "mla");

	if (mla && t->val[K_nope_dim].given && t->val[K_rope_dim].given)
		set_implied(t, K_head_dim,
		            (double)(spec_int(t, K_nope_dim) + spec_int(t, K_rope_dim)));
	if (mla && t->val[K_rope_dim].given)
		set_implied(t, K_rope_dims, (double)spec_int(t, K_rope_dim));
	if (spec_int(t, K_rope_axes) == 2 && t->val[K_head_dim].given)
		set_implied(t, K_rope_dims, (double)(spec_int(t, K_head_dim) / 2));
}

/* If latent attention has the default scale, multiply it by yarn's factor of the scores. */
static void
imply_scale(SpecTable *t)
{
	SpecVal *v = &t->val[K_att_scale];
	double all = t->val[K_rope_mscale_all_dim].num, factor = t->val[K_rope_factor].num;

	if (v->given || !v->known || !spec_word_is(t, K_att_kind, "mla") ||
	    !spec_word_is(t, K_rope_scaling, "yarn") || all == 0)
		return;
	double m = factor > 1 ? 0.1 * all * log(factor) + 1 : 1;
	v->num *= m * m;
}

/* Adapters use the module names of Hugging Face checkpoints, whatever format this checkpoint
 * has. */
static void
lora_rules(SpecTable *t, const Family *f, const char *dir, Spec *s)
{
	SpecVal *prefix = &t->val[K_names_prefix], own = *prefix,
	        *replace = &t->val[K_names_replace], own_replace = *replace;
	Family hf;

	s->lora.path = t->val[K_lora_path].str;
	s->lora.scale = t->val[K_lora_scale].num;
	s->lora.rule = s->tensor_rule;
	s->lora.n_rule = s->n_tensor_rule;
	if (strcmp(t->val[K_checkpoint].str, "hf") == 0)
		return;
	if (!f || !family_load(&hf, f->name, dir, "hf", t->val[K_lora_path].loc, t->d, t->a) ||
	    !hf.format) {
		err_at(t->d, t->val[t->val[K_lora_path].str ? K_lora_path : K_adapter_slots].loc,
		       "adapters: the family has no Hugging Face tensor names, which adapters "
		       "refer to");
		return;
	}
	const Node *theirs = node_get(hf.format, "prefix");
	prefix->str = theirs ? theirs->text : NULL;
	replace->str = NULL;
	s->lora.rule = family_rules(t, &hf, &s->lora.n_rule);
	*prefix = own;
	*replace = own_replace;
}

static Spec *
resolve(const Node *root, const SourceText *src, const char *dir, const char *const *set, Diag *d,
        Arena *a)
{
	SpecTable *t = NEW(a, SpecTable, 1);
	size_t n_set = 0;
	bool resolved = false;
	Family f = { 0 };

	while (set && set[n_set])
		n_set++;
	const Node **over = NEW(a, const Node *, n_set + 1);
	for (size_t i = 0; i < n_set; i++)
		over[i] = read_override(set[i], d, a);
	t->d = d;
	t->a = a;
	t->file = (Loc){ .src = src };
	if (root->kind != NODE_MAP) {
		err_at(d, root->loc, "a description is a map of keys, this is %s",
		       node_kind_text(root));
		return NULL;
	}

	const Node *family = top_level_value(root, over, n_set, "family");
	const Node *format = top_level_value(root, over, n_set, "checkpoint");
	const Node *own = node_get(root, "resolved");
	if (own)
		node_bool(own, &resolved);
	const char *checkpoint = top_level_text(format, "hf");
	bool known_format = strcmp(checkpoint, "hf") == 0 || strcmp(checkpoint, "gguf") == 0 ||
	                    strcmp(checkpoint, "mmproj") == 0;
	bool have = !resolved && family && known_format &&
	            family_load(&f, top_level_text(family, ""), dir, checkpoint, family->loc, d, a);
	if (have) {
		if (f.block)
			spec_table_apply(t, f.block, FROM_FAMILY);
		const Node *prefix = f.format ? node_get(f.format, "prefix") : NULL,
		           *block = f.format ? node_get(f.format, "block") : NULL;
		if (prefix)
			t->val[K_names_prefix] = (SpecVal){ .from = FROM_FAMILY,
				                            .given = true,
				                            .known = true,
				                            .str = prefix->text,
				                            .loc = prefix->loc };
		if (block)
			spec_table_apply(t, block, FROM_FAMILY);
	}
	if (resolved && format &&
	    strcmp(checkpoint, top_level_text(node_get(root, "checkpoint"), "hf")) != 0)
		err_at(d, format->loc,
		       "checkpoint = %s: this resolved description has the tensor names of another "
		       "format; start from the original description",
		       checkpoint);
	spec_table_apply(t, root, FROM_TEXT);
	for (size_t i = 0; i < n_set; i++)
		if (over[i])
			spec_table_apply(t, over[i], FROM_SET);
	imply_shapes(t);
	spec_table_finish(t);
	imply_scale(t);
	spec_check(t);

	Spec *s = NEW(a, Spec, 1);
	s->table = t;
	if (have || resolved)
		s->tensor_rule = family_rules(t, have ? &f : NULL, &s->n_tensor_rule);
	if (t->val[K_lora_path].str || t->val[K_adapter_slots].num > 0)
		lora_rules(t, have ? &f : NULL, dir, s);
	if (d->n_error)
		return NULL;
	spec_fill(t, s);
	if (d->n_error)
		return NULL;
	s->yaml = spec_resolved_text(t, s->tensor_rule, s->n_tensor_rule);
	Sha256 h;
	char hex[65];
	sha256_init(&h);
	sha256_add(&h, s->yaml, strlen(s->yaml));
	sha256_hex(&h, hex);
	s->sha256 = arena_strdup(a, hex);
	return s;
}

static Spec *
from_source(const SourceText *src, const char *dir, const char *const *set, Diag *d, Arena *a)
{
	const Node *root = yaml_parse(src, d, a);

	return root ? resolve(root, src, dir, set, d, a) : NULL;
}

Spec *
spec_from_text(const char *name, const char *text, size_t size, const char *const *set, Diag *d,
               Arena *perm)
{
	return from_source(yaml_source(perm, name, text, size), NULL, set, d, perm);
}

Spec *
spec_from_file(const char *yaml_path, const char *const *set, Diag *d, Arena *perm)
{
	llmc_error err = { 0 };
	FileMap *m = file_hold(perm, yaml_path, &err);

	if (!m) {
		err_at(d, (Loc){ 0 }, "%s", err.text);
		return NULL;
	}
	if (m->size > YAML_MAX_BYTES) {
		err_at(d, (Loc){ 0 }, "%s: larger than %d MiB: not a description", yaml_path,
		       YAML_MAX_BYTES >> 20);
		return NULL;
	}
	const SourceText *src =
	    yaml_source(perm, yaml_path, m->size ? (const char *)m->data : "", m->size);
	arena_done(perm, m);
	const char *slash = strrchr(yaml_path, '/');
	const char *dir = slash ? arena_strndup(perm, yaml_path, (size_t)(slash - yaml_path)) : ".";
	return from_source(src, slash == yaml_path ? "/" : dir, set, d, perm);
}
