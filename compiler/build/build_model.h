/* Shared by the files that build a graph from a Spec: the builder and common equations. Each
 * function appends one op and returns its result. Names are relative to the layer being built. */
#ifndef LLMC_COMPILER_BUILD_BUILD_MODEL_H
#define LLMC_COMPILER_BUILD_BUILD_MODEL_H

#include <string.h>

#include "compiler/graph.h"

typedef struct ModelBuilder {
	Graph *g;
	const Spec *s;
	int layer;          /* -1 outside the layers */
	Loc loc;            /* location of the YAML key that the ops being built come from */
	int rope[2], rope2; /* values of rope tables; rope2: second axis */
	/* [n_layers] values: the cache that the layer reads, and its append; -1: no attention */
	int *pool, *done;
	int *index;         /* [n_layers] values: pool of indexer keys; -1: no indexer */
	int sel;            /* positions selected by the last indexer; -1: none before */
	int *conv, *state;  /* [n_layers] values for recurrent layers; else -1 */
	int embedded;       /* the embedded tokens */
	int images;         /* rows of the images */
	int deep[MAX_DEEP]; /* tower: rows of its layers vision.deep */
	int stream_norm,
	    stream_router; /* weights of the layer shared by prediction and correction */
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
/* Rms norm; role NULL: without weights. */
int build_rmsnorm(ModelBuilder *b, int x, const char *role, int64_t dim, int64_t groups, double eps,
                  bool plus_one, const char *name);
/* Layer norm; role NULL: without weights and bias; each: weights per group and no bias. */
int build_layernorm(ModelBuilder *b, int x, const char *role, int64_t dim, int64_t groups,
                    bool each, double eps, const char *name);
/* Norm of the stream, of the description's kind; returns x if there is none. */
int build_norm(ModelBuilder *b, bool wanted, int x, const char *role, const char *name);
/* y[j] = w[j] * x[j], w the vector of the role */
int build_times(ModelBuilder *b, int x, const char *role, int64_t width, const char *name);
/* y = scale * x; with a role, times that number of the checkpoint too. */
int build_gain(ModelBuilder *b, int x, const char *role, double scale, int64_t width,
               const char *name);
/* y = scale * x; returns x if scale is 1. The _part form scales only some columns. */
int build_scaled(ModelBuilder *b, int x, double scale, int64_t width, const char *name);
int build_scaled_part(ModelBuilder *b, int x, double scale, int64_t width, int64_t first,
                      int64_t count, const char *name);
/* y = scale * x + r for rows of any size. */
int build_add_wide(ModelBuilder *b, int x, int r, double scale, int64_t width, const char *name);
int build_add(ModelBuilder *b, int x, int r, double scale, const char *name);
int build_slice(ModelBuilder *b, int x, int64_t width, int64_t first, int64_t count,
                const char *name);
const char *build_act_word(ActKind a);

/* build_tower.c: rows of `width` elements that come with the tokens */
int build_given_rows(ModelBuilder *b, const char *key, const char *name, int64_t width);

/* build_draft.c */
/* Input of an MTP head: each token's row concatenated with the token's embedding. */
int build_head_stream(ModelBuilder *b, int rows);
/* Stream of a draft checkpoint before its first layer. A row holds one of the model and one of this
 * plan; the absent one is zeros, so the sum is the projection of the former or the latter as it
 * is. */
int build_draft_stream(ModelBuilder *b, int rows);
/* Input of attention in the first layer of a draft checkpoint: the normed embedding of the token
 * and the normed stream, concatenated. *x: the stream, which may continue from its norm. */
int build_draft_input(ModelBuilder *b, int *x);
void build_draft_tokens(ModelBuilder *b);
/* Streams that a draft checkpoint reads, joined in the order of mtp.from. at [n_layers + 1]: the
 * stream before each layer and after the last */
int build_joined_streams(ModelBuilder *b, const int *at);
/* Stream of a tower before its first layer */
int build_patches(ModelBuilder *b);
/* Rows of images that come with the tokens of a language model */
int build_given_images(ModelBuilder *b);
/* Embeddings x of a language model, with those of image tokens replaced */
int build_image_rows(ModelBuilder *b, int x);
/* End of a tower: its norm, merger and projector */
void build_tower_end(ModelBuilder *b, int x);
/* Output x of layer l of a language model, with a part of the image rows added to image tokens */
int build_deep_rows(ModelBuilder *b, int x, int l);
/* Merge and project the output x of layer l of a tower if vision.deep names the layer. */
void build_tower_deep(ModelBuilder *b, int x, int l);

/* build_streams.c: parallel streams [T, count * hidden]. Make them from the embedded tokens;
 * predict them before a layer; extract the active one; correct them with the layer's result; add
 * per-layer embeddings; merge them after the last layer. */
int build_streams(ModelBuilder *b, int x);
int build_stream_predict(ModelBuilder *b, int all);
int build_stream_active(ModelBuilder *b, int all, const char *name);
int build_stream_correct(ModelBuilder *b, int all, int a);
int build_stream_add(ModelBuilder *b, int all, int z);
int build_stream_merge(ModelBuilder *b, int all);

/* build_attention.c: attention or recurrent block of the layer over the normed stream h */
int build_attention(ModelBuilder *b, int h);
/* Shared block before the layer's own block, over the stream x and the embedded tokens. */
int build_shared(ModelBuilder *b, int x);

/* build_ffn.c: feed-forward over the normed stream h; experts, whose router may have its own norm
 * over the stream x */
int build_dense(ModelBuilder *b, int h);
int build_moe(ModelBuilder *b, int h, int x);

#endif
