/* Find family files and merge their three layers of tensor rules. */
#include "compiler/spec/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/embed.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/number.h"
#include "base/text.h"

/* all roles of tensors. Prefixes: e_ stacked experts, s_ shared experts */
static const char *const roles[] = {
	"embed",
	"embed_in",
	"embed_out",
	"pos_embed",
	"type_embed",
	"embed_norm",
	"final_norm",
	"head",
	"labels",
	"dense_1",
	"dense_2",
	"dense_3",
	"dense_norm",
	"attn_norm",
	"q",
	"k",
	"v",
	"o",
	"q_gate",
	"q_norm",
	"k_norm",
	"sinks",
	"attn_out_norm",
	"lin_q",
	"lin_k",
	"lin_v",
	"lin_z",
	"lin_z_low",
	"lin_a",
	"lin_a_low",
	"lin_b",
	"lin_conv_q",
	"lin_conv_k",
	"lin_conv_v",
	"lin_rate",
	"lin_dt",
	"lin_norm",
	"lin_o",
	"ssm_z",
	"ssm_x",
	"ssm_dt",
	"ssm_low",
	"ssm_b",
	"ssm_c",
	"ssm_low_norm",
	"ssm_b_norm",
	"ssm_c_norm",
	"ssm_conv",
	"ssm_rate",
	"ssm_dt_bias",
	"ssm_skip",
	"ssm_norm",
	"ssm_o",
	"conv_b",
	"conv_c",
	"conv_x",
	"conv_w",
	"conv_o",
	"shared_norm",
	"shared_q",
	"shared_k",
	"shared_v",
	"shared_o",
	"shared_ffn_norm",
	"shared_gate",
	"shared_up",
	"shared_down",
	"from_shared",
	"shared_q_a",
	"shared_q_b",
	"shared_k_a",
	"shared_k_b",
	"shared_v_a",
	"shared_v_b",
	"shared_ffn_a",
	"shared_gate_b",
	"shared_up_b",
	"q_a",
	"q_a_norm",
	"q_b",
	"kv_a",
	"kv_a_norm",
	"k_b",
	"v_b",
	"index_q",
	"index_k",
	"index_k_norm",
	"index_w",
	"ffn_norm",
	"gate",
	"up",
	"down",
	"act_p",
	"act_n",
	"ffn_out_norm",
	"dense_out_norm",
	"moe_norm",
	"moe_out_norm",
	"moe_in",
	"moe_out",
	"layer_gain",
	"attn_scale",
	"ffn_scale",
	"ple_embed",
	"ple_proj",
	"ple_norm",
	"ple_gate",
	"ple_out",
	"ple_out_norm",
	"mtp_enorm",
	"mtp_hnorm",
	"mtp_proj",
	"mtp_norm",
	"mtp_output",
	"mtp_fc",
	"mtp_tokens",
	"patch",
	"patch_2",
	"patch_pos",
	"patch_bias",
	"class",
	"project",
	"project_out",
	"merge",
	"merged_norm",
	"deep_norm",
	"deep_project",
	"deep_project_out",
	"e_stream_in",
	"e_stream_out",
	"stream_norm",
	"stream_router",
	"stream_predict",
	"stream_correct",
	"stream_gain",
	"laurel_a",
	"laurel_b",
	"laurel_norm",
	"router",
	"router_bias",
	"router_norm",
	"expert_gain",
	"e_gate",
	"e_up",
	"e_down",
	"e_gate_b",
	"e_up_b",
	"e_down_b",
	"s_gate",
	"s_up",
	"s_down",
	"s_mix",
	"rope_factors",
	"rope_factors_long",
	"rope_factors_short",
	"drop",
};
enum { N_ROLES = sizeof roles / sizeof *roles };

/* A file next to the description overrides the embedded one. */
Node *
family_file(const char *path, const char *dir, Diag *d, Arena *a)
{
	size_t size;

	if (dir) {
		const char *full = arena_printf(a, "%s/%s", *dir ? dir : ".", path);
		if (file_exists(full)) {
			Strbuf *text = arena_strbuf(a);
			llmc_error err = { 0 };
			if (file_read(full, YAML_MAX_BYTES, text, &err) != LLMC_OK) {
				if (text->failed)
					arena_out(a);
				err_at(d, (Loc){ 0 }, "%s", err.text);
				return NULL;
			}
			const SourceText *src = yaml_source(a, full, strbuf_str(text), text->len);
			strbuf_release(text);
			return yaml_parse(src, d, a);
		}
	}
	const char *name = arena_printf(a, "configs/%s", path);
	const char *text = embed_find(name, &size);
	return text ? yaml_parse(yaml_source(a, name, text, size), d, a) : NULL;
}

static const char *
nearest_family(const char *name, Diag *d, Arena *a)
{
	const Node *index = family_file("families/_index.yaml", NULL, d, a);
	const Node *list = index ? node_get(index, "families") : NULL;

	if (!list || list->kind != NODE_LIST)
		return NULL;
	const char **all = NEW(a, const char *, list->n + 1);
	size_t n = 0;
	for (size_t i = 0; i < list->n; i++)
		if (list->item[i]->kind == NODE_SCALAR)
			all[n++] = list->item[i]->text;
	return nearest_text(name, all, n);
}

static void
check_keys(const Node *map, const char *what, const char *const *known, size_t n, Diag *d)
{
	for (size_t i = 0; map && map->kind == NODE_MAP && i < map->n; i++) {
		const char *k = map->key[i]->text;
		bool found = false;
		for (size_t j = 0; j < n; j++)
			found |= strcmp(known[j], k) == 0;
		if (!found) {
			const char *near = nearest_text(k, known, n);
			err_at(d, map->key[i]->loc, "unknown key %s in %s%s%s%s", k, what,
			       near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
		}
	}
}

bool
family_load(Family *f, const char *name, const char *dir, const char *format, Loc at, Diag *d,
            Arena *a)
{
	static const char *const top[] = { "family", "match", "block", "hf", "gguf", "mmproj" };
	static const char *const part[] = { "prefix", "block",  "keys",   "values",
		                            "when",   "expect", "refuse", "tensors",
		                            "ignore", "arch",   "write" };
	const size_t n_part = sizeof part / sizeof *part -
	                      /* "arch" and "write" are used only when GGUF files are written */
	                      (strcmp(format, "gguf") == 0 ? 0 : 2);
	int before = d->n_error;

	*f = (Family){ .name = name };
	if (!*name ||
	    name[strspn(name,
	                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")] ||
	    strlen(name) > 60) {
		err_at(d, at, "family = %.60s: a name of letters, digits, _ and - is expected",
		       name);
		return false;
	}
	f->root = family_file(arena_printf(a, "families/%s.yaml", name), dir, d, a);
	if (!f->root) {
		if (d->n_error == before) {
			const char *near = nearest_family(name, d, a);
			err_at(d, at,
			       "family = %s: there is no families/%s.yaml next to the description, "
			       "and llmc has no such family%s%s%s",
			       name, name, near ? "; did you mean " : "", near ? near : "",
			       near ? "?" : "");
		}
		return false;
	}
	check_keys(f->root, "a family file", top, sizeof top / sizeof *top, d);
	f->block = node_get(f->root, "block");
	f->format = node_get(f->root, format);
	if (f->format && f->format->kind != NODE_MAP)
		f->format = node_is_null(f->format) ? NULL : f->format;
	check_keys(f->format, arena_printf(a, "%s of a family file", format), part, n_part, d);
	f->base = family_file(arena_printf(a, "families/_%s.yaml", format), dir, d, a);
	if (!f->base && d->n_error == before)
		err_at(d, at, "families/_%s.yaml is missing", format);
	return d->n_error == before;
}

const char *
rule_name(Arena *a, const TensorRule *r, int layer, int expert, const char *suffix)
{
	bool whole = r->whole || ends_with(r->name, ".weight") || ends_with(r->name, ".bias");
	char *out = NEW(a, char, 4 * strlen(r->name) + strlen(suffix) + 1),
	     *p = out; /* three characters expand to at most eleven */

	for (const char *t = r->name; *t;) {
		if (strncmp(t, "{l}", 3) == 0 || strncmp(t, "{e}", 3) == 0) {
			p += sprintf(p, "%d", t[1] == 'l' ? layer : expert);
			t += 3;
		} else {
			*p++ = *t++;
		}
	}
	strcpy(p, whole ? "" : suffix);
	return out;
}

const char *
rule_name_in(Arena *a, const Spec *s, const TensorRule *r, int layer, int expert,
             const char *suffix)
{
	const char *hole = strstr(r->name, "{+"), *end = hole ? strchr(hole, '}') : NULL;
	TensorRule own = *r;

	if (end)
		own.name =
		    arena_printf(a, "%.*s%.*s%s", (int)(hole - r->name), r->name,
		                 layer >= 0 && spec_shared(s, layer) ? (int)(end - hole) - 2 : 0,
		                 hole + 2, end + 1);
	const char *deep = strstr(own.name, "{deep}");
	if (deep && layer >= 0 && layer < s->vision.n_deep)
		own.name = arena_printf(a, "%.*s%d%s", (int)(deep - own.name), own.name,
		                        s->vision.deep[layer], deep + strlen("{deep}"));
	if (strncmp(r->role, "shared_", 7) == 0 && layer >= 0)
		return rule_name(a, &own, spec_shared_layer(s, layer), spec_shared_use(s, layer),
		                 suffix);
	return rule_name(a, &own, layer < 0 ? layer : layer + s->mtp.layer, expert, suffix);
}

bool
rule_has_role(const char *list, const char *role)
{
	size_t n = strlen(role);

	for (const char *p = list;;) {
		size_t k = strcspn(p, "+");
		if (k == n && memcmp(p, role, n) == 0)
			return true;
		if (!p[k])
			return false;
		p += k + 1;
	}
}

const TensorRule *
rule_for(const TensorRule *rule, int n, const char *role)
{
	for (int i = 0; i < n; i++)
		if (rule_has_role(rule[i].role, role))
			return &rule[i];
	return NULL;
}

typedef struct FamilyRules {
	SpecTable *t;
	TensorRule *rule;
	size_t n, cap;
	const char *layer; /* name of a layer: the prefix of names that begin with "." */
	const char *prefix, *from, *to;
} FamilyRules;

static bool
known_roles(FamilyRules *r, const Node *key)
{
	for (const char *p = key->text;;) {
		size_t k = strcspn(p, "+");
		const char *role = arena_strndup(r->t->a, p, k);
		bool found = false;
		for (int i = 0; i < N_ROLES; i++)
			found |= strcmp(roles[i], role) == 0;
		if (!found) {
			const char *near = nearest_text(role, roles, N_ROLES);
			err_at(r->t->d, key->loc, "tensors: unknown role %.60s%s%s%s", role,
			       near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
			return false;
		}
		if (!p[k])
			return true;
		p += k + 1;
	}
}

static bool
share_a_role(const char *x, const char *y)
{
	for (int i = 0; i < N_ROLES; i++)
		if (rule_has_role(x, roles[i]) && rule_has_role(y, roles[i]))
			return true;
	return false;
}

static const char *
full_name(FamilyRules *r, const char *name)
{
	const char *full = *name == '/' ? name + 1
	                   : *name == '.'
	                       ? arena_printf(r->t->a, "%s%s%s", r->prefix, r->layer, name)
	                       : arena_printf(r->t->a, "%s%s", r->prefix, name);
	if (r->from && strncmp(full, r->from, strlen(r->from)) == 0)
		full = arena_printf(r->t->a, "%s%s", r->to, full + strlen(r->from));
	return full;
}

static void
add(FamilyRules *r, const Node *key, const Node *value, const char *name)
{
	static const char *const words[] = { "per_head",    "quarters",   "transpose", "stacked",
		                             "interleaved", "rope_pairs", "unfold",    "whole" };
	size_t end = strcspn(name, "|"), len = end;
	bool drop = strcmp(key->text, "drop") == 0;
	TensorRule rule = { .role = key->text, .loc = value->loc, .whole = drop };

	while (len && name[len - 1] == ' ')
		len--;
	if (!len) {
		err_at(r->t->d, value->loc, "tensors: %s has no name", key->text);
		return;
	}
	rule.name = full_name(r, arena_strndup(r->t->a, name, len));
	for (const char *p = name + end; *p;) {
		p += strspn(p, "| ");
		size_t k = strcspn(p, "| ");
		if (!k)
			break;
		const char *w = arena_strndup(r->t->a, p, k);
		p += k;
		if (drop && strncmp(w, "all=", 4) == 0) {
			rule.same = true;
			if (!number_parse(w + 4, &rule.value)) {
				err_at(r->t->d, value->loc, "tensors: drop: %.40s has no number",
				       w);
				return;
			}
			continue;
		}
		bool *to = strcmp(w, "per_head") == 0      ? &rule.per_head
		           : strcmp(w, "quarters") == 0    ? &rule.quarters
		           : strcmp(w, "transpose") == 0   ? &rule.transpose
		           : strcmp(w, "stacked") == 0     ? &rule.stacked
		           : strcmp(w, "interleaved") == 0 ? &rule.interleaved
		           : strcmp(w, "rope_pairs") == 0  ? &rule.rope_pairs
		           : strcmp(w, "unfold") == 0      ? &rule.unfold
		           : strcmp(w, "whole") == 0       ? &rule.whole
		                                           : NULL;
		if (!to) {
			const char *near = nearest_text(w, words, sizeof words / sizeof *words);
			err_at(r->t->d, value->loc, "tensors: %s: unknown packing %.40s%s%s%s",
			       key->text, w,
			       near ? "; did you mean "
			            : "; known are per_head, quarters, transpose, stacked, "
			              "interleaved, rope_pairs, unfold and whole",
			       near ? near : "", near ? "?" : "");
			return;
		}
		*to = true;
	}
	/* drop rules accumulate; any other rule replaces earlier rules of its roles */
	size_t keep = 0;
	for (size_t i = 0; i < r->n; i++)
		if (drop || !share_a_role(r->rule[i].role, rule.role))
			r->rule[keep++] = r->rule[i];
	r->n = keep;
	r->rule = arena_grow(r->t->a, r->rule, &r->cap, r->n + 1, sizeof *r->rule);
	r->rule[r->n++] = rule;
}

static bool
is_head(const FamilyRules *r)
{
	const char *part = r->t->val[K_mtp_part].str;

	return part && (strcmp(part, "head") == 0 || strcmp(part, "draft") == 0);
}

/* If mtp_layer is given, a draft head's plan has only that layer. */
static void
layer_of(FamilyRules *r, const Node *names)
{
	const Node *layer = names ? node_get(names, "layer") : NULL,
	           *own = names && is_head(r) ? node_get(names, "mtp_layer") : NULL;

	if (layer && (layer->kind != NODE_SCALAR || !strstr(layer->text, "{l}")))
		err_at(r->t->d, layer->loc,
		       "tensors: layer must be the name of a layer, with {l} for its number");
	else if (own && own->kind == NODE_SCALAR)
		r->layer = own->text;
	else if (layer)
		r->layer = layer->text;
}

/* "mtp/ROLE" is the name of ROLE in the layer of the draft head, if it differs from that in the
 * model. */
static void
add_all(FamilyRules *r, const Node *names)
{
	for (size_t i = 0; names && names->kind == NODE_MAP && i < names->n; i++) {
		const Node *k = names->key[i], *v = names->item[i];
		Node own = *k;
		if (strncmp(k->text, "mtp/", 4) == 0) {
			if (!is_head(r))
				continue;
			own.text += 4;
			k = &own;
		}
		if (strcmp(k->text, "layer") == 0 || strcmp(k->text, "mtp_layer") == 0 ||
		    !known_roles(r, k))
			continue;
		if (v->kind == NODE_LIST && strcmp(k->text, "drop") == 0) {
			for (size_t j = 0; j < v->n; j++)
				if (v->item[j]->kind == NODE_SCALAR)
					add(r, k, v->item[j], v->item[j]->text);
		} else if (v->kind != NODE_SCALAR) {
			err_at(r->t->d, v->loc, "tensors: %s: a name is expected, this is %s",
			       k->text, node_kind_text(v));
		} else {
			add(r, k, v, v->text);
		}
	}
}

const TensorRule *
family_rules(SpecTable *t, const Family *f, int *n)
{
	const SpecVal *replace = &t->val[K_names_replace], *prefix = &t->val[K_names_prefix];
	const Node *layers[] = {
		f ? node_get(f->base, "tensors") : NULL,
		f && f->format ? node_get(f->format, "tensors") : NULL,
		t->names[FROM_TEXT - 1],
		t->names[FROM_SET - 1],
	};
	FamilyRules r = { .t = t, .layer = "", .prefix = prefix->str ? prefix->str : "" };

	if (replace->str) {
		const char *gt = strchr(replace->str, '>');
		if (!gt) {
			err_at(t->d, replace->loc, "names.replace = %s: \"OLD>NEW\" is expected",
			       replace->str);
		} else {
			r.from = arena_strndup(t->a, replace->str, (size_t)(gt - replace->str));
			r.to = gt + 1;
		}
	}
	if (f && !f->format)
		err_at(t->d, t->val[K_checkpoint].loc,
		       "family %s has no tensor names for checkpoints of the format %s: its file "
		       "has no section %s",
		       f->name, t->val[K_checkpoint].str, t->val[K_checkpoint].str);
	for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
		layer_of(&r, layers[i]);
	for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
		add_all(&r, layers[i]);
	*n = (int)r.n;
	return r.rule;
}

bool
role_permutes(const char *role)
{
	static const char *const none[] = { "embed",  "pos_embed", "type_embed", "ple_embed",
		                            "router", "s_mix",     "k_b",        "v_b" };

	for (size_t i = 0; i < sizeof none / sizeof *none; i++)
		if (strcmp(role, none[i]) == 0)
			return false;
	return strncmp(role, "e_", 2) != 0;
}
