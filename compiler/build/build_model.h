/* Builder and common equations, shared by the files that build a graph from a Spec. Most functions
 * append one op and return its result. Names of values are relative to the layer being built. */
#ifndef LLMC_COMPILER_BUILD_BUILD_MODEL_H
#define LLMC_COMPILER_BUILD_BUILD_MODEL_H

#include <string.h>

#include "compiler/graph.h"

typedef struct ModelBuilder {
	Graph *g;
	const Spec *s;
	int layer;          /* -1: outside of the layers */
	Loc loc;            /* location of the YAML key that the ops being built come from */
	int rope[2], rope2; /* values of the rope tables; rope2: table of the second axis */
	/* [n_layers] values: cache that the layer reads, and the append to it; -1: no attention */
	int *pool, *done;
	int *index;         /* [n_layers] values: pool of indexer keys; -1: no indexer */
	int sel;            /* positions selected by the last indexer; -1: there was none */
	int *conv, *state;  /* [n_layers] values of recurrent layers; -1 for other layers */
	int embedded;       /* value of the embedded tokens */
	int images;         /* value of the rows of images */
	int deep[MAX_DEEP]; /* tower: rows of the layers in vision.deep */
	int stream_norm,
	    stream_router; /* weights of the layer that prediction and correction share */
	int ple;           /* per-layer embeddings of all layers, [T, n_layers * width]; -1: none */
	struct {
		int x, y;
		const char *order, *factor;
	} permuted[8]; /* the layer's last permuted inputs, for reuse */
	int n_permuted;
} ModelBuilder;

/* build_ops.c */
int build_value(ModelBuilder *b, const char *name);
int build_matrix(ModelBuilder *b, const char *role, int64_t rows, int64_t cols);
int build_bias(ModelBuilder *b, bool wanted, const char *role, int64_t rows);
/* Append an op with its arguments; the caller sets the attributes. */
Op *build_op(ModelBuilder *b, OpKind kind, const int *arg);
#define OP(b, kind, ...) build_op(b, OP_##kind, OP_ARGS(kind, __VA_ARGS__))
void build_at(ModelBuilder *b, const char *key);
/* Permute x into the column order of the role's matrix. Matrices with the same order share one
 * value. */
int build_permute_cols(ModelBuilder *b, int x, const char *role, int64_t cols);
/* y = x w^T + b */
int build_matmul(ModelBuilder *b, int x, const char *role, bool with_bias, int64_t rows,
                 int64_t cols, const char *name);
/* RMSNorm; role NULL: without weights. */
int build_rmsnorm(ModelBuilder *b, int x, const char *role, int64_t dim, int64_t groups, double eps,
                  bool plus_one, const char *name);
/* LayerNorm; role NULL: without weights and bias; each: with weights per group and without bias. */
int build_layernorm(ModelBuilder *b, int x, const char *role, int64_t dim, int64_t groups,
                    bool each, double eps, const char *name);
/* Norm of the stream, of the kind in the description; returns x if not wanted. */
int build_norm(ModelBuilder *b, bool wanted, int x, const char *role, const char *name);
/* y[j] = w[j] * x[j], where w is the vector of the role. */
int build_times(ModelBuilder *b, int x, const char *role, int64_t width, const char *name);
/* y = scale * x. With a role, also times a number in the checkpoint. */
int build_gain(ModelBuilder *b, int x, const char *role, double scale, int64_t width,
               const char *name);
/* y = scale * x; returns x if scale is 1. The _part form scales only some columns. */
int build_scaled(ModelBuilder *b, int x, double scale, int64_t width, const char *name);
int build_scaled_part(ModelBuilder *b, int x, double scale, int64_t width, int64_t first,
                      int64_t count, const char *name);
/* y = scale * x + r, for rows of any size. */
int build_add_wide(ModelBuilder *b, int x, int r, double scale, int64_t width, const char *name);
int build_add(ModelBuilder *b, int x, int r, double scale, const char *name);
int build_slice(ModelBuilder *b, int x, int64_t width, int64_t first, int64_t count,
                const char *name);
const char *build_act_word(ActKind a);

/* build_tower.c: rows of `width` elements that the caller passes with the tokens */
int build_given_rows(ModelBuilder *b, const char *key, const char *name, int64_t width);

/* build_draft.c */
/* Input of an MTP head: the row of each token, concatenated with the token's embedding. */
int build_head_stream(ModelBuilder *b, int rows);
/* Stream of a draft checkpoint before its first layer. A row of input has a row of the model and a
 * row of this plan, of which one is zeros. The sum of their projections is therefore the projection
 * of the other one. */
int build_draft_stream(ModelBuilder *b, int rows);
/* Input of attention in the first layer of a draft checkpoint: the norm of the token's embedding
 * and the norm of the stream, concatenated. *x: the stream; the residual may continue from its
 * norm */
int build_draft_input(ModelBuilder *b, int *x);
void build_draft_tokens(ModelBuilder *b);
/* Streams that a draft checkpoint reads, concatenated in the order of mtp.from. at [n_layers + 1]:
 * the stream before each layer, and after the last */
int build_joined_streams(ModelBuilder *b, const int *at);
/* Stream of a tower before its first layer */
int build_patches(ModelBuilder *b);
/* Rows of images that the caller passes with the tokens of a language model */
int build_given_images(ModelBuilder *b);
/* Embeddings x of a language model, where rows of images replace those of image tokens */
int build_image_rows(ModelBuilder *b, int x);
/* End of a tower: its norm, merger and projector */
void build_tower_end(ModelBuilder *b, int x);
/* Output x of layer l of a language model, plus a part of the image row in image tokens */
int build_deep_rows(ModelBuilder *b, int x, int l);
/* If vision.deep names layer l of a tower, merge and project the layer's output x. */
void build_tower_deep(ModelBuilder *b, int x, int l);

/* build_streams.c: parallel streams [T, count * hidden]. Functions make them from the embedded
 * tokens, predict them before a layer, extract the active one, correct them with the layer's
 * result, add per-layer embeddings, and merge them after the last layer. */
int build_streams(ModelBuilder *b, int x);
int build_stream_predict(ModelBuilder *b, int all);
int build_stream_active(ModelBuilder *b, int all, const char *name);
int build_stream_correct(ModelBuilder *b, int all, int a);
int build_stream_add(ModelBuilder *b, int all, int z);
int build_stream_merge(ModelBuilder *b, int all);

/* build_attention.c: attention or recurrent block of the layer. h: norm of the stream */
int build_attention(ModelBuilder *b, int h);
/* Shared block before the layer's own block. Reads the stream x and the embedded tokens. */
int build_shared(ModelBuilder *b, int x);

/* build_ffn.c: dense feed-forward or experts. h: norm of the stream x. The router may have its own
 * norm of x. */
int build_dense(ModelBuilder *b, int h);
int build_moe(ModelBuilder *b, int h, int x);

#endif
