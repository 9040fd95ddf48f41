/* placement.tensors: rules of llama.cpp's --override-tensor. A rule matches names of tensors as
 * GGUF spells them, and the first one that matches decides. llmc places parts of layers, so the
 * tensors that land on the CPU must be the routed experts of a layer, a whole layer, or the
 * embedding. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "compiler/spec/placement_tensors.h"

enum {
	MAX_RULES = 64,
	MATCH_LIMIT = 100000, /* PCRE2 steps per name, which has less than 40 characters */
};

typedef struct PlaceRule {
	const char *text; /* "exps=CPU" */
	pcre2_code *re;
	bool cpu, used;
} PlaceRule;

typedef struct PlaceRules {
	PlaceRule rule[MAX_RULES];
	int n;
	pcre2_match_data *match;
	pcre2_match_context *limits;
} PlaceRules;

typedef enum PlacePart {
	PART_ATTENTION,
	PART_RECURRENT,
	PART_FFN,
	PART_SHARED,
	PART_EXPERTS
} PlacePart;

/* Tensors of a layer that carry most of its bytes. Norms, biases and the router follow them. */
static const struct {
	PlacePart part;
	const char *name;
} tensors[] = {
	{ PART_ATTENTION, "attn_q" },
	{ PART_ATTENTION, "attn_k" },
	{ PART_ATTENTION, "attn_v" },
	{ PART_ATTENTION, "attn_qkv" },
	{ PART_ATTENTION, "attn_q_a" },
	{ PART_ATTENTION, "attn_q_b" },
	{ PART_ATTENTION, "attn_kv_a_mqa" },
	{ PART_ATTENTION, "attn_kv_b" },
	{ PART_ATTENTION, "attn_k_b" },
	{ PART_ATTENTION, "attn_v_b" },
	{ PART_ATTENTION, "attn_output" },
	{ PART_RECURRENT, "ssm_in" },
	{ PART_RECURRENT, "ssm_conv1d" },
	{ PART_RECURRENT, "ssm_out" },
	{ PART_FFN, "ffn_gate" },
	{ PART_FFN, "ffn_up" },
	{ PART_FFN, "ffn_down" },
	{ PART_SHARED, "ffn_gate_shexp" },
	{ PART_SHARED, "ffn_up_shexp" },
	{ PART_SHARED, "ffn_down_shexp" },
	{ PART_EXPERTS, "ffn_gate_exps" },
	{ PART_EXPERTS, "ffn_up_exps" },
	{ PART_EXPERTS, "ffn_down_exps" },
};

#define CAN                                                                                        \
	"the routed experts of a layer (ffn_.*_exps), a whole layer (blk\\.N\\.) or token_embd "   \
	"can run on the CPU"

static bool
has_part(const Spec *s, int layer, PlacePart part)
{
	const bool recurrent = s->linear.layer_in[layer] || s->conv.layer_in[layer] ||
	                       s->ssm.layer_in[layer],
	           moe = s->moe.layer_in[layer];

	switch (part) {
	case PART_ATTENTION:
		return s->attention.layer_in[layer] && !recurrent;
	case PART_RECURRENT:
		return recurrent;
	case PART_FFN:
		return spec_has_ffn(s, layer) && (!moe || s->moe.parallel);
	case PART_SHARED:
		return moe && s->moe.shared_width > 0;
	case PART_EXPERTS:
		return moe;
	}
	return false;
}

/* Split "A=CPU,B=CUDA0" and compile the expressions. Like llama.cpp, a comma ends a rule. */
static bool
read_rules(const SpecTable *t, const char *text, Loc loc, PlaceRules *r)
{
	for (const char *p = text; *p;) {
		const size_t len = strcspn(p, ",");
		const char *rule = arena_strndup(t->a, p, len), *to = strrchr(rule, '=');
		PCRE2_SIZE at = 0;
		int code = 0;

		p += len + (p[len] == ',');
		if (!len)
			continue;
		if (!to || to == rule || (strcmp(to, "=CPU") != 0 && strcmp(to, "=CUDA0") != 0)) {
			err_at(t->d, loc,
			       "placement.tensors: \"%.200s\": expected REGEX=CPU, or REGEX=CUDA0 "
			       "for the GPU",
			       rule);
			return false;
		}
		if (r->n == MAX_RULES) {
			err_at(t->d, loc, "placement.tensors: at most %d rules", MAX_RULES);
			return false;
		}
		PlaceRule *one = &r->rule[r->n];
		*one = (PlaceRule){ .text = rule, .cpu = !strcmp(to, "=CPU") };
		one->re =
		    pcre2_compile((PCRE2_SPTR)rule, (PCRE2_SIZE)(to - rule), 0, &code, &at, NULL);
		if (!one->re) {
			char why[160];
			pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
			err_at(t->d, loc,
			       "placement.tensors: \"%.200s\" is not a regular expression: %s "
			       "(near character %zu)",
			       rule, why, (size_t)at);
			return false;
		}
		r->n++;
	}
	return true;
}

/* True if the first rule that matches a tensor places it on the CPU. */
static bool
on_cpu(const SpecTable *t, PlaceRules *r, Loc loc, const char *name)
{
	bool found = false, cpu = false;

	for (int i = 0; i < r->n && !t->d->n_error; i++) {
		PlaceRule *one = &r->rule[i];
		const int rc =
		    pcre2_match(one->re, (PCRE2_SPTR)name, strlen(name), 0, 0, r->match, r->limits);
		if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
			err_at(t->d, loc, "placement.tensors: \"%.200s\" is too slow to match",
			       one->text);
		if (rc < 0)
			continue;
		one->used = true;
		cpu = found ? cpu : one->cpu;
		found = true;
	}
	return cpu;
}

static void
place_layer(const SpecTable *t, const Spec *s, PlaceRules *r, Loc loc, int layer, uint8_t *layer_in,
            uint8_t *experts_in)
{
	/* experts, others: the first tensor on the CPU, the first that is not,
	 * and how many there are on the CPU and in all */
	const char *on[2] = { 0 }, *off[2] = { 0 };
	int n[2] = { 0 }, of[2] = { 0 };

	for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
		const int other = tensors[i].part != PART_EXPERTS;
		if (!has_part(s, layer, tensors[i].part))
			continue;
		const char *name = arena_printf(t->a, "blk.%d.%s.weight", layer, tensors[i].name);
		const bool cpu = on_cpu(t, r, loc, name);
		of[other]++;
		n[other] += cpu;
		const char **first = cpu ? &on[other] : &off[other];
		*first = *first ? *first : name;
	}
	const int k = n[0] && n[0] < of[0] ? 0 : 1; /* the part that is divided */
	if (t->d->n_error || !(n[0] + n[1]))
		return;
	if (n[1] == of[1] && n[0] == of[0])
		layer_in[layer] = 1;
	else if (!n[1] && n[0] == of[0])
		experts_in[layer] = 1;
	else
		err_at(t->d, loc, "placement.tensors: %s is on the CPU and %s is not; " CAN, on[k],
		       off[k] ? off[k] : off[0]);
}

static void
place(const SpecTable *t, Spec *s, PlaceRules *r, Loc loc, uint8_t *layer_in, uint8_t *experts_in)
{
	static const char *const fixed[] = { "output.weight", "output_norm.weight",
		                             "per_layer_token_embd.weight" };
	const size_t n_fixed = s->ple_width ? 3 : 2;

	for (int l = 0; l < s->n_layers && !t->d->n_error; l++)
		place_layer(t, s, r, loc, l, layer_in, experts_in);
	for (size_t i = 0; i < n_fixed && !t->d->n_error; i++)
		if (on_cpu(t, r, loc, fixed[i]))
			err_at(t->d, loc,
			       "placement.tensors: %s is on the CPU, but the head and tables of "
			       "layers stay on the GPU; " CAN,
			       fixed[i]);
	s->placement.embedding |= on_cpu(t, r, loc, "token_embd.weight");
	for (int i = 0; i < r->n && !t->d->n_error; i++)
		if (!r->rule[i].used)
			err_at(t->d, loc,
			       "placement.tensors: \"%.200s\" matches no tensor of layers 0 to %d "
			       "with large weights, such as blk.0.%s.weight",
			       r->rule[i].text, s->n_layers - 1,
			       s->moe.n_experts ? "ffn_up_exps" : "ffn_up");
}

void
spec_place_tensors(const SpecTable *t, Spec *s, uint8_t *layer_in, uint8_t *experts_in)
{
	const char *text = t->val[K_place_tensors].str;
	const Loc loc = t->val[K_place_tensors].loc;
	PlaceRules r = { 0 };

	if (!text)
		return;
	r.match = pcre2_match_data_create(1, NULL);
	r.limits = pcre2_match_context_create(NULL);
	if (r.match && r.limits) {
		pcre2_set_match_limit(r.limits, MATCH_LIMIT);
		pcre2_set_depth_limit(r.limits, MATCH_LIMIT);
		if (read_rules(t, text, loc, &r))
			place(t, s, &r, loc, layer_in, experts_in);
	} else {
		err_at(t->d, loc, "placement.tensors: out of memory");
	}
	for (int i = 0; i < r.n; i++)
		pcre2_code_free(r.rule[i].re);
	pcre2_match_data_free(r.match);
	pcre2_match_context_free(r.limits);
}
