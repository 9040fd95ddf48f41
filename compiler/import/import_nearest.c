/* For a model that no family file matches: finds the most similar family, and the tensors and keys
 * that differ. Only names are compared. Tensors of the first layer, and those outside of the
 * layers, are compared with the family's names of roles; keys with all words of the family's
 * file. */
#include "compiler/import/import.h"

#include <string.h>

enum { MOST_SHOWN = 6 };

/* Return whether `role` is a key of the map, alone or in a stack. */
static bool
names_role(const Node *map, const char *role)
{
	for (size_t i = 0; map && map->kind == NODE_MAP && i < map->n; i++)
		if (rule_has_role(map->key[i]->text, role))
			return true;
	return false;
}

/* Convert a rule to a pattern. "{l}", "{e}" and "{+..}" match any string; options after "|" are
 * dropped. */
static const char *
pattern_of(Arena *a, const char *prefix, const char *layer, const char *name)
{
	const char *full = *name == '/'   ? name + 1
	                   : *name == '.' ? arena_printf(a, "%s%s%s", prefix, layer, name)
	                                  : arena_printf(a, "%s%s", prefix, name);
	size_t n = strcspn(full, "|");
	char *out = NEW(a, char, n + 2), *p = out;

	while (n && full[n - 1] == ' ')
		n--;
	for (size_t i = 0; i < n; i++) {
		const char *end = full[i] == '{' ? memchr(full + i, '}', n - i) : NULL;
		if (end) {
			*p++ = '*';
			i = (size_t)(end - full);
		} else {
			*p++ = full[i];
		}
	}
	*p = 0;
	return out;
}

typedef struct NameList {
	const char **pattern;
	size_t n, cap;
} NameList;

static void
add_names(const ImportSource *s, NameList *to, const Node *map, const Node *over,
          const char *prefix, const char *layer)
{
	for (size_t i = 0; map && map->kind == NODE_MAP && i < map->n; i++) {
		const Node *v = map->item[i];
		bool drop = strcmp(map->key[i]->text, "drop") == 0;
		if (strcmp(map->key[i]->text, "layer") == 0 ||
		    (!drop && names_role(over, map->key[i]->text)))
			continue;
		for (size_t k = 0; k < (v->kind == NODE_LIST ? v->n : 1); k++) {
			const Node *one = v->kind == NODE_LIST ? v->item[k] : v;
			if (one->kind != NODE_SCALAR)
				continue;
			to->pattern =
			    arena_grow(s->a, to->pattern, &to->cap, to->n + 1, sizeof *to->pattern);
			to->pattern[to->n++] = pattern_of(s->a, prefix, layer, one->text);
		}
	}
}

static NameList
family_names(const ImportSource *s, const Family *f)
{
	const Node *base = node_get(f->base, "tensors"),
	           *own = f->format ? node_get(f->format, "tensors") : NULL;
	const Node *prefix = f->format ? node_get(f->format, "prefix") : NULL,
	           *layer = own ? node_get(own, "layer") : NULL;
	const char *in_front = prefix && prefix->kind == NODE_SCALAR ? prefix->text : "";
	NameList names = { 0 };

	if (!layer)
		layer = base ? node_get(base, "layer") : NULL;
	const char *name = layer && layer->kind == NODE_SCALAR ? layer->text : "";
	add_names(s, &names, own, NULL, in_front, name);
	add_names(s, &names, base, own, in_front, name);
	return names;
}

static bool
has_name(Arena *a, const NameList *n, const char *tensor)
{
	for (size_t i = 0; i < n->n; i++)
		if (glob_match(n->pattern[i], tensor) ||
		    glob_match(arena_printf(a, "%s.*", n->pattern[i]), tensor)) /* .weight, .bias */
			return true;
	return false;
}

/* Return whether to compare the tensor. Tensors of one layer represent those of all layers. */
static bool
counts(const char *tensor)
{
	return strstr(tensor, ".0.") || !strpbrk(tensor, "0123456789");
}

static bool
ignores(const Node *list, const char *key)
{
	for (size_t i = 0; list && list->kind == NODE_LIST && i < list->n; i++)
		if (list->item[i]->kind == NODE_SCALAR && glob_match(list->item[i]->text, key))
			return true;
	return false;
}

/* Return whether the family's file, or the file common to all families, uses the key. A key whose
 * value `expect` does not allow is not counted. */
static bool
knows_key(const Family *f, const SourceKey *k)
{
	const char *key = k->name;
	const Node *expect = f->format ? node_get(f->format, "expect") : NULL,
	           *want = expect ? node_get(expect, key) : NULL;

	if (want && !import_expected(want, k->val))
		return false;
	if (ignores(node_get(f->base, "ignore"), key) ||
	    (f->format && ignores(node_get(f->format, "ignore"), key)))
		return true;
	return strstr(f->root->loc.src->text, key) || strstr(f->base->loc.src->text, key) ||
	       strncmp(key, "rope_", 5) == 0 || strchr(key, '.');
}

static void
show(Strbuf *out, const char *name, int n)
{
	if (n < MOST_SHOWN)
		strbuf_printf(out, "%s%s", n ? ", " : "", name);
	else if (n == MOST_SHOWN)
		strbuf_printf(out, " and others");
}

void
import_nearest(ImportSource *s, const Family *family, size_t n)
{
	const Family *best = NULL;
	double most = 0;

	for (size_t i = 0; i < n; i++) {
		NameList names = family_names(s, &family[i]);
		int tensors = 0, hit = 0, keys = 0, known = 0;
		for (size_t t = 0; t < s->n_tensor; t++)
			if (counts(s->tensor[t].name)) {
				tensors++;
				hit += has_name(s->a, &names, s->tensor[t].name);
			}
		for (size_t k = 0; k < s->n_key; k++) {
			keys++;
			known += knows_key(&family[i], &s->key[k]);
		}
		double score =
		    (tensors ? 2.0 * hit / tensors : 0) + (keys ? (double)known / keys : 0);
		if (score > most) {
			most = score;
			best = &family[i];
		}
	}
	if (!best)
		return;
	NameList names = family_names(s, best);
	Strbuf *tensors = arena_strbuf(s->a), *keys = arena_strbuf(s->a);
	int n_tensor = 0, n_key = 0;
	for (size_t t = 0; t < s->n_tensor; t++)
		if (counts(s->tensor[t].name) && !has_name(s->a, &names, s->tensor[t].name))
			show(tensors, s->tensor[t].name, n_tensor++);
	for (size_t k = 0; k < s->n_key; k++)
		if (s->key[k].val.kind != EXPR_NULL && !knows_key(best, &s->key[k]))
			show(keys, s->key[k].name, n_key++);
	note_at(s->d, (Loc){ 0 }, "the most similar family is %s%s%s%s%s", best->name,
	        n_tensor      ? "; it has no role for the tensors "
	        : s->n_tensor ? "; it has a role for every tensor"
	                      : "",
	        n_tensor ? strbuf_str(tensors) : "", n_key ? "; it does not use the keys " : "",
	        n_key ? strbuf_str(keys) : "");
	strbuf_release(tensors);
	strbuf_release(keys);
}
