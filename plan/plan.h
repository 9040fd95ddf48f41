/* The plan: the data contract between compiler and runtime. docs/plan-format.md describes the JSON.
 * The compiler fills a Plan and writes it (plan_write). The runtime reads it from untrusted text
 * (plan_read). Users of a plan may rely on the properties that plan_read checks: indices in range,
 * extents within their slots, acyclic order. */
#ifndef LLMC_PLAN_H
#define LLMC_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "formats/dtype.h"
#include "formats/kv_type.h"
#include "ops/ops.h"

/* PLAN_STEP_ABI: version of the kernel arguments. It also changes with formats/layout_packed.c,
 * because older kernels would misread the packed weights. */
enum {
	PLAN_FORMAT = 6,
	PLAN_STEP_ABI = 4,
	PLAN_MAX_ARGS = 16,
	PLAN_KV_PAGE = 32,
	PLAN_MAX_LAUNCH = 8,
	PLAN_MAX_MAP = 4,
	PLAN_MAX_SCRATCH = 6,
	PLAN_MAX_MAKES = 8,
	PLAN_MAX_PREFETCH = 4, /* at most one of experts */
	PLAN_MAX_BODIES = 32,
	PLAN_BODY_THREADS = 256,
	PLAN_PERSISTENT_ROWS = 4, /* most rows of a persistent decode step */
	PLAN_MAX_EOS = 8,
	PLAN_MAX_RANKS = 1024,
	PLAN_MAX_ADAPTERS = 1024,
	PLAN_MAX_RANK = 1024
};
enum {
	PLAN_MAX_SM = 512
}; /* maximum number of SMs, for which scratch is sized; on a larger GPU only this many are used */

/* Symbols of extents. n_part: threads of the session. n_sm: SMs of the GPU, in grids and in
 * scratch. */
#define PLAN_SYM_LIST(X) X(one) X(n_tok) X(n_dec) X(n_pre) X(n_seq) X(n_out) X(n_part) X(n_sm)
typedef enum PlanSym {
#define X(name) SYM_##name,
	PLAN_SYM_LIST(X)
#undef X
	    SYM_COUNT
} PlanSym;
/* mul * ceil(sym / div) elements; sym one: mul elements */
typedef struct PlanExtent {
	PlanSym sym;
	int64_t mul, div;
} PlanExtent;

/* One segment of a tensor: blocks of rows of a checkpoint tensor, in order, stacked below the
 * previous segments. The checkpoint tensor is viewed as [rows, cols] (leading dimensions
 * flattened); the file's rank may be lower if the matrix has one row. A segment of a vector has
 * cols = 0; each element counts as a row.
 *
 * Row i of the segment (i < n_block * block): b = i / block, file row = first + b * stride + i %
 * block.
 *
 *   rope_pairs   d > 0: within each d rows, the file holds interleaved pairs: row i < d/2 of the
 *                segment is file row 2i, row d/2 + i is file row 2i + 1
 *   transpose    r > 0: the file view is a stack of matrices [cols of the segment, r], each
 *                transposed to r rows (r = all rows: one transposition). `rows, cols` are the
 *                file's, so cols = r. first, block and stride count rows after transposition:
 *                GPT-2's c_attn is [H, 3H], transpose = 3H, its k is first = H, block = H
 *   unit_rows    each row is divided by its L2 norm (NormHead)
 *   permuted     columns are in the order of the checkpoint's blocks, without their factors
 *                (formats/quant_format.h); an op permute_cols applies both to x
 *   col_groups   g > 0: a file row is [cols / g, g] and is read as [g, cols / g]
 *   rows_in      a checkpoint tensor, F32 [rows]: file row r is its row rows_in[r] (gate and up
 *                rows in the order of down's columns); NULL: row r
 *   col_total    > 0: only columns [col_first, col_first + cols of the tensor) are used; columns of
 *                the transposed view if transpose is set. Quantised rows are cut between blocks; a
 *                range that shares a scale is quantised as a whole, then cut
 *   stored       dtype of the file if it differs from the tensor's, else NULL: packing dequantises
 *                and rounds once to f32, f16 or bf16. Used for blocks along the other dimension,
 *                which cannot be transposed as blocks */
typedef struct PlanSource {
	const char *name;
	int64_t rows, cols;
	int64_t first, block, stride, n_block;
	int64_t rope_pairs, transpose, col_groups;
	bool unit_rows, permuted;
	int64_t col_first, col_total;
	const char *stored, *rows_in;
	/* adapter module whose delta is added while the rows are read; NULL: none */
	const char *lora;
	/* adapter row for row i: first + i / block * stride + i % block */
	int64_t lora_first, lora_block, lora_stride;
} PlanSource;

/* layout: "row": file order, dtype as stored. "f32": dequantised rows (norms, biases), from any
 * dtype that llmc reads. Others: packed orders of formats/layout.h. */
/* Memory of adapter slots (lora_down, lora_up and the variants for heads), zero until an adapter is
 * loaded. It is a vector of f32. Its sources identify the adapter's factors: `name` is the module,
 * `lora_*` selects the `rows` of the matrix, and `cols` is the number of columns of the right
 * factor. With col_total, this rank has the columns from col_first on.
 *   FACTOR_A   [slots, n_src, rank, cols]: right factors of n_src matrices
 *   FACTOR_B   [slots, rank, n_block * block]: left factor of one matrix, transposed and scaled by
 *              the adapter's scale
 *
 * Experts: [slots, experts, n_src, rank, ...] for both. An expert's module is `lora` with {e}
 * replaced by its index. If an adapter has all experts in one factor, `name` is STEM#PARAMETER with
 * `stride` rows per expert, and row i of the module is row first + i of that expert. */
typedef enum PlanFactor { FACTOR_NONE, FACTOR_A, FACTOR_B } PlanFactor;

typedef struct PlanTensor {
	const char *id;
	/* type in memory; rows of f32, f16 or bf16 in the checkpoint are quantised while they are
	 * read */
	Dtype dtype;
	int64_t rows, cols; /* vector: `rows` elements, cols 0 */
	const char *layout;
	/* columns per scale if rows are quantised while they are read; 0: a block of dtype */
	int64_t scale_cols;
	bool symmetric;    /* quantise symmetrically: the zero point is the middle code */
	PlanFactor factor; /* FACTOR_NONE: weights of the checkpoint */
	int slots, rank;   /* adapter slots and maximal rank of a factor */
	int experts, first_expert,
	    /* factor of experts: `experts` from first_expert on, of all_experts; else 0 */
	    all_experts;
	int n_src;
	const PlanSource *src;
} PlanTensor;

/* Bound of PlanPool.segment */
enum { PLAN_MOST_SEGMENT = 1 << 14 };

/* KV pages of PLAN_KV_PAGE positions. The page of one layer holds the planes of k, one per head,
 * then those of v. Each plane has the bytes of 32 rows of its type (formats/kv_type.h). Planes on
 * CPUs:
 *   k, unquantised      [D][32]: 32 positions contiguous
 *   v, unquantised      [32][V]
 *   quantised           codes, then scales (and zeros); packed orders: ref/ref_kv.c; on GPUs:
 *                       templates/cuda/attention/kv_cache.h
 *   mla                 one plane [32][rank + rope] of type `k`
 *
 * A pool of recurrent states has no pages. Each layer has an array [kv_heads, k_dim, v_dim] of fp32
 * per sequence of the session, indexed by sequence number. The pool argument of a step of layer l
 * points at that layer's first page; pages of a layer are layer_page_bytes apart.
 *
 * Exact pages hold planes of the same heads in types kv_exact(k) and kv_exact(v), rotated like the
 * page's. They are numbered as window pages (runtime/kv/kv.h). Number w is (w + 1) x
 * layer_exact_bytes below the layer's first page. */
typedef struct PlanPool {
	const char *id;
	bool mla, state; /* latents; recurrent states (f32) */
	KvType k, v;     /* types of keys and values; mla: both are the latent's */
	bool rotate;     /* rows of quantised types are rotated by a Hadamard matrix */
	/* number of layers that use the pool; `slot` of a step's pool argument is the index of the
	 * layer */
	int n_layers;
	int64_t kv_heads, k_dim, v_dim; /* mla: 1, rank + rope, 0 */
	int64_t keep;                   /* positions to keep, counted from the newest; 0: all */
	/* a row reads two ranges from exact pages: the last `recent` positions, including its own,
	 * and the first `sinks` positions */
	int64_t recent, sinks;
	/* > 0, in a tower: the pool's sequences are the windows that come with the rows of a step,
	 * with at most this many rows each; 0: they are the sequences of the step */
	int64_t segment;
} PlanPool;

typedef struct PlanRope { /* copy of RopeTable, documented in compiler/spec/spec.h */
	double theta;
	int dims;
	const char *scaling; /* none linear dynamic yarn llama3 longrope proportional */
	double factor, turning, original_positions, low_freq_factor, high_freq_factor, beta_fast,
	    beta_slow, attention_factor, mscale, mscale_all_dim;
	bool truncate;
	int n_short, n_long;
	const double *short_factor, *long_factor;
	const char *factors_tensor[2];
	int axis; /* 0: positions pos; 1: pos2 */
	/* as in RopeTable; section all 0: no sections */
	int section[3];
	bool interleaved;
	const char *frequencies;
} PlanRope;

typedef struct PlanBuffer {
	const char *id;
	Dtype dtype;
	PlanExtent extent;
	int slot;
} PlanBuffer;

typedef enum PlanDir {
	DIR_IN,
	DIR_OUT,
	DIR_INOUT,
	DIR_POOL,
	DIR_ROPE,
	DIR_SCRATCH,
	DIR_NONE,
	DIR_COUNT
} PlanDir;
typedef struct PlanKernelArg {
	const char *name;
	PlanDir dir;
	const char *type;
	PlanExtent extent;
} PlanKernelArg;
/* A GEMM that a library runs: y = beta * add + act w^T. M is y's row count; N and K are the column
 * counts of y and act. act and w have w's 16-bit type; w has layout "row". */
typedef struct PlanGemm {
	int act, w, y, add; /* argument indices; add -1: none. add may be y's memory */
	double beta;
} PlanGemm;
/* A kernel with a library GEMM has two implementations. llmc's own implementation skips the
 * launches of PATH_LIBRARY; that of the library skips those of PATH_OWN. */
typedef enum PlanPath { PATH_ANY, PATH_OWN, PATH_LIBRARY, PATH_COUNT } PlanPath;
/* CUDA targets: one launch of a function in the kernel's file. A kernel consists of all its
 * launches, in order, with the same arguments. */
typedef struct PlanLaunch {
	PlanPath path;
	/* name of the function in the file; NULL: the library GEMM; the fields below are
	 * unused */
	const char *fn;
	PlanGemm product;
	int block;          /* threads (x) */
	int cluster;        /* CTAs per cluster (x); 1: none */
	bool pdl;           /* PDL: may start before the preceding launch has ended */
	PlanExtent grid[3]; /* CTAs; all >= 1 */
	int64_t shared;     /* bytes of dynamic shared memory */
	/* 0: one launch. Else the launch is repeated for every `rounds` positions whose keys and
	 * values a step expands (llmc_mla.h); neighbouring launches with rounds are repeated
	 * together */
	int rounds;
	/* skipped in steps with fewer than `least` or more than `most` of this symbol; SYM_one:
	 * never skipped */
	PlanSym rows;
	int64_t least, most; /* most 0: no bound */
} PlanLaunch;
/* CUDA targets from sm_90 on: a TMA tensor map over the memory of an argument, as rows of `cols`
 * 16-bit elements. The maps are the second parameter of the kernel's functions. */
typedef struct PlanMap {
	int arg;
	int64_t cols;
	int box[2];  /* columns, rows */
	int swizzle; /* bytes: 0, 32, 64, 128 */
} PlanMap;
typedef struct PlanKernel {
	const char *id, *file, *symbol; /* file: path relative to the artifact */
	int n_map;
	PlanMap map[PLAN_MAX_MAP];
	int n_launch; /* 0: a CPU kernel */
	PlanLaunch launch[PLAN_MAX_LAUNCH];
	int n_arg; /* 0: not a kernel but a helper that kernels of the plan call by this symbol */
	PlanKernelArg arg[PLAN_MAX_ARGS];
} PlanKernel;

typedef enum PlanRefKind { REF_NONE, REF_TENSOR, REF_BUFFER, REF_POOL, REF_ROPE } PlanRefKind;
typedef struct PlanRef {
	PlanRefKind kind;
	int index;
	int layer_slot;
} PlanRef; /* pool: index of the pool, slot of the layer */

typedef struct PlanMake {
	const char *value;
	int arg;
	/* graph value that a step makes, and the argument that holds it; arg -1: not in memory */
} PlanMake;

/* Weights of a later step that a decode kernel prefetches to the GPU's L2, in [first, first +
 * bytes) of the tensor's budget. The tensor consists of `runs` spans that its reader streams at the
 * same time. Each span is divided into one slice per CTA, and each slice gets an equal share of the
 * bytes. experts > 0: the tensor stacks that many matrices; the matrices of the first experts that
 * the step has selected are prefetched, up to `bytes`. */
typedef struct PlanPrefetch {
	int tensor, runs, experts;
	int64_t first, bytes;
} PlanPrefetch;

typedef struct PlanStep {
	OpKind op;
	int layer;
	int kernel; /* index, or -1: executed by the reference */
	int n_arg;
	PlanRef arg[PLAN_MAX_ARGS]; /* arguments of the op, then scratch of the kernel */
	int n_attr;
	Attr attr[OP_MAX_ATTRS];
	int n_make;
	PlanMake make[PLAN_MAX_MAKES];
	int yaml_line;
	/* bytes of all weights that the step may read; plan_step_weights estimates the bytes of one
	 * run */
	int64_t weight_bytes;
	int64_t flops_per_row;
	int n_prefetch; /* GPU decode steps */
	PlanPrefetch prefetch[PLAN_MAX_PREFETCH];
} PlanStep;

typedef struct PlanPhase {
	const char *id;
	int n_step;
	PlanStep *step;
} PlanPhase; /* "decode": one row per sequence; "mixed": any */

/* GPUs: a kernel without arguments that runs whole decode steps, one launch instead of one per step
 * of the phase (docs/internals/persistent-step.md). It calls the bodies of the kernels in `body`
 * and numbers them in this order. n_body 0: there is no such kernel, for the reason `why`; why
 * NULL: it is not wanted. */
typedef struct PlanPersistent {
	int kernel;
	int n_body, body[PLAN_MAX_BODIES];
	const char *why;
} PlanPersistent;

/* Role of the plan with images: a language model whose steps may take rows of a tower, or the tower
 * itself */
typedef enum PlanVision { VISION_NONE, VISION_ROWS, VISION_TOWER } PlanVision;

/* Draft checkpoint of another model. A row that comes with a token holds `own_at` elements of the
 * model's rows and then one of this plan's own rows; if one of them is absent, its elements are
 * 0. */
typedef struct PlanDraft {
	int64_t row_width, own_at;
	/* number of columns of the logits; 0: one per token of the vocabulary */
	int64_t vocab;
	const char *tokens; /* tensor [vocab] of integers: the token of each column; NULL: none */
	bool offsets;       /* offsets: a token is the column number plus the tensor's number */
	/* checkpoint of the model, for tensors whose names begin with '@'; NULL: there are none */
	const char *model;
} PlanDraft;

typedef struct Plan {
	int format, step_abi;
	/* content of a row of `logits`; written to the plan unless it is logits */
	llmc_output output;
	const char *name, *family, *spec_sha256,
	    *target;       /* target: ref, cpu-generic, cpu-v3, cpu-v4, cuda-sm_75 ... */
	int rank, ranks;   /* tensor parallelism: 0 <= rank < ranks; else 0 of 1 */
	int stage, stages; /* pipeline: 0 <= stage < stages; else 0 of 1 */
	/* model on two devices: partition 0 is the GPU (leader), 1 the CPU; else 0 of 1 */
	int partition, partitions;
	/* largest `keep` of any pool in any stage or partition, since these number their pages
	 * alike; 0: all positions, or one stage */
	int64_t window;
	int64_t vocab, vocab_used, hidden, max_positions;
	int n_layers;
	bool hard_limit,
	    prompt_whole; /* prompt_whole: the prompt is prefilled in one chunk (prefix mask) */
	/* a sequence is processed in one step, after which it is empty again. Its keys and values
	 * live only within their layer, so a pool has one layer slot. Implies prompt_whole */
	bool encoder;
	int token_types; /* encoder: rows of the token type table; 0: none */
	int32_t prefix_mark, prefix_end;
	const char *prompt_prefix; /* may be NULL */
	/* bytes of L2 that prefetched weights may occupy at a time, on the largest GPU of the
	 * target. On a smaller GPU all windows are scaled. 0: nothing is prefetched */
	int64_t l2_budget;
	int64_t kv_host; /* bytes of host memory for pages evicted from the prefix cache; 0: none */
	const char *checkpoint; /* hf | gguf */
	const char *weights;    /* path relative to the artifact or absolute; NULL */
	const char *lora;       /* adapter folder; NULL: none, and no source names a module */
	double lora_scale;
	int32_t bos;
	int n_eos;
	int32_t eos[PLAN_MAX_EOS];
	int64_t n_params;
	int n_tensor;
	PlanTensor *tensor;
	int n_pool;
	PlanPool *pool;
	int n_rope;
	PlanRope *rope;
	int n_slot;
	PlanExtent *slot; /* bytes of memory that buffers share over time */
	int n_buffer;
	PlanBuffer *buffer;
	int n_kernel;
	PlanKernel *kernel;
	PlanPersistent persistent;
	int n_phase;
	PlanPhase *phase; /* [0] decode, [1] mixed */
	/* outputs_rows: a draft head reads this plan's rows. takes_rows: this plan is a draft head;
	 * each of its tokens comes with a row */
	bool outputs_rows, takes_rows;
	PlanDraft draft; /* takes_rows; row_width 0: a head of the model's own checkpoint */
	/* vision: steps take rows of row_width elements, for image tokens or for patches. merge:
	 * patches per output row of a tower. image_token: token that such rows replace */
	PlanVision vision;
	int64_t row_width, merge;
	/* a chunk whose tokens all have rows is an image, whose tokens attend to each other */
	bool image_whole;
	int class_rows; /* number of first rows of an image that have no output row */
	int32_t image_token;
	int rows; /* outputs_rows: buffer [n_tok, plan_rows_width] f32 with the rows */
	/* buffer of the output [n_out, plan_out_width] f32: logits [n_out, vocab]; in a stage
	 * before the last: the residual stream [n_tok, hidden] */
	int logits;
} Plan;

/* Returns whether there is a later stage. If so, this stage passes on the residual stream and has
 * no logits. */
static inline bool
plan_hands_on(const Plan *p)
{
	return p->stage + 1 < p->stages;
}

/* Returns whether steps have an op stage_in that reads rows of the host. */
static inline bool
plan_takes_rows(const Plan *p)
{
	return p->takes_rows || p->vision != VISION_NONE;
}

/* Returns the maximum number of rows of a window of a tower; 0: the tower has no windows */
static inline int64_t
plan_segment(const Plan *p)
{
	int64_t most = 0;

	for (int i = 0; i < p->n_pool; i++)
		most = p->pool[i].segment > most ? p->pool[i].segment : most;
	return most;
}

/* Elements of a row of stage_in */
static inline int64_t
plan_row_width(const Plan *p)
{
	return p->vision != VISION_NONE ? p->row_width
	       : p->draft.row_width     ? p->draft.row_width
	                                : p->hidden;
}

/* Elements of a row that outputs_rows returns */
static inline int64_t
plan_rows_width(const Plan *p)
{
	return p->buffer[p->rows].extent.mul;
}

/* Returns the number of columns of the model's output; equal in all stages */
static inline int64_t
plan_out_width(const Plan *p)
{
	return p->output != LLMC_OUTPUT_LOGITS ? p->buffer[p->logits].extent.mul
	       : p->draft.vocab                ? p->draft.vocab
	                                       : p->vocab;
}

/* Return whether a table rotates by three positions per token */
static inline bool
plan_rope_sections(const PlanRope *r)
{
	return r->section[0] + r->section[1] + r->section[2] > 0;
}

static inline bool
plan_three_positions(const Plan *p)
{
	return p->n_rope > 0 && plan_rope_sections(&p->rope[0]);
}

/* Number of the body of a kernel in the persistent kernel; -1: none */
static inline int
plan_body_of(const PlanPersistent *x, int kernel)
{
	for (int i = 0; i < x->n_body; i++)
		if (x->body[i] == kernel)
			return i;
	return -1;
}

/* Attributes of a step by name */
static inline int64_t
step_int(const PlanStep *s, const char *key)
{
	return attr_int(s->attr, s->n_attr, key);
}

static inline double
step_num(const PlanStep *s, const char *key)
{
	return attr_num(s->attr, s->n_attr, key);
}

static inline const char *
step_word(const PlanStep *s, const char *key)
{
	return attr_word(s->attr, s->n_attr, key);
}

/* Spelling of outputs, symbols, directions and paths in the JSON */
extern const char *const plan_output_name[3]; /* "logits", "hidden", "labels" */
extern const char *const plan_vision_name[3]; /* "none", "rows", "tower" */
extern const char *const plan_sym_text[SYM_COUNT], *const plan_dir_text[DIR_COUNT],
                                                       *const plan_path_text[PATH_COUNT];

/* Bytes of one layer's page of a pool; 0: a pool of recurrent states. -1: overflow */
int64_t plan_layer_page_bytes(const PlanPool *p);
/* Bytes of one layer's exact page; 0: the pool has none. -1: overflow */
int64_t plan_layer_exact_bytes(const PlanPool *p);
/* Returns the bytes of a page in all layers of all pools, exact pages included; -1: overflow */
int64_t plan_page_bytes(const Plan *p);
/* Bytes of one layer's recurrent state per sequence; 0: a pool of pages. -1: overflow */
int64_t plan_layer_state_bytes(const PlanPool *p);
/* Returns whether decode steps use the mixed kernel of this step if they have more rows than the
 * decode kernel processes per pass over the weights. All steps that write or read a value must
 * agree on this. */
bool plan_mixed_serves(const PlanStep *p);
bool plan_has_state(const Plan *p); /* does any pool hold recurrent states? */
/* does the launch run in a step of this size? */
bool plan_launch_runs(const PlanLaunch *u, const int64_t sym[SYM_COUNT]);
int64_t plan_extent_elems(const PlanExtent *e, const int64_t sym[SYM_COUNT]); /* -1: overflow */
/* Returns whether a (elements of a_bytes) is at most b (elements of b_bytes) for all values of the
 * symbols. */
bool plan_extent_within(const PlanExtent *a, int64_t a_bytes, const PlanExtent *b, int64_t b_bytes);
/* a multiple of 256; -1: overflow */
int64_t plan_slot_bytes(const Plan *p, int slot, const int64_t sym[SYM_COUNT]);
/* Returns whether m is a valid tensor map of an argument of k. */
bool plan_map_fits(const PlanMap *m, const PlanKernel *k);
/* Returns the kernel's library GEMM, or NULL. */
const PlanGemm *plan_library_gemm(const PlanKernel *k);
/* Returns whether the launches of k form one implementation, or two of which one uses a library
 * GEMM of k's arguments. *why: the reason if not. */
bool plan_paths_fit(const PlanKernel *k, const char **why);
/* Bytes of a tensor in its layout; -1: the shape does not fit the layout */
int64_t plan_tensor_bytes(const PlanTensor *t);
/* Returns the bytes of the weights if each matrix were stored as `as` where that is smaller */
int64_t plan_weights_as(const Plan *p, Dtype as);
/* row of the file, or of its transposed view, that holds row i of the segment */
int64_t plan_source_row(const PlanSource *s, int64_t i);
/* dtype in the file; DT_NONE: `stored` is not a type */
Dtype plan_source_dtype(const PlanTensor *t, const PlanSource *s);
/* Returns the weight bytes that a step with `rows` rows reads, each byte once. Of stacked experts
 * it counts the selected ones, assuming random choices. */
int64_t plan_step_weights(const Plan *p, const PlanStep *s, int64_t rows);
/* Computes the cost of reading the KV cache: bytes per position, and operations per position and
 * row. Returns false if the step does not read it. */
bool plan_step_cache(const Plan *p, const PlanStep *s, int64_t *bytes, int64_t *ops);
/* Returns the largest number of positions that a row of this step reads: the window, or the
 * indexer's top-k; 0: unbounded */
int64_t plan_step_reach(const PlanStep *s);
/* Dequantises a row of a tensor in memory: dst [cols]; a vector is row 0 */
void plan_tensor_row(const PlanTensor *t, const void *data, int64_t row, float *dst);

/* plan_read.c is strict: unknown or missing keys, values out of range, duplicate ids and bad
 * references are errors that name the location. plan_check.c checks bounds: every argument of a
 * kernel or op lies within its buffer for all values of the symbols. */
llmc_status plan_read(const char *text, size_t size, const char *name, Arena *arena, Plan **out,
                      llmc_error *err);
llmc_status plan_check(const Plan *p, llmc_error *err);
/* plan_write.c (used by the compiler): deterministic JSON, one line per tensor, kernel and step */
void plan_write(const Plan *p, Strbuf *out);

#endif
