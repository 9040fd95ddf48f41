/* The plan: the contract between compiler and runtime, data only. docs/plan-format.md describes the
 * JSON. The compiler fills a Plan and writes it (plan_write); the runtime reads one from untrusted
 * text (plan_read), and what plan_read has accepted every later stage may trust: indices in range,
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

/* PLAN_STEP_ABI: of what kernels are called with; raised with every change of
 * formats/layout_packed.c as well, since kernels built before would read other bytes. */
enum {
	PLAN_FORMAT = 5,
	PLAN_STEP_ABI = 3,
	PLAN_MAX_ARGS = 16,
	PLAN_KV_PAGE = 32,
	PLAN_MAX_LAUNCH = 8,
	PLAN_MAX_MAP = 4,
	PLAN_MAX_SCRATCH = 6,
	PLAN_MAX_MAKES = 8,
	PLAN_MAX_EOS = 8,
	PLAN_MAX_RANKS = 1024,
	PLAN_MAX_ADAPTERS = 1024,
	PLAN_MAX_RANK = 1024
};
enum {
	PLAN_MAX_SM = 512
}; /* multiprocessors that scratch is laid out for: a larger GPU is used as if it had these */

/* Symbols of extents. n_part: threads of the session; n_sm: multiprocessors of the GPU, in grids
 * and in scratch. */
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

/* One piece of a tensor: blocks of rows of a checkpoint tensor, in order, stacked under the pieces
 * before it. The checkpoint tensor, whatever its rank, is viewed as [rows, cols] (leading
 * dimensions flattened); a piece of a vector has cols = 0, and its elements count as rows (of one
 * element each). A file's rank may be lower where a matrix has one row. Row i of the piece (i <
 * n_block * block): b = i / block, file row = first + b * stride + i % block. rope_pairs = d > 0:
 * within each d rows of the piece, the file holds interleaved pairs: piece row i < d/2 is file row
 * 2i, piece row d/2 + i is file row 2i + 1. transpose = r > 0: the file view is a stack of
 * [cols_of_piece, r]-shaped matrices to be transposed, r rows each (r = all rows: one plain
 * transposition). `rows, cols` are the file's, so cols = r; first, block, stride count rows of the
 *   stack after transposition: GPT-2's c_attn is [H, 3H], transpose = 3H, its k is first = H, block
 * = H. unit_rows: each row is divided by its L2 norm (NormHead). arranged: columns lie as the
 * checkpoint's blocks have them, and lack the factors of theirs (formats/scheme.h): x goes through
 * an op `arrange` before. rows_in: a tensor of the checkpoint, F32 [rows]: file row r, as above, is
 * its row rows_in[r] instead (rows of gate and up in the order of the columns of down); NULL: row
 * r. col_total > 0: only columns [col_first, col_first + the tensor's cols) of rows of so many are
 * taken; those of the view, where it is transposed. Quantised rows are cut between blocks; what
 * shares a scale is quantised whole, then cut. stored: the text of the file's dtype where it is not
 * the tensor's, NULL where it is: packing expands its elements and rounds each once to the tensor's
 * f32, f16 or bf16. For blocks that lie along the other dimension, which cannot be transposed as
 * blocks. */
typedef struct PlanSource {
	const char *name;
	int64_t rows, cols;
	int64_t first, block, stride, n_block;
	int64_t rope_pairs, transpose;
	bool unit_rows, arranged;
	int64_t col_first, col_total;
	const char *stored, *rows_in;
	const char
	    *lora; /* module of the adapter that is added while the rows are read; NULL: none */
	int64_t lora_first, lora_block, lora_stride; /* its row for row i that is taken: first + i /
	                                                block * stride + i % block */
} PlanSource;

/* layout: "row": file order, dtype as stored; "f32": dequantised rows (norms, biases): the file may
 * then hold any dtype we read, whatever `dtype` says; others are the packed
 * orders of formats/layout.h, which say how rows and columns are interleaved for a target. */
/* Memory of slots for adapters (lora_down, lora_up, and those of heads): zero until one is loaded.
 * A vector of f32 whose sources say what an adapter's factors are found by: `name` is its module,
 * `lora_*` which of its `rows` are the matrix', `cols` the columns that the right factor has, or,
 * of `col_total`, those from `col_first` on that a rank has.
 *   FACTOR_A   [slots, n_src, rank, cols]: right factors of n_src matrices
 *   FACTOR_B   [slots, rank, n_block * block]: left factor of one, turned, with the adapter's scale in it
 * Of experts: [slots, experts, n_src, rank, ...] either way. An expert's module is `lora` with its
 * number for {e}; where an adapter has those of all experts in one factor, `name` is STEM#PARAMETER
 * of them, of `stride` rows an expert, and the module's row i is row first + i of its expert there.
 */
typedef enum PlanFactor { FACTOR_NONE, FACTOR_A, FACTOR_B } PlanFactor;

typedef struct PlanTensor {
	const char *id;
	Dtype dtype; /* in memory; a checkpoint with f32, f16 or bf16 instead is quantised while it
	                is read */
	int64_t rows, cols; /* vector: rows elements, cols 0 */
	const char *layout;
	int64_t scale_cols; /* columns that share a scale where the rows are quantised while they
	                       are read; 0: a block of dtype */
	bool symmetric; /* and codes are about the middle of their range: no zero point is searched
	                 */
	PlanFactor factor; /* FACTOR_NONE: weights of the checkpoint */
	int slots, rank;   /* of a factor */
	int experts, first_expert,
	    all_experts; /* of a factor of experts: so many from that one on, of all; else 0 */
	int n_src;
	const PlanSource *src;
} PlanTensor;

/* KV pages of PLAN_KV_PAGE positions. Within the page of one layer lie the planes of k, a head
 * each, then those of v, each of as many bytes as its type has for 32 rows (formats/kv_type.h).
 * Planes on processors:
 *   k, plain types      [D][32]: 32 positions contiguous
 *   v, plain types      [32][V]
 *   quantised           codes, then scales (and zeros); packed orders: ref/ref_kv.c; on GPUs: templates/cuda/attention/kv_cache.h
 *   mla                 one plane [32][rank + rope] of type `k`
 * A pool of states has no pages: in each layer an array [kv_heads, k_dim, v_dim] of fp32 for each
 * sequence of the session, by its number. A pool argument of a step of layer l points at that
 * layer's first page; pages of a layer follow each other layer_page_bytes apart. Exact pages:
 * planes of the same heads, of types kv_exact(k) and kv_exact(v), turned as those of the page are.
 * They are numbered as window pages (runtime/kv/kv.h); number w lies (w + 1) x layer_exact_bytes in
 * front of the layer's first page. */
typedef struct PlanPool {
	const char *id;
	bool mla, state; /* latents; states, of type f32 */
	KvType k, v;     /* types of keys and values; mla: the same twice */
	bool rotate;     /* rows of quantised types are turned by a Hadamard matrix */
	int n_layers;    /* layers that use it: index `slot` of a step's pool argument */
	int64_t kv_heads, k_dim, v_dim; /* mla: 1, rank + rope, 0 */
	int64_t keep;                   /* positions needed behind the newest; 0: all */
	int64_t recent, sinks; /* a row reads the last `recent` positions, its own included, and the
	                          first `sinks` from exact pages */
} PlanPool;

typedef struct PlanRope { /* copy of RopeTable: see compiler/spec/spec.h for the meaning */
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
/* A matrix product that a library does: y = beta * add + act w^T. Rows are those of y's extent,
 * widths those of y's and act's; act and w are of w's 16-bit type, w in layout "row". */
typedef struct PlanGemm {
	int act, w, y, add; /* arguments; add -1: none. add may be y's memory */
	double beta;
} PlanGemm;
/* A kernel with a product can be run in two ways: its own one skips launches of PATH_LIBRARY, the
 * library's those of PATH_OWN. */
typedef enum PlanPath { PATH_ANY, PATH_OWN, PATH_LIBRARY, PATH_COUNT } PlanPath;
/* CUDA targets: one launch of a function of the kernel's file. A kernel is all its launches, in
 * order, with the same arguments. */
typedef struct PlanLaunch {
	PlanPath path;
	const char
	    *fn; /* name of the function in the file; NULL: the product, and nothing below it */
	PlanGemm product;
	int block;          /* threads (x) */
	int cluster;        /* blocks of a cluster (x); 1: none */
	bool pdl;           /* may start before what was launched before it has ended */
	PlanExtent grid[3]; /* blocks; all >= 1 */
	int64_t shared;     /* bytes of dynamic shared memory */
	int rounds;   /* 0: once. Else once for so many positions of which a step makes keys and
	               * values (llmc_mla.h), in turn with the   launches beside it that have rounds */
	PlanSym rows; /* left out in steps of fewer or more of these: one, of no step */
	int64_t least, most; /* most 0: no bound */
} PlanLaunch;
/* CUDA targets from sm_90 on: a tensor map over the memory of an argument, seen as rows of `cols`
 * 16-bit elements, as many as it has. Maps are the second parameter of the kernel's functions. */
typedef struct PlanMap {
	int arg;
	int64_t cols;
	int box[2];  /* columns, rows */
	int swizzle; /* bytes: 0, 32, 64, 128 */
} PlanMap;
typedef struct PlanKernel {
	const char *id, *file, *symbol; /* file relative to the artifact */
	int n_map;
	PlanMap map[PLAN_MAX_MAP];
	int n_launch; /* 0: a CPU kernel */
	PlanLaunch launch[PLAN_MAX_LAUNCH];
	int n_arg; /* 0: no kernel, but what kernels of the plan call by this symbol */
	PlanKernelArg arg[PLAN_MAX_ARGS];
} PlanKernel;

typedef enum PlanRefKind { REF_NONE, REF_TENSOR, REF_BUFFER, REF_POOL, REF_ROPE } PlanRefKind;
typedef struct PlanRef {
	PlanRefKind kind;
	int index;
	int layer_slot;
} PlanRef; /* pool: index and layer slot */

typedef struct PlanMake {
	const char *value;
	int arg;
} PlanMake; /* graph value, and the argument that holds it; arg -1: not in memory */

typedef struct PlanStep {
	OpKind op;
	int layer;
	int kernel; /* index, or -1: the reference runs it */
	int n_arg;
	PlanRef arg[PLAN_MAX_ARGS]; /* of the op, then scratch of the kernel */
	int n_attr;
	Attr attr[OP_MAX_ATTRS];
	int n_make;
	PlanMake make[PLAN_MAX_MAKES];
	int yaml_line;
	int64_t weight_bytes; /* all that it may read; what it does: plan_step_weights */
	int64_t flops_per_row;
} PlanStep;

typedef struct PlanPhase {
	const char *id;
	int n_step;
	PlanStep *step;
} PlanPhase; /* "decode": one row a sequence; "mixed": any */

typedef struct Plan {
	int format, step_abi;
	llmc_output output; /* what a row of `logits` is; written where it is something else */
	const char *name, *family, *spec_sha256,
	    *target;       /* target: ref, cpu-generic, cpu-v3, cpu-v4, cuda-sm_75 ... */
	int rank, ranks;   /* of layers that are split: 0 <= rank < ranks; else 0 of 1 */
	int stage, stages; /* of a pipeline: 0 <= stage < stages; else 0 of 1 */
	int64_t window; /* over stages: the most that a pool of any of them keeps, whose pages all
	                   number alike; 0: all positions, or one stage */
	int64_t vocab, vocab_used, hidden, max_positions;
	int n_layers;
	bool hard_limit,
	    prompt_whole; /* prompt_whole: the prompt runs in one chunk (prefix mask) */
	int32_t prefix_mark, prefix_end;
	const char *prompt_prefix; /* or NULL */
	int64_t kv_host; /* bytes of host memory for pages that the prefix cache would forget; 0:
	                    none */
	const char *checkpoint; /* hf | gguf */
	const char *weights;    /* path relative to the artifact or absolute; NULL */
	const char *lora;       /* folder of an adapter; NULL: none, and no source names one */
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
	PlanExtent *slot; /* memory that buffers take turns in: bytes */
	int n_buffer;
	PlanBuffer *buffer;
	int n_kernel;
	PlanKernel *kernel;
	int n_phase;
	PlanPhase *phase;            /* [0] decode, [1] mixed */
	bool hands_rows, takes_rows; /* a head that guesses reads this plan's rows; this is such a
	                                head, whose tokens come with a row each */
	int rows;   /* hands_rows: buffer [n_tok, hidden] f32 that holds, behind a step, its rows as
	               the final norm leaves them */
	int logits; /* buffer holding the output [n_out, plan_out_width] f32: logits [n_out, vocab];
	             * of a stage before the last the stream [n_tok, hidden] */
} Plan;

/* A stage before the last one: it hands on the residual stream, and has no logits. */
static inline bool
plan_hands_on(const Plan *p)
{
	return p->stage + 1 < p->stages;
}

/* Of the model's output, whichever stage makes it */
static inline int64_t
plan_out_width(const Plan *p)
{
	return p->output == LLMC_OUTPUT_LOGITS   ? p->vocab
	       : p->output == LLMC_OUTPUT_HIDDEN ? p->hidden
	                                         : p->buffer[p->logits].extent.mul;
}

/* Attributes of a step */
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

/* How symbols, directions and paths are written */
extern const char *const plan_output_name[3]; /* "logits", "hidden", "labels" */
extern const char *const plan_sym_text[SYM_COUNT], *const plan_dir_text[DIR_COUNT],
                                                       *const plan_path_text[PATH_COUNT];

/* Bytes of one layer's page of a pool; 0: it has none, being of states. -1: overflow */
int64_t plan_layer_page_bytes(const PlanPool *p);
/* Bytes of one layer's exact page; 0: the pool has none. -1: overflow */
int64_t plan_layer_exact_bytes(const PlanPool *p);
/* Bytes of a page in all layers of all pools, exact ones included; -1: overflow */
int64_t plan_page_bytes(const Plan *p);
/* Bytes of one layer's state of a sequence; 0: the pool is of pages. -1: overflow */
int64_t plan_layer_state_bytes(const PlanPool *p);
/* Do mixed steps' kernels of it run in decode steps of more rows than theirs stream matrices past
 * at a time? Then all that makes and reads a value does so together. */
bool plan_mixed_serves(const PlanStep *p);
bool plan_has_state(const Plan *p); /* does any pool hold states? */
bool plan_launch_runs(const PlanLaunch *u,
                      const int64_t sym[SYM_COUNT]); /* in a step of so many rows */
int64_t plan_extent_elems(const PlanExtent *e, const int64_t sym[SYM_COUNT]); /* -1: overflow */
/* a, elements of a_bytes, is at most b, elements of b_bytes, for all values of the symbols. */
bool plan_extent_within(const PlanExtent *a, int64_t a_bytes, const PlanExtent *b, int64_t b_bytes);
int64_t plan_slot_bytes(const Plan *p, int slot,
                        const int64_t sym[SYM_COUNT]); /* a multiple of 256; -1: overflow */
/* Is this a tensor map of an argument of k that hardware has? */
bool plan_map_fits(const PlanMap *m, const PlanKernel *k);
/* The kernel's product; NULL: it has none. */
const PlanGemm *plan_library_gemm(const PlanKernel *k);
/* Are the launches of k one way to run it, or two with one product of its arguments? Otherwise why
 * not. */
bool plan_paths_fit(const PlanKernel *k, const char **why);
/* Bytes of a tensor in memory in its layout; -1: bad shape for the layout */
int64_t plan_tensor_bytes(const PlanTensor *t);
int64_t plan_source_row(
    const PlanSource *s,
    int64_t i); /* of the file, or of its transposed view: where row i of the piece is */
Dtype plan_source_dtype(const PlanTensor *t,
                        const PlanSource *s); /* of the file; DT_NONE: `stored` is no type */
/* Weight bytes that a step of so many rows reads once: of stacked experts those that are chosen,
 * when each row chooses by chance. */
int64_t plan_step_weights(const Plan *p, const PlanStep *s, int64_t rows);
/* What reading the cache costs: bytes of a position, operations on one for each row that sees it.
 * False: the step reads none. */
bool plan_step_cache(const Plan *p, const PlanStep *s, int64_t *bytes, int64_t *ops);
/* Positions that a row of such a step reads at most: of a window, or chosen; 0: all that it sees */
int64_t plan_step_reach(const PlanStep *s);
/* A row of a tensor in memory as fp32: dst [cols]; a vector's row 0 is all of it */
void plan_tensor_row(const PlanTensor *t, const void *data, int64_t row, float *dst);

/* plan_read.c: strict: unknown or missing keys, ranges, duplicate ids, bad references are errors
 * that name the place. plan_check.c: bounds proved: every kernel or op argument within its buffer
 * for all values of the symbols. */
llmc_status plan_read(const char *text, size_t size, const char *name, Arena *arena, Plan **out,
                      llmc_error *err);
llmc_status plan_check(const Plan *p, llmc_error *err);
/* plan_write.c (used by the compiler): deterministic JSON, one line a tensor, kernel, step */
void plan_write(const Plan *p, Strbuf *out);

#endif
