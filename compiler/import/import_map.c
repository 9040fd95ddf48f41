/* Applies a family file. `match` identifies the family, `keys` and `when` convert the source's
 * keys, `values` translates words, and `expect` rejects unsupported values. */
#include "compiler/import/import.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

static SpecExprVal
env_key(void *user, const char *name)
{
	ImportSource *s = user;

	if (s->arch && strcmp(name, "arch") == 0)
		return (SpecExprVal){ .kind = EXPR_STR, .str = s->arch };
	return source_val(s, name);
}

/* Return the value of one of llmc's keys: the one that import has set, otherwise the family's. */
static SpecExprVal
env_resolved(void *user, const char *name)
{
	ImportSource *s = user;
	int k = spec_key_find(name);
	const char *text = k < 0 ? NULL : s->value[k] ? s->value[k] : family_word(s, (SpecKey)k);
	double v;

	if (!text)
		return (SpecExprVal){ .kind = EXPR_NULL };
	if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)
		return (SpecExprVal){ .kind = EXPR_BOOL, .num = *text == 't' };
	if (number_parse(text, &v))
		return (SpecExprVal){ .kind = EXPR_NUM, .num = v };
	return (SpecExprVal){ .kind = EXPR_STR, .str = text };
}

static bool
env_has(void *user, const char *pattern)
{
	ImportSource *s = user;

	if (!strchr(pattern, '*'))
		return source_val(s, pattern).kind != EXPR_NULL || source_tensor(s, pattern);
	for (size_t i = 0; i < s->n_key; i++)
		if (glob_match(pattern, s->key[i].name) && s->key[i].val.kind != EXPR_NULL)
			return true;
	for (size_t i = 0; i < s->n_tensor; i++)
		if (glob_match(pattern, s->tensor[i].name))
			return true;
	return false;
}

static bool
env_size(void *user, const char *tensor, bool last, double *out)
{
	const SourceTensor *t = source_tensor(user, tensor);

	if (!t || t->n_dims < 1)
		return false;
	*out = (double)t->dim[last ? t->n_dims - 1 : 0];
	return true;
}

bool
import_eval(ImportSource *s, const Node *n, SpecExprVal *out)
{
	SpecExprEnv env = { .user = s,
		            .key = env_key,
		            .resolved = env_resolved,
		            .has = env_has,
		            .size = env_size };

	return expr_eval(n->text, n->loc, &env, s->d, s->a, out);
}

/* Find the family in this list whose `match` holds. Returns false if none does, or if a family file
 * has errors. all [*n]: the families that were tried */
static bool
find_family(ImportSource *s, const char *which, Family *found, Family **all, size_t *n)
{
	const Node *index = family_file("families/_index.yaml", NULL, s->d, s->a);
	const Node *list = index ? node_get(index, which) : NULL;

	*n = 0;
	if (!list || list->kind != NODE_LIST) {
		err_at(s->d, (Loc){ 0 }, "families/_index.yaml has no list `%s`", which);
		return false;
	}
	*all = NEW(s->a, Family, list->n + 1);
	for (size_t i = 0; i < list->n; i++) {
		const Node *name = list->item[i];
		Family f;
		if (name->kind != NODE_SCALAR ||
		    !family_load(&f, name->text, NULL, s->format, name->loc, s->d, s->a))
			return false;
		const Node *match = node_get(f.root, "match"),
		           *m = match ? node_get(match, s->format) : NULL;
		SpecExprVal v;
		if (!m || m->kind != NODE_SCALAR)
			continue;
		if (!import_eval(s, m, &v))
			return false;
		if (expr_true(v)) {
			*found = f;
			return true;
		}
		(*all)[(*n)++] = f;
	}
	return false;
}

/* Return whether the checkpoint has the tower's projection of patches, under any prefix. */
static bool
has_tower(const ImportSource *s, const Family *tower)
{
	const Node *tensors = tower->format ? node_get(tower->format, "tensors") : NULL,
	           *patch = tensors ? node_get(tensors, "patch") : NULL;
	const char *name = patch ? strrchr(patch->text, '.') : NULL,
	           *end = name ? arena_printf(s->a, "%s.weight", name) : ".weight";

	for (size_t i = 0; i < s->n_tensor; i++)
		if (ends_with(s->tensor[i].name, end))
			return true;
	return !s->have_tensors;
}

/* Record the token that stands for a row of an image, if llmc has the tower of this wrapper. */
static void
image_token(ImportSource *s)
{
	static const char *const keys[] = { "image_token_id", "image_token_index" };
	Family tower, *all;
	size_t n;
	double token;

	if (s->tower || s->mmproj || source_val(s, "wrapper_type").kind == EXPR_NULL ||
	    !find_family(s, "towers", &tower, &all, &n) || !has_tower(s, &tower))
		return;
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (!s->value[K_vision_token] && source_num(s, keys[i], &token))
			source_set_num(s, K_vision_token, token);
}

/* Warn about parts of a wrapper that llmc does not run. */
static void
warn_parts(const ImportSource *s)
{
	const bool vision = s->has_vision && !s->value[K_vision_token];

	if (vision || s->has_audio)
		warn_at(s->d, (Loc){ 0 }, "%s: only the language model is imported, not the %s",
		        s->file,
		        vision && s->has_audio ? "vision and audio parts"
		        : vision               ? "vision part"
		                               : "audio part");
}

bool
import_family(ImportSource *s)
{
	const int errors = s->d->n_error;
	const char *names = "";
	Family *all;
	size_t n;

	if (!s->tower && find_family(s, "drafts", &s->family, &all, &n))
		return s->d->n_error == errors;
	if (s->d->n_error == errors &&
	    find_family(s, s->tower ? "towers" : "families", &s->family, &all, &n)) {
		image_token(s);
		warn_parts(s);
		return s->d->n_error == errors;
	}
	if (s->d->n_error > errors)
		return false;
	for (size_t i = 0; i < n; i++)
		names = arena_printf(s->a, "%s%s%s", names, *names ? ", " : "", all[i].name);
	const char *type = s->arch ? s->arch : source_str(s, "model_type");
	if (s->tower) {
		const char *wrapper = source_str(s, "wrapper_type");
		err_at(s->d, (Loc){ 0 },
		       "%s: images are not supported for %s = %.60s: llmc supports the towers %s",
		       s->file, s->arch ? "clip.projector_type" : "model_type",
		       wrapper ? wrapper : "(absent)", names);
		return false;
	}
	err_at(s->d, (Loc){ 0 },
	       "%s: no family file matches %s = %.60s; llmc supports %s; docs/adding-a-family.md "
	       "describes how to add one",
	       s->file, s->arch ? "general.architecture" : "model_type", type ? type : "(absent)",
	       names);
	import_nearest(s, all, n);
	return false;
}

/* Format a list of numbers as [0, 1, 5]. */
static const char *
numbers_text(ImportSource *s, SpecExprVal list)
{
	char *out = NEW(s->a, char, list.n *(NUMBER_SIZE + 2) + 3), *p = out;

	*p++ = '[';
	for (size_t i = 0; i < list.n; i++) {
		if (i) {
			*p++ = ',';
			*p++ = ' ';
		}
		yaml_number(p, list.item[i].num);
		p += strlen(p);
	}
	*p++ = ']';
	*p = 0;
	return out;
}

/* Replace keys by numbers in a selector such as "{from: first_dense, every: step}". NULL: the
 * source lacks one of the keys */
static const char *
fill_template(ImportSource *s, const Node *n)
{
	Node *t =
	    yaml_parse(yaml_source(s->a, n->loc.src->name, n->text, strlen(n->text)), s->d, s->a);
	const char *out = "";

	if (!t || t->kind != NODE_MAP)
		return NULL;
	/* every key is looked up, even after one was not found, so that all count as used */
	bool complete = true;
	for (size_t i = 0; i < t->n; i++) {
		SpecExprVal v;
		char num[NUMBER_SIZE];
		const char *text;
		if (t->item[i]->kind != NODE_SCALAR)
			return NULL;
		t->item[i]->loc = n->loc;
		if (!import_eval(s, t->item[i], &v))
			return NULL;
		if (v.kind == EXPR_NUM || v.kind == EXPR_BOOL) {
			yaml_number(num, v.num);
			text = num;
		} else if (v.kind == EXPR_LIST) {
			text = numbers_text(s, v);
		} else {
			complete = false;
			continue;
		}
		out =
		    arena_printf(s->a, "%s%s%s: %s", out, *out ? ", " : "", t->key[i]->text, text);
	}
	return complete ? arena_printf(s->a, "{%s}", out) : NULL;
}

static const Node *
in_family(const ImportSource *s, const char *part, const char *key)
{
	const Node *own = s->family.format ? node_get(s->family.format, part) : NULL,
	           *v = own ? node_get(own, key) : NULL;
	const Node *base = node_get(s->family.base, part);

	return v ? v : base ? node_get(base, key) : NULL;
}

const char *
family_tensor(const ImportSource *s, const char *role)
{
	const Node *n = in_family(s, "tensors", role);

	return n && n->kind == NODE_SCALAR ? n->text : NULL;
}

/* Translate a word of the source by the family's `values`. */
static const char *
word_value(ImportSource *s, SpecKey k, const char *word, const Node *expr)
{
	const Node *map = in_family(s, "values", spec_key[k].path),
	           *v = map ? node_get(map, word) : NULL;
	const char *known = "";

	if (v && v->kind == NODE_SCALAR)
		return v->text;
	if (!map)
		return word; /* already one of llmc's words; if it is not, building the Spec reports
		                it */
	for (size_t i = 0; i < map->n; i++)
		known = arena_printf(s->a, "%s%s%s", known, i ? ", " : "", map->key[i]->text);
	err_at(s->d, (Loc){ 0 }, "%s: %s = %.60s: llmc supports %s here", s->file,
	       expr->kind == NODE_SCALAR ? expr->text : spec_key[k].path, word, known);
	return NULL;
}

static const char *
value_text(ImportSource *s, SpecKey k, SpecExprVal v, const Node *expr)
{
	char num[NUMBER_SIZE];

	switch (v.kind) {
	case EXPR_NULL:
		return NULL;
	case EXPR_NUM:
	case EXPR_BOOL:
		if (spec_key[k].type == TYPE_BOOL)
			return v.num != 0 ? "true" : "false";
		yaml_number(num, v.num);
		if (spec_key[k].type == TYPE_LAYERS && v.kind == EXPR_BOOL)
			return v.num != 0 ? "all" : "none";
		if (spec_key[k].type == TYPE_LAYERS) {
			err_at(s->d, (Loc){ 0 },
			       "%s: %s = %s: one number does not select layers; for %s a value per "
			       "layer is expected",
			       s->file, expr->kind == NODE_SCALAR ? expr->text : "a key", num,
			       spec_key[k].path);
			return NULL;
		}
		return arena_strdup(s->a, num);
	case EXPR_STR:
		return spec_key[k].type == TYPE_WORD ? word_value(s, k, v.str, expr)
		                                     : spec_quote(s->a, v.str);
	case EXPR_LIST:
		break;
	}
	if (spec_key[k].type == TYPE_LAYERS && v.n &&
	    (v.item[0].kind == EXPR_STR || v.item[0].kind == EXPR_BOOL || k == K_rope_layers))
		return source_set_layers(s, k, v) ? s->value[k] : NULL;
	if (spec_key[k].type != TYPE_LAYERS && spec_key[k].type != TYPE_INTS &&
	    spec_key[k].type != TYPE_NUMS) {
		err_at(s->d, (Loc){ 0 },
		       "%s: %s is a list, for %s one value for all layers is expected", s->file,
		       expr->kind == NODE_SCALAR ? expr->text : "a key", spec_key[k].path);
		return NULL;
	}
	for (size_t i = 0; i < v.n; i++)
		if (v.item[i].kind != EXPR_NUM)
			return NULL;
	return numbers_text(s, v);
}

static const char *
one_alternative(ImportSource *s, SpecKey k, const Node *n)
{
	SpecExprVal v;

	if (n->kind != NODE_SCALAR || node_is_null(n))
		return NULL;
	if (*n->text == '{')
		return fill_template(s, n);
	return import_eval(s, n, &v) ? value_text(s, k, v, n) : NULL;
}

/* Return the first alternative whose keys exist. The others are evaluated too, so that their keys
 * count as used. */
static void
map_key(ImportSource *s, SpecKey k, const Node *n)
{
	const char *found = NULL;
	const int n_error = s->d->n_error;

	for (size_t i = 0; i < (n->kind == NODE_LIST ? n->n : 1); i++) {
		if (!found && s->d->n_error == n_error)
			found = one_alternative(s, k, n->kind == NODE_LIST ? n->item[i] : n);
		else {
			SpecExprVal unused;
			const Node *x = n->item[i];
			if (x->kind == NODE_SCALAR && *x->text == '{')
				fill_template(s, x);
			else if (x->kind == NODE_SCALAR)
				import_eval(s, x, &unused);
		}
	}
	if (found)
		source_set(s, k, found);
}

static void
map_keys(ImportSource *s)
{
	const Node *own = s->family.format ? node_get(s->family.format, "keys") : NULL,
	           *base = node_get(s->family.base, "keys");

	for (int i = 0; i < 2; i++) {
		const Node *m = i ? own : base;
		for (size_t j = 0; m && m->kind == NODE_MAP && j < m->n; j++)
			if (spec_key_find(m->key[j]->text) < 0)
				err_at(s->d, m->key[j]->loc, "keys: there is no key %s",
				       m->key[j]->text);
	}
	for (int k = 0; k < K_COUNT; k++) {
		const Node *n = in_family(s, "keys", spec_key[k].path);
		if (n && !node_is_null(n))
			map_key(s, (SpecKey)k, n);
	}
}

static void
node_add(Arena *a, Node *to, Node *key, Node *item)
{
	size_t cap = to->cap;

	if (key)
		to->key = arena_grow(a, to->key, &cap, to->n + 1, sizeof(Node *));
	to->item = arena_grow(a, to->item, &to->cap, to->n + 1, sizeof(Node *));
	if (key)
		to->key[to->n] = key;
	to->item[to->n++] = item;
}

/* Append the names of one condition to those of earlier conditions. Drop rules accumulate; of other
 * keys, the last one applies. */
static void
add_names(Arena *a, Node *to, const Node *map)
{
	for (size_t i = 0; i < map->n; i++) {
		Node *item = map->item[i], *before = node_get(to, map->key[i]->text);
		size_t n = to->n;
		to->n = 0;
		for (size_t k = 0; k < n; k++)
			if (to->item[k] != before)
				node_add(a, to, to->key[k], to->item[k]);
		if (before && strcmp(map->key[i]->text, "drop") == 0) {
			Node *both = NEW(a, Node, 1), *part[] = { before, item };
			both->kind = NODE_LIST;
			for (size_t p = 0; p < 2; p++)
				for (size_t k = 0;
				     k < (part[p]->kind == NODE_LIST ? part[p]->n : 1); k++)
					node_add(a, both, NULL,
					         part[p]->kind == NODE_LIST ? part[p]->item[k]
					                                    : part[p]);
			item = both;
		}
		node_add(a, to, map->key[i], item);
	}
}

/* Return tensor names by role for a checkpoint that differs from most checkpoints of its family. */
static const char *
names_text(ImportSource *s, const Node *map)
{
	const char *out = "";

	for (size_t i = 0; i < map->n; i++) {
		const char *v =
		    map->item[i]->kind == NODE_SCALAR ? spec_quote(s->a, map->item[i]->text) : "[";
		for (size_t j = 0; map->item[i]->kind == NODE_LIST && j < map->item[i]->n; j++)
			v = arena_printf(s->a, "%s%s%s", v, j ? ", " : "",
			                 spec_quote(s->a, map->item[i]->item[j]->text));
		out = arena_printf(s->a, "%s%s%s: %s%s", out, *out ? ", " : "", map->key[i]->text,
		                   v, map->item[i]->kind == NODE_LIST ? "]" : "");
	}
	return arena_printf(s->a, "{%s}", out);
}

static void
apply_when(ImportSource *s)
{
	const Node *when = s->family.format ? node_get(s->family.format, "when") : NULL;
	Node names = { .kind = NODE_MAP };

	for (size_t i = 0; when && when->kind == NODE_LIST && i < when->n; i++) {
		const Node *cond = node_get(when->item[i], "if"),
		           *set = node_get(when->item[i], "set");
		SpecExprVal v;
		if (!cond || cond->kind != NODE_SCALAR || !set || set->kind != NODE_MAP) {
			err_at(s->d, when->item[i]->loc,
			       "when: {if: condition, set: {key: value}} is expected");
			continue;
		}
		bool holds = import_eval(s, cond, &v) && expr_true(v);
		for (size_t j = 0; j < set->n; j++) {
			int k = spec_key_find(set->key[j]->text);
			const Node *to = set->item[j];
			if (k < 0) {
				err_at(s->d, set->key[j]->loc, "when: there is no key %s",
				       set->key[j]->text);
				continue;
			}
			if (k == K_tensors && to->kind == NODE_MAP) {
				if (holds) {
					add_names(s->a, &names, to);
					source_set(s, K_tensors, names_text(s, &names));
				}
				continue;
			}
			bool literal = to->kind != NODE_SCALAR || spec_key[k].type == TYPE_WORD ||
			               spec_key[k].type == TYPE_STR;
			if (literal && to->kind == NODE_SCALAR) {
				if (holds)
					source_set(s, (SpecKey)k,
					           node_is_null(to) ? NULL
					                            : spec_quote(s->a, to->text));
				continue;
			}
			if (holds) {
				source_set(s, (SpecKey)k, NULL);
				map_key(s, (SpecKey)k, to);
			} else if (to->kind == NODE_SCALAR && *to->text != '{') {
				/* marks the keys of the condition as used */
				import_eval(s, to, &v);
			}
		}
	}
}

static const char *
show(ImportSource *s, SpecExprVal v)
{
	char num[NUMBER_SIZE];

	switch (v.kind) {
	case EXPR_NULL:
		return "null";
	case EXPR_BOOL:
		return v.num != 0 ? "true" : "false";
	case EXPR_NUM:
		yaml_number(num, v.num);
		return arena_strdup(s->a, num);
	case EXPR_STR:
		return arena_printf(s->a, "%.60s", v.str);
	case EXPR_LIST:
		break;
	}
	return "a list";
}

/* Check values against `expect`. own: the family's rules for the same keys, which take
 * precedence */
static void
check_expect(ImportSource *s, const Node *expect, const Node *own)
{
	for (size_t i = 0; expect && expect->kind == NODE_MAP && i < expect->n; i++) {
		const Node *want = expect->item[i];
		if (own && node_get(own, expect->key[i]->text))
			continue;
		SpecExprVal v = source_val(s, expect->key[i]->text);
		const char *list = "";
		for (size_t j = 0; j < (want->kind == NODE_LIST ? want->n : 1); j++) {
			const Node *w = want->kind == NODE_LIST ? want->item[j] : want;
			list = arena_printf(s->a, "%s%s%s", list, j ? " or " : "",
			                    w->kind == NODE_SCALAR ? (*w->text ? w->text : "null")
			                                           : "?");
		}
		if (!import_expected(want, v))
			err_at(s->d, (Loc){ 0 }, "%s: %s = %s: family %s of llmc supports %s only",
			       s->file, expect->key[i]->text, show(s, v), s->family.name, list);
	}
}

/* Refuse a checkpoint if one of the conditions in `refuse` holds. A condition may have several
 * keys. */
static void
check_refuse(ImportSource *s, const Node *list)
{
	for (size_t i = 0; list && list->kind == NODE_LIST && i < list->n; i++) {
		const Node *cond = node_get(list->item[i], "if"),
		           *because = node_get(list->item[i], "because");
		SpecExprVal v;
		if (!cond || cond->kind != NODE_SCALAR || !because || because->kind != NODE_SCALAR)
			err_at(s->d, list->item[i]->loc,
			       "refuse: {if: condition, because: sentence} is expected");
		else if (import_eval(s, cond, &v) && expr_true(v))
			err_at(s->d, (Loc){ 0 }, "%s: %s", s->file, because->text);
	}
}

static void
ignore(ImportSource *s, const Node *list)
{
	for (size_t i = 0; list && list->kind == NODE_LIST && i < list->n; i++)
		if (list->item[i]->kind == NODE_SCALAR)
			source_use(s, list->item[i]->text);
}

/* Report unknown keys, each of which could change every logit. One message lists them all and names
 * the option that ignores them. */
static void
unknown_keys(ImportSource *s)
{
	enum { SHOWN = 12 };
	const char *list = "";
	size_t n = 0;

	for (size_t i = 0; i < s->n_key; i++)
		if (!s->key[i].used && s->key[i].val.kind != EXPR_NULL && n++ < SHOWN)
			list = arena_printf(s->a, "%s%s%.80s = %s", list, *list ? ", " : "",
			                    s->key[i].name, show(s, s->key[i].val));
	if (n > SHOWN)
		list = arena_printf(s->a, "%s and %zu more", list, n - SHOWN);
	if (n && s->allow_unknown_keys)
		warn_at(s->d, (Loc){ 0 }, "%s: family %s does not use the key%s %s: ignored",
		        s->file, s->family.name, n > 1 ? "s" : "", list);
	else if (n)
		err_at(s->d, (Loc){ 0 },
		       "%s: family %s does not use the key%s %s, which may change what the model "
		       "computes; --allow-unknown-keys (allow_unknown_keys) ignores %s",
		       s->file, s->family.name, n > 1 ? "s" : "", list, n > 1 ? "them" : "it");
}

void
import_map(ImportSource *s)
{
	map_keys(s);
	apply_when(s);
	const Node *own = s->family.format ? node_get(s->family.format, "expect") : NULL;
	check_expect(s, node_get(s->family.base, "expect"), own);
	check_expect(s, own, NULL);
	check_refuse(s, s->family.format ? node_get(s->family.format, "refuse") : NULL);
	if (s->family.format) {
		ignore(s, node_get(s->family.format, "ignore"));
	}
	ignore(s, node_get(s->family.base, "ignore"));
	unknown_keys(s);
	/* last, because evaluating a condition marks its keys as used */
	check_refuse(s, node_get(s->family.base, "refuse"));
}
