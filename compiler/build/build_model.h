/* Between the files that make a graph of a Spec: what is being built, and the equations that all of
 * them use. Each makes one op and returns its result's value; names are those of the layer being
 * built. */
#ifndef LLMC_COMPILER_BUILD_BUILD_MODEL_H
#define LLMC_COMPILER_BUILD_BUILD_MODEL_H

#include <string.h>

#include "compiler/graph.h"

typedef struct ModelBuilder {
	Graph *g;
	const Spec *s;
	int layer;          /* -1 outside the layers */
	Loc loc;            /* of the YAML key that the ops being made come from */
	int rope[2], rope2; /* values of the tables; rope2: second axis */
	int *pool, *done;   /* [n_layers] values: the cache that a layer reads, and that it has been
	                       appended to; -1: the layer has no attention */
	int *index; /* [n_layers] values: the pool of the indexer's keys; -1: the layer has none */
	int sel;    /* positions that the last indexer chose; -1: none before */
	int *conv, *state; /* [n_layers] of layers that keep a state; else -1 */
	int embedded;      /* the embedded tokens */
	int stream_norm,
	    stream_router; /* weights of this layer, which prediction and correction share */
	int ple; /* what per-layer embeddings bring to all layers, side by side; -1: none */
	struct {
		int x, y;
		const char *order, *factor;
	} arranged[8]; /* of this layer, the last of them */
	int n_arranged;
} ModelBuilder;

/* build_ops.c */
int build_value(ModelBuilder *b, const char *name);
int build_matrix(ModelBuilder *b, const char *role, int64_t rows, int64_t cols);
int build_bias(ModelBuilder *b, bool wanted, const char *role, int64_t rows);
/* An op with its arguments; attributes are set by the caller. */
Op *build_op(ModelBuilder *b, OpKind kind, const int *arg);
#define OP(b, kind, ...) build_op(b, OP_##kind, OP_ARGS(kind, __VA_ARGS__))
void build_at(ModelBuilder *b, const char *key);
/* x as the columns of the role's matrix are stored; one value for all that are alike */
int build_permute_cols(ModelBuilder *b, int x, const char *role, int64_t cols);
/* y = x w^T + b */
int build_matmul(ModelBuilder *b, int x, const char *role, bool with_bias, int64_t rows,
                 int64_t cols, const char *name);
/* role NULL: without weights */
int build_rmsnorm(ModelBuilder *b, int x, const char *role, int64_t dim, int64_t groups, double eps,
                  bool plus_one, const char *name);
/* role NULL: without weights and bias; each: every group has weights of its own, and no bias */
int build_layernorm(ModelBuilder *b, int x, const char *role, int64_t dim, int64_t groups,
                    bool each, double eps, const char *name);
/* The norm of the stream: of the description's kind; x itself where there is none. */
int build_norm(ModelBuilder *b, bool wanted, int x, const char *role, const char *name);
/* y = scale * x, or with a role that number of the checkpoint times it */
int build_gain(ModelBuilder *b, int x, const char *role, double scale, int64_t width,
               const char *name);
/* y = scale * x, or x itself for a scale of 1; of a part of the row */
int build_scaled(ModelBuilder *b, int x, double scale, int64_t width, const char *name);
int build_scaled_part(ModelBuilder *b, int x, double scale, int64_t width, int64_t first,
                      int64_t count, const char *name);
/* y = scale * x + r, of any width */
int build_add_wide(ModelBuilder *b, int x, int r, double scale, int64_t width, const char *name);
int build_add(ModelBuilder *b, int x, int r, double scale, const char *name);
int build_slice(ModelBuilder *b, int x, int64_t width, int64_t first, int64_t count,
                const char *name);
const char *build_act_word(ActKind a);

/* build_streams.c: streams side by side, [T, count * hidden]: made of the embedded tokens;
 * predicted in front of a layer; the one that it works on; corrected by what the layer made of
 * that; with what per-layer embeddings add; merged into one behind the last layer */
int build_streams(ModelBuilder *b, int x);
int build_stream_predict(ModelBuilder *b, int all);
int build_stream_active(ModelBuilder *b, int all, const char *name);
int build_stream_correct(ModelBuilder *b, int all, int a);
int build_stream_add(ModelBuilder *b, int all, int z);
int build_stream_merge(ModelBuilder *b, int all);

/* build_attention.c: attention of the layer, or what stands in its place, of the normed stream h */
int build_attention(ModelBuilder *b, int h);
/* The block in front of a layer's own whose weights layers share, of the stream x and the embedded
 * tokens */
int build_shared(ModelBuilder *b, int x);

/* build_ffn.c: the feed-forward of the normed stream h; experts, whose router may have a norm of
 * its own over the stream x */
int build_dense(ModelBuilder *b, int h);
int build_moe(ModelBuilder *b, int h, int x);

#endif
