/* Functions that build parts of the first block of a layer */
#ifndef LLMC_COMPILER_BUILD_BUILD_HEADS_H
#define LLMC_COMPILER_BUILD_BUILD_HEADS_H

#include "compiler/build/build_model.h"

/* build_heads.c */
/* Rotate dims [first, first + rotated dims of the layer) of each head. style: which dimensions form
 * a pair */
int build_rotate_as(ModelBuilder *b, int x, int64_t heads, int64_t dim, int64_t first,
                    const char *style, const char *name);
int build_rotate(ModelBuilder *b, int x, int64_t heads, int64_t dim, int64_t first,
                 const char *name);
/* Return the norm of q or k, if the description has a norm at this position (before or after rope);
 * otherwise x. */
int build_qk_norm(ModelBuilder *b, bool after, int x, const char *role, int64_t heads,
                  const char *name);
/* Clamp q, k or v to attention.qkv_limit, if it is set. */
int build_clamped(ModelBuilder *b, int x, int64_t width, const char *name);
/* Scale queries by position (attention.temperature). The op follows the append, because fusion
 * writes the queries after the append. */
int build_q_temperature(ModelBuilder *b, int q, int64_t width);
/* Append keys and values to the layer's cache. Readers of the cache use the result as an argument,
 * which orders them after the append. */
int build_append(ModelBuilder *b, int k, int v, const HeadShape *shape);
/* Attention of q over the layer's cache. done: result of the append */
int build_attend(ModelBuilder *b, int q, int done, const HeadShape *shape);

/* build_mla.c */
/* Latent attention. The cache holds the normed latent and one rotated key; k_b and v_b remain
 * separate factors. If an indexer also reads the query latent, the GEMM of kv_a comes first,
 * because fuse_mla merges q_a and kv_a at that position. The indexer precedes the append, because
 * the fused attention replaces the append. */
int build_mla(ModelBuilder *b, int h);

/* build_recurrent.c */
/* Gated delta rule: q, k and v pass through one convolution; each head has a recurrent state;
 * another projection gates the norm of the output. */
int build_delta_rule(ModelBuilder *b, int h);
/* out(c * conv(b * x)) */
int build_short_conv(ModelBuilder *b, int h);
/* Selective scan of Mamba. Only u passes through the convolution; dt, B and C are projected from
 * its output. Each channel has its own rates. */
int build_channel_scan(ModelBuilder *b, int h);
/* Selective scan of Mamba2: [u | B | C] pass through one convolution; each head has a recurrent
 * state; the norm of the output is gated. */
int build_scan(ModelBuilder *b, int h);

#endif
