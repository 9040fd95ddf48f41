/* placement.tensors: rules of llama.cpp's --override-tensor. A rule matches tensor names as GGUF
 * spells them, and the first rule that matches decides. llmc places parts of layers. Therefore the
 * tensors that the rules place on the CPU must be the routed experts of a layer, a whole layer, or
 * the embedding. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "compiler/spec/family.h"
#include "compiler/spec/placement_tensors.h"

enum {
	MAX_RULES = 64,
	MATCH_LIMIT = 100000, /* PCRE2 steps per name; names have less than 40 characters */
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
	PART_ATTENTION, /* query, key and value */
	PART_LATENT,    /* latent attention, whose query has a latent or not */
	PART_LATENT_Q,
	PART_PLAIN_Q,
	PART_ATTENTION_OUT,
	PART_SCAN,
	PART_LINEAR,
	PART_CONV,
	PART_GATE,
	PART_FFN,
	PART_SHARED_GATE,
	PART_SHARED,
	PART_EXPERTS_GATED,
	PART_EXPERTS_PLAIN,
	PART_EXPERTS
} PlacePart;

/* Converters store some matrices under one of several names, and these files are not read here.
 * Variants in a group exclude each other; the rules show which variant a file has. */
typedef enum PlaceGroup { G_NONE, G_QKV, G_KV_B, G_IN, G_CONV, G_OUT, G_UP, N_GROUP } PlaceGroup;

enum { MAX_VARIANT = 3 };

typedef struct PlaceTensor {
	PlacePart part;
	PlaceGroup group;
	int variant;
	const char *name;
} PlaceTensor;

/* Tensors of a layer that have most of its bytes. Norms, biases and the router are placed with
 * them. */
static const PlaceTensor tensors[] = {
	{ PART_ATTENTION, G_QKV, 0, "attn_q" },
	{ PART_ATTENTION, G_QKV, 0, "attn_k" },
	{ PART_ATTENTION, G_QKV, 0, "attn_v" },
	{ PART_ATTENTION, G_QKV, 1, "attn_qkv" },
	{ PART_LATENT_Q, G_NONE, 0, "attn_q_a" },
	{ PART_LATENT_Q, G_NONE, 0, "attn_q_b" },
	{ PART_PLAIN_Q, G_NONE, 0, "attn_q" },
	{ PART_LATENT, G_NONE, 0, "attn_kv_a_mqa" },
	{ PART_LATENT, G_KV_B, 0, "attn_kv_b" },
	{ PART_LATENT, G_KV_B, 1, "attn_k_b" },
	{ PART_LATENT, G_KV_B, 1, "attn_v_b" },
	{ PART_ATTENTION_OUT, G_NONE, 0, "attn_output" },
	{ PART_SCAN, G_NONE, 0, "ssm_in" },
	{ PART_SCAN, G_NONE, 0, "ssm_conv1d" },
	{ PART_SCAN, G_NONE, 0, "ssm_out" },
	{ PART_LINEAR, G_IN, 0, "attn_qkv" },
	{ PART_LINEAR, G_IN, 1, "ssm_in" },
	{ PART_LINEAR, G_IN, 2, "attn_q" },
	{ PART_LINEAR, G_IN, 2, "attn_k" },
	{ PART_LINEAR, G_IN, 2, "attn_v" },
	{ PART_LINEAR, G_CONV, 0, "ssm_conv1d" },
	{ PART_LINEAR, G_CONV, 1, "ssm_conv1d_q" },
	{ PART_LINEAR, G_CONV, 1, "ssm_conv1d_k" },
	{ PART_LINEAR, G_CONV, 1, "ssm_conv1d_v" },
	{ PART_LINEAR, G_OUT, 0, "ssm_out" },
	{ PART_LINEAR, G_OUT, 1, "attn_output" },
	{ PART_CONV, G_NONE, 0, "shortconv.conv" },
	{ PART_CONV, G_NONE, 0, "shortconv.in_proj" },
	{ PART_CONV, G_NONE, 0, "shortconv.out_proj" },
	{ PART_GATE, G_NONE, 0, "ffn_gate" },
	{ PART_FFN, G_NONE, 0, "ffn_up" },
	{ PART_FFN, G_NONE, 0, "ffn_down" },
	{ PART_SHARED_GATE, G_NONE, 0, "ffn_gate_shexp" },
	{ PART_SHARED, G_NONE, 0, "ffn_up_shexp" },
	{ PART_SHARED, G_NONE, 0, "ffn_down_shexp" },
	{ PART_EXPERTS_GATED, G_UP, 0, "ffn_gate_exps" },
	{ PART_EXPERTS_GATED, G_UP, 0, "ffn_up_exps" },
	{ PART_EXPERTS_GATED, G_UP, 1, "ffn_gate_up_exps" },
	{ PART_EXPERTS_PLAIN, G_NONE, 0, "ffn_up_exps" },
	{ PART_EXPERTS, G_NONE, 0, "ffn_down_exps" },
};

enum { N_TENSOR = sizeof tensors / sizeof *tensors };

#define CAN                                                                                        \
	"the routed experts of a layer (ffn_.*_exps), a whole layer (blk\\.N\\.) or token_embd "   \
	"can run on the CPU"

/* Return whether the gate of a feed-forward is a separate tensor in GGUF files. If checkpoints of a
 * family stack gate and up, GGUF files keep them stacked, as ffn_up. */
static bool
has_gate(const Spec *s)
{
	const TensorRule *r = rule_for(s->tensor_rule, s->n_tensor_rule, "gate");

	return s->ffn.gated && !(r && strchr(r->role, '+'));
}

static bool
has_part(const Spec *s, int layer, PlacePart part)
{
	const bool moe = s->moe.layer_in[layer], attends = spec_attends(s, layer),
	           mla = s->attention.kind == ATT_MLA,
	           dense = spec_has_ffn(s, layer) && (!moe || s->moe.parallel);

	switch (part) {
	case PART_ATTENTION:
		return attends && !mla;
	case PART_LATENT:
		return attends && mla;
	case PART_LATENT_Q:
		return attends && mla && s->attention.q_rank > 0;
	case PART_PLAIN_Q:
		return attends && mla && s->attention.q_rank == 0;
	case PART_ATTENTION_OUT:
		return attends;
	case PART_SCAN:
		return spec_ssm(s, layer);
	case PART_LINEAR:
		return spec_linear(s, layer);
	case PART_CONV:
		return spec_conv(s, layer);
	case PART_GATE:
		return dense && has_gate(s);
	case PART_FFN:
		return dense;
	case PART_SHARED_GATE:
		return moe && s->moe.shared_width > 0 && !s->moe.plain;
	case PART_SHARED:
		return moe && s->moe.shared_width > 0;
	case PART_EXPERTS_GATED:
		return moe && !s->moe.plain;
	case PART_EXPERTS_PLAIN:
		return moe && s->moe.plain;
	case PART_EXPERTS:
		return moe;
	}
	return false;
}

/* Return whether the tensors are routed experts, which a device can have without the rest of the
 * layer. */
static bool
is_experts(PlacePart part)
{
	return part == PART_EXPERTS || part == PART_EXPERTS_GATED || part == PART_EXPERTS_PLAIN;
}

/* Split "A=CPU,B=CUDA0" and compile the expressions. A comma ends a rule, as in llama.cpp. */
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

/* Return whether the first rule that matches a tensor places it on the CPU. found: whether a rule
 * matches */
static bool
on_cpu(const SpecTable *t, PlaceRules *r, Loc loc, const char *name, bool *found)
{
	bool cpu = false;

	*found = false;

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
		cpu = *found ? cpu : one->cpu;
		*found = true;
	}
	return cpu;
}

static void
place_layer(const SpecTable *t, const Spec *s, PlaceRules *r, Loc loc, int layer, uint8_t *layer_in,
            uint8_t *experts_in)
{
	/* For experts and for other tensors: the first tensor on the CPU, the first one that is
	 * not, the number on the CPU, and the number of all */
	const char *on[2] = { 0 }, *off[2] = { 0 }, *name[N_TENSOR];
	int n[2] = { 0 }, of[2] = { 0 };
	bool cpu[N_TENSOR], named[N_GROUP][MAX_VARIANT] = { 0 }, any[N_GROUP] = { 0 };

	for (int i = 0; i < N_TENSOR; i++) {
		bool found;
		if (!has_part(s, layer, tensors[i].part))
			continue;
		name[i] = arena_printf(t->a, "blk.%d.%s.weight", layer, tensors[i].name);
		cpu[i] = on_cpu(t, r, loc, name[i], &found);
		named[tensors[i].group][tensors[i].variant] |= found;
		any[tensors[i].group] |= found;
	}
	for (int i = 0; i < N_TENSOR; i++) {
		const PlaceTensor *one = &tensors[i];
		const int other = !is_experts(one->part);
		/* no rule for the group: assume its first variant */
		const bool absent =
		    one->group != G_NONE &&
		    !(any[one->group] ? named[one->group][one->variant] : one->variant == 0);
		if (!has_part(s, layer, one->part) || absent)
			continue;
		of[other]++;
		n[other] += cpu[i];
		const char **first = cpu[i] ? &on[other] : &off[other];
		*first = *first ? *first : name[i];
	}
	const int k = n[0] && n[0] < of[0] ? 0 : 1; /* index of the part that the rules divide */
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
	bool found;

	for (int l = 0; l < s->n_layers && !t->d->n_error; l++)
		place_layer(t, s, r, loc, l, layer_in, experts_in);
	for (size_t i = 0; i < n_fixed && !t->d->n_error; i++)
		if (on_cpu(t, r, loc, fixed[i], &found))
			err_at(t->d, loc,
			       "placement.tensors: %s is on the CPU, but the head and tables of "
			       "layers stay on the GPU; " CAN,
			       fixed[i]);
	s->placement.embedding |= on_cpu(t, r, loc, "token_embd.weight", &found);
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
