/* Parses layer selectors into one byte per layer. */
#include "compiler/spec/layer_list.h"

#include <stdio.h>
#include <string.h>

#include "base/nearest.h"

static bool
in_range(Diag *d, Loc loc, const char *what, int64_t layer, int n_layers)
{
	if (layer >= 0 && layer < n_layers)
		return true;
	err_at(d, loc, "%s names layer %lld: the model has layers 0 to %d", what, (long long)layer,
	       n_layers - 1);
	return false;
}

static bool
read_number(const char **p, int64_t *out)
{
	int64_t v = 0;

	if (**p < '0' || **p > '9')
		return false;
	for (; **p >= '0' && **p <= '9'; (*p)++)
		if (v < INT64_C(1000000000))
			v = v * 10 + (**p - '0');
	*out = v;
	return true;
}

/* Parse "0-3,8". */
static bool
read_ranges(const Node *n, const char *what, int n_layers, uint8_t *out, Diag *d)
{
	const char *p = n->text;

	for (;;) {
		int64_t lo, hi;
		while (*p == ' ')
			p++;
		if (!read_number(&p, &lo))
			break;
		hi = lo;
		if (*p == '-') {
			p++;
			if (!read_number(&p, &hi))
				break;
		}
		while (*p == ' ')
			p++;
		if (!in_range(d, n->loc, what, lo, n_layers) ||
		    !in_range(d, n->loc, what, hi, n_layers))
			return false;
		if (lo > hi) {
			err_at(d, n->loc, "%s: the range %lld-%lld runs backwards", what,
			       (long long)lo, (long long)hi);
			return false;
		}
		memset(out + lo, 1, (size_t)(hi - lo + 1));
		if (!*p)
			return true;
		if (*p++ != ',')
			break;
	}
	err_at(d, n->loc,
	       "%s: \"%s\" selects no layers; write all, none, numbers and ranges as \"0-3,8\", a "
	       "list, or {from, every, at, except, not_every}",
	       what, n->text);
	return false;
}

static bool
read_step(const Node *n, const char *what, int n_layers, uint8_t *out, Diag *d)
{
	static const char *const known[] = { "from", "every", "at", "except", "not_every" };
	int64_t from = 0, every = 1, at = 0, not_every = 0;
	const Node *except = NULL;

	for (size_t i = 0; i < n->n; i++) {
		const char *k = n->key[i]->text;
		const Node *v = n->item[i];
		if (strcmp(k, "except") == 0) {
			except = v;
			continue;
		}
		int64_t *to = strcmp(k, "from") == 0        ? &from
		              : strcmp(k, "every") == 0     ? &every
		              : strcmp(k, "at") == 0        ? &at
		              : strcmp(k, "not_every") == 0 ? &not_every
		                                            : NULL;
		if (!to) {
			const char *near = nearest_text(k, known, 5);
			err_at(d, n->key[i]->loc, "%s: unknown word %s in a layer selector%s%s%s",
			       what, k,
			       near ? "; did you mean "
			            : "; known are from, every, at, except, not_every",
			       near ? near : "", near ? "?" : "");
			return false;
		}
		if (!node_int(v, to) || *to < (to == &every || to == &not_every) || *to > 1000000) {
			err_at(d, v->loc, "%s: %s must be an integer, at least %d", what, k,
			       to == &every || to == &not_every);
			return false;
		}
	}
	if (not_every && node_get(n, "every")) {
		err_at(d, n->loc, "%s: every and not_every exclude each other", what);
		return false;
	}
	for (int l = 0; l < n_layers; l++)
		out[l] = l >= from &&
		         (not_every ? l % not_every != at % not_every : l % every == at % every);
	if (except) {
		uint8_t *drop = NEW(d->perm, uint8_t, n_layers);
		if (!selector_read(except, what, n_layers, drop, d))
			return false;
		for (int l = 0; l < n_layers; l++)
			out[l] &= !drop[l];
	}
	return true;
}

bool
selector_read(const Node *n, const char *what, int n_layers, uint8_t *out, Diag *d)
{
	memset(out, 0, (size_t)n_layers);
	switch (n->kind) {
	case NODE_MAP:
		return read_step(n, what, n_layers, out, d);
	case NODE_LIST:
		for (size_t i = 0; i < n->n; i++) {
			uint8_t *one = NEW(d->perm, uint8_t, n_layers);
			if (n->item[i]->kind != NODE_SCALAR) {
				err_at(d, n->item[i]->loc,
				       "%s: a list of layers holds numbers, not %s", what,
				       node_kind_text(n->item[i]));
				return false;
			}
			if (!read_ranges(n->item[i], what, n_layers, one, d))
				return false;
			for (int l = 0; l < n_layers; l++)
				out[l] |= one[l];
		}
		return true;
	case NODE_SCALAR:
		break;
	}
	if (strcmp(n->text, "all") == 0) {
		memset(out, 1, (size_t)n_layers);
		return true;
	}
	if (strcmp(n->text, "none") == 0)
		return true;
	return read_ranges(n, what, n_layers, out, d);
}

char *
selector_text(const uint8_t *layers, int n_layers, Arena *a)
{
	int n = 0;

	for (int l = 0; l < n_layers; l++)
		n += layers[l] != 0;
	if (n == n_layers)
		return arena_strdup(a, "all");
	if (n == 0)
		return arena_strdup(a, "none");
	char *out = NEW(a, char, (size_t)n * 8 + 4), *p = out;
	*p++ = '"';
	for (int l = 0; l < n_layers; l++) {
		int end = l;
		if (!layers[l])
			continue;
		while (end + 1 < n_layers && layers[end + 1])
			end++;
		if (p > out + 1)
			*p++ = ',';
		p += sprintf(p, end > l ? "%d-%d" : "%d", l, end);
		l = end;
	}
	*p++ = '"';
	return out;
}
