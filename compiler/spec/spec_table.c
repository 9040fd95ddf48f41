/* Merges layers of YAML into one value per key, with type, range and location. spec_check.c checks
 * dependencies between keys. */
#include "compiler/spec/spec_table.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "base/number.h"
#include "compiler/spec/layer_list.h"
#include "formats/quant_format_storage.h"

const SpecKeyInfo spec_key[K_COUNT] = {
#define KEY(id, path, type, def, lo, hi, unit, text)                                               \
	[K_##id] = { path, TYPE_##type, def, lo, hi, unit, text },
#include "compiler/spec/spec.def"
#undef KEY
};

int
spec_key_find(const char *path)
{
	for (int k = 0; k < K_COUNT; k++)
		if (strcmp(spec_key[k].path, path) == 0)
			return k;
	return -1;
}

int64_t
spec_int(const SpecTable *t, SpecKey k)
{
	return t->val[k].known ? (int64_t)t->val[k].num : 0;
}

bool
spec_word_is(const SpecTable *t, SpecKey k, const char *word)
{
	return t->val[k].str && strcmp(t->val[k].str, word) == 0;
}

static bool
is_word_of(const char *words, const char *word)
{
	size_t n = strlen(word);

	for (const char *p = words; n && *p;) {
		size_t k = strcspn(p, " ");
		if (k == n && memcmp(p, word, n) == 0)
			return true;
		p += k + (p[k] == ' ');
	}
	return false;
}

static const char *
nearest_word(SpecTable *t, const char *words, const char *word)
{
	const char *list[16];
	size_t n = 0;

	for (const char *p = words; *p && n < 16;) {
		size_t k = strcspn(p, " ");
		list[n++] = arena_strndup(t->a, p, k);
		p += k + (p[k] == ' ');
	}
	return nearest_text(word, list, n);
}

/* Format the range of a key: "1 to 65536 heads". */
static const char *
range_text(SpecTable *t, const SpecKeyInfo *k)
{
	char lo[NUMBER_SIZE], hi[NUMBER_SIZE];
	bool named = k->type != TYPE_WORD && *k->unit;

	yaml_number(lo, k->lo);
	yaml_number(hi, k->hi);
	if (k->lo == k->hi)
		return arena_printf(t->a, "%s is the only value", lo);
	return arena_printf(t->a, "%s to %s%s%s", lo, hi, named ? " " : "", named ? k->unit : "");
}

static const char *
shown(SpecTable *t, const Node *n)
{
	if (n->kind != NODE_SCALAR)
		return node_kind_text(n);
	size_t len = strlen(n->text);
	return len > 60 ? arena_printf(t->a, "%.57s...", n->text) : n->text;
}

static bool
read_num(SpecTable *t, const SpecKeyInfo *k, const Node *n, bool whole, double *out)
{
	int64_t i;

	if (whole ? !node_int(n, &i) : !node_num(n, out)) {
		err_at(t->d, n->loc, "%s = %s: %s is expected, %s", k->path, shown(t, n),
		       whole ? "an integer" : "a number", range_text(t, k));
		return false;
	}
	if (whole)
		*out = (double)i;
	if (*out < k->lo || *out > k->hi) {
		err_at(t->d, n->loc, "%s = %s is out of range: %s", k->path, n->text,
		       range_text(t, k));
		return false;
	}
	return true;
}

static bool
read_bytes(SpecTable *t, const SpecKeyInfo *k, const Node *n, double *out)
{
	int64_t i;

	if (!node_int(n, &i) && !(n->kind == NODE_SCALAR && bytes_parse(n->text, &i))) {
		err_at(t->d, n->loc, "%s = %s: a size such as 512M or 8G is expected", k->path,
		       shown(t, n));
		return false;
	}
	*out = (double)i;
	if (*out < k->lo || *out > k->hi) {
		err_at(t->d, n->loc, "%s = %s is out of range: at most %.0fT", k->path, n->text,
		       k->hi / (double)(1ll << 40));
		return false;
	}
	return true;
}

static bool
read_list(SpecTable *t, const SpecKeyInfo *k, const Node *n, SpecVal *v)
{
	size_t count = n->kind == NODE_LIST ? n->n : 1;
	double *list = NEW(t->a, double, count + 1);

	if (n->kind == NODE_MAP || count > 65536) {
		err_at(t->d, n->loc, "%s: a list of %s is expected", k->path,
		       k->type == TYPE_INTS ? "integers" : "numbers");
		return false;
	}
	for (size_t i = 0; i < count; i++)
		if (!read_num(t, k, n->kind == NODE_LIST ? n->item[i] : n, k->type == TYPE_INTS,
		              &list[i]))
			return false;
	v->n = (int)count;
	v->list = list;
	return true;
}

static void
set(SpecTable *t, SpecKey key, const Node *n, SpecFrom from)
{
	const SpecKeyInfo *k = &spec_key[key];
	SpecVal v = { .from = from, .given = true, .known = true, .node = n, .loc = n->loc };
	bool b;

	if (k->type == TYPE_TENSORS) {
		if (n->kind != NODE_MAP)
			err_at(t->d, n->loc,
			       "tensors: a map from roles to names is expected, this is %s",
			       node_kind_text(n));
		else if (from != FROM_DEFAULT)
			t->names[from - 1] = n;
		t->val[key] = v;
		return;
	}
	if (node_is_null(n)) { /* null restores the default */
		t->val[key] = (SpecVal){ .loc = n->loc };
		return;
	}
	switch (k->type) {
	case TYPE_INT:
	case TYPE_NUM:
		if (!read_num(t, k, n, k->type == TYPE_INT, &v.num))
			v.known = false;
		break;
	case TYPE_BYTES:
		v.known = read_bytes(t, k, n, &v.num);
		break;
	case TYPE_BOOL:
		if (!node_bool(n, &b)) {
			err_at(t->d, n->loc, "%s = %s: true or false is expected", k->path,
			       shown(t, n));
			v.known = false;
			break;
		}
		v.num = b;
		break;
	case TYPE_WORD:
		if (n->kind != NODE_SCALAR || !is_word_of(k->unit, n->text)) {
			const char *near =
			    n->kind == NODE_SCALAR ? nearest_word(t, k->unit, n->text) : NULL;
			err_at(t->d, n->loc, "%s = %s: one of these is expected: %s%s%s%s", k->path,
			       shown(t, n), k->unit, near ? "; did you mean " : "",
			       near ? near : "", near ? "?" : "");
			v.known = false;
			break;
		}
		v.str = n->text;
		break;
	case TYPE_STR:
		if (n->kind != NODE_SCALAR) {
			err_at(t->d, n->loc, "%s: a string is expected, this is %s", k->path,
			       node_kind_text(n));
			v.known = false;
			break;
		}
		v.str = n->text;
		break;
	case TYPE_INTS:
	case TYPE_NUMS:
		v.known = read_list(t, k, n, &v);
		break;
	case TYPE_LAYERS: /* parsed later, when n_layers is known */
		break;
	case TYPE_RULES:
		if (n->kind != NODE_LIST) {
			err_at(t->d, n->loc,
			       "%s: a list of rules {tensor, layers, type} is expected, this is %s",
			       k->path, node_kind_text(n));
			v.known = false;
		}
		break;
	case TYPE_TENSORS:
		break;
	}
	t->val[key] = v;
}

/* Return the key that is most similar to a misspelt `path`. */
static const char *
nearest_key(SpecTable *t, const char *path)
{
	const char *all[2 * K_COUNT],
	    *last[K_COUNT]; /* all names: keys, then the maps that contain them */
	const char *dot = strrchr(path, '.'), *tail = dot ? dot + 1 : path;

	for (int k = 0; k < K_COUNT; k++) {
		const char *p = spec_key[k].path, *q = strrchr(p, '.');
		all[k] = p;
		last[k] = q ? q + 1 : p;
		all[K_COUNT + k] = q ? arena_strndup(t->a, p, (size_t)(q - p)) : p;
	}
	/* In this order: the last component exists under another path; the path is misspelt; the
	 * last component is misspelt and under another path. */
	for (int k = 0; k < K_COUNT; k++)
		if (strcmp(last[k], tail) == 0)
			return all[k];
	const char *near = nearest_text(path, all, 2 * K_COUNT);
	if (near)
		return near;
	near = nearest_text(tail, last, K_COUNT);
	for (int k = 0; near && k < K_COUNT; k++)
		if (last[k] == near)
			return all[k];
	return NULL;
}

static bool
is_prefix(const char *path)
{
	size_t n = strlen(path);

	for (int k = 0; k < K_COUNT; k++)
		if (strncmp(spec_key[k].path, path, n) == 0 && spec_key[k].path[n] == '.')
			return true;
	return false;
}

static void
apply(SpecTable *t, const Node *map, const char *prefix, SpecFrom from)
{
	for (size_t i = 0; i < map->n; i++) {
		const Node *v = map->item[i];
		const char *path = arena_printf(t->a, "%s%s", prefix, map->key[i]->text);
		int k = spec_key_find(path);
		if (k >= 0) {
			set(t, (SpecKey)k, v, from);
		} else if (is_prefix(path)) {
			if (v->kind == NODE_MAP)
				apply(t, v, arena_printf(t->a, "%s.", path), from);
			else if (!node_is_null(v))
				err_at(t->d, v->loc, "%s: a map of keys is expected, this is %s",
				       path, node_kind_text(v));
		} else {
			const char *near = nearest_key(t, path);
			err_at(t->d, map->key[i]->loc, "unknown key %s%s%s%s",
			       strlen(path) > 100 ? "(a long word)" : path,
			       near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
		}
	}
}

void
spec_table_apply(SpecTable *t, const Node *map, SpecFrom from)
{
	if (map->kind != NODE_MAP)
		err_at(t->d, map->loc, "a map of keys is expected, this is %s",
		       node_kind_text(map));
	else
		apply(t, map, "", from);
}

static SpecExprVal
default_of(void *user, const char *name)
{
	SpecTable *t = user;
	int k = spec_key_find(name);

	if (k < 0 || !t->val[k].known)
		return (SpecExprVal){ .kind = EXPR_NULL };
	return (SpecExprVal){ .kind = EXPR_NUM, .num = t->val[k].num };
}

static void
set_default(SpecTable *t, SpecKey key)
{
	const SpecKeyInfo *k = &spec_key[key];
	SpecVal *v = &t->val[key];
	SpecExprEnv env = { .user = t, .resolved = default_of };
	SpecExprVal x;

	if (!v->loc.src)
		v->loc = (Loc){ .src = t->file.src };
	if (!k->def) {
		err_at(t->d, t->file, "%s is missing: %s", k->path, k->text);
		return;
	}
	v->known = true;
	switch (k->type) {
	case TYPE_INT:
	case TYPE_NUM:
	case TYPE_BYTES:
	case TYPE_BOOL:
		if (!expr_eval(k->def, (Loc){ 0 }, &env, t->d, t->a, &x) || x.kind == EXPR_NULL) {
			/* the default depends on a key whose error has been reported */
			v->known = false;
			break;
		}
		v->num = x.num;
		if (k->type == TYPE_INT && v->num != floor(v->num)) {
			/* the expression without the $ of keys */
			char *text = arena_strdup(t->a, k->def), *to = text;
			for (const char *p = k->def; *p; p++)
				if (*p != '$')
					*to++ = *p;
			*to = 0;
			err_at(t->d, t->file,
			       "%s is missing, and its default %s = %.6g is not an integer",
			       k->path, text, v->num);
			v->known = false;
		}
		break;
	case TYPE_WORD:
		if (*k->def == '$') { /* the default is the value of another key */
			const SpecVal *w = &t->val[spec_key_find(k->def + 1)];
			v->known = w->known;
			v->str = w->str;
			break;
		}
		v->str = k->def;
		break;
	case TYPE_STR:
		v->str = strcmp(k->def, "null") == 0 ? NULL : k->def;
		break;
	case TYPE_LAYERS:
	case TYPE_INTS:
	case TYPE_NUMS:
	case TYPE_RULES:
	case TYPE_TENSORS:
		break;
	}
}

static void
read_layers(SpecTable *t, SpecKey key)
{
	int n_layers = (int)spec_int(t, K_n_layers);
	uint8_t *out = NEW(t->a, uint8_t, n_layers + 1);
	SpecVal *v = &t->val[key];

	v->layers = out;
	if (n_layers < 1)
		return;
	if (v->node)
		v->known = selector_read(v->node, spec_key[key].path, n_layers, out, t->d);
	else
		memset(out, strcmp(spec_key[key].def, "all") == 0,
		       (size_t)n_layers); /* the only defaults of this type are `all` and `none` */
}

static void
read_rules(SpecTable *t)
{
	const SpecVal *v = &t->val[K_storage_rules];
	const char *const known[] = { "tensor",    "layers", "type",  "group",
		                      "symmetric", "order",  "factor" };
	int n_layers = (int)spec_int(t, K_n_layers);

	if (!v->known || !v->node)
		return;
	StorageRule *rule = NEW(t->a, StorageRule, v->node->n + 1);
	for (size_t i = 0; i < v->node->n; i++) {
		const Node *n = v->node->item[i];
		StorageRule r = { .tensor = "*", .dtype = DT_NONE };
		if (n->kind != NODE_MAP) {
			err_at(t->d, n->loc,
			       "storage.rules: a rule is a map {tensor: down, layers: \"0-3\", "
			       "type: q6_k}, this is %s",
			       node_kind_text(n));
			continue;
		}
		for (size_t j = 0; j < n->n; j++) {
			const Node *x = n->item[j];
			const char *key = n->key[j]->text;
			if (strcmp(key, "layers") == 0) {
				uint8_t *in = NEW(t->a, uint8_t, n_layers + 1);
				/* a rule for all layers also applies to tensors outside of the
				 * layers */
				if (n_layers > 0 &&
				    selector_read(x, "storage.rules: layers", n_layers, in, t->d) &&
				    memchr(in, 0, (size_t)n_layers))
					r.layer_in = in;
			} else if (strcmp(key, "tensor") == 0) {
				if (x->kind != NODE_SCALAR || !*x->text)
					err_at(t->d, x->loc,
					       "storage.rules: tensor must be the role of a "
					       "tensor, such as q, down or embed, or *");
				else
					r.tensor = x->text;
			} else if (strcmp(key, "type") == 0) {
				if (x->kind == NODE_SCALAR &&
				    is_word_of(spec_key[K_storage_default].unit, x->text))
					r.dtype = dtype_from_text(x->text);
				else
					err_at(t->d, x->loc,
					       "storage.rules: type = %s: one of these is "
					       "expected: %s",
					       shown(t, x), spec_key[K_storage_default].unit);
			} else if (strcmp(key, "group") == 0) {
				bool row = x->kind == NODE_SCALAR && strcmp(x->text, "row") == 0;
				if (row)
					r.group = -1;
				else if (!node_int(x, &r.group) || r.group < 0)
					err_at(t->d, x->loc,
					       "storage.rules: group must be the number of columns "
					       "that share a scale, or row");
			} else if (strcmp(key, "symmetric") == 0) {
				if (!node_bool(x, &r.symmetric))
					err_at(t->d, x->loc,
					       "storage.rules: symmetric must be true or false");
			} else if (strcmp(key, "order") == 0 || strcmp(key, "factor") == 0) {
				if (x->kind != NODE_SCALAR || !*x->text)
					err_at(t->d, x->loc,
					       "storage.rules: %s must be the role of a tensor, "
					       "such as q or down",
					       key);
				else
					*(*key == 'o' ? &r.order : &r.factor) = x->text;
			} else {
				const char *near =
				    nearest_text(key, known, sizeof known / sizeof *known);
				err_at(t->d, n->key[j]->loc, "storage.rules: unknown key %s%s%s%s",
				       key,
				       near ? "; did you mean "
				            : "; known are tensor, layers, type, group, symmetric, "
				              "order and factor",
				       near ? near : "", near ? "?" : "");
			}
		}
		if (!node_get(n, "type"))
			err_at(t->d, n->loc, "storage.rules: this rule has no type");
		else if (r.dtype != DT_NONE && (r.group || r.symmetric) &&
		         !dtype_group(r.dtype).columns)
			err_at(t->d, n->loc,
			       "storage.rules: group and symmetric are for group types such as "
			       "u4_128; blocks of %s have their own scales",
			       dtype_text(r.dtype));
		else if (r.group > 0 && r.group % dtype_group(r.dtype).columns)
			err_at(t->d, n->loc,
			       "storage.rules: group = %lld: for %s a multiple of %d columns is "
			       "expected",
			       (long long)r.group, dtype_text(r.dtype),
			       dtype_group(r.dtype).columns);
		else if (r.group > 0 && r.group == dtype_group(r.dtype).columns)
			r.group = 0;
		rule[t->n_storage++] = r;
	}
	t->storage = rule;
}

/* Translate quant.method into rules, which follow the explicit ones: first for tensors that the
 * format excludes, then for all others. */
static void
read_quant(SpecTable *t)
{
	SpecVal *quant_format = &t->val[K_quant_method], *bits = &t->val[K_quant_bits],
	        *group = &t->val[K_quant_group];
	QuantFormatStorage q;
	llmc_error err = { 0 };

	if (!quant_format->str) {
		const SpecVal *stray = bits->num != 0 ? bits : group->num != 0 ? group : NULL;
		if (stray)
			err_at(t->d, stray->loc, "%s has no effect without quant.method",
			       stray == bits ? "quant.bits" : "quant.group");
		return;
	}
	if (quant_format_storage(t->a, quant_format->str, (int)bits->num, (int64_t)group->num, &q,
	                         &err) != LLMC_OK) {
		err_at(t->d, quant_format->loc, "%s", err.text);
		return;
	}
	StorageRule *rule = NEW(t->a, StorageRule, t->n_storage + (int)q.n_keep + 1);
	if (t->n_storage)
		memcpy(rule, t->storage, (size_t)t->n_storage * sizeof *rule);
	Dtype rest =
	    dtype_from_text(t->val[K_storage_default].str ? t->val[K_storage_default].str : "");
	for (size_t i = 0; i < q.n_keep; i++)
		rule[t->n_storage++] = (StorageRule){ .tensor = q.keep[i], .dtype = rest };
	rule[t->n_storage++] = (StorageRule){
		.tensor = "*", .dtype = q.dtype, .group = q.group, .symmetric = q.symmetric
	};
	t->storage = rule;
	quant_format->str = NULL; /* the rules replace it, in the resolved description too */
	bits->num = group->num = 0;
}

/* If a later layer of values changes how weights are stored, the checkpoint's declaration of
 * activations no longer applies. */
static void
ignore_declared_activations(SpecTable *t)
{
	SpecVal *declared = &t->val[K_activations_declared];
	static const SpecKey over[] = { K_quant_method, K_storage_default, K_storage_rules };

	for (size_t i = 0; i < sizeof over / sizeof *over; i++)
		if (declared->given && t->val[over[i]].given &&
		    t->val[over[i]].from > declared->from)
			declared->str = "none";
}

void
spec_table_finish(SpecTable *t)
{
	ignore_declared_activations(t);
	for (int k = 0; k < K_COUNT; k++)
		if (!t->val[k].given)
			set_default(t, (SpecKey)k);
	for (int k = 0; k < K_COUNT; k++)
		if (spec_key[k].type == TYPE_LAYERS)
			read_layers(t, (SpecKey)k);
	read_rules(t);
	read_quant(t);
}

/* Return whether YAML and the readers here parse this plain text as the same string. */
static bool
plain_is_same(const char *s)
{
	double v;
	static const char *const words[] = { "true", "false", "null", "yes", "no",
		                             "on",   "off",   "y",    "n",   "~" };

	if (!isalpha((unsigned char)*s) && *s != '_' && *s != '/' && *s != '.')
		return false;
	if (number_parse(s, &v))
		return false;
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (strcasecmp(s, words[i]) == 0)
			return false;
	for (const char *p = s; *p; p++)
		if (!isalnum((unsigned char)*p) && !strchr("_-./+", *p))
			return false;
	return true;
}

const char *
spec_quote(Arena *a, const char *text)
{
	static const char hex[] = "0123456789abcdef";

	if (plain_is_same(text))
		return text;
	char *out = NEW(a, char, strlen(text) * 4 + 3), *p = out;
	*p++ = '"';
	for (const unsigned char *s = (const unsigned char *)text; *s; s++) {
		if (*s == '"' || *s == '\\') {
			*p++ = '\\';
			*p++ = (char)*s;
		} else if (*s == '\n') {
			*p++ = '\\';
			*p++ = 'n';
		} else if (*s < 32 || *s == 127) {
			*p++ = '\\';
			*p++ = 'x';
			*p++ = hex[*s >> 4];
			*p++ = hex[*s & 15];
		} else {
			*p++ = (char)*s;
		}
	}
	*p++ = '"';
	return out;
}

static const char *
rules_text(const SpecTable *t, Arena *a)
{
	const char *out = "";

	for (int i = 0; i < t->n_storage; i++) {
		const StorageRule *r = &t->storage[i];
		const char *group = r->group < 0 ? ", group: row"
		                    : r->group
		                        ? arena_printf(a, ", group: %lld", (long long)r->group)
		                        : "";
		const char *order =
		    r->order ? arena_printf(a, ", order: %s", spec_quote(a, r->order)) : "";
		const char *factor =
		    r->factor ? arena_printf(a, ", factor: %s", spec_quote(a, r->factor)) : "";
		out = arena_printf(a, "%s%s{tensor: %s, layers: %s, type: %s%s%s%s%s}", out,
		                   i ? ", " : "", spec_quote(a, r->tensor),
		                   r->layer_in
		                       ? selector_text(r->layer_in, (int)spec_int(t, K_n_layers), a)
		                       : "all",
		                   r->dtype == DT_NONE ? "none" : dtype_text(r->dtype), group,
		                   r->symmetric ? ", symmetric: true" : "", order, factor);
	}
	return arena_printf(a, "[%s]", out);
}

const char *
spec_val_text(const SpecTable *t, SpecKey key, Arena *a)
{
	const SpecVal *v = &t->val[key];
	char num[NUMBER_SIZE];

	switch (spec_key[key].type) {
	case TYPE_INT:
	case TYPE_NUM:
	case TYPE_BYTES:
		yaml_number(num, v->num);
		return arena_strdup(a, num);
	case TYPE_BOOL:
		return v->num != 0 ? "true" : "false";
	case TYPE_WORD:
		return v->str ? v->str : "null";
	case TYPE_STR:
		return v->str ? spec_quote(a, v->str) : "null";
	case TYPE_LAYERS:
		return v->layers ? selector_text(v->layers, (int)spec_int(t, K_n_layers), a)
		                 : "all";
	case TYPE_INTS:
	case TYPE_NUMS: {
		char *out = NEW(a, char, (size_t)v->n * 42 + 3), *p = out;
		*p++ = '[';
		for (int i = 0; i < v->n; i++) {
			yaml_number(num, v->list[i]);
			p += sprintf(p, "%s%s", i ? ", " : "", num);
		}
		*p++ = ']';
		return out;
	}
	case TYPE_RULES:
		return rules_text(t, a);
	case TYPE_TENSORS:
		break;
	}
	return "null";
}
