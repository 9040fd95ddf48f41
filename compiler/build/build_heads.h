/* Parts of the first block of a layer. */
#ifndef LLMC_COMPILER_BUILD_BUILD_HEADS_H
#define LLMC_COMPILER_BUILD_BUILD_HEADS_H

#include "compiler/build/build_model.h"

/* build_heads.c */
/* Rotate dims [first, first + rotated dims of the layer) of each head, in pairs of the given
 * style. */
int build_rotate_as(ModelBuilder *b, int x, int64_t heads, int64_t dim, int64_t first,
                    const char *style, const char *name);
int build_rotate(ModelBuilder *b, int x, int64_t heads, int64_t dim, int64_t first,
                 const char *name);
/* Norm of q or k, if the description has it at this position. */
int build_qk_norm(ModelBuilder *b, bool after, int x, const char *role, int64_t heads,
                  const char *name);
/* Clamp q, k or v to attention.qkv_limit, if it is set. */
int build_clamped(ModelBuilder *b, int x, int64_t width, const char *name);
/* Scale queries by position (attention.temperature). The op follows the append, because fusion
 * writes queries after it. */
int build_q_temperature(ModelBuilder *b, int q, int64_t width);
/* Append keys and values to the layer's cache. The result orders the append before its readers. */
int build_append(ModelBuilder *b, int k, int v, const HeadShape *shape);
/* Attention of q over the layer's cache, after `done`. */
int build_attend(ModelBuilder *b, int q, int done, const HeadShape *shape);

/* build_mla.c */
/* The cache holds the normed latent and one rotated key; k_b and v_b remain separate factors. If an
 * indexer also reads the query latent, the GEMM of kv_a comes first, because fuse_mla merges q_a
 * and kv_a there. The indexer precedes the append, where the fused attention will be. */
int build_mla(ModelBuilder *b, int h);

/* build_recurrent.c */
/* Gated delta rule: q, k and v through one convolution, a recurrent state per head, and a norm
 * gated by another projection. */
int build_delta_rule(ModelBuilder *b, int h);
/* out(c * conv(b * x)) */
int build_short_conv(ModelBuilder *b, int h);
/* Selective scan of Mamba: only u passes through the convolution; dt, B and C are projected from
 * its output; rates are per channel. */
int build_channel_scan(ModelBuilder *b, int h);
/* Selective scan of Mamba2: [u | B | C] through one convolution, a recurrent state per head, and a
 * gated norm. */
int build_scan(ModelBuilder *b, int h);

#endif
