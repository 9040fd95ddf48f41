/* Writes the resolved description: every key with its value, in the order of spec.def, then the
 * tensor names. Reading the text gives the same values, and therefore the same text again. */
#include <string.h>

#include "compiler/spec/spec_table.h"

/* Open the maps of `path` that are not open yet. The rest is the key itself. */
static void
open_maps(Strbuf *out, const char *path, char open[64])
{
	size_t same = 0, depth = 0;

	for (size_t i = 0; path[i] && path[i] == open[i]; i++)
		if (path[i] == '.') {
			same = i + 1;
			depth++;
		}
	const char *p = path + same;
	for (const char *dot; (dot = strchr(p, '.')); p = dot + 1) {
		strbuf_printf(out, "%*s%.*s:\n", (int)(2 * depth), "", (int)(dot - p), p);
		depth++;
	}
	size_t n = (size_t)(p - path);
	memcpy(open, path, n);
	open[n] = 0;
	strbuf_printf(out, "%*s%s: ", (int)(2 * depth), "", p);
}

char *
spec_resolved_text(SpecTable *t, const TensorRule *rule, int n_rule)
{
	Strbuf *out = arena_strbuf(t->a);
	char open[64] = "";
	size_t counted = 0;
	int line = 1;

	const char *val[K_COUNT];
	for (int k = 0; k < K_COUNT; k++)
		val[k] = spec_val_text(t, (SpecKey)k, t->a);
	const char **role = NEW(t->a, const char *, n_rule + 1),
	           **name = NEW(t->a, const char *, n_rule + 1);
	for (int i = 0; i < n_rule; i++) {
		const TensorRule *r = &rule[i];
		char value[NUMBER_SIZE];
		yaml_number(value, r->value);
		bool any = r->per_head || r->quarters || r->transpose || r->stacked ||
		           r->rope_pairs || r->unfold || r->whole || r->same;
		role[i] = r->role;
		name[i] = spec_quote(
		    t->a,
		    arena_printf(t->a, "%s%s%s%s%s%s%s%s%s%s", r->name, any ? " |" : "",
		                 r->per_head ? " per_head" : "", r->quarters ? " quarters" : "",
		                 r->transpose ? " transpose" : "", r->stacked ? " stacked" : "",
		                 r->rope_pairs ? " rope_pairs" : "", r->unfold ? " unfold" : "",
		                 r->whole ? " whole" : "",
		                 r->same ? arena_printf(t->a, " all=%s", value) : ""));
	}
	strbuf_puts(out,
	            "# resolved by llmc: every key with its value, defaults and family included\n");
	for (int k = 0; k < K_COUNT; k++) {
		if (k == K_tensors)
			continue;
		open_maps(out, spec_key[k].path, open);
		for (; counted < out->len; counted++)
			line += out->data[counted] == '\n';
		t->val[k].loc.resolved = line;
		strbuf_puts(out, k == K_resolved                               ? "true"
		                 : k == K_names_prefix || k == K_names_replace ? "null"
		                                                               : val[k]);
		strbuf_putc(out, '\n');
	}
	strbuf_puts(out, "tensors:\n");
	int n_drop = 0;
	for (int i = 0; i < n_rule; i++) {
		if (strcmp(role[i], "drop") == 0)
			n_drop++;
		else
			strbuf_printf(out, "  %s: %s\n", role[i], name[i]);
	}
	if (n_drop) {
		strbuf_puts(out, "  drop:\n");
		for (int i = 0; i < n_rule; i++)
			if (strcmp(role[i], "drop") == 0)
				strbuf_printf(out, "    - %s\n", name[i]);
	}
	if (out->failed)
		arena_out(t->a);
	char *copy = arena_strndup(t->a, out->data, out->len);
	strbuf_release(out);
	return copy;
}
