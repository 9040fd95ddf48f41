/* Spec: the resolved description. Every field has its final value. spec.c has validated all of
 * them, so build_model.c does not check again. */
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
	ACT_GELU_QUICK,
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
	/* RMSNorm of each head; of the whole row; of each head without weights. LayerNorm of each
	 * head, with weights shared by the heads, or per head */
} QkNorm;
typedef enum AttentionKind { ATT_GQA, ATT_MLA } AttentionKind;
typedef enum OutGate { GATE_NONE, GATE_HEAD, GATE_ELEMENT } OutGate;
typedef enum SsmNorm { SSM_GATE_FIRST, SSM_NORM_FIRST, SSM_NO_NORM } SsmNorm;
typedef enum LowNorm {
	LOW_NO_NORM,
	LOW_UNIT,
	LOW_WEIGHT
} LowNorm; /* RMSNorm of dt, B and C of a Mamba scan */
typedef enum MlaForm {
	MLA_AUTO,
	MLA_ABSORBED,
	MLA_EXPANDED
} MlaForm;             /* AUTO: the form that takes fewer operations */
enum { MAX_DEEP = 8 }; /* parts of an image row besides the embedding */
/* MTP_HEAD: a layer of this checkpoint; MTP_DRAFT: a draft checkpoint, which belongs to another
 * model */
typedef enum MtpPart { MTP_NONE, MTP_ROWS, MTP_HEAD, MTP_DRAFT } MtpPart;
enum { MAX_MTP_FROM = 16 };
/* vision.part, with the same values as in a plan */
typedef PlanVision VisionPart;
typedef enum MaskKind { MASK_CAUSAL, MASK_IMAGES, MASK_PREFIX, MASK_NONE } MaskKind;

/* One set of rotary frequencies. The runtime computes the angles. The frequencies of a sequence are
 * fixed when it is admitted. */
typedef struct RopeTable {
	double theta;
	int dims; /* rotated dimensions per head */
	RopeScaling scaling;
	double factor;
	double turning; /* proportional: share of pairs that rotate */
	double original_positions;
	double low_freq_factor, high_freq_factor; /* llama3 */
	double beta_fast, beta_slow;              /* yarn */
	/* yarn, longrope: factor of cos and sin; 0: the method's own value */
	double attention_factor;
	double mscale, mscale_all_dim; /* yarn; 0: absent */
	bool truncate;       /* yarn: round the ends of the correction range (default true) */
	int n_short, n_long; /* longrope: lengths of the lists, dims / 2 each */
	const double *short_factor, *long_factor;
	/* GGUF: names of the tensors with frequency factors; [0] rope_freqs or long, [1] short;
	 * NULL: none */
	const char *factors_tensor[2];
	/* number of pairs rotated by time, by row and by column of a token; all 0: one position
	 * rotates all pairs */
	int section[3];
	bool interleaved;        /* whether the pairs of the sections alternate */
	const char *frequencies; /* "whole", "restart" or "alternate" */
} RopeTable;

/* Describes how a checkpoint stores one or more roles. "q+k+v" means that one tensor has the rows
 * of these roles, stacked. */
typedef struct TensorRule {
	/* "q", "q+k+v", "gate+up", "k_b+v_b", "e_gate", "rope_factors", "drop", ... */
	const char *role;
	/* full name, in which {l} and {e} are not expanded; .weight or .bias is appended unless
	 * `whole` */
	const char *name;
	bool per_head;  /* rows of the stacked roles are interleaved per head */
	bool quarters;  /* the tensor has four parts, each with a quarter of every role */
	bool transpose; /* the tensor is stored as [cols, rows] */
	/* column order of merged rows: all columns of the first element, then of the second */
	bool unfold;
	/* the tensor alternates single rows: the first row of each role, then the second
	 * (experts) */
	bool interleaved;
	bool stacked; /* one 3-D tensor has all experts */
	/* rows of each head are in the order of interleaved pairs, as in many GGUF files */
	bool rope_pairs;
	Loc loc;
	bool whole; /* the name is complete: .weight or .bias is not appended */
	/* role "drop": the tensor is ignored only if every element equals `value` (in the file's
	 * type), which kernels have as a constant; otherwise the checkpoint is rejected */
	bool same;
	double value;
} TensorRule;

typedef struct StorageRule {
	const char *tensor;      /* role or "*" */
	const uint8_t *layer_in; /* [n_layers] layers of the rule; NULL: all */
	Dtype dtype;
	int64_t group;  /* see PlanTensor.scale_cols; -1: the whole row */
	bool symmetric; /* see PlanTensor.symmetric */
	/* name of the column order that this matrix shares with other roles in the checkpoint;
	 * NULL: natural order */
	const char *order;
	const char *factor; /* name of the column factors that multiply x; NULL: none */
} StorageRule;

/* Compare the `order` or `factor` of two rules. Both may be NULL. */
static inline bool
same_word(const char *a, const char *b)
{
	return a == b || (a && b && strcmp(a, b) == 0);
}

/* Numbers and sizes of heads in a layer's attention */
typedef struct HeadShape {
	int n_heads, n_kv_heads, head_dim, v_dim;
} HeadShape;

typedef struct Spec {
	const char *name, *family;
	const char *sha256;      /* SHA-256 of `yaml` */
	const char *yaml;        /* text of the resolved description, including all defaults */
	int64_t vocab_size;      /* number of rows of embedding and head */
	int64_t vocab_used;      /* number of tokens in use; ids from here on are padding */
	int64_t exact_positions; /* longest accepted context; 0: no limit */
	int64_t max_positions;
	bool hard_limit; /* max_positions is a hard limit: learned positions */
	/* used where a caller leaves a limit at 0 */
	int64_t limit_context, limit_seqs, limit_chunk;
	int n_layers;
	int64_t hidden;

	struct {
		AttentionKind kind;
		int n_heads, n_kv_heads, head_dim; /* heads of layers without a window; spec_heads
		                                      returns those of any layer */
		HeadShape local;                   /* heads of windowed layers */
		const uint8_t *layer_in; /* [n_layers] layers with attention, NULL: all; see
		                            spec_has_block and spec_attends */
		/* [n_layers] layers in which values are the keys before their norm */
		const uint8_t *k_is_v;
		/* the last kv_shared layers read keys and values of earlier layers */
		int kv_shared;
		bool v_norm; /* norm of each value head, without weights */
		bool bias, o_bias;
		double scale;     /* factor of scores; for mla it includes yarn's factor */
		double out_scale; /* factor of the attention's output before it is added to the
		                     stream */
		double score_cap; /* softcap of scores; 0: none */
		struct {
			double scale;
			int64_t positions;
			int offset;
			const uint8_t *layer_in;
		} q_temperature; /* factor of queries that depends on the position; scale 0: none */
		int64_t window;  /* number of positions to which a token attends; 0: all */
		const uint8_t *windowed; /* [n_layers] layers with a window */
		bool chunked;            /* windows are fixed chunks instead of sliding */
		bool segments;           /* the caller passes the windows with the rows of a step */
		MaskKind mask;
		/* mask prefix: token ids that begin and end the prefix; -1: none */
		int32_t prefix_mark, prefix_end;
		QkNorm qk_norm;       /* norm of q and k */
		bool qk_after;        /* the norm of q and k follows rope */
		const uint8_t *qk_in; /* [n_layers]: layers with the norm of q and k */
		double qkv_limit; /* limit to which elements of q, k and v are clamped; 0: none */
		OutGate out_gate;
		const char *out_gate_act; /* the op's attribute word */
		bool out_gate_bias;
		const uint8_t *sink_in; /* [n_layers]: layers with sinks */
		double v_scale;         /* factor of the values */
		bool sinks;             /* one more score per head, which has no value */
		MlaForm form;           /* mla */
		int q_rank, kv_rank, nope_dim, rope_dim, v_dim; /* mla; q_rank 0: no query latent */
		struct {
			int64_t top_k;
			int heads, dim;
			bool interleaved;
			double eps;
			const uint8_t *layer_in;
		} index; /* mla: indexer that selects positions; top_k 0: none */
	} attention;

	struct {                         /* layers with a delta rule instead of attention */
		const uint8_t *layer_in; /* [n_layers] layers with a delta rule */
		int n;                   /* number of these layers */
		int k_heads, v_heads, k_dim, v_dim, taps;
		bool tiled; /* value head h belongs to key head h % k_heads */
		bool a_log; /* rates are stored as log(-rate) */
		double beta_scale;
		bool per_channel; /* one decay per key channel instead of per head */
		/* inner dimensions of two matrices; 0: there is one matrix */
		int decay_rank, gate_rank;
		const char *gate; /* "silu" or "sigmoid" */
	} linear;

	struct {                         /* layers with a selective scan instead of attention */
		const uint8_t *layer_in; /* [n_layers] layers with a scan */
		int n;                   /* number of these layers */
		int heads, dim, groups, state, taps;
		/* conv_bias: the convolution has a bias; bias: the projections have */
		bool conv_bias, bias;
		bool a_log;            /* rates are stored as log(-rate) */
		double dt_min, dt_max; /* clamp of dt; dt_max 0: none */
		bool parallel;         /* the scan is in parallel to attention */
		/* factors of gate, input, B, C and dt; factor of the output */
		double gain[5], out_scale;
		SsmNorm norm;
		int norm_groups;
		int dt_rank; /* 0: Mamba2, which has no dt rank */
		LowNorm low_norm;
	} ssm;

	struct {
		const uint8_t *layer_in;
		int n, blocks, rank, qkv_rank;
	} shared; /* layers that run a block of shared weights before the scan; n: their number */
	struct {
		const uint8_t *layer_in;
		int n, taps;
		bool bias;
	} conv; /* layers with a short convolution instead of attention; n: their number */

	struct {
		bool gated;
		ActKind act;
		double limit;
		const double *limits, *sparsity;
		int64_t width, wide;
		const uint8_t *wide_in, *layer_in;
		bool bias, down_bias;
		double gate_scale, out_scale;
	} ffn; /* access these by spec_ffn_width, spec_ffn_limit and spec_has_ffn */

	struct {
		int n_experts; /* 0: the model has no MoE layers */
		int top_k;
		int64_t width;
		int64_t latent; /* input and output size of experts; 0: hidden */
		/* experts are down(relu2(up x)), built as gated experts with gate = up and act =
		 * relu */
		bool plain;
		const uint8_t *layer_in; /* [n_layers] MoE layers */
		/* function that turns router logits into scores, as the op's attribute word */
		const char *score;
		double jitter;     /* parameter of sparsemixer */
		bool weighs_input; /* routing weights multiply the input of experts instead of the
		                      output */
		bool choice_bias, renorm;
		bool router_bias, bias; /* router_bias: logits have a bias; bias: gate, up and down
		                           of the experts have */
		bool parallel; /* experts are in parallel to the dense feed-forward, and both have
		                  their own norms */
		bool router_norm, expert_gain;
		double renorm_eps, scale;
		int groups, keep_groups;
		bool group_top2; /* score of a group: sum of its two best experts; otherwise its
		                    best expert */
		ActKind act;
		double limit;
		const double *limits, *shared_limits; /* [n_layers] or NULL; see spec_moe_limit and
		                                         spec_shared_limit */
		int64_t shared_width;                 /* 0: no shared expert */
		bool shared_gate;    /* the output is multiplied by sigmoid(x . s_mix) */
		double shared_scale; /* factor of the shared expert's output */
	} moe;

	struct {
		NormKind kind;
		double eps, latent_eps, qk_eps, final_eps, ssm_eps, linear_eps;
		bool plus_one;
		bool bias;              /* layer norms have a bias */
		bool weight;            /* norms of the stream have weights */
		bool attn_in, ffn_in;   /* norms before a block (default true) */
		bool attn_out, ffn_out; /* norms of a block's output */
		bool sum; /* post-norm: norm of stream + block output; attn_in and ffn_in are then
		             off */
		const uint8_t *in_layers,
		    *out_layers; /* [n_layers] layers that have norms before blocks; after blocks */
		const uint8_t *attn_in_layers; /* [n_layers] layers that have a norm before
		                                  attention, in addition to in_layers */
		bool embed, final;
	} norm;

	PositionKind position;
	RopeStyle rope_style;
	const uint8_t *rope_in; /* [n_layers] layers that rotate */
	int rope_axes;          /* 2: position and block position each rotate one half of a head */
	int n_rope;             /* 2 if windowed layers have their own table, otherwise 1 */
	RopeTable rope[2];      /* rope[1] is for windowed layers */
	double alibi_max_bias;  /* default 8 */
	int pos_offset;         /* learned positions: row of the table for position 0 */

	struct {
		bool parallel;
		bool from_norm;
		bool block_scale;
		double skip_scale;
		bool layer_gain;
	} residual;
	int ple_width;     /* size of per-layer embeddings; 0: none */
	int64_t ple_vocab; /* number of rows of the per-layer table; 0: vocab_size */
	int laurel_rank;   /* rank of the branch in parallel to attention (Laurel); 0: none */
	struct {
		int count, active;
		bool gain;
	} streams; /* parallel residual streams (AltUp); count 0 or 1: a single stream */
	struct {
		int64_t width, rows; /* rows: number in the checkpoint, at least vocab_size */
		double scale;
		bool round_scale; /* scale is rounded to the dtype of activations */
		int types;        /* rows of the table of token types; 0: none */
	} embed;                  /* see spec_narrow */
	struct {
		bool tied;
		bool row_norm;
		double scale, cap;
		bool bias;
		llmc_output kind;
		int64_t labels;
		int n_dense; /* number of linear layers before the output */
		int dense[3];
		bool dense_bias, dense_norm;
		const char *dense_act; /* "none", "tanh", or an activation of the op act */
	} head;
	struct {
		llmc_pool kind;
		bool normalize;
	} pool;

	struct {
		MtpPart part;
		int layer;
		bool norm, normed, output, norm_first;
		int n_from, from[MAX_MTP_FROM];
		int64_t width, vocab;
		const char *model, *tokens; /* tokens: "none", "offsets", "ids" */
		/* layer: index in the checkpoint of the draft head's only layer, which is layer 0
		 * of the head's plan */
	} mtp;

	struct {
		VisionPart part;
		int32_t token;
		int64_t width, positions, merge, merge_width, inner, out;
		/* mean: merged rows are averaged; second_frame: two matrices project a patch */
		bool class_row, mean, bias, out_bias, second_frame;
		double merged_eps;
		const char *merged_norm; /* "none", "layer", "rms", "rms_plus_one" */
		const char *interpolate; /* "none", "corners", "area" */
		int n_deep, deep[MAX_DEEP];
		ActKind act;
	} vision;

	Dtype dtype; /* type of activations in the description; CPUs compute in f32 */
	struct {
		KvType k, v;
		bool rotate;
		int window, sinks;
		int64_t host;
	} kv;               /* for latents, k and v have the same type */
	bool deterministic; /* CUDA: a row's results do not depend on the rest of the batch */
	bool prefetch;      /* GPUs: decode kernels prefetch weights of the next ops */
	bool persistent; /* GPUs: one kernel runs a whole decode step, if all its ops have a body */
	/* `activations` is auto, and the type below comes from the checkpoint's declaration */
	bool activations_declared;
	bool activations_i8;   /* int8 activations for block formats */
	bool activations_bf16; /* AMX: bf16 activations, for all weights except fp32 */
	bool activations_f8;   /* GPUs: e4m3 activations for e4m3 weights */
	Dtype storage_default;
	int n_storage;
	const StorageRule *storage; /* the first matching rule decides */
	bool experts_whole;
	int tp, pp; /* tensor parallelism: ranks per layer; pipeline stages. Ranks are numbered
	               stage by stage */

	/* parts of the model that run on the CPU if the target is a GPU */
	struct {
		bool any, embedding;
		/* [n_layers] whole layers; routed experts of a layer */
		const uint8_t *layer_in, *experts_in;
	} placement;

	const char *weights; /* path as written in the description, or NULL */
	struct {
		const char *path;
		double scale;
		const TensorRule *rule;
		int n_rule;
	} lora; /* path NULL: no adapter; rule: module names of Hugging Face */
	struct {
		int slots, rank, expert_rank;
		/* slots 0: none; expert_rank 0: adapters for routed experts are not supported;
		 * names are those of lora.rule */
	} adapters;
	const char *checkpoint; /* "hf" or "gguf": format whose tensor names tensor_rule has */
	int n_tensor_rule;
	const TensorRule *tensor_rule; /* rules of one role are merged, later ones first */

	int n_eos;
	int32_t eos[PLAN_MAX_EOS], bos;
	const char *prompt_prefix; /* text.prompt, or NULL */
	/* for spec_loc and spec_get; NULL if a test has made the Spec by hand */
	const struct SpecTable *table;
} Spec;

/* Return whether the plan makes draft tokens from rows of another plan. */
static inline bool
spec_drafts(const Spec *s)
{
	return s->mtp.part == MTP_HEAD || s->mtp.part == MTP_DRAFT;
}

/* Return the number of elements that the projections of queries, keys and values read. In the first
 * layer of a draft checkpoint, that is a token's embedding and a row, concatenated. */
static inline int64_t
spec_attention_in(const Spec *s, int layer)
{
	return s->mtp.part == MTP_DRAFT && layer == 0 ? 2 * s->hidden : s->hidden;
}

/* Return the number of rows of the output matrix. */
static inline int64_t
spec_head_rows(const Spec *s)
{
	return s->mtp.part == MTP_DRAFT && s->mtp.vocab ? s->mtp.vocab : s->vocab_size;
}

/* Return whether a tower resizes its table of learned positions to each image. */
static inline bool
spec_interpolates(const Spec *s)
{
	return strcmp(s->vision.interpolate, "none") != 0;
}

/* Return the number of elements of a tower's input row: the values of a patch and, if the table of
 * learned positions is interpolated, the patch's weights of the table's rows. */
static inline int64_t
spec_patch_row(const Spec *s)
{
	return s->vision.width + (spec_interpolates(s) ? s->vision.positions : 0);
}

/* Return the number of elements of a merged row of a tower. */
static inline int64_t
spec_merged(const Spec *s)
{
	return s->hidden * (s->vision.mean ? 1 : s->vision.merge);
}

/* Return the number of elements of a row before the projector. */
static inline int64_t
spec_projector_in(const Spec *s)
{
	return s->vision.merge_width ? s->vision.merge_width : spec_merged(s);
}

/* Return whether the tokens of an image attend to each other. */
static inline bool
spec_images_whole(const Spec *s)
{
	return s->attention.mask == MASK_IMAGES && s->vision.part == VISION_ROWS;
}

/* Return the number of ranks over all stages. */
static inline int
spec_ranks(const Spec *s)
{
	return s->tp * s->pp;
}

bool spec_windowed(const Spec *s, int layer);
HeadShape spec_heads(const Spec *s, int layer); /* layer -1: a layer without a window */
int64_t spec_ffn_width(const Spec *s, int layer);
/* limit of gate and up in the dense feed-forward */
double spec_ffn_limit(const Spec *s, int layer);
double spec_moe_limit(const Spec *s, int layer);    /* limit in routed experts */
double spec_shared_limit(const Spec *s, int layer); /* limit in the shared expert; 0: none */
bool spec_narrow(const Spec *s); /* whether rows of the embedding have another size than hidden */
/* whether the layer has a first block: attention, or a recurrent block */
bool spec_has_block(const Spec *s, int layer);
/* Return whether placement can divide the model between a GPU and the CPU. */
bool spec_can_divide(const Spec *s);
bool spec_has_ffn(const Spec *s, int layer); /* whether the layer has a dense feed-forward or MoE */
bool spec_attends(const Spec *s, int layer); /* whether the layer's first block reads a KV cache */
/* whether the layer has a delta rule instead of attention */
bool spec_linear(const Spec *s, int layer);
/* whether the layer has a short convolution instead of attention */
bool spec_conv(const Spec *s, int layer);
bool spec_ssm(const Spec *s, int layer); /* whether the layer has a selective scan */
int64_t spec_ssm_row(const Spec *s);     /* row size of the scan's convolution: [u | B | C], or u */
/* whether the layer runs a block of shared weights before the scan */
bool spec_shared(const Spec *s, int layer);
int spec_shared_use(const Spec *s, int layer); /* number of earlier layers that run such a block */
/* first layer that runs the block with the same weights */
int spec_shared_layer(const Spec *s, int layer);
/* Return the layer whose keys and values this layer reads: the layer itself, or an earlier one with
 * attention.kv_shared. -1: none */
int spec_kv_layer(const Spec *s, int layer);
/* Return the location of a key ("attention.n_heads"). If its value is a default, return the
 * location of the file. */
Loc spec_loc(const Spec *s, const char *key);
/* Return the storage rule of a role in a layer (-1: outside of the layers). "q.bias" is the bias of
 * q: it has its own rule, or else that of q. */
StorageRule spec_storage(const Spec *s, const char *role, int layer);
/* Return the value of a key ("attention.n_heads") as text; NULL: no such key. */
const char *spec_get(const Spec *s, Arena *a, const char *key);

/* Entry points of the compiler. `set` is as in llmc_options. They return NULL if d has errors.
 * Family files are looked up in the folder of the YAML file, then among the embedded configs
 * (base/embed.h). */
Spec *spec_from_file(const char *yaml_path, const char *const *set, Diag *d, Arena *perm);
Spec *spec_from_text(const char *name, const char *text, size_t size, const char *const *set,
                     Diag *d, Arena *perm);
/* Model that a draft checkpoint belongs to. The draft may take some tensors from it. */
typedef struct ImportModel {
	const Spec *spec;
	const char *weights; /* checkpoint; NULL: none */
} ImportModel;
typedef struct ImportOptions {
	bool tower; /* describe the vision tower, not the language model */
	/* file with the vision tower of a GGUF language model (clip.projector_type); NULL: none */
	const char *mmproj;
	const ImportModel *of;   /* model of a draft checkpoint; NULL: not known */
	bool allow_unknown_keys; /* unknown keys of the checkpoint are warnings instead of errors */
} ImportOptions;
/* import/: make the YAML text of a Hugging Face folder or a GGUF file, in the arena. NULL if d has
 * errors */
char *import_yaml(const char *src, const ImportOptions *o, Diag *d, Arena *perm, llmc_error *err);

#endif
