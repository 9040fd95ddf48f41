/* Spec: the resolved description. Every field has its final value; what spec.c has accepted,
 * build_model.c may trust. */
#ifndef LLMC_COMPILER_SPEC_SPEC_H
#define LLMC_COMPILER_SPEC_SPEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "formats/diag.h"
#include "formats/dtype.h"
#include "plan/plan.h"

typedef enum NormKind { NORM_NONE, NORM_RMS, NORM_LAYER } NormKind;
typedef enum PositionKind { POS_NONE, POS_ROPE, POS_ALIBI, POS_LEARNED } PositionKind;
typedef enum RopeStyle { ROPE_HALF, ROPE_INTERLEAVED } RopeStyle;
typedef enum RopeScaling {
	SCALE_NONE,
	SCALE_LINEAR,
	SCALE_DYNAMIC,
	SCALE_YARN,
	SCALE_LLAMA3,
	SCALE_LONGROPE,
	SCALE_PROPORTIONAL
} RopeScaling;
typedef enum ActKind {
	ACT_SILU,
	ACT_GELU,
	ACT_GELU_TANH,
	ACT_RELU,
	ACT_RELU2,
	ACT_SWIGLU_OAI,
	ACT_SILU_LIMIT,
	ACT_XIELU
} ActKind;
typedef enum QkNorm {
	QK_NONE,
	QK_HEAD,
	QK_WHOLE,
	QK_UNIT,
	QK_LAYER,
	QK_LAYER_EACH
} QkNorm; /* rms of each head, of the whole row, of each head without weights; layer norm of each
             head, with weights of all or its own */
typedef enum AttentionKind { ATT_GQA, ATT_MLA } AttentionKind;
typedef enum OutGate { GATE_NONE, GATE_HEAD, GATE_ELEMENT } OutGate;
typedef enum SsmNorm { SSM_GATE_FIRST, SSM_NORM_FIRST, SSM_NO_NORM } SsmNorm;
typedef enum LowNorm {
	LOW_NO_NORM,
	LOW_UNIT,
	LOW_WEIGHT
} LowNorm; /* of what a scan by channels makes its steps, B and C of */
typedef enum MlaForm {
	MLA_AUTO,
	MLA_ABSORBED,
	MLA_EXPANDED
} MlaForm; /* the fewer operations, or one of the two */
typedef enum MtpPart { MTP_NONE, MTP_ROWS, MTP_HEAD } MtpPart;
typedef enum MaskKind { MASK_CAUSAL, MASK_PREFIX } MaskKind;

/* One set of rotary frequencies. The runtime makes the angles; a sequence's frequencies are fixed
 * at admission. */
typedef struct RopeTable {
	double theta;
	int dims; /* rotated elements of a head */
	RopeScaling scaling;
	double factor;
	double turning; /* proportional: share of the pairs that turn */
	double original_positions;
	double low_freq_factor, high_freq_factor; /* llama3 */
	double beta_fast, beta_slow;              /* yarn */
	double attention_factor;       /* yarn, longrope: of cos and sin; 0: by the rule */
	double mscale, mscale_all_dim; /* yarn: 0 absent */
	bool truncate;                 /* yarn: round the correction range (default true) */
	int n_short, n_long;           /* longrope lists, [dims / 2] */
	const double *short_factor, *long_factor;
	const char *factors_tensor[2]; /* GGUF: tensors holding factors: [0] rope_freqs or long, [1]
	                                  short; NULL: none */
} RopeTable;

/* How a checkpoint stores roles. role "q+k+v" names several roles stacked on rows in one tensor. */
typedef struct TensorRule {
	const char
	    *role; /* "q", "q+k+v", "gate+up", "k_b+v_b", "e_gate", "rope_factors", "drop", ... */
	const char *name; /* full name with {l} and {e} left in; without ".weight"/".bias" unless
	                     the rule gives a suffix */
	bool per_head;    /* stacked roles are interleaved head by head */
	bool quarters;    /* or in four parts, each with a quarter of every role */
	bool transpose;   /* stored [cols, rows] */
	bool interleaved; /* or row by row: the first row of each, then the second (experts) */
	bool stacked;     /* all experts in one 3-D tensor */
	bool rope_pairs;  /* rows of each head stored for interleaved pairs: how GGUF holds q and k
	                     of its first architecture */
	Loc loc;
	bool whole; /* name is complete: neither .weight nor .bias is added */
	bool same;  /* of "drop": passed over where each element is `value` (in the file's type),
	               which kernels have as a constant; else refused */
	double value;
} TensorRule;

typedef struct StorageRule {
	const char *tensor;      /* role or "*" */
	const uint8_t *layer_in; /* [n_layers], NULL: all */
	Dtype dtype;
	int64_t group;      /* PlanTensor.scale_cols; -1: the whole row */
	bool symmetric;     /* as there */
	const char *order;  /* role whose columns' order in the checkpoint the matrix has too; NULL:
	                       columns are in order */
	const char *factor; /* role whose columns' factors x is multiplied by; NULL: 1 */
} StorageRule;

/* of rules: order, factor; NULL: none */
static inline bool
same_word(const char *a, const char *b)
{
	return a == b || (a && b && strcmp(a, b) == 0);
}

/* Heads of a layer's attention */
typedef struct HeadShape {
	int n_heads, n_kv_heads, head_dim, v_dim;
} HeadShape;

typedef struct Spec {
	const char *name, *family;
	const char *sha256;      /* of the resolved description's text */
	const char *yaml;        /* that text: every default written out */
	int64_t vocab_size;      /* rows of embedding and head */
	int64_t vocab_used;      /* ids below are real tokens */
	int64_t exact_positions; /* longer contexts are refused; 0: none are */
	int64_t max_positions;
	bool hard_limit; /* learned positions */
	int n_layers;
	int64_t hidden;

	struct {
		AttentionKind kind;
		int n_heads, n_kv_heads,
		    head_dim;            /* of layers without a window: spec_heads is for all */
		HeadShape local;         /* of windowed layers */
		const uint8_t *layer_in; /* [n_layers], NULL: all; spec_block, spec_attends */
		const uint8_t *k_is_v; /* [n_layers]: values are the keys in front of their norm */
		int kv_shared; /* the last layers, which read keys and values of earlier ones */
		bool v_norm;   /* of each head, without weights */
		bool bias, o_bias;
		double scale;     /* of scores; the mla yarn factor is in it */
		double out_scale; /* of what is added to the stream */
		double score_cap; /* 0: none */
		struct {
			double scale;
			int64_t positions;
			int offset;
			const uint8_t *layer_in;
		} temper;                /* of queries, by position; scale 0: none */
		int64_t window;          /* positions seen; 0: none */
		const uint8_t *windowed; /* [n_layers] */
		bool chunked;            /* windows are pieces of the positions */
		MaskKind mask;
		int32_t prefix_mark, prefix_end; /* mask prefix: token ids; -1 none */
		QkNorm qk_norm;                  /* on q and k */
		bool qk_after;                   /* behind rope */
		const uint8_t *qk_in;            /* [n_layers]: the layers that have it */
		double qkv_limit;                /* of elements of q, k and v; 0: none */
		OutGate out_gate;
		const char *out_gate_act; /* the op's word */
		bool out_gate_bias;
		const uint8_t *sink_in; /* [n_layers]: the layers with sinks */
		double v_scale;         /* of values */
		bool sinks;             /* one more score a head, without a value */
		MlaForm form;           /* mla */
		int q_rank, kv_rank, nope_dim, rope_dim, v_dim; /* mla; q_rank 0: plain q */
		struct {
			int64_t top_k;
			int heads, dim;
			bool interleaved;
			double eps;
			const uint8_t *layer_in;
		} index; /* mla: who chooses positions; top_k 0: nobody */
	} attention;

	struct {                         /* layers with a delta rule in the place of attention */
		const uint8_t *layer_in; /* [n_layers] */
		int n;                   /* of them */
		int k_heads, v_heads, k_dim, v_dim, taps;
		bool tiled; /* value head h belongs to key head h % k_heads */
		bool a_log; /* rates are stored as log(-rate) */
		double beta_scale;
		bool per_channel;          /* decays */
		int decay_rank, gate_rank; /* 0: one matrix */
		const char *gate;          /* "silu" or "sigmoid" */
	} linear;

	struct { /* layers with a selective scan in the place of attention */
		const uint8_t *layer_in; /* [n_layers] */
		int n;                   /* of them */
		int heads, dim, groups, state, taps;
		bool conv_bias, bias;      /* on the convolution; on the projections */
		bool a_log;                /* rates are stored as log(-rate) */
		double dt_min, dt_max;     /* dt_max 0: none */
		bool beside;               /* attention is there as well */
		double gain[5], out_scale; /* of gate, input, B, C, step; of what comes out */
		SsmNorm norm;
		int norm_groups;
		int dt_rank; /* 0: Mamba2 */
		LowNorm low_norm;
	} ssm;

	struct {
		const uint8_t *layer_in;
		int n, blocks, rank, qkv_rank;
	} shared; /* layers with a block in front whose weights are shared; n of them */
	struct {
		const uint8_t *layer_in;
		int n, taps;
		bool bias;
	} conv; /* layers with a short convolution in the place of attention; n of them */

	struct {
		bool gated;
		ActKind act;
		double limit;
		const double *limits, *sparsity;
		int64_t width, wide;
		const uint8_t *wide_in, *layer_in;
		bool bias;
		double gate_scale, out_scale;
	} ffn; /* spec_ffn_width, spec_ffn_limit, spec_has_ffn */

	struct {
		int n_experts; /* 0: no moe at all */
		int top_k;
		int64_t width;
		int64_t latent; /* width of the rows that experts read and write; 0: hidden */
		bool plain;     /* down(relu2(up x)): a gate that is up itself, under relu */
		const uint8_t *layer_in; /* [n_layers]: this layer is moe */
		const char *score; /* what makes scores of the router's logits: the op's word */
		double jitter;     /* of sparsemixer */
		bool weighs_input; /* weights multiply what experts see */
		bool choice_bias, renorm;
		bool router_bias, bias; /* on logits; on gate, up and down of the experts */
		bool beside; /* with the dense feed-forward, each between norms of its own */
		bool router_norm, expert_gain;
		double renorm_eps, scale;
		int groups, keep_groups;
		bool group_top2; /* group score: sum of two best; else max */
		ActKind act;
		double limit;
		const double *limits,
		    *shared_limits;   /* [n_layers] or NULL: spec_moe_limit, spec_shared_limit */
		int64_t shared_width; /* 0: no shared expert */
		bool shared_gate;     /* times sigmoid(x . s_mix) */
		double shared_scale;  /* of what it adds */
	} moe;

	struct {
		NormKind kind;
		double eps, latent_eps, qk_eps, ssm_eps, linear_eps;
		bool plus_one;
		bool bias;              /* layer norm has a bias */
		bool weight;            /* norms of the stream have a weight */
		bool attn_in, ffn_in;   /* pre-norms (true) */
		bool attn_out, ffn_out; /* sandwich */
		bool sum; /* of the stream and what a block adds; attn_in and ffn_in are off */
		const uint8_t *in_layers,
		    *out_layers; /* [n_layers]: those that have the two in front, the two behind */
		bool embed, final;
	} norm;

	PositionKind position;
	RopeStyle rope_style;
	const uint8_t *rope_in; /* [n_layers]: this layer rotates */
	int rope_axes;          /* 2: position and block position turn a half each */
	int n_rope;             /* 1, or 2 when windowed layers have their own table */
	RopeTable rope[2];      /* [1]: layers in attention.windowed */
	double alibi_max_bias;  /* 8 */
	int pos_offset;         /* learned: row of position 0 */

	struct {
		bool parallel;
		bool from_norm;
		double skip_scale;
		bool layer_gain;
	} residual;
	int ple_width;     /* per-layer embeddings; 0: none */
	int64_t ple_vocab; /* rows of their table; 0: vocab_size */
	int laurel_rank;   /* a low-rank product beside attention; 0: none */
	struct {
		int count, active;
		bool gain;
	} streams; /* side by side; count 0 or 1: one */
	struct {
		int64_t width;
		double scale;
		bool round_scale; /* scale rounded to the activations' dtype */
	} embed;                  /* width: spec_narrow */
	struct {
		bool tied;
		bool row_norm;
		double scale, cap;
		bool bias;
		llmc_output kind;
		int64_t labels;
	} head;
	struct {
		llmc_pool kind;
		bool normalize;
	} pool;

	struct {
		MtpPart part;
		int layer;
		bool norm, normed, output;
	} mtp; /* layer: number of the head's one layer in the checkpoint, which is layer 0 of its
	          plan */

	Dtype dtype; /* of activations, as the description says; CPU computes in f32 */
	struct {
		KvType k, v;
		bool rotate;
		int window, sinks;
		int64_t host;
	} kv;                  /* of cached rows; latents: k and v are the same */
	bool deterministic;    /* CUDA: rows do not depend on the batch around them */
	bool activations_i8;   /* block formats meet int8 activations instead of int16 */
	bool activations_bf16; /* on tiles all but fp32 weights meet plain bf16 */
	Dtype storage_default;
	int n_storage;
	const StorageRule *storage; /* the first that matches decides */
	bool experts_whole;
	int tp, pp; /* ranks of a layer; stages. Ranks are numbered stage by stage */

	const char *weights; /* path as written, or NULL */
	struct {
		const char *path;
		double scale;
		const TensorRule *rule;
		int n_rule;
	} lora; /* path NULL: none; rule: names as Hugging Face has them */
	struct {
		int slots, rank, expert_rank;
	} adapters; /* slots 0: none; names as lora.rule has them; expert_rank 0: routed experts
	               have none */
	const char *checkpoint; /* "hf" or "gguf": whose names below */
	int n_tensor_rule;
	const TensorRule *tensor_rule; /* a later rule of the same role has been merged already */

	int n_eos;
	int32_t eos[PLAN_MAX_EOS], bos;
	const char *prompt_prefix;     /* text.prompt, or NULL */
	const struct SpecTable *table; /* for spec_loc and spec_get; NULL in a Spec made by hand */
} Spec;

/* Ranks of all stages */
static inline int
spec_ranks(const Spec *s)
{
	return s->tp * s->pp;
}

bool spec_windowed(const Spec *s, int layer);
HeadShape spec_heads(const Spec *s, int layer); /* -1: of layers without a window */
int64_t spec_ffn_width(const Spec *s, int layer);
double spec_ffn_limit(const Spec *s, int layer);    /* of a layer's gate and up: dense, */
double spec_moe_limit(const Spec *s, int layer);    /* of experts, */
double spec_shared_limit(const Spec *s, int layer); /* of the shared one; 0: none */
bool spec_narrow(const Spec *s);                    /* the embedding is not as wide as the stream */
bool spec_has_block(const Spec *s, int layer);      /* attention, or a state in its place */
bool spec_has_ffn(const Spec *s, int layer);        /* dense or of experts */
bool spec_attends(const Spec *s, int layer); /* its first block reads keys and values or latents */
bool spec_linear(const Spec *s,
                 int layer);              /* what stands in the place of attention: a delta rule, */
bool spec_conv(const Spec *s, int layer); /* a short convolution, */
bool spec_ssm(const Spec *s, int layer);  /* a selective scan */
int64_t spec_ssm_row(const Spec *s); /* elements of what its convolution sees: [u | B | C], or u */
bool spec_shared(const Spec *s,
                 int layer); /* a block whose weights layers share is in front of the scan */
int spec_shared_use(const Spec *s, int layer);   /* how many layers before have one */
int spec_shared_layer(const Spec *s, int layer); /* the first layer with the same one */
/* The layer whose keys and values a layer reads: itself, but for attention.kv_shared; -1: there is
 * none */
int spec_kv_layer(const Spec *s, int layer);
/* Where a key ("attention.n_heads") was written; loc of the file when it is a default. */
Loc spec_loc(const Spec *s, const char *key);
/* How a role is stored in a layer (-1: outside the layers). "q.bias" asks for the bias of q: its
 * own rule, else q's. */
StorageRule spec_storage(const Spec *s, const char *role, int layer);
/* "attention.n_heads" -> text; NULL: no such key */
const char *spec_get(const Spec *s, Arena *a, const char *key);

/* The front of the compiler. `set` as in llmc_options. NULL when d has errors.
 * Family files come from the embedded configs (base/embed.h), or from the folder of the YAML first.
 */
Spec *spec_from_file(const char *yaml_path, const char *const *set, Diag *d, Arena *perm);
Spec *spec_from_text(const char *name, const char *text, size_t size, const char *const *set,
                     Diag *d, Arena *perm);
/* import/: HF folder or GGUF -> YAML text (arena); NULL when d has errors. Keys of the checkpoint
 * that nothing consumes are an error, or a warning where they are allowed. */
char *import_yaml(const char *src, bool allow_unknown_keys, Diag *d, Arena *perm, llmc_error *err);

#endif
